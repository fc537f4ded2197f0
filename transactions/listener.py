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
        cause: The error behind it, or None when no error was involved.
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

    All methods are called within a call of the session, on the caller's thread. Only ``progress``
    may call the session, to send and to flush, and ``released``, to put back and to pause.
    """

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were added; reading starts at the committed offsets.

        Args:
            partitions: What came.
        """

    def progress(self) -> Maybe[Offsets | None]:
        """Prepare a commit within a rebalance: send what is held back, and return what is
        processed.

        Returns:
            Next offset by partition, or None when all that was polled is processed; over asyncio
            clients it may be awaitable.
        """

    def committed(self) -> None:
        """The transaction is committed: state may be applied."""

    def aborted(self, abort: Abort) -> None:
        """The transaction is aborted: state and records in hand are void.

        Args:
            abort: Why, and what is read again.
        """

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> Maybe[None]:
        """Partitions were revoked or lost.

        Args:
            partitions: What went.
            lost: Whether other members may own them already.
        """


class NoListener:
    """The listener of a session whose caller keeps no state."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Nothing to prepare."""

    def progress(self) -> Offsets | None:
        """All that was polled is processed."""
        return None

    def committed(self) -> None:
        """Nothing to apply."""

    def aborted(self, abort: Abort) -> None:
        """Nothing to drop."""

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Nothing to close."""


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
