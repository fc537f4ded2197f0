"""The interface between a worker and the outside world: clients, stores, clocks, waiting."""

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
    """The outside world of a worker. Some methods may return an awaitable of their result."""

    def admin(self) -> Maybe[TopicAdmin]:
        """Make the access to topics; called once in the life of a worker."""

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        """Make the ledger, which ends units."""

    def sink_ledger(
        self,
        config: SessionConfig,
        owner: LedgerOwner,
        unit: Unit,
        calls: Calls,
        topology: Topology,
    ) -> Ledger:
        """Make the ledger of an application with a sink."""

    def changelog_reader(self) -> ChangelogReader | Awaitable[ChangelogReader]:
        """Make a reader of changelogs."""

    def open_map(self, kind: StoreKind, directory: Path, tombstone_age_ms: int) -> ByteMap | None:
        """Open the map of a task; None while another process has locked it."""

    def monotonic_s(self) -> float:
        """Return the monotonic clock in seconds."""

    def wall_ms(self) -> int:
        """Return the wall clock in milliseconds."""

    def sleep(self, delay_s: float) -> Maybe[None]:
        """Wait; ``wake`` ends the wait early."""

    def wake(self) -> None:
        """End a ``sleep``; callable from any thread."""
