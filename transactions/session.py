"""Consume-transform-produce sessions, blocking and asyncio.

A session puts outputs and input offsets into one Kafka transaction (KIP-98, KIP-447), so that both
become visible together. ``SessionCore`` holds the rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
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

    The first send or commit that needs a transaction begins one. Several threads may send at the
    same time; make all other calls from one thread at a time. Call ``poll`` and ``commit`` only
    when all records of the previous poll are processed: a rebalance within ``poll`` commits all
    polled records, as ``commit`` does.

    Args:
        config: Settings; or give them as keyword arguments, which win.
        listener: Called at assignments, commits and aborts; for callers that keep state.
        clients: Makes the clients; the SDK's by default.
        **settings: Settings of ``SessionConfig``, such as ``topics``, ``group_id`` and ``client``,
            and of producers and consumers.

    Raises:
        ConfigError: The transaction timeout is longer than the broker allows.
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
        # Threads may send at the same time; reentrant, for a signal's handler that sends.
        self._beginning = threading.RLock()
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
        """Do as ``poll``, but return errors of reading and of the transaction separately.

        This is for callers that continue with other partitions if one cannot be read, and that must
        distinguish a refused output from a fault of the input.

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
        """Send one record within the transaction; the first one begins it.

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
        if not (core.in_transaction and core.has_begun):
            with self._beginning:
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
        if not (core.in_transaction and core.has_begun):
            with self._beginning:
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
        """Abort if the block raises an error; without an error, do nothing."""
        try:
            yield
        except BaseException:
            self.abort()
            raise

    def close(self, timeout_ms: int = 10_000, *, leave_group: bool = True) -> None:
        """Abort the open transaction, leave the group and close the clients.

        A second call does nothing.

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
    """``TransactionSession`` for asyncio, with the same names and rules.

    Use ``async with``, or call ``start``. If the caller of ``commit`` or ``abort`` is cancelled,
    the call still runs to its end, so that a transaction is never half ended.
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
        self._beginning = asyncio.Lock()

    async def start(self) -> None:
        """Initialise the producer and join the group."""
        await self._core.start()

    @property
    def config(self) -> AnySessionConfig:
        """The settings that the session was made with."""
        return self._core.config

    @property
    def last_abort(self) -> Abort | None:
        """Cause of the last abort; None before the first one."""
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
        """Return the partitions that the session owns at the moment."""
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
        """Return the committed offset of an assigned partition.

        A commit may name this offset again, with another note, if its outputs belong to no record:
        then the coordinator still checks the membership.

        Args:
            partition: The partition.

        Returns:
            None if nothing is committed, or the offset is not known yet.
        """
        return self._core.place(partition)

    def note(self, partition: TopicPartition) -> str | None:
        """Return the caller's note beside the committed offset of a partition, if it is known.

        ``commit`` takes notes as the ``metadata`` of ``OffsetAndMetadata``. The group keeps them,
        so the next owner of the partition can read them.

        Args:
            partition: An assigned partition.

        Returns:
            None if nothing is committed, or if another program committed.
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
                yield record  # type: ignore[misc] # A signal could come within a cast().
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
        if not (core.in_transaction and core.has_begun):
            async with self._beginning:
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
        if not (core.in_transaction and core.has_begun):
            async with self._beginning:
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
        """Wait until all sent records are acknowledged; ``commit`` does this too.

        Args:
            timeout_ms: Limit, ``max_block_ms`` of the producer by default.

        Raises:
            KafkaError: A record was not delivered; the next commit becomes an abort.
        """
        await self._core.flush(timeout_ms)

    async def commit(self, offsets: Offsets | None = None) -> bool:
        """Commit outputs and offsets together.

        Args:
            offsets: Next offset by partition, if only a part of the polled records is processed; an
                ``OffsetAndMetadata`` carries a note of at most 4,000 bytes, see ``note``. A
                partition without uncommitted work makes the commit an abort: its records were
                polled under an earlier assignment, and their outputs must not become visible.

        Returns:
            True if committed. False if it became an abort: the consumer is back at the committed
            offsets, the same records are read again, and ``last_abort`` has the cause.

        Raises:
            RecordError: A record can never be delivered; the transaction is aborted, and the same
                records would fail again.
            CommitOutcomeUnknownError: The commit got no answer, and the committed offsets could
                not be read.
            TransactionalIdInUseError: Another live process uses the same slot.
        """
        return await asyncio.shield(asyncio.ensure_future(self._commit(offsets)))

    async def _commit(self, offsets: Offsets | None) -> bool:
        async with self._ending:
            return await self._core.commit(offsets)

    async def abort(self, cause: KafkaError | None = None) -> None:
        """Drop the outputs and go back to the committed offsets.

        Args:
            cause: Error of ``send``, ``send_many`` or ``flush``. The session then reacts as to
                the same error of a commit: for example, it replaces a fenced producer.

        Raises:
            KafkaError: The cause, if going on would not help (such as ``RecordError``).
        """
        await asyncio.shield(asyncio.ensure_future(self._abort(cause)))

    async def _abort(self, cause: KafkaError | None) -> None:
        async with self._ending:
            await self._core.abort(cause)

    @contextlib.asynccontextmanager
    async def unit(self) -> AsyncIterator[None]:
        """Abort if the block raises an error; without an error, do nothing."""
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
        """Drop fetched records of a partition that no poll has returned, and fetch them again.

        This is for a partition that could not be read: the answer may have been damaged on its way.

        Args:
            partition: An assigned partition.

        Raises:
            KafkaError: Its position is not known.
        """
        await self._core.read_again(partition)

    async def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Read polled, uncommitted records of partitions again.

        Args:
            partitions: Assigned partitions.
        """
        await self._core.put_back(partitions)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return.

        Args:
            partition: An assigned partition.

        Raises:
            IllegalStateError: It is not assigned.
        """
        return await self._core.position(partition)

    def at_end(self, partition: TopicPartition) -> bool:
        """Return whether a partition was read to its end, by the broker's last answer.

        Args:
            partition: An assigned partition.
        """
        return self._core.at_end(partition)

    async def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Commit ends in front of which only transaction markers and aborted records are left.

        For a caller that reads up to these offsets, has committed every record in front of them and
        takes nothing behind them: no commit of records may ever name them. Partitions that are not
        read that far are left out, and while a transaction is open nothing is done.

        Args:
            ends: Offset by assigned partition.

        Returns:
            True if they are committed, or nothing was to be done; False if it became an abort.

        Raises:
            KafkaError: Going on would not help, as for ``commit``.
        """
        return await asyncio.shield(asyncio.ensure_future(self._reach(ends)))

    async def _reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        async with self._ending:
            return await self._core.reach(ends)

    async def check_membership(self) -> None:
        """Ask the coordinator whether this is still a member of the group.

        Raises:
            CommitFailedError: The group has expelled this member.
            FencedInstanceIdError: Another process has the instance id.
            KafkaError: The coordinator cannot be reached.
        """
        await self._core.check_membership()

    def wakeup(self) -> None:
        """Make a waiting ``poll`` return; callable from other threads and signal handlers."""
        self._core.wakeup()

    async def close(self, timeout_ms: int = 10_000, *, leave_group: bool = True) -> None:
        """Abort the open transaction, leave the group and close the clients.

        A running poll returns. A running commit or abort gets up to half of the time to end. A
        second call does nothing.

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
                pass  # The running call fails when its clients are closed.
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
