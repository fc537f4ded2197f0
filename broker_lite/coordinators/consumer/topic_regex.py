"""Patterns in the syntax of RE2, by which members of groups choose topics (KIP-848).

google-re2 matches them, in time that grows with the length of a name only; it is optional
(``pip install 'onceflow[re2]'``), and without it a pattern is refused. A pattern comes from the
network: this module bounds its size, its memory, and how long all names together may take. A name
must match as a whole, as in Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

PATTERN_MAX: Final = 1_024
"""Longest pattern in characters."""

PROGRAM_MAX: Final = 1_000
"""Most instructions of a compiled pattern; one character of a name costs each at most once."""

MEMORY_BYTES_MAX: Final = 262_144
"""Most memory for a compiled pattern and the states that RE2 keeps of it."""

CPU_SECONDS_MAX: Final = 0.2
"""Longest time for a new pattern and all names, in which the broker does nothing else. CPU time:
other programs on the machine do not shorten it."""

_KAFKAS_WORDS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression is too large",
}
"""RE2's messages, and those of RE2/J for the same faults, which Apache Kafka passes on."""


class RegexError(ValueError):
    """The pattern is invalid or too costly; the message says why, in RE2/J's words."""


class RegexEngineMissingError(RegexError):
    """google-re2 is not installed beside the broker."""


class TopicRegex:
    """A compiled pattern; it caches its results for names."""

    __slots__ = ("_compiled", "_known", "_unicode", "pattern")

    def __init__(self, pattern: str, *, unicode: bool = False) -> None:
        """Compile a pattern.

        Args:
            pattern: The pattern.
            unicode: Names may hold any characters; names of topics are ASCII, which is faster.

        Raises:
            RegexError: The pattern is invalid or too large.
            RegexEngineMissingError: google-re2 is not installed.
        """
        self.pattern: str = pattern
        self._unicode = unicode
        self._compiled = _compile(pattern, unicode)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name."""
        encoded = name.encode("utf-8" if self._unicode else "latin-1", "replace")
        return self._compiled.fullmatch(encoded) is not None

    def select(self, names: Iterable[str], *, bounded: bool = False) -> frozenset[str]:
        """Return the names that the pattern matches.

        Args:
            names: All names; results for names of the last call are cached.
            bounded: Raise an error after ``CPU_SECONDS_MAX``.

        Raises:
            RegexError: It takes too long.
        """
        begun = time.thread_time()
        before, self._known = self._known, {}
        for name in names:
            found = before.get(name)
            if found is None:
                found = self.matches(name)
                if bounded and time.thread_time() - begun > CPU_SECONDS_MAX:
                    raise RegexError("expression takes too many steps")
            self._known[name] = found
        return frozenset(name for name, found in self._known.items() if found)


def select(names: Iterable[str], pattern: str) -> frozenset[str]:
    """Return the names that a pattern matches; names may hold any characters.

    Raises:
        RegexError: The pattern is invalid or takes too long.
        RegexEngineMissingError: google-re2 is not installed.
    """
    return TopicRegex(pattern, unicode=True).select(names, bounded=True)


def _compile(pattern: str, unicode: bool) -> Any:
    try:
        import re2  # Late: most brokers never see a pattern.
    except ImportError:
        raise RegexEngineMissingError(
            "this broker has no engine for patterns: run pip install 'onceflow[re2]' where the "
            "broker runs, or subscribe by names or with group.protocol=classic"
        ) from None
    if len(pattern) > PATTERN_MAX:
        raise RegexError(f"expression is longer than {PATTERN_MAX} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES_MAX
    encoding = "utf-8" if unicode else "latin-1"
    options.encoding = getattr(re2.Options.Encoding, "UTF8" if unicode else "LATIN1")
    try:
        compiled = re2.compile(pattern.encode(encoding), options)
    except UnicodeEncodeError:
        raise RegexError("names of topics are ASCII") from None
    except re2.error as error:
        said = bytes(error.args[0]).decode(encoding).partition(": ")[0]
        raise RegexError(_KAFKAS_WORDS.get(said, said)) from None
    if compiled.programsize > PROGRAM_MAX:
        raise RegexError("expression is too large")
    return compiled
