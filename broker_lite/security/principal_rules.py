"""``ssl.principal.mapping.rules``: how a certificate's name becomes a user (KIP-371).

Rules are tried in order; the first one whose pattern matches the whole name applies. A name without
a matching rule is an error, which closes the connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceflow.sdk.errors import ConfigError

SETTING = "ssl.principal.mapping.rules"

_SPLIT = re.compile(r"\s*(DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*([,\n]\s*|$)", re.S)


class NoMatchingRule(ValueError):
    """No rule maps a certificate's name to a user."""


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule.

    Attributes:
        pattern: Matches a whole name; None for DEFAULT, which takes every name
            as it is.
        replacement: Text with ``$1`` ... for the pattern's groups.
        case: ``L`` for small letters, ``U`` for capitals, or empty.
    """

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the user, or None if the rule does not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        user = re.sub(r"\$(\d)", lambda found: _group(match, int(found[1])), self.replacement)
        if self.case == "L":
            return user.lower()
        return user.upper() if self.case == "U" else user


def _group(match: re.Match[str], number: int) -> str:
    return match[number] or "" if number <= (match.re.groups) else ""


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Read the setting.

    Raises:
        ConfigError: A rule is malformed, or its pattern is not a regular expression.
    """
    rules: list[PrincipalRule] = []
    pos = 0
    text = text.strip()
    while pos < len(text):
        match = _SPLIT.match(text, pos)
        if match is None:
            raise ConfigError(
                SETTING, text[pos:], "give RULE:PATTERN/REPLACEMENT/[LU], or DEFAULT, by commas"
            )
        rules.append(_rule(match[1]))
        pos = match.end()
    return tuple(rules) or (PrincipalRule(None),)


def _rule(text: str) -> PrincipalRule:
    if text == "DEFAULT":
        return PrincipalRule(None)
    body, _, case = text.removeprefix("RULE:").rpartition("/")
    found = re.fullmatch(r"((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)", body, re.S)
    assert found is not None  # because of the pattern that split the rules
    try:
        pattern = re.compile(found[1])
    except re.error as error:
        raise ConfigError(SETTING, text, f"give a regular expression ({error})") from None
    return PrincipalRule(pattern, re.sub(r"\\(.)", r"\1", found[2]), case)


def user_of(rules: tuple[PrincipalRule, ...], name: str) -> str:
    """Return the user of a certificate's name.

    Raises:
        NoMatchingRule: No rule matches this name.
    """
    for rule in rules:
        user = rule.apply(name)
        if user is not None:
            return user
    raise NoMatchingRule(name)
