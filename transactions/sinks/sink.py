"""The interface of sinks, and the steps at which tests can stop a sink."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.clients import SessionConsumer
from onceflow.transactions.colour import Maybe
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.listener import RebalanceHooks
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries

Observer: TypeAlias = Callable[[str], None]
"""Called with ``before NAME`` and ``after NAME`` for each step of a sink."""


class Sink(Protocol):
    """Stores rows and the offsets of the records that they come from in one transaction.

    A sink serves one session at a time. Any number of sinks, in any number of processes, may share
    one database or folder. A sink with an attribute ``needs_records`` that is true gets the records
    of its rows (``Batch.records``); they stay in memory until the commit. One with an attribute
    ``keeps_letters`` that is true stores the dead letters of an application too
    (``Batch.letters``), and something sends them to their topics later. One with a method
    ``copy(table=None)``, which returns an unopened sink like itself, can be given to an application
    that runs several workers; ``needs_table`` says that it stores rows only in a copy for a table.
    ``onceflow.transactions.sinks.testing.SinkConformance`` holds the tests that an implementation
    must pass.
    """

    def open(self, group_id: str) -> None:
        """Connect, and prepare to store the offsets of a group.

        Args:
            group_id: The consumer group; sinks of other groups share nothing with it.
        """

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """Make a session the owner of partitions and return their entries (``ledger.claim``).

        Afterwards all work of an earlier owner is finished or undone, including a write of this
        sink whose answer was lost.

        Args:
            partitions: The partitions to claim.
            owner: A name that no other session has.
            topic_ids: Present ids of the topics, if the brokers have topic ids.

        Raises:
            SinkTopicReplacedError: A topic was deleted and made again since its offset was stored.
            SinkUnavailableError: The sink cannot be reached in time; nothing was claimed.
        """
        ...

    def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """Return the entries of partitions, without claiming them.

        Args:
            partitions: The partitions; those without an entry are left out.
        """
        ...

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """Store rows and offsets together, if ``ledger.advance`` allows it.

        Args:
            batch: Rows, offsets and their writer.
            timeout_ms: Time limit; None for the sink's own one. Within a rebalance, other members
                wait for this write.

        Raises:
            SinkFencedError: A newer owner has claimed a partition; nothing was written.
            SinkOffsetsMovedError: The batch does not begin at the stored offset.
            SinkRowError: A row cannot be stored; nothing was written.
            SinkUnavailableError: The sink cannot be reached, or the time was over before the
                commit; nothing was written.
            SinkOutcomeUnknownError: The commit got no answer.
        """

    def close(self) -> None:
        """Release connections and files, and undo uncommitted work."""


class AsyncSink(Protocol):
    """A sink with coroutines, for ``AsyncSinkSession``; the rules are those of ``Sink``.

    A cancelled call may have been carried out; the session claims again to find out.
    """

    async def open(self, group_id: str) -> None:
        """See ``Sink.open``.

        Args:
            group_id: The consumer group.
        """

    async def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``.

        Args:
            partitions: What is claimed.
            owner: A name that no other session has.
            topic_ids: Present ids of the topics.
        """
        ...

    async def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``.

        Args:
            partitions: Which ones.
        """
        ...

    async def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``.

        Args:
            batch: Rows, offsets and their writer.
            timeout_ms: When to give up; None for the sink's own limit.
        """

    async def close(self) -> None:
        """See ``Sink.close``."""


@runtime_checkable
class CopiedSink(Sink, Protocol):
    """A sink that can be copied, so that each of several workers opens its own."""

    needs_table: bool

    def copy(self, table: str | None = None) -> Sink:
        """Return an unopened sink like this one.

        Args:
            table: Table of the copy, if this sink names none.
        """
        ...


class SinkConsumer(SessionConsumer, Protocol):
    """The consumer methods that a session with a sink uses."""

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None: ...
    def position(
        self, partition: TopicPartition, *, timeout_ms: int | None = None
    ) -> Maybe[int]: ...
    def topic_id(self, partition: TopicPartition) -> UUID | None: ...


class SinkClients(Protocol):
    """Makes the consumer of a session with a sink, and returns the ids of topics."""

    def consumer(self, config: AnySessionConfig, hooks: RebalanceHooks) -> Maybe[SinkConsumer]: ...
    def topic_ids(
        self, config: AnySessionConfig, topics: Sequence[str]
    ) -> Maybe[Mapping[str, str]]: ...


class Steps:
    """Calls an observer before and after each step; without an observer it does nothing.

    Args:
        observer: Called before and after each step.
    """

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Run a step within this context."""
        if self._observer is not None:
            self._observer(f"before {name}")
        yield
        if self._observer is not None:
            self._observer(f"after {name}")
