"""Checks shared by the configurations: ranges, choices, addresses, and help with misspelt names.

This module decides how a wrong setting is reported. Which settings exist, and which of them
conflict, is decided in ``onceflow.sdk.settings.config``.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Self, cast

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.foreign_names import NAMED_PARTITIONER, NOT_OFFERED, SECURITY_ALIASES

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

INT32_MAX = 2_147_483_647


class Address(NamedTuple):
    """Host and port of one bootstrap entry.

    Attributes:
        host: Name or address; an IPv6 literal without its brackets.
        port: TCP port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap_servers(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Read ``bootstrap.servers``.

    Args:
        servers: ``"host:port, host:port"`` or a sequence of such entries; spaces are ignored,
            ``[::1]:9092`` is an IPv6 literal, a missing port means 9092.

    Returns:
        The addresses in their order, without repetitions.

    Raises:
        ConfigError: Nothing is listed, or an entry has no host or no valid port.
    """
    entries = [servers] if isinstance(servers, str) else servers
    if not isinstance(entries, Sequence) or not all(isinstance(e, str | Address) for e in entries):
        raise ConfigError(
            "bootstrap_servers", servers, "give 'host:port, host:port', or a list of 'host:port'"
        )
    found: dict[Address, None] = {}
    for entry in (part.strip() for item in entries for part in str(item).split(",")):
        if entry:
            found[_parse_address(entry)] = None
    if not found:
        raise ConfigError(
            "bootstrap_servers", servers, "name at least one broker, such as 'localhost:9092'"
        )
    return tuple(found)


def _parse_address(entry: str) -> Address:
    remedy = "write each entry as host:port, an IPv6 address as [address]:port"
    if "@" in entry:  # The value may hold a password.
        raise ConfigError(
            "bootstrap_servers", "...", "an address names no user; give credentials by security="
        )
    if "://" in entry:
        entry = entry.partition("://")[2]  # PLAINTEXT://host:port, as brokers print it
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError("bootstrap_servers", entry, remedy)
        port_text = rest[1:]
    elif entry.count(":") > 1:
        host, port_text = entry, ""
    else:
        host, _, port_text = entry.partition(":")
    if not host or (port_text and not port_text.isdecimal()):
        raise ConfigError("bootstrap_servers", entry, remedy)
    port = int(port_text) if port_text else 9092
    if not 0 < port < 65536:
        raise ConfigError("bootstrap_servers", entry, "a port lies between 1 and 65535")
    return Address(host, port)


def check_range(field: str, value: object, least: int, most: int = INT32_MAX) -> None:
    """Require a whole number between two bounds.

    Args:
        field: Name of the setting.
        value: What was given.
        least: Least allowed value.
        most: Greatest allowed value.

    Raises:
        ConfigError: It is no whole number or lies outside.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(field, value, "give a whole number")
    if not least <= value <= most:
        raise ConfigError(field, value, f"give a number from {least} to {most}")


def check_choice(field: str, value: object, choices: Iterable[object]) -> None:
    """Require one of a few values.

    Args:
        field: Name of the setting.
        value: What was given.
        choices: The allowed values.

    Raises:
        ConfigError: It is none of them.
    """
    allowed = list(choices)
    if isinstance(value, bool) or value not in allowed:
        names = ", ".join(repr(choice) for choice in allowed if not isinstance(choice, enum.Enum))
        raise ConfigError(field, value, f"choose one of {names}")


def check_kinds(config: DataclassInstance, classes: Mapping[str, type] | None = None) -> None:
    """Require of each setting that it is of the kind that its annotation says.

    Args:
        config: The settings; whole numbers, texts, switches, functions and mappings are known.
        classes: Further classes by the name that annotations use.

    Raises:
        ConfigError: The first setting that is of another kind.
    """
    for item in fields(config):
        annotation = str(item.type)
        value: object = getattr(config, item.name)
        kind = annotation.removesuffix(" | None")
        if value is None and kind != annotation:
            continue
        if kind.startswith("str | ") and isinstance(value, str):
            continue
        if kind.endswith(("Function", "Partitioner")):
            check_callable(item.name, value if item.repr or callable(value) else "***")
            continue
        expected = (classes or {}).get(kind) or _KINDS.get(kind.partition("[")[0])
        if expected is None:
            continue
        switched = isinstance(value, bool) and expected is not bool
        if switched or not isinstance(value, expected):
            what = _KIND_NAMES.get(expected, f"a {expected.__name__}")
            optional = " or None" if kind != annotation else ""
            secret = not item.repr or kind in (classes or {})  # the latter may hold a password
            shown = "***" if secret else value
            raise ConfigError(item.name, shown, f"give {what}{optional}")


_KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {"bool": bool, "int": int, "str": str, "Mapping": Mapping}
)
_KIND_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {bool: "True or False", int: "a whole number", str: "a text", Mapping: "a dictionary"}
)


def check_callable(field: str, value: object) -> None:
    """Require None or something that can be called.

    Args:
        field: Name of the setting.
        value: What was given.

    Raises:
        ConfigError: It cannot be called.
    """
    if field == "partitioner" and isinstance(value, str):
        raise ConfigError(field, value, NAMED_PARTITIONER)
    if value is None or callable(value):
        return
    action = field.rpartition("_")[2].removesuffix("r")
    if callable(getattr(value, action, None)):  # A serde, or a serializer of another client.
        raise ConfigError(field, type(value).__name__, f"give its function, as {field}=X.{action}")
    raise ConfigError(field, value, "give a function or None")


def check_instances(field: str, value: object, kind: type) -> None:
    """Require a sequence of objects of a class.

    Args:
        field: Name of the setting.
        value: What was given.
        kind: The class.

    Raises:
        ConfigError: It is none, or one of them is of another class.
    """
    good = isinstance(value, Sequence) and all(isinstance(entry, kind) for entry in value)
    if not good:
        raise ConfigError(field, value, f"give a list of objects of {kind.__name__}")


class NamedSettings:
    """Base of frozen settings: a name that does not exist is refused with the nearest that does."""

    __slots__ = ()

    def __new__(cls, *_values: object, **settings: object) -> Self:
        """Check the names; the dataclass checks the values."""
        if settings:
            cls.check_names(settings)
        return super().__new__(cls)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Refuse names that are no settings of this kind.

        Args:
            given: Names of the settings that were given.

        Raises:
            ConfigError: The first name that does not exist; the nearest one is named.
        """
        names = (item.name for item in fields(cast("type[DataclassInstance]", cls)))
        reject_unknown(cls._kind(), names, given, cls._elsewhere())

    @classmethod
    def _kind(cls) -> str:
        """What messages call these settings."""
        return cls.__name__

    @classmethod
    def _elsewhere(cls) -> Mapping[str, str]:
        """Settings that are given elsewhere: how they are written there, by name."""
        return {}


def reject_unknown(
    kind: str,
    known: Iterable[str],
    given: Iterable[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse settings that do not exist, and name the one that was probably meant.

    Args:
        kind: "producer", "consumer", "admin" or a class, for the message.
        known: Names of the settings that exist.
        given: Names of the settings that were given.
        elsewhere: Settings that exist elsewhere, and how they are written there.

    Raises:
        ConfigError: The first name that does not exist.
    """
    names = sorted(known)
    ways = {**elsewhere, **{name: name for name in names}}
    for name in given:
        if name in names:
            continue
        plain = name.strip().replace(".", "_").replace("-", "_").lower()
        alias = next((a for a in SECURITY_ALIASES.get(plain, ()) if a in ways), plain)
        if plain in names:
            remedy = f"write {plain}"
        elif plain in NOT_OFFERED:
            remedy = NOT_OFFERED[plain]
        elif alias in ways:
            remedy = f"write {ways[alias]}"
        else:
            near = difflib.get_close_matches(plain, ways, n=1, cutoff=0.6)
            remedy = f"did you mean {ways[near[0]]}?" if near else "see docs/configuration.md"
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        raise ConfigError(name, "...", f"{article} {kind} has no such setting; {remedy}")
