"""Limits of connections: in all, of a listener, and from one address.

The limits are Kafka's ``max.connections``, ``max.connection.creation.rate`` (both also as
``listener.name.NAME...``), ``max.connections.per.ip`` with its overrides, and the file handles that
the process may have. A connection counts from the moment at which it is accepted.
"""

from __future__ import annotations

import resource
from collections import Counter
from typing import TYPE_CHECKING, cast

from onceflow.broker_lite.quotas.rates import SECOND_MS, WindowedRate
from onceflow.broker_lite.settings.connection_overrides import parse_overrides
from onceflow.sdk.settings.declare import INT32_MAX

if TYPE_CHECKING:
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

CREATION_RATE = "max.connection.creation.rate"

HANDLES_KEPT = 32
"""File handles that are neither for connections nor for logs, but for the rest of the process."""


class ConnectionLimits:
    """Counts open connections, and compares them with the limits.

    Args:
        config: The bounds.
        log_handles: File handles that logs may take.

    Raises:
        ConfigError: ``max.connections.per.ip.overrides`` is malformed.
    """

    __slots__ = (
        "_by_address",
        "_by_listener",
        "_config",
        "_log_handles",
        "_overrides",
        "_rates",
        "_total",
    )

    def __init__(self, config: BrokerConfig, log_handles: int = 0) -> None:
        self.apply(config)
        self._log_handles = log_handles
        self._rates: dict[str, WindowedRate] = {}
        self._by_address: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._total = 0

    def apply(self, config: BrokerConfig) -> None:
        """Use other limits; open connections stay."""
        self._config = config
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)

    def admit(self, listener: str, address: str, handle: int = -1) -> str | None:
        """Count a connection, or return the limit that it exceeds.

        Args:
            listener: Listener that took it.
            address: Address of the client.
            handle: Its file handle; -1 if unknown.
        """
        most_handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # Handles are given out from the lowest free number on.
        if most_handles != resource.RLIM_INFINITY and (
            handle >= most_handles - HANDLES_KEPT
            or self._total >= most_handles - HANDLES_KEPT - self._log_handles
        ):
            return (
                f"what connections may have of the {most_handles} file handles of this process "
                "(ulimit -n)"
            )
        if self._total >= self._config.max_connections:
            return f"max.connections={self._config.max_connections}"
        if listener in self._config.listener_overrides:
            most = self._config.listener_value(listener, "max.connections")
            if self._by_listener[listener] >= cast("int", most):
                return f"listener.name.{listener.lower()}.max.connections={most}"
        most_of_address = self._overrides.get(address, self._config.max_connections_per_ip)
        if self._by_address[address] >= most_of_address:
            return f"max.connections.per.ip={most_of_address}"
        self._total += 1
        self._by_listener[listener] += 1
        self._by_address[address] += 1
        return None

    def delay_ms(self, listener: str, now_ms: int) -> int:
        """Count a new connection; return the milliseconds until its requests may be handled.

        Apache Kafka delays the accept by this time (KIP-612).
        """
        config = self._config
        bounds = [("", config.max_connection_creation_rate)]
        if CREATION_RATE in config.listener_overrides.get(listener, {}):
            bounds.append((listener, cast("int", config.listener_value(listener, CREATION_RATE))))
        windows, window_ms = config.quota_window_num, config.quota_window_size_seconds * SECOND_MS
        delay_ms = 0
        for name, limit in bounds:
            if limit == INT32_MAX:
                continue
            rate = self._rates.setdefault(name, WindowedRate(windows, window_ms))
            rate.record(1, now_ms)
            delay_ms = max(delay_ms, min(rate.throttle_ms(max(limit, 1), now_ms), window_ms))
        return delay_ms

    def leave(self, listener: str, address: str) -> None:
        """Stop counting a closed connection."""
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
