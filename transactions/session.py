"""The two faces of a consume-transform-produce session: blocking and asyncio.

They own nothing but a ``SessionCore``, which holds the rules. Use one when what you write depends
on what you read, and both have to become visible together: outputs and input offsets go into one
Kafka transaction (KIP-98, KIP-447).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, Unpack, cast, overload

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.transactions.clients import SentRun
from onceflow.transactions.colour import run_blocking, settle
from onceflow.transactions.config import AnySessionConfig, K, SessionConfig, V
from onceflow.transactions.listener import (
    Abort,
    NoListener,
    Offsets,
    PollResult,
    SessionClients,
    SessionListener,
)
from onceflow.transactions.session_calls import SessionCalls
from onceflow.transactions.session_core import SessionCore

if TYPE_CHECKING:
    from onceflow.transactions.keywords import SessionKeywords, SessionRest


class TransactionSession(SessionCalls, Generic[KeyT_co, ValueT_co]):
    """A blocking consume-transform-produce session.

    Its parameters are the types of the keys and values that it reads, which follow from the
    ``SessionConfig``; ``bytes | None`` without deserializers.

    ::

        config = SessionConfig(topics=["in"], bootstrap_servers="localhost:9092", group_id="g")
        with TransactionSession(config) as session:
            while True:
                for records in session.poll(1000).values():
                    for record in records:
                        session.send("out", (record.value or b"").upper(), key=record.key)
                if session.commit_due:
                    session.commit()

    A transaction is begun by the first send or commit that needs one. ``poll`` must be called
    from one thread at a time, and only when everything it returned before is dealt with: a
    rebalance inside of ``poll`` commits all that was polled.

    Args:
        config: Settings; or give them as keyword arguments, which win.
        listener: Told about assignments, commits and aborts; for callers that keep state.
        clients: Makes the clients; the SDK's own by default.
        **settings: Settings of ``SessionConfig``, such as ``topics``, ``group_id`` and ``client``,
            and of producers and consumers.

    Raises:
        ConfigError: The broker does not allow so long a transaction timeout.
        KafkaError: The brokers cannot be reached, or refuse.
    """

    @overload
    def __init__(
        self: TransactionSession[K, V],
        config: SessionConfig[K, V],
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: TransactionSession[bytes | None, bytes | None],
        config: None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: TransactionSession[object, object],
        config: AnySessionConfig | None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None: ...
    def __init__(
        self,
        config: AnySessionConfig | None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        if clients is None:
            from onceflow.transactions.sdk_clients import BlockingClients

            clients = BlockingClients()
        checked = SessionConfig.of(config, settings)
        self._core = SessionCore(checked, clients, listener or NoListener())
        run_blocking(self._core.start())

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Take records; commits and aborts of a rebalance happen in here.

        Args:
            timeout_ms: How long to wait when there is nothing.
            max_records: Most records to return, ``max_poll_records`` by default.

        Returns:
            Records by partition, in order.

        Raises:
            OffsetOutOfRangeError: The committed offset is gone and ``auto_offset_reset`` is
                ``none``.
            TransactionalIdInUseError: Another live process uses the same slot.
        """
        result = run_blocking(self._core.poll_result(timeout_ms, max_records))
        failure = result.unit_error or result.input_error
        records = result.records
        self._core.handed_out()
        if failure is not None:
            raise failure
        return records  # type: ignore[return-value] # A signal could come after a cast().

    def poll_result(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> PollResult[KeyT_co, ValueT_co]:
        """As ``poll``, but tell errors of reading apart from those of a transaction.

        For callers that go on with other partitions when one cannot be read, and that must not
        take a refused output for a fault of the input, or the other way round.

        Args:
            timeout_ms: How long to wait when there is nothing.
            max_records: Most records to return, ``max_poll_records`` by default.

        Raises:
            KafkaError: A client could not be made, or committed offsets could not be read.
        """
        result = run_blocking(self._core.poll_result(timeout_ms, max_records))
        self._core.handed_out()
        return result  # type: ignore[return-value] # A signal could come after a cast().

    def records(self, timeout_ms: int = 1_000) -> Iterator[ConsumerRecord[KeyT_co, ValueT_co]]:
        """Yield records one by one, for ever, and commit whenever that is due.

        A commit takes what was yielded, so it may stand in the loop. After an abort the loop goes
        on with what is read again; what a loop that was left did not yield is read again, too.

        Args:
            timeout_ms: Longest wait of each poll for its first record.

        Raises:
            KafkaError: As ``poll`` and ``commit``.
        """
        while True:
            result = run_blocking(self._core.poll_result(timeout_ms, None))
            failure = result.unit_error or result.input_error
            if failure is not None:
                self._core.handed_out()
                raise failure
            records = self._core.one_by_one(result.records)
            yield from cast("Iterator[ConsumerRecord[KeyT_co, ValueT_co]]", records)
            if self.commit_due:
                self.commit()

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object:
        """Send one record within the transaction, which is begun if need be.

        Args:
            topic: Topic name.
            value: Value; None is a tombstone.
            key: Key; records of one key go to one partition.
            headers: Pairs of name and bytes.
            partition: Partition number; default by key, or sticky without one.
            timestamp_ms: Milliseconds since 1970; default now.

        Returns:
            The producer's delivery handle. Failures also make the next commit an abort.
        """
        core = self._core
        if not core.in_transaction:
            run_blocking(core.begin())
        try:
            return core.producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        except KafkaError as error:
            core.note_failure(error)
            raise

    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> SentRun:
        """Send many records of one topic within the transaction, faster than one by one.

        Args:
            topic: Topic name.
            values: Values: a sequence, or a column of Arrow, numpy or pandas.
            keys: Keys beside the values, or None.
            partition: One partition for all; default by key.
            timestamps_ms: One timestamp each, or one for all; default now.
        """
        core = self._core
        if not core.in_transaction:
            run_blocking(core.begin())
        try:
            sent = core.producer.send_many(
                topic, values, keys, partition=partition, timestamps_ms=timestamps_ms
            )
        except KafkaError as error:
            core.note_failure(error)
            raise
        return cast(SentRun, sent)

    @contextlib.contextmanager
    def unit(self) -> Iterator[None]:
        """A block that aborts when it raises; it does not commit by itself."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def close(self, timeout_ms: int = 10_000, *, leave_group: bool = True) -> None:
        """Abort what is open, leave the group, close the clients; twice is fine.

        Args:
            timeout_ms: Limit, as for the producer and the consumer.
            leave_group: False keeps a static member's partitions for its next start, until its
                session times out (KIP-345).
        """
        run_blocking(self._core.close(timeout_ms, leave_group=leave_group))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncTransactionSession(Generic[KeyT_co, ValueT_co]):
    """The asyncio face: the same names and rules as ``TransactionSession``, awaited.

    Make it with ``async with``, or call ``start``. ``commit`` and ``abort`` go on to their end
    when the caller is cancelled, so a transaction is never left half ended.
    """

    @overload
    def __init__(
        self: AsyncTransactionSession[K, V],
        config: SessionConfig[K, V],
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncTransactionSession[bytes | None, bytes | None],
        config: None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncTransactionSession[object, object],
        config: AnySessionConfig | None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None: ...
    def __init__(
        self,
        config: AnySessionConfig | None = None,
        *,
        listener: SessionListener | None = None,
        clients: SessionClients | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        if clients is None:
            from onceflow.transactions.sdk_clients import AsyncioClients

            clients = AsyncioClients()
        checked = SessionConfig.of(config, settings)
        self._core = SessionCore(checked, clients, listener or NoListener())
        self._ending = asyncio.Lock()

    async def start(self) -> None:
        """Initialise the producer and join the group."""
        await self._core.start()

    @property
    def config(self) -> AnySessionConfig:
        """The settings that the session was made with."""
        return self._core.config

    @property
    def last_abort(self) -> Abort | None:
        """Why the latest abort happened; None before the first one."""
        return self._core.last_abort

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._core.in_transaction

    @property
    def commit_due(self) -> bool:
        """Whether uncommitted work is older than ``commit_interval_ms``."""
        return self._core.commit_due

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the session owns at the moment."""
        return self._core.assignment()

    async def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Take records; see ``TransactionSession.poll``."""
        result = await self.poll_result(timeout_ms, max_records)
        failure = result.unit_error or result.input_error
        if failure is not None:
            raise failure
        return result.records

    async def poll_result(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> PollResult[KeyT_co, ValueT_co]:
        """Take records; see ``TransactionSession.poll_result``."""
        async with self._ending:
            result = await self._core.poll_result(timeout_ms, max_records)
            self._core.handed_out()
        return cast("PollResult[KeyT_co, ValueT_co]", result)

    def place(self, partition: TopicPartition) -> int | None:
        """The committed offset of an assigned partition.

        A commit may name it again, with another note, to have the group's generation checked
        where outputs belong to no record.

        Args:
            partition: The partition.

        Returns:
            None where nothing is committed, or not known yet.
        """
        return self._core.place(partition)

    def note(self, partition: TopicPartition) -> str | None:
        """The caller's note beside the committed offset of a partition, as far as it is known.

        Notes are the ``metadata`` of the ``OffsetAndMetadata`` that ``commit`` takes. They survive
        in the group, so the next owner of the partition reads them.

        Args:
            partition: An assigned partition.

        Returns:
            None when nothing is committed, or another program committed it.
        """
        return self._core.note(partition)

    async def records(
        self, timeout_ms: int = 1_000
    ) -> AsyncIterator[ConsumerRecord[KeyT_co, ValueT_co]]:
        """Yield records one by one, for ever, and commit whenever that is due.

        See ``TransactionSession.records``.

        Args:
            timeout_ms: Longest wait of each poll for its first record.

        Raises:
            KafkaError: As ``poll`` and ``commit``.
        """
        while True:
            async with self._ending:
                result = await self._core.poll_result(timeout_ms, None)
            failure = result.unit_error or result.input_error
            if failure is not None:
                self._core.handed_out()
                raise failure
            for record in self._core.one_by_one(result.records):
                yield cast("ConsumerRecord[KeyT_co, ValueT_co]", record)
            if self.commit_due:
                await self.commit()

    async def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object:
        """Send one record within the transaction; see ``TransactionSession.send``."""
        core = self._core
        if not core.in_transaction:
            await core.begin()
        try:
            return await settle(
                core.producer.send(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    partition=partition,
                    timestamp_ms=timestamp_ms,
                )
            )
        except KafkaError as error:
            core.note_failure(error)
            raise

    async def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> object:
        """Send many records of one topic within the transaction, faster than one by one.

        Args:
            topic: Topic name.
            values: Values: a sequence, or a column of Arrow, numpy or pandas.
            keys: Keys beside the values, or None.
            partition: One partition for all; default by key.
            timestamps_ms: One timestamp each, or one for all; default now.
        """
        core = self._core
        if not core.in_transaction:
            await core.begin()
        try:
            return await settle(
                core.producer.send_many(
                    topic, values, keys, partition=partition, timestamps_ms=timestamps_ms
                )
            )
        except KafkaError as error:
            core.note_failure(error)
            raise

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until all that was sent is acknowledged; ``commit`` does it by itself.

        Args:
            timeout_ms: Limit, ``max_block_ms`` of the producer by default.

        Raises:
            KafkaError: A record was not delivered; the next commit becomes an abort.
        """
        await self._core.flush(timeout_ms)

    async def commit(self, offsets: Offsets | None = None) -> bool:
        """Commit outputs and offsets together.

        Args:
            offsets: Next offset by partition when only a part of what was polled is processed; an
                ``OffsetAndMetadata`` carries a note of at most 4,000 bytes, see ``note``. A
                partition without uncommitted work makes the commit an abort: its records were
                read under an earlier assignment, and their outputs must not become visible.

        Returns:
            True when committed. False when it became an abort: the consumer is back at the
            committed offsets, the same records come again, and ``last_abort`` says why.

        Raises:
            RecordError: A record can never be delivered; the transaction is aborted, and the same
                records would fail again.
            CommitOutcomeUnknownError: Not even the committed offsets could be read.
            TransactionalIdInUseError: Another live process uses the same slot.
        """
        return await asyncio.shield(asyncio.ensure_future(self._commit(offsets)))

    async def _commit(self, offsets: Offsets | None) -> bool:
        async with self._ending:
            return await self._core.commit(offsets)

    async def abort(self, cause: KafkaError | None = None) -> None:
        """Drop the outputs and go back to the committed offsets.

        Args:
            cause: What ``send``, ``send_many`` or ``flush`` raised. The session then reacts as
                to the same error of a commit: a producer that was fenced is replaced, for example.

        Raises:
            KafkaError: The cause itself, where going on does not help (``RecordError`` for one).
        """
        await asyncio.shield(asyncio.ensure_future(self._abort(cause)))

    async def _abort(self, cause: KafkaError | None) -> None:
        async with self._ending:
            await self._core.abort(cause)

    @contextlib.asynccontextmanager
    async def unit(self) -> AsyncIterator[None]:
        """A block that aborts when it raises; it does not commit by itself."""
        try:
            yield
        except BaseException:
            await self.abort()
            raise

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``.

        Args:
            partitions: Assigned partitions.
        """
        self._core.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again.

        Args:
            partitions: Assigned partitions.
        """
        self._core.resume(partitions)

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop what was fetched of a partition and not handed out, and fetch it again.

        For a partition that could not be read: a damaged answer may be right the next time.

        Args:
            partition: An assigned partition.

        Raises:
            KafkaError: Its position is not known.
        """
        await self._core.read_again(partition)

    async def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Give back what was polled of partitions and not committed: it is read again.

        Args:
            partitions: Assigned partitions.
        """
        await self._core.put_back(partitions)

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that a poll would give, behind what polls have returned.

        Args:
            partition: An assigned partition.

        Raises:
            IllegalStateError: It is not assigned.
        """
        return await self._core.position(partition)

    def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end, as far as the last answer of a broker tells.

        Args:
            partition: An assigned partition.
        """
        return self._core.at_end(partition)

    async def check_membership(self) -> None:
        """Ask the coordinator whether the membership in the group still holds.

        Raises:
            CommitFailedError: The group went on without this member.
            FencedInstanceIdError: Another process has the instance id.
            KafkaError: The coordinator cannot be reached.
        """
        await self._core.check_membership()

    def wakeup(self) -> None:
        """Make a waiting ``poll`` return; callable from other threads and signal handlers."""
        self._core.wakeup()

    async def close(self, timeout_ms: int = 10_000, *, leave_group: bool = True) -> None:
        """Abort what is open, leave the group, close the clients; twice is fine.

        A poll of another task returns; a commit or abort that goes on is waited for first, for
        half of the time at most.

        Args:
            timeout_ms: Limit, as for the producer and the consumer.
            leave_group: As for ``TransactionSession.close``.
        """
        deadline_s = time.monotonic() + timeout_ms / 1000
        self._core.wakeup()
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout_ms / 2000):
                    await held.enter_async_context(self._ending)
            except TimeoutError:
                pass  # It fails when the clients are closed under it.
            except asyncio.CancelledError:
                await self._core.close(0, leave_group=leave_group)
                raise
            left_ms = max(0, int((deadline_s - time.monotonic()) * 1000))
            await self._core.close(left_ms, leave_group=leave_group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
