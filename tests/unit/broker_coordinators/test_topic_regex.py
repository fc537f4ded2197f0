"""Goal: patterns of topics are RE2's, match whole names, and cost no more than they should.

Method: what both understand is compared with Python's own engine on random names; refusals have
RE2's words as seen on Apache Kafka.
"""

from __future__ import annotations

import contextlib
import random
import re

import pytest

from onceflow.broker_lite.coordinators.consumer import topic_regex
from onceflow.broker_lite.coordinators.consumer.topic_regex import (
    PATTERN_MAX,
    RegexError,
    TopicRegex,
)

PATTERNS = [
    "a", "a*", "a+b?", "(ab)*", "(?:ab|a)+", "orders.*", "[a-c]+", "[^a]+", "(?i)ORDERS.*",
    r"orders[-.]\d", "a{2,3}", "a{0,2}b", "(a|b){2,4}", ".*", "", r"\w+", "^a.b$", "(?P<x>a)b",
    "a|ab|abc", "b{3}", "(?i:o)rders", "(a?){3}b", r"\Aab", r"[a\-c]+", "[]a]+", "^$|a",
    r"a\.b|foo\.bar", r"[\w.]+", r"\D+", "a{2,}", "(a*)*b", "(?:(?:a|b)c?)*", "[a-]+", "a*?b+?",
]  # fmt: skip


def names(rng: random.Random) -> list[str]:
    fixed = ["", "a", "ab", "abc", "orders", "orders-1", "orders.2", "Orders_x", "foo.bar", "a.b"]
    return fixed + ["".join(rng.choices("abc.-_1O", k=rng.randint(1, 8))) for _ in range(60)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_as_python_where_both_understand(pattern: str) -> None:
    compiled, python = TopicRegex(pattern), re.compile(pattern)
    for name in names(random.Random(pattern)):
        assert compiled.matches(name) == bool(python.fullmatch(name)), name


@pytest.mark.parametrize(
    ("pattern", "name"),
    [(r"\Qa.b\E+", "a.bb"), ("[[:alpha:]]+", "abc"), (r"ab\z", "ab"), ("(?<n>a)b", "ab"),
     (r"\x61b", "ab"), ("(?i)a(?-i)b", "Ab"), ("a{,2}", "a{,2}")],
)  # fmt: skip
def test_what_only_re2_writes_so(pattern: str, name: str) -> None:
    compiled = TopicRegex(pattern)
    assert compiled.matches(name)
    assert not compiled.matches(name + "!")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("(", "missing closing )"), ("a)", "unexpected )"), ("[", "missing closing ]"),
     ("*", "missing argument to repetition operator"),
     ("a**", "invalid nested repetition operator"), ("\\", "trailing backslash"),
     ("(?=a)", "invalid or unsupported Perl syntax"), (r"\1", "invalid escape sequence"),
     (r"\p{L}", "invalid escape sequence"), ("a{1001}", "invalid repeat count"),
     ("a{3,2}", "invalid repeat count"), ("[b-a]", "invalid character class range"),
     ("((a{1000}){1000}){1000}", "too large"), ("(" * 200, "nests too deeply"),
     ("x" * (PATTERN_MAX + 1), "longer than"), ("(?P<1>a)", "invalid named capture")],
)  # fmt: skip
def test_refusals(pattern: str, words: str) -> None:
    with pytest.raises(RegexError, match=re.escape(words)):
        TopicRegex(pattern)


def test_states_and_not_tries_are_followed() -> None:
    """With an engine that tries and goes back this would not end."""
    assert not TopicRegex("(a|a)*(a|a)*(a|a)*(a*)*b").matches("a" * 249)


@pytest.mark.parametrize(
    "pattern", ["(?:.*){50}b", "(?:.?){999}", "(?:.*){900}", "(?:[a-m]?[n-z]?[a-z_]?){300}x",
                "(?:a|b|.)*a(?:.){400}"]
)  # fmt: skip
def test_a_pattern_for_all_topics_looks_at_a_bounded_number_of_states(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One heartbeat must not hold up everybody, however many topics there are."""
    looked_at = 0

    def counted(states: list[topic_regex._State], **at: bool) -> list[topic_regex._State]:
        nonlocal looked_at
        found = followed(states, **at)
        looked_at += len(found)
        return found

    followed = topic_regex._closure
    monkeypatch.setattr(topic_regex, "_closure", counted)
    rng = random.Random(9)
    topics = ["".join(rng.choices("abnz._-19", k=rng.randint(1, 249))) for _ in range(1_000)]
    with contextlib.suppress(RegexError):
        assert isinstance(TopicRegex(pattern).select(topics), frozenset)
    assert looked_at <= topic_regex.WORK_MAX + topic_regex.STATES_MAX


def test_many_names_of_topics_are_cheap_for_ordinary_patterns() -> None:
    names = [f"{kind}.{number}-{part}" for kind in ("orders", "users") for number in range(500)
             for part in ("raw", "v2")]  # fmt: skip
    for pattern in ("orders.*", r"(?:orders|users)\.\d{1,3}-(?:raw|v\d)", "|".join(names[:60])):
        python = re.compile(pattern)
        assert TopicRegex(pattern).select(names) == {n for n in names if python.fullmatch(n)}


def test_random_text_is_refused_or_compiled() -> None:
    rng = random.Random(5)
    for _ in range(3_000):
        text = "".join(rng.choices("ab()[]{}*+?|\\^$.,-:<>P12iE", k=rng.randint(1, 14)))
        try:
            compiled = TopicRegex(text)
        except RegexError:
            continue
        compiled.matches("ab12")
