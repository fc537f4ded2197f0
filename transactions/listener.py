"""Interfaces between a session and the code that processes its records.

Protocols and small values only: the listener that keeps state beside a session, the rebalance
callbacks that a consumer is given, the maker of clients, and the report of an abort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.transactions.abort_reasons import AbortReason
from onceflow.transactions.clients import SessionConsumer, SessionProducer
from onceflow.transactions.colour import Maybe
from onceflow.transactions.config import AnySessionConfig

Offsets: TypeAlias = Mapping[TopicPartition, int | OffsetAndMetadata]
"""Next offset to read by partition; with a note of the caller's as metadata, if there is one."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Why a transaction was aborted.

    Attributes:
        reason: The kind of cause.
        cause: The error that caused it, or None.
    """

    reason: AbortReason
    cause: Exception | None = None

    def __str__(self) -> str:
        return self.reason.value if self.cause is None else f"{self.reason.value}: {self.cause}"


@dataclass(frozen=True, slots=True)
class PollResult(Generic[KeyT_co, ValueT_co]):
    """Result of a poll, with errors of reading apart from those of the transaction.

    At most one of the two errors is set, and then there are no records. ``poll_result`` raises only
    when a client could not be made.

    Attributes:
        records: Records by partition, in order.
        input_error: The consumer could not read. It says nothing about the open transaction.
        unit_error: A commit or abort within a rebalance failed. It says nothing about the input;
            the transaction is aborted already.
    """

    records: dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]] = field(
        default_factory=dict
    )
    input_error: KafkaError | None = None
    unit_error: Exception | None = None


class SessionListener(Protocol):
    """The code that processes the records of a session and keeps state with them.

    The session calls all methods within one of its own calls, on the caller's thread. Only two may
    call the session: ``progress`` to send and to flush, and ``released`` to put back and to pause.
    """

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Note added partitions; reading starts at the committed offsets.

        Args:
            partitions: The added partitions.
        """

    def progress(self) -> Maybe[Offsets | None]:
        """Prepare a commit within a rebalance: send the remaining outputs, and return the offsets.

        Returns:
            Next offset by partition, or None if all polled records are processed; over asyncio
            clients an awaitable is allowed.
        """

    def committed(self) -> None:
        """Apply state, as the transaction is committed."""

    def aborted(self, abort: Abort) -> None:
        """Drop state and records of the aborted transaction.

        Args:
            abort: The cause.
        """

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> Maybe[None]:
        """Drop everything of revoked or lost partitions.

        Args:
            partitions: The revoked or lost partitions.
            lost: Whether other members may own them already.
        """


class NoListener:
    """The listener of a session whose caller keeps no state."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Do nothing."""

    def progress(self) -> Offsets | None:
        """Return None, as all polled records are processed."""
        return None

    def committed(self) -> None:
        """Do nothing."""

    def aborted(self, abort: Abort) -> None:
        """Do nothing."""

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Do nothing."""


class RebalanceHooks(Protocol):
    """Rebalance callbacks that ``SessionClients`` gives to the consumer it makes."""

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


class SessionClients(Protocol):
    """Makes the session's clients; the producer is initialised, the consumer is subscribed."""

    def producer(self, config: AnySessionConfig) -> Maybe[SessionProducer]: ...
    def consumer(
        self, config: AnySessionConfig, hooks: RebalanceHooks
    ) -> Maybe[SessionConsumer]: ...
