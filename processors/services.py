"""What a worker needs of the outside world: clients, stores, clocks, waiting."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

from onceflow.processors.calls import Calls
from onceflow.processors.changelog import ChangelogReader
from onceflow.processors.graph.specs import StoreKind
from onceflow.processors.graph.topology import Topology
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.provisioning import TopicAdmin
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.unit import Unit
from onceflow.transactions import SessionConfig
from onceflow.transactions.colour import Maybe


class Services(Protocol):
    """The outside world of a worker. Methods give a result, or something to await for it."""

    def admin(self) -> Maybe[TopicAdmin]:
        """Access to topics; one for the life of the worker."""

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        """How units end."""

    def sink_ledger(
        self,
        config: SessionConfig,
        owner: LedgerOwner,
        unit: Unit,
        calls: Calls,
        topology: Topology,
    ) -> Ledger:
        """How units of an application with a sink end."""

    def changelog_reader(self) -> ChangelogReader | Awaitable[ChangelogReader]:
        """A reader of changelogs."""

    def open_map(self, kind: StoreKind, directory: Path, tombstone_age_ms: int) -> ByteMap | None:
        """The map of a task; None while somebody else holds it."""

    def monotonic_s(self) -> float:
        """Monotonic clock in seconds."""

    def wall_ms(self) -> int:
        """Wall clock in milliseconds."""

    def sleep(self, delay_s: float) -> Maybe[None]:
        """Wait, or less when ``wake`` is called."""

    def wake(self) -> None:
        """End a ``sleep``; from any thread."""
