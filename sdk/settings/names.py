"""Explains names that are no settings: the nearest one, or where the setting is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import plain

NONE = MappingProxyType[str, str]({})


def reject_unknown(
    kind: str,
    known: Iterable[str],
    given: Iterable[str],
    places: Mapping[str, str] = NONE,
    remedies: Mapping[str, str] = NONE,
) -> None:
    """Refuse settings that do not exist, and name the one that was probably meant.

    Args:
        kind: "producer", "consumer", "broker" or a class, for the message.
        known: Names of the settings that exist.
        given: Names that were given.
        places: How a setting is written that exists elsewhere, by name.
        remedies: What to do instead, by the names that other clients have.

    Raises:
        ConfigError: The first name that does not exist.
    """
    names = set(known)
    for name in given:
        if name not in names:
            raise unknown_setting(kind, name, names, places, remedies)


def unknown_setting(
    kind: str,
    name: str,
    known: Iterable[str],
    places: Mapping[str, str] = NONE,
    remedies: Mapping[str, str] = NONE,
) -> ConfigError:
    """The error for a name that is not a setting; arguments are those of ``reject_unknown``.

    It does not hold the value, which may be a password under a misspelt name.
    """
    ways = {**places, **{plain(each): each for each in known}}
    asked = plain(str(name))
    if asked in ways:
        remedy = f"write {ways[asked]}"
    elif asked in remedies:
        remedy = remedies[asked]
    else:
        remedy = did_you_mean(str(name), ways) or "see docs/configuration.md"
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return ConfigError(name, "...", f"{article} {kind} has no such setting; {remedy}")


def did_you_mean(name: str, ways: Mapping[str, str]) -> str:
    """Return the question that suggests a known name; empty where none is close.

    Args:
        name: The unknown name.
        ways: What to write, by the known name in the form that ``plain`` gives.
    """
    import difflib  # Late: only for a mistake.

    near = difflib.get_close_matches(plain(name), ways, n=1, cutoff=0.6)
    return f"did you mean {ways[near[0]]}?" if near else ""
