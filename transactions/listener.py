"""What a session tells the code that processes its records, and what it needs to be made.

Protocols and small values only: the listener that keeps state beside a session, the rebalance
callbacks that a consumer is given, the maker of clients, and the report of an abort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.abort_reasons import AbortReason
from onceflow.transactions.clients import SessionConsumer, SessionProducer
from onceflow.transactions.colour import Maybe
from onceflow.transactions.config import SessionConfig

Offsets: TypeAlias = Mapping[TopicPartition, int]
"""Next offset to read by partition."""


@dataclass(frozen=True, slots=True)
class Abort:
    """How an abort came about.

    Attributes:
        reason: The kind of cause.
        cause: The error behind it, or None when no error was involved.
    """

    reason: AbortReason
    cause: Exception | None = None

    def __str__(self) -> str:
        return self.reason.value if self.cause is None else f"{self.reason.value}: {self.cause}"


class SessionListener(Protocol):
    """Who processes the records of a session and keeps state with them.

    All methods are called within a call of the session, on the caller's thread. Only ``progress``
    may call the session, and only to send.
    """

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions were added; reading starts at the committed offsets.

        Args:
            partitions: What came.
        """

    def progress(self) -> Offsets | None:
        """A commit within a rebalance: send what is held back, and tell what is processed.

        Returns:
            Next offset by partition, or None when all that was polled is processed.
        """

    def committed(self) -> None:
        """The transaction is committed: state may be applied."""

    def aborted(self, abort: Abort) -> None:
        """The transaction is aborted: state and records in hand are void.

        Args:
            abort: Why, and what is read again.
        """

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Partitions are gone. With ``lost``, somebody else may own them already.

        Args:
            partitions: What went.
            lost: Somebody else may own them already.
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
    """The callbacks that a consumer made by ``SessionClients`` has to be given."""

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


class SessionClients(Protocol):
    """Makes the session's clients; the producer is initialised, the consumer is subscribed."""

    def producer(self, config: SessionConfig) -> Maybe[SessionProducer]: ...
    def consumer(self, config: SessionConfig, hooks: RebalanceHooks) -> Maybe[SessionConsumer]: ...
