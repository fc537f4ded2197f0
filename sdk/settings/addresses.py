"""Addresses of brokers as users write them: ``bootstrap.servers``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onceflow.sdk.errors import ConfigError


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
