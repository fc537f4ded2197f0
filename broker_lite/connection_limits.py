"""How many connections there may be, in all, of a listener, and from one address.

Decides by Kafka's ``max.connections``, ``listener.name.NAME.max.connections``,
``max.connections.per.ip`` and its overrides. A connection counts from the moment it is accepted.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import TYPE_CHECKING

from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.broker_lite.config import BrokerConfig

OVERRIDES = "max.connections.per.ip.overrides"


class ConnectionLimits:
    """Counts of open connections, against their bounds.

    Raises:
        ConfigError: ``max.connections.per.ip.overrides`` is malformed.
    """

    __slots__ = ("_by_address", "_by_listener", "_config", "_overrides", "_total")

    def __init__(self, config: BrokerConfig) -> None:
        self.apply(config)
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._total = 0

    def apply(self, config: BrokerConfig) -> None:
        """Go by other settings; connections that are open stay."""
        self._config = config
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)

    def admit(self, listener: str, address: str) -> str | None:
        """Count a connection, or say which bound it would break."""
        if self._total >= self._config.max_connections:
            return f"max.connections={self._config.max_connections}"
        if listener in self._config.listener_overrides:
            most = self._config.listener_value(listener, "max.connections")
            if self._by_listener[listener] >= int(most or 0):
                return f"listener.name.{listener.lower()}.max.connections={most}"
        most_of_address = self._overrides.get(address, self._config.max_connections_per_ip)
        if self._by_address[address] >= most_of_address:
            return f"max.connections.per.ip={most_of_address}"
        self._total += 1
        self._by_listener[listener] += 1
        self._by_address[address] += 1
        return None

    def leave(self, listener: str, address: str) -> None:
        """An admitted connection is gone."""
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def parse_overrides(text: str) -> dict[str, int]:
    """Most connections by address.

    Raises:
        ConfigError: The text is no list of ADDRESS:COUNT.
    """
    overrides: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address, colon, count = entry.rpartition(":")
        try:
            address = str(ipaddress.ip_address(address.strip("[]")))
        except ValueError:
            colon = ""
        if not (colon and count.isascii() and count.isdigit()):
            raise ConfigError(OVERRIDES, entry, "give ADDRESS:COUNT for each address")
        overrides[address] = int(count)
    return overrides
