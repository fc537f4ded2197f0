"""Settings of an application, checked when it is declared; nothing here touches the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.sdk.settings.checks import NamedSettings, check_kinds, check_range
from onceflow.transactions import SessionConfig

BROKER_DEFAULT = -1
"""Partition count or replication that is left to the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings(NamedSettings):
    """How an application runs. ``App`` takes these by name.

    Attributes:
        bootstrap_servers: Addresses as ``host:port``.
        group_id: Consumer group; the application's name by default.
        state_dir: Directory for state and for the identity of this host's processes. A relative
            one lies in the working directory of the moment when the application is made.
        slot: Name of this process among those of the group, for hosts whose disks do not
            survive; by default the lowest number that no live process of ``state_dir`` has,
            behind an id that is kept there.
        commit_interval_ms: Longest time between commits while there is work. Readers of
            committed data see outputs this much later.
        commit_records: Most records in one transaction.
        transaction_timeout_ms: After this the coordinator aborts (``transaction.timeout.ms``).
        session_timeout_ms: ``session.timeout.ms``.
        max_poll_interval_ms: ``max.poll.interval.ms``.
        max_poll_records: ``max.poll.records``.
        revoke_budget_ms: Time for the commit within a rebalance.
        operation_timeout_ms: Bound of each call to the brokers.
        start_from: Where a partition without committed offset begins.
        auto_offset_reset: What to do when the committed offset is gone: ``none`` stops.
        create_inputs: Create missing input topics with ``partitions``, instead of stopping.
        partitions: Partition count for topics whose count nothing else determines.
        replication_factor: For created topics; -1 takes the broker's default.
        aborts_max: Transactions aborted in a row, without a rebalance, before giving up.
        shutdown_timeout_ms: Time between the first signal and a forced end.
        consumer_settings: Further settings of the consumer.
        producer_settings: Further settings of the producer.
    """

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    group_id: str | None = None
    state_dir: Path = Path(".onceflow")
    slot: str | None = None
    commit_interval_ms: int = 100
    commit_records: int = 10_000
    transaction_timeout_ms: int = 10_000
    session_timeout_ms: int = 45_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 1_000
    revoke_budget_ms: int = 5_000
    operation_timeout_ms: int = 30_000
    start_from: str = "earliest"
    auto_offset_reset: str = "none"
    create_inputs: bool = False
    partitions: int = -1
    replication_factor: int = -1
    aborts_max: int = 20
    shutdown_timeout_ms: int = 10_000
    consumer_settings: Mapping[str, object] = field(default_factory=dict)
    producer_settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kinds(self, {"Path": Path})
        # Stores are opened when partitions come; by then the process may be somewhere else.
        object.__setattr__(self, "state_dir", self.state_dir.absolute())
        for name in ("commit_records", "aborts_max", "shutdown_timeout_ms"):
            check_range(name, getattr(self, name), 1)
        for name in ("partitions", "replication_factor"):
            if getattr(self, name) != BROKER_DEFAULT:
                check_range(name, getattr(self, name), 1)
        self.session_config("app", ["check"], "0")  # The chain of time limits.

    def session_config(self, app: str, topics: Sequence[str], slot: str) -> SessionConfig:
        """The session's settings.

        Raises:
            ConfigError: The time limits contradict each other.
        """
        return SessionConfig(
            topics=topics,
            bootstrap_servers=self.bootstrap_servers,
            group_id=self.group_id or app,
            slot=slot,
            # A successor takes a killed worker's place at once (KIP-345), not only after the
            # session timeout; an orderly end leaves the group all the same.
            group_instance_id=f"{app}-{slot}",
            commit_interval_ms=self.commit_interval_ms,
            transaction_timeout_ms=self.transaction_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            max_poll_interval_ms=self.max_poll_interval_ms,
            max_poll_records=self.max_poll_records,
            revoke_budget_ms=self.revoke_budget_ms,
            operation_timeout_ms=self.operation_timeout_ms,
            start_from=self.start_from,
            auto_offset_reset=self.auto_offset_reset,
            consumer_settings=self.consumer_settings,
            producer_settings=self.producer_settings,
        )

    @property
    def output_bytes_max(self) -> int:
        """Largest output that the producer accepts, with room for the batch around it."""
        limit = self.producer_settings.get("max_request_size", 1_048_576)
        return (limit if isinstance(limit, int) else 1_048_576) - 1_024
