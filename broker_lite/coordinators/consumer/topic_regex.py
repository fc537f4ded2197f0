"""Patterns of names in the syntax of RE2: by them members of consumer groups choose topics.

A pattern comes from the network, so it is matched in time that grows with the length of the name
only: it becomes a set of states that are followed side by side, and nothing is ever tried again.
How many are looked at for all topics together is bounded too.
What RE2 has and topic names cannot need (look-around, back-references, Unicode classes) is refused
with the reason. A name must match as a whole, as in Apache Kafka.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

PATTERN_MAX: Final = 1_024
"""Longest pattern in characters."""

STATES_MAX: Final = 5_000
"""Most states of a pattern, whose repetitions may be nested."""

REPEAT_MAX: Final = 1_000
"""Largest count of a repetition, as in RE2."""

WORK_MAX: Final = 300_000
"""Most states looked at for one pattern and all topics; some tenths of a second, in which the
broker does nothing else."""

TOPIC_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""All that names of topics are made of."""

_DIGITS: Final = frozenset(string.digits)
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_CLASSES: Final = {
    "d": _DIGITS,
    "w": _WORD,
    "s": frozenset(" \t\n\r\f"),
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "digit": _DIGITS,
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "punct": frozenset(string.punctuation),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}


class RegexError(ValueError):
    """The text is no pattern that is understood here; the message says why, in RE2's words."""


class _State:
    """One state: the characters that lead on, and the states that follow without any."""

    __slots__ = ("characters", "empty", "end", "follower", "start")

    def __init__(self) -> None:
        self.characters: frozenset[str] | None = None
        self.follower: _State | None = None
        self.empty: list[_State] = []
        self.start = False
        self.end = False


class _Part(NamedTuple):
    """A piece of the automaton, from its first state to its last."""

    first: _State
    last: _State


class TopicRegex:
    """A compiled pattern."""

    __slots__ = ("_first", "_last", "pattern")

    def __init__(self, pattern: str, alphabet: frozenset[str] = TOPIC_CHARACTERS) -> None:
        """Compile a pattern.

        Args:
            pattern: The pattern.
            alphabet: All characters that names hold.

        Raises:
            RegexError: It is not understood.
        """
        self.pattern: str = pattern
        part = _Parser(pattern, alphabet).parse()
        self._first, self._last = part.first, part.last

    def matches(self, name: str) -> bool:
        """Does the pattern match the whole name?

        Raises:
            RegexError: To find that out takes too many steps.
        """
        return _Walk(self._first, self._last).matches(name)

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """The names that the pattern matches.

        Raises:
            RegexError: To find that out takes too many steps.
        """
        walk = _Walk(self._first, self._last)
        return frozenset(name for name in names if walk.matches(name))


def select(names: Sequence[str], pattern: str) -> frozenset[str]:
    """Those of any names that a pattern matches.

    Raises:
        RegexError: The pattern is not understood, or takes too many steps.
    """
    return TopicRegex(pattern, TOPIC_CHARACTERS.union(*names)).select(names)


class _Walk:
    """The way of names through a pattern's states; what was worked out once is looked up.

    Names of topics are alike, so that a few sets of states serve all of them. What is kept is
    bounded by the work that may go into it.
    """

    __slots__ = ("_kinds", "_last", "_numbers", "_patterns", "_sets", "_start", "_steps", "_work")

    def __init__(self, first: _State, last: _State) -> None:
        self._last = last
        self._start = [first]
        self._sets: list[list[_State]] = []
        self._numbers: dict[frozenset[int], int] = {}
        self._steps: dict[tuple[int, int, bool], int] = {}
        self._kinds: dict[str, int] = {}
        self._patterns = tuple(_character_sets(first))
        self._work = 0

    def matches(self, name: str) -> bool:
        """Does the pattern match the whole name?"""
        current = self._step(-1, "", not name)
        for position, character in enumerate(name):
            current = self._step(current, character, position == len(name) - 1)
            if not self._sets[current]:
                return False
        return self._last in self._sets[current]

    def _step(self, number: int, character: str, at_end: bool) -> int:
        """Number of the set that a character leads to; -1 and no character is the beginning."""
        key = (number, self._kind(character) if character else -1, at_end)
        found = self._steps.get(key)
        if found is not None:
            return found
        following = self._start
        if character:
            following = [
                state.follower
                for state in self._sets[number]
                if state.characters is not None
                and character in state.characters
                and state.follower is not None
            ]
            self._work += len(self._sets[number])
        reached = _closure(following, at_start=not character, at_end=at_end)
        self._work += len(reached)
        if self._work > WORK_MAX:
            raise RegexError("expression takes too many steps")
        made = frozenset(map(id, reached))
        if made not in self._numbers:
            self._numbers[made] = len(self._sets)
            self._sets.append(reached)
        self._steps[key] = self._numbers[made]
        return self._steps[key]

    def _kind(self, character: str) -> int:
        """The same number for characters that the pattern does not tell apart."""
        kind = self._kinds.get(character)
        if kind is None:
            members = enumerate(self._patterns)
            kind = sum(1 << bit for bit, some in members if character in some)
            self._kinds[character] = kind
        return kind


def _character_sets(first: _State) -> set[frozenset[str]]:
    """All sets of characters that lead on anywhere."""
    found: set[frozenset[str]] = set()
    seen: set[int] = set()
    waiting = [first]
    while waiting:
        state = waiting.pop()
        if id(state) in seen:
            continue
        seen.add(id(state))
        waiting += state.empty
        if state.characters is not None and state.follower is not None:
            found.add(state.characters)
            waiting.append(state.follower)
    return found


def _closure(states: list[_State], *, at_start: bool, at_end: bool) -> list[_State]:
    seen: dict[int, _State] = {}
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if id(state) in seen or (state.start and not at_start) or (state.end and not at_end):
            continue
        seen[id(state)] = state
        waiting += state.empty
    return list(seen.values())


def _without_quotes(pattern: str) -> str:
    """The pattern with what stands between ``\\Q`` and ``\\E`` escaped one by one."""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("\\Q", at):
            end = pattern.find("\\E", at)
            end = len(pattern) if end < 0 else end
            found += [c if c.isalnum() else "\\" + c for c in pattern[at + 2 : end]]
            at = end + 2
            continue
        step = 2 if pattern[at] == "\\" else 1
        found.append(pattern[at : at + step])
        at += step
    return "".join(found)


class _Parser:
    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        if len(pattern) > PATTERN_MAX:
            raise RegexError(f"expression is longer than {PATTERN_MAX} characters")
        self._alphabet = alphabet
        self._text = _without_quotes(pattern)
        self._at = 0
        self._states = 0
        self._fold = False
        self._depth = 0

    def parse(self) -> _Part:
        part = self._alternatives()
        if self._at < len(self._text):
            raise RegexError("unexpected )")
        return part

    # --- states

    def _state(self) -> _State:
        self._states += 1
        if self._states > STATES_MAX:
            raise RegexError("expression is too large")
        return _State()

    def _characters(self, characters: frozenset[str]) -> _Part:
        if self._fold:
            characters |= {c.swapcase() for c in characters}
        first, last = self._state(), self._state()
        first.characters, first.follower = characters, last
        return _Part(first, last)

    def _nothing(self) -> _Part:
        state = self._state()
        return _Part(state, state)

    def _join(self, one: _Part, other: _Part) -> _Part:
        one.last.empty.append(other.first)
        return _Part(one.first, other.last)

    # --- grammar

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> _Part:
        self._depth += 1
        if self._depth > 100:
            raise RegexError("expression nests too deeply")
        fold = self._fold
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        self._fold = fold
        if len(branches) == 1:
            return branches[0]
        first, last = self._state(), self._state()
        for branch in branches:
            first.empty.append(branch.first)
            branch.last.empty.append(last)
        return _Part(first, last)

    def _sequence(self) -> _Part:
        part = self._nothing()
        while self._peek() not in ("", "|", ")"):
            part = self._join(part, self._repeated())
        return part

    def _repeated(self) -> _Part:
        begin = self._at
        part = self._atom()
        end = self._at
        fold = self._fold
        repeated = False
        while True:
            bounds = self._bounds()
            if bounds is None:
                return part
            self._take("?")  # Greedy or not makes no difference to a whole match.
            if repeated:
                raise RegexError("invalid nested repetition operator")
            repeated = True
            part = self._repeat(part, begin, end, *bounds)
            self._fold = fold

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        if end < 0:
            return None
        low_text, comma, high_text = self._text[self._at + 1 : end].partition(",")
        if not (low_text.isascii() and low_text.isdigit()) or not (
            high_text == "" or (high_text.isascii() and high_text.isdigit())
        ):
            return None
        self._at = end + 1
        low = int(low_text)
        high: int | None = low
        if comma:
            high = int(high_text) if high_text else None
        if low > REPEAT_MAX or (high is not None and (high > REPEAT_MAX or high < low)):
            raise RegexError("invalid repeat count")
        return low, high

    def _repeat(self, part: _Part, begin: int, end: int, low: int, high: int | None) -> _Part:
        """Copies are made by reading the text again."""
        after = self._at
        unused: list[_Part] = [part]

        def copy() -> _Part:
            if unused:
                return unused.pop()
            self._at = begin
            made = self._atom()
            assert self._at == end, "an atom reads the same text again"
            return made

        result = self._nothing()
        for _ in range(low):
            result = self._join(result, copy())
        if high is None:
            loop = copy()
            hub = self._state()
            hub.empty.append(loop.first)
            loop.last.empty.append(hub)
            result = self._join(result, _Part(hub, hub))
        else:
            last = self._state()
            for _ in range(high - low):
                result.last.empty.append(last)
                result = self._join(result, copy())
            result = self._join(result, _Part(last, last))
        self._at = after
        return result

    def _atom(self) -> _Part:
        character = self._peek()
        if character in ("*", "+", "?"):
            raise RegexError("missing argument to repetition operator")
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._characters(self._bracket())
        if character == ".":
            return self._characters(self._alphabet - {"\n"})
        if character in ("^", "$"):
            return self._anchor(start=character == "^")
        if character == "\\":
            return self._escaped()
        return self._characters(frozenset(character))

    def _anchor(self, *, start: bool) -> _Part:
        state = self._state()
        state.start, state.end = start, not start
        return _Part(state, state)

    def _group(self) -> _Part:
        fold = self._fold
        if self._take("?"):
            if self._take("P<") or (self._peek() == "<" and self._take("<")):
                end = self._text.find(">", self._at)
                name = self._text[self._at : end] if end >= 0 else ""
                if not name.isidentifier() or not name.isascii():
                    raise RegexError("invalid named capture")
                self._at = end + 1
            elif not self._flags():
                return self._nothing()
        part = self._alternatives()
        if not self._take(")"):
            raise RegexError("missing closing )")
        self._fold = fold
        return part

    def _flags(self) -> bool:
        """Flags of a group; False when they hold for the rest of the group around them."""
        value = True
        while True:
            character = self._peek()
            self._at += 1
            if character == ":":
                return True
            if character == ")":
                return False
            if character == "-" and value:
                value = False
            elif character == "i":
                self._fold = value
            elif character not in ("s", "m", "U"):
                raise RegexError("invalid or unsupported Perl syntax")

    def _escaped(self) -> _Part:
        character = self._peek()
        self._at += 1
        if character == "A":
            return self._anchor(start=True)
        if character == "z":
            return self._anchor(start=False)
        named = self._class(character)
        if named is not None:
            return self._characters(named)
        return self._characters(frozenset(self._literal(character)))

    def _class(self, character: str) -> frozenset[str] | None:
        """The characters of ``\\d``, ``\\D`` and their like; None for another escape."""
        if character.lower() not in _CLASSES:
            return None
        named = _CLASSES[character.lower()]
        return named if character.islower() else self._alphabet - named

    def _literal(self, character: str) -> str:
        """The character that an escape stands for; the backslash and the next were read."""
        if character == "":
            raise RegexError("trailing backslash at end of expression")
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = self._text[self._at : self._at + 2]
            if len(digits) == 2 and all(digit in string.hexdigits for digit in digits):
                self._at += 2
                return chr(int(digits, 16))
        elif not character.isalnum() or not character.isascii():
            return character
        raise RegexError("invalid escape sequence")

    def _bracket(self) -> frozenset[str]:
        negated = self._take("^")
        found: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._peek() == "":
                raise RegexError("missing closing ]")
            if self._take("[:"):
                end = self._text.find(":]", self._at)
                name = self._text[self._at : end] if end >= 0 else ""
                if name.removeprefix("^") not in _POSIX:
                    raise RegexError("invalid character class range")
                named = _POSIX[name.removeprefix("^")]
                found |= self._alphabet - named if name.startswith("^") else named
                self._at = end + 2
                continue
            low = self._bracket_item()
            if isinstance(low, frozenset):
                found |= low
                continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                high = self._bracket_item()
                if isinstance(high, frozenset) or high < low:
                    raise RegexError("invalid character class range")
                # Only what a name can hold is ever asked for.
                found |= {c for c in self._alphabet if low <= c <= high}
            else:
                found.add(low)
        self._at += 1
        if self._fold:
            found |= {c.swapcase() for c in found}
        return self._alphabet - found if negated else frozenset(found)

    def _bracket_item(self) -> str | frozenset[str]:
        character = self._peek()
        if character == "":
            raise RegexError("missing closing ]")
        self._at += 1
        if character != "\\":
            return character
        character = self._peek()
        self._at += 1
        return self._class(character) or self._literal(character)
