"""Sessions whose sink stores the offsets, blocking and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, Unpack, cast, overload

from onceflow.sdk.model.consumer_record import AnyRecord, ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.config import AnySessionConfig, K, SessionConfig, V
from onceflow.transactions.sdk_clients import AsyncioClients, BlockingClients
from onceflow.transactions.sinks.session_calls import SinkSessionCalls
from onceflow.transactions.sinks.session_core import SinkSessionCore
from onceflow.transactions.sinks.sink import AsyncSink, Sink, SinkClients
from onceflow.transactions.sinks.threaded import asyncio_sink

if TYPE_CHECKING:
    from onceflow.transactions.keywords import SessionKeywords, SessionRest


class SinkSession(SinkSessionCalls, Generic[KeyT_co, ValueT_co]):
    """Reads topics and writes rows to a sink, each record's rows once.

    Rows and offsets are stored in one transaction of the sink. After each assignment reading
    continues at the sink's offsets; the group's committed offsets only show the lag.

    ::

        config = SessionConfig(topics=["in"], bootstrap_servers="localhost:9092", group_id="g")
        with SinkSession(Sqlite("shop.db", "orders"), config) as session:
            while True:
                for records in session.poll(1000).values():
                    for record in records:
                        session.write({"id": record.offset, "item": record.value}, of=record)
                if session.commit_due:
                    session.commit()

    Call ``poll`` from one thread at a time, and only when all records of the previous poll are
    processed: a rebalance within ``poll`` commits all polled records.

    Args:
        sink: Stores rows and offsets; the session opens and closes it.
        config: Settings; or give them as keyword arguments, which win. Those of producers have no
            effect.
        clients: Makes the consumer; the SDK's own by default.
        **settings: Settings of ``SessionConfig`` and of consumers.

    Raises:
        ConfigError: A setting cannot work, or the sink's table or folder does not fit.
        KafkaError: The brokers cannot be reached, or refuse.
    """

    @overload
    def __init__(
        self: SinkSession[K, V],
        sink: Sink,
        config: SessionConfig[K, V],
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SinkSession[bytes | None, bytes | None],
        sink: Sink,
        config: None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: SinkSession[object, object],
        sink: Sink,
        config: AnySessionConfig | None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None: ...
    def __init__(
        self,
        sink: Sink,
        config: AnySessionConfig | None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        checked = SessionConfig.of(config, settings)
        self._core = SinkSessionCore(checked, clients or BlockingClients(), sink)
        run_blocking(self._core.start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Take records; claims and commits of a rebalance happen in here.

        Args:
            timeout_ms: How long to wait for records.
            max_records: Most records; None takes ``max_poll_records``.

        Raises:
            SinkTopicReplacedError: A topic was deleted and made again.
            SinkUnavailableError: The sink cannot be reached in time; the next poll tries again.
            KafkaError: Reading failed, or the commit within a rebalance.
        """
        records = run_blocking(self._core.poll(timeout_ms, max_records))
        self._core.handed_out()
        return records  # type: ignore[return-value] # A signal could come after a cast().

    def close(self, timeout_ms: int = 30_000) -> None:
        """Drop what is not committed, leave the group, close consumer and sink.

        Args:
            timeout_ms: Limit for leaving the group.
        """
        run_blocking(self._core.close(timeout_ms))


class AsyncSinkSession(Generic[KeyT_co, ValueT_co]):
    """``SinkSession`` for asyncio, with the same names and rules.

    Use ``async with``, or call ``start``. A blocking sink runs in its own thread, so that it does
    not block the loop. If the caller of ``commit`` is cancelled, the commit still goes on to its
    end.

    Args:
        sink: Stores rows and offsets: a ``Sink`` or an ``AsyncSink``.
        config: Settings; or give them as keyword arguments, which win. Those of producers have no
            effect.
        clients: Makes the consumer; the SDK's own by default.
        **settings: Settings of ``SessionConfig`` and of consumers.

    Raises:
        ConfigError: A setting cannot work.
    """

    @overload
    def __init__(
        self: AsyncSinkSession[K, V],
        sink: Sink | AsyncSink,
        config: SessionConfig[K, V],
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncSinkSession[bytes | None, bytes | None],
        sink: Sink | AsyncSink,
        config: None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncSinkSession[object, object],
        sink: Sink | AsyncSink,
        config: AnySessionConfig | None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None: ...
    def __init__(
        self,
        sink: Sink | AsyncSink,
        config: AnySessionConfig | None = None,
        *,
        clients: SinkClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        checked = SessionConfig.of(config, settings)
        self._core = SinkSessionCore(checked, clients or AsyncioClients(), asyncio_sink(sink))
        self._ending = asyncio.Lock()

    async def start(self) -> None:
        """Open the sink and make the consumer.

        Raises:
            ConfigError: The sink's table or folder does not fit.
            KafkaError: The brokers cannot be reached, or refuse.
        """
        await self._core.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Take records; see ``SinkSession.poll``."""
        async with self._ending:
            records = await self._core.poll(timeout_ms, max_records)
            self._core.handed_out()
        return cast("dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]", records)

    def write(self, row: Mapping[str, object], *, of: AnyRecord | None = None) -> None:
        """Keep a row for the next commit.

        Args:
            row: Values by column name.
            of: The record of the row. With it, ``write`` raises an error if the record's work was
                dropped meanwhile.

        Raises:
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: The record belongs to work that was aborted or committed.
        """
        self._core.write(row, of=of)

    def write_many(
        self, rows: Sequence[Mapping[str, object]], *, of: Sequence[AnyRecord] | None = None
    ) -> None:
        """Keep rows for the next commit, faster than one by one.

        Args:
            rows: Values by column name.
            of: The record of each row: of one partition and in their order, as ``poll`` returns
                them; a record may occur several times.

        Raises:
            ConfigError: There are more or fewer records than rows, or they are not in order.
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: A record belongs to work that was aborted or committed.
        """
        self._core.write_many(rows, of=of)

    @property
    def commit_due(self) -> bool:
        """Whether the uncommitted work is older than ``commit_interval_ms``."""
        return self._core.commit_due

    async def commit(self) -> bool:
        """Store the rows, and the offsets of all polled records, in the sink's transaction.

        Returns:
            True if they are stored. False if the work was dropped and its records are read again,
            because a newer owner had claimed a partition or the answer was lost (``last_abort``).

        Raises:
            SinkSharedError: Another live program claims the same partitions again and again.
            SinkOffsetsMovedError: Another program changed the stored offsets meanwhile.
            SinkRowError: The sink cannot store a row; the work is dropped and read again.
            SinkUnavailableError: The sink cannot be reached in time; the work is dropped and read
                again. Within a rebalance the limit is ``revoke_budget_ms``, and no error is raised.
        """
        return await asyncio.shield(asyncio.ensure_future(self._commit()))

    async def _commit(self) -> bool:
        async with self._ending:
            return await self._core.commit()

    def abort(self) -> None:
        """Drop rows that are not committed; the next poll reads their records again.

        Raises:
            IllegalStateError: A commit is under way.
        """
        self._core.abort()

    @property
    def last_abort(self) -> Exception | None:
        """Why the last commit became an abort; None after one that succeeded."""
        return self._core.last_abort

    @property
    def owner(self) -> str:
        """The name under which this session claims partitions in the sink."""
        return self._core.owner

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the session owns at the moment."""
        return self._core.assignment()

    def wakeup(self) -> None:
        """Make a waiting poll return."""
        self._core.wakeup()

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Drop what is not committed, leave the group, close consumer and sink.

        Args:
            timeout_ms: Bound of leaving the group.
        """
        async with self._ending:
            await self._core.close(timeout_ms)
