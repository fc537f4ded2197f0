"""Listeners under Kafka's names: bound and advertised addresses, and their security.

It reads ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``, and decides
which listeners other machines can reach without authentication. It binds nothing. The rules are
those of Kafka's socket server (KIP-103).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

WILDCARD_HOSTS = ("", "0.0.0.0", "::")

_NAME = re.compile(r"[A-Za-z0-9_\-]+", re.ASCII)


class SecurityProtocol(enum.Enum):
    """How a listener's connections are encrypted and authenticated."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """Whether bytes are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def uses_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of one node.

    Attributes:
        name: Name of the listener, in capitals as Kafka keeps it.
        protocol: How it is secured.
        host: Address or name to bind; empty for every address.
        port: Port to bind, 0 for any free one.
        advertised_host: Host in answers; empty for the address that each client reached.
        advertised_port: Port in answers; 0 for the bound port.
        authenticates: Whether clients must authenticate.
    """

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    advertised_host: str = ""
    advertised_port: int = 0
    authenticates: bool = False

    @property
    def address(self) -> str:
        """``HOST:PORT`` under which this machine reaches it."""
        host = "127.0.0.1" if self.host in WILDCARD_HOSTS else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port in answers; an empty host means the address that each client reached."""
        host = self.advertised_host or ("" if self.host in WILDCARD_HOSTS else self.host)
        return host, self.advertised_port or self.port

    @property
    def advertised_text(self) -> str:
        """``NAME://HOST:PORT`` for clients; without a host, it is the address that each reached."""
        host, port = self.advertised
        return f"{self.name}://[{host}]:{port}" if ":" in host else f"{self.name}://{host}:{port}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it without authentication."""
        return not (is_loopback(self.host) or self.authenticates)

    def bound(self, port: int) -> Listener:
        """Return the listener with the port that it got."""
        return replace(self, port=port)


def is_loopback(host: str) -> bool:
    """Whether an address or name means only this machine."""
    if host in ("localhost", "127.0.0.1"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_openness(listeners: Sequence[Listener], *, allowed: bool) -> None:
    """Refuse listeners that other machines can reach and that do not authenticate clients.

    Args:
        listeners: The broker's listeners.
        allowed: Setting ``onceflow.allow.insecure.network``.

    Raises:
        ConfigError: There is one, and it is not allowed.
    """
    for listener in listeners:
        if listener.is_open and not allowed:
            raise ConfigError(
                "listeners",
                str(listener),
                f"{listener.host or 'every address'} can be reached from other machines, and this "
                "listener does not authenticate them: give --allow-insecure-network (setting "
                "onceflow.allow.insecure.network=true) if that network is trusted, or "
                "authenticate clients by SASL or ssl.client.auth=required",
            )


def parse_address(setting: str, text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[V6]:PORT`` or ``NAME://HOST:PORT``.

    Raises:
        ConfigError: The text is not such an address.
    """
    _, _, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(setting, text, "give HOST:PORT, for example 127.0.0.1:9092")
    return host, int(port)


def read_listeners(config: BrokerConfig, host: str, port: int) -> tuple[Listener, ...]:
    """Return the listeners of the settings.

    Args:
        config: Settings.
        host: Address of the only listener when ``listeners`` is not set.
        port: Its port.

    Raises:
        ConfigError: A setting is malformed, or names a listener or protocol that does not exist.
    """
    protocols = _protocol_map(config.listener_security_protocol_map)
    bound: dict[str, tuple[str, int]] = {}
    if config.listeners:
        for name, text in _entries("listeners", config.listeners).items():
            bound[name] = parse_address("listeners", text)
    else:
        name = "SASL_PLAINTEXT" if config.sasl_enabled_mechanisms else "PLAINTEXT"
        bound[name] = (host, port)
    _check_ports(bound)
    advertised = _advertised(config.advertised_listeners, tuple(bound))
    listeners = []
    for name, (bind_host, bind_port) in bound.items():
        protocol = protocols.get(name)
        if protocol is None:
            raise ConfigError(
                "listener.security.protocol.map",
                config.listener_security_protocol_map,
                f"add {name}:PROTOCOL; only PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL are "
                "known without",
            )
        known_clients = (
            protocol.uses_tls and ssl_client_auth(config, name, protocol) == "required"
        ) or protocol.uses_sasl
        told = advertised.get(name, ("", 0))
        listeners.append(
            Listener(name, protocol, bind_host, bind_port, *told, authenticates=known_clients)
        )
    unknown = set(config.listener_overrides) - set(bound)
    if unknown:
        name = min(unknown)
        raise ConfigError(f"listener.name.{name.lower()}", name, f"listeners are {list(bound)}")
    return tuple(listeners)


def ssl_client_auth(config: BrokerConfig, name: str, protocol: SecurityProtocol) -> str:
    """Return whether a listener asks for certificates: ``none``, ``requested`` or ``required``.

    If clients authenticate by SASL, only the listener's own setting counts, as in Kafka.
    """
    own = "ssl.client.auth" in config.listener_overrides.get(name, {})
    if protocol.uses_sasl and not own:
        return "none"
    return str(config.listener_value(name, "ssl.client.auth"))


def _protocol_map(text: str) -> dict[str, SecurityProtocol]:
    setting = "listener.security.protocol.map"
    protocols = {protocol.value: protocol for protocol in SecurityProtocol}
    for entry in filter(None, text.split(",")):
        name, colon, word = entry.strip().partition(":")
        if not (colon and _NAME.fullmatch(name) and word in SecurityProtocol.__members__):
            raise ConfigError(
                setting, entry, "give NAME:PROTOCOL with PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            )
        protocols[name.upper()] = SecurityProtocol[word]
    return protocols


def _entries(setting: str, given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME://HOST:PORT`` entries by name in capitals."""
    entries: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in given)):
        name, found, _ = entry.partition("://")
        if not found or not _NAME.fullmatch(name):
            raise ConfigError(setting, entry, "give NAME://HOST:PORT for each listener")
        if name.upper() in entries:
            raise ConfigError(
                setting, ",".join(given), f"name each listener once, {name} is there twice"
            )
        entries[name.upper()] = entry
    return entries


def _check_ports(bound: Mapping[str, tuple[str, int]]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for name, address in bound.items():
        other = taken.setdefault(address, name) if address[1] else name
        if other != name:
            raise ConfigError("listeners", address, f"{other} and {name} need a port each")


def _advertised(text: str, names: Sequence[str]) -> dict[str, tuple[str, int]]:
    setting = "advertised.listeners"
    if not text:
        return {}
    if len(names) == 1 and "," not in text:
        # With one listener, its name may be left out, or be that of its protocol.
        host, port = parse_address(setting, text)
        told = {names[0]: (host, port)}
    else:
        told = {
            name: parse_address(setting, entry)
            for name, entry in _entries(setting, text.split(",")).items()
        }
    for name, (host, _) in told.items():
        if name not in names:
            raise ConfigError(setting, text, f"there is no listener {name}; there is {names}")
        if host in WILDCARD_HOSTS:
            raise ConfigError(setting, text, "give an address that clients can reach")
    return told
