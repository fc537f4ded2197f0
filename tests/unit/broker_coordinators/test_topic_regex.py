"""Goal: patterns of topics are RE2's, match whole names, and cost no more than they should.

Method: what both understand is compared with Python's own engine on random names; refusals have
RE2/J's words as seen on Apache Kafka.
"""

from __future__ import annotations

import random
import re
import sys
from typing import ClassVar

import pytest

from onceflow.broker_lite.coordinators.consumer import topic_regex
from onceflow.broker_lite.coordinators.consumer.topic_regex import (
    PATTERN_MAX,
    RegexEngineMissingError,
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
     ("a{1001}", "invalid repeat count"), ("a{3,2}", "invalid repeat count"),
     ("[b-a]", "invalid character class range"),
     ("((a{100}){100}){1000}", "invalid repeat count"), ("(?:.?){999}", "too large"),
     ("é\u4e00", "names of topics are ASCII"), ("x" * (PATTERN_MAX + 1), "longer than"),
     ("(?P<!>a)", "invalid named capture")],
)  # fmt: skip
def test_refusals(pattern: str, words: str) -> None:
    with pytest.raises(RegexError, match=re.escape(words)):
        TopicRegex(pattern)


def test_states_and_not_tries_are_followed() -> None:
    """With an engine that tries and goes back this would not end."""
    assert not TopicRegex("(a|a)*(a|a)*(a|a)*(a*)*b").matches("a" * 249)


def test_a_new_pattern_may_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One heartbeat must not hold up everybody; a pattern that is in use is looked up all the
    same, as nothing of it may be lost."""
    monkeypatch.setattr(topic_regex, "CPU_SECONDS_MAX", -1.0)
    with pytest.raises(RegexError, match="too many steps"):
        TopicRegex("a.*").select(["ab"], bounded=True)
    assert TopicRegex("a.*").select(["ab", "b"]) == {"ab"}
    with pytest.raises(RegexError, match="too many steps"):
        topic_regex.select(["ab"], "a.*")


def test_names_are_looked_at_once() -> None:
    class Counting(TopicRegex):
        asked: ClassVar[list[str]] = []

        def matches(self, name: str) -> bool:
            self.asked.append(name)
            return super().matches(name)

    pattern = Counting("a.*")
    assert pattern.select(["ab", "b"]) == {"ab"}
    assert pattern.select(["ab", "b", "ac"]) == {"ab", "ac"}
    assert pattern.select(["b"]) == frozenset()
    assert pattern.select(["ab"]) == {"ab"}  # what went is forgotten
    assert pattern.asked == ["ab", "b", "ac", "ab"]


def test_without_the_engine_patterns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(RegexEngineMissingError, match=r"pip install 'onceflow\[re2\]'"):
        TopicRegex("a.*")


@pytest.mark.parametrize("name", ["orders/é-1", "名前", "a\nb", ""])
def test_other_names_may_hold_anything(name: str) -> None:
    assert topic_regex.select([name], r"(?s).*") == {name}
    assert topic_regex.select([name], r"(?s).") == ({name} if len(name) == 1 else set())


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
