"""The state that handlers share, and how one broker is put together from its parts.

It decides nothing about requests: it opens the log, makes the coordinators and hands all of it to
the handlers. Clock, randomness and storage come from outside.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from onceflow.broker_lite.purgatory import Purgatory, Timers

if TYPE_CHECKING:
    from onceflow.broker_lite.config import BrokerConfig
    from onceflow.broker_lite.coordinators import GroupCoordinator, TransactionCoordinator
    from onceflow.broker_lite.dispatch import HandlerRegistry
    from onceflow.broker_lite.log import LogManager
    from onceflow.broker_lite.topics import TopicRegistry


class Random(Protocol):
    """What the broker needs of a random source (``random.Random`` has it)."""

    def getrandbits(self, bits: int, /) -> int:
        """An integer of that many random bits."""
        ...


class BrokerState:
    """Everything a handler may touch.

    Attributes:
        config: Settings of the broker.
        cluster_id: Base64 form of a random uuid, from ``meta.properties``.
        node_id: The only node's id.
        host: Advertised host.
        port: Advertised port, known once the listener is bound.
        topics: Topics by name and by id.
        log_manager: The logs on storage.
        timers: Everything that happens later.
        purgatory: Everything that waits for something.
        groups: Group coordinator.
        transactions: Transaction coordinator.
        random: Source of uuids and member ids.
        registry: What is served.
    """

    __slots__ = (
        "cluster_id",
        "config",
        "groups",
        "host",
        "log_manager",
        "node_id",
        "port",
        "purgatory",
        "random",
        "registry",
        "timers",
        "topics",
        "transactions",
    )

    config: BrokerConfig
    cluster_id: str
    node_id: int
    host: str
    port: int
    topics: TopicRegistry
    log_manager: LogManager
    timers: Timers
    purgatory: Purgatory
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    random: Random
    registry: HandlerRegistry

    def __init__(self) -> None:
        self.timers = Timers()
        self.purgatory = Purgatory(self.timers)
        self.random = random.Random()

    def settle(self, now_ms: int) -> None:
        """Finish what the last event made ready; called after every request and timer run."""
        self.purgatory.settle(now_ms)
