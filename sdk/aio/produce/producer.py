"""The asyncio producer: records in, acknowledgements out, alone or in transactions.

A thin face: it appends in the caller's task. The engine moves batches, and the transaction driver
orders the steps of a transaction.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Never, Self, Unpack, cast

from onceflow.sdk.aio import unclosed
from onceflow.sdk.aio.connection.lookups import after_lookups, encode
from onceflow.sdk.aio.produce.delivery import AsyncDeliveries, AsyncDelivery, AsyncDeliveryMaker
from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.aio.produce.transaction_driver import TransactionDriver
from onceflow.sdk.core.arguments import refuse_positional, whole_ms
from onceflow.sdk.core.interception import ProducerInterception, as_records, columns
from onceflow.sdk.core.produce.appending import (
    BulkAppend,
    choose_partition,
    make_bulk,
    takes_plain,
    to_bytes,
)
from onceflow.sdk.core.produce.batch import DeliveryHandle, locations
from onceflow.sdk.core.produce.encoding import EncodedBatch
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.columns import Column, as_sequence
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    Headers,
    OffsetAndMetadata,
    PartitionInfo,
    ProducerIdentity,
    RecordMetadata,
    TopicPartition,
)
from onceflow.sdk.model.record_checks import (
    NO_HEADERS,
    check_timestamp,
    check_topic_name,
    to_headers,
)
from onceflow.sdk.observe.interceptors import ProducerRecord
from onceflow.sdk.serde import LookupNeeded
from onceflow.sdk.settings.config import ProducerConfig
from onceflow.sdk.settings.keywords import ProducerKeywords

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ProducerMetrics

log: logging.Logger = logging.getLogger("onceflow.producer")

CLOSE_TIMEOUT_MS = 30_000
"""How long closing tries to send waiting records, by default."""


INTERRUPTED_CLOSE_MS = 500
INTERRUPTED_ABORT_MS = 1_000
"""The same for closing and aborting after Ctrl-C, a cancellation, or another end of the program."""


def timeout_at_exit(error: BaseException | None) -> int:
    """Return how long leaving a producer's context may take, after its error if there is one."""
    interrupted = error is not None and not isinstance(error, Exception)
    return INTERRUPTED_CLOSE_MS if interrupted else CLOSE_TIMEOUT_MS


def abort_timeout_at_exit(error: BaseException) -> int | None:
    """How long aborting at the end of a transaction's context may take; None is the usual limit."""
    return None if isinstance(error, Exception) else INTERRUPTED_ABORT_MS


class AsyncTransaction:
    """``async with producer.transaction():`` commits at the end, aborts on an exception."""

    __slots__ = ("_producer",)

    def __init__(self, producer: AsyncProducer) -> None:
        self._producer = producer

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """See ``AsyncProducer.send_offsets_to_transaction``.

        Args:
            offsets: Offset of the next record by partition.
            group_metadata: Taken from the consumer when the records were polled.
        """
        await self._producer.send_offsets_to_transaction(offsets, group_metadata)

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._producer._leave_transaction(error)


class AsyncProducer:
    """Sends records to Kafka from asyncio code.

    Construct it anywhere, await ``start`` (or use ``async with``) in the loop that will use it.
    Idempotent with ``acks="all"`` unless set otherwise: a retry never duplicates a record.

    Every setting of ``ProducerConfig`` is a keyword argument.

    Raises:
        ConfigError: A setting does not exist, has a wrong value, or contradicts another.
    """

    def __init__(self, *given: Never, **settings: Unpack[ProducerKeywords]) -> None:
        refuse_positional(given)
        self._config = ProducerConfig.from_settings(settings)
        self._engine: ProducerEngine[AsyncDelivery] = ProducerEngine(
            self._config, AsyncDeliveryMaker()
        )
        self._transactions = TransactionDriver(self._engine)
        self._append = self._engine.accumulator.append
        self._append_plain = self._engine.accumulator.append_plain
        self._is_plain = takes_plain(self._config)
        self._topics = self._engine.accumulator.topics
        self._interception: ProducerInterception | None = None
        if self._config.interceptors:
            self._interception = ProducerInterception(
                self._config.interceptors, self._engine.sender.counters
            )
        self._started = False
        # get_running_loop() calls getpid(), too slow once a record; the thread's id is compared
        # instead: while the loop runs in this thread, it is the running one.
        self._thread_ident = 0
        self._loop_runs: Callable[[], bool] = bool
        self._unclosed: unclosed.Watch | None = None
        self._starting: asyncio.Lock | None = None
        self._closed = False

    # life

    async def start(self) -> None:
        """Connect, and get the identity of a transactional producer. Calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No broker could be reached within ``max_block_ms``.
            KafkaError: The coordinator refuses the transactional id or its timeout.
            IllegalStateError: It was started in another event loop.
        """
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            await self._engine.start()
            if self._started:
                return
            try:
                await self._transactions.start()
            except BaseException:
                await self._engine.close(0)
                raise
            self._started = True
            self._thread_ident = get_ident()
            self._loop_runs = asyncio.get_running_loop().is_running
            self._unclosed = unclosed.watch(self._engine, self._engine.accumulator.incomplete)

    async def stop(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """The same as ``close``.

        Args:
            timeout_ms: As for ``close``.
        """
        await self.close(timeout_ms)

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send what waits, abort an open transaction, close the connections.

        Args:
            timeout_ms: After that time what is left fails with ClientClosedError.

        Raises:
            KafkaError: A record failed and its delivery was not awaited.
        """
        if self._closed:
            return
        if self._engine.pool.is_foreign:  # A forked child: the sockets are the parent's.
            self._closed = True
            return
        self._engine.pool.check_loop()
        whole_ms(timeout_ms)
        self._closed = True
        if self._unclosed is not None:
            self._unclosed.detach()
        try:
            await self._transactions.close(timeout_ms)
        finally:
            if self._interception is not None:
                self._interception.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close(timeout_at_exit(error))
        except KafkaError as failure:
            if error is None:
                raise
            log.error("while closing after another error: %s", failure)

    # sending

    async def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncDelivery:
        """Hand over a record; it leaves with its batch.

        Awaiting this waits for room and for the topic's metadata only. Await the delivery for the
        acknowledgement. A failure whose delivery is not awaited is raised by the next send, flush,
        commit or close.

        Args:
            topic: Topic name.
            value: Value; None is a tombstone.
            key: Key; records of one key go to one partition.
            headers: Pairs of name and bytes.
            partition: Partition number; default by key, or sticky without one.
            timestamp_ms: Milliseconds since 1970; default now.

        Returns:
            The record's delivery.

        Raises:
            RecordTooLargeError: It exceeds ``max_request_size``.
            SerializationError: Key, value or headers cannot be turned into bytes.
            BufferExhaustedError: There was no room for ``max_block_ms``.
            KafkaError: The topic is unknown or refused, the transaction is broken, or an earlier
                failure was not looked at.
            IllegalStateError: This is not the event loop that started the producer.
        """
        if get_ident() != self._thread_ident or not self._loop_runs():
            self._engine.check_usable()
        if self._is_plain and partition is None and timestamp_ms is None and not headers:
            try:
                plain = self._append_plain(topic, key, value, time.time())
            except TypeError:
                check_topic_name(topic)
                raise
            if plain is not None:
                if self._engine.accumulator.batch_sealed:
                    await asyncio.sleep(0)
                return plain
        return await self._send(topic, value, key, headers, partition, timestamp_ms)

    async def _send(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> AsyncDelivery:
        """Append a record that needs serializing, a partition, headers or room."""
        if self._interception is not None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
            bulk = await self._send_intercepted(self._interception, topic, [record])
            batch, index = next(locations(bulk.parts, bulk.partitions))
            return AsyncDelivery(batch, index, bulk.timestamp_ms(0))
        config = self._config
        state = self._topics.get(topic) if isinstance(topic, str) else None
        if state is None:
            state = await self._engine.topic(topic)
        if value is not None and (type(value) is not bytes or config.value_serializer is not None):
            try:
                value = to_bytes(value, config.value_serializer, "value", topic)
            except LookupNeeded:
                value = await encode(value, config.value_serializer, "value", topic)
        if key is not None and (type(key) is not bytes or config.key_serializer is not None):
            try:
                key = to_bytes(key, config.key_serializer, "key", topic)
            except LookupNeeded:
                key = await encode(key, config.key_serializer, "key", topic)
        number = choose_partition(state, key, partition, config.partitioner)
        pairs = to_headers(headers) if headers else NO_HEADERS
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        else:
            check_timestamp(timestamp_ms)
            timestamp_ms = int(timestamp_ms)  # numpy's integers are not Python's
        while True:
            delivery = self._append(state, number, key, value, pairs, timestamp_ms)
            if delivery is not None:
                if self._engine.accumulator.batch_sealed:
                    await asyncio.sleep(0)
                return delivery
            await self._engine.wait_memory()

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """``send``, and wait for the acknowledgement.

        Args:
            topic: Topic name.
            value: Value; None is a tombstone.
            key: Key; records of one key go to one partition.
            headers: Pairs of name and bytes.
            partition: Partition number; default by key, or sticky without one.
            timestamp_ms: Milliseconds since 1970; default now.
        """
        return await (
            await self.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        )

    async def send_many(
        self,
        topic: str,
        values: Column[object],
        keys: Column[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Column[int] | int | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> AsyncDeliveries:
        """Hand over many records of one topic in one call, several times faster than one by one.

        Args:
            topic: Topic name.
            values: Values: a sequence, or a column of Arrow, numpy or pandas. (numpy drops zero
                bytes at the end of its fixed-length bytes; that is numpy's doing.)
            keys: Keys beside the values, or None.
            partition: One partition for all; default by key.
            timestamps_ms: One timestamp each, or one for all; default now.
            headers: Headers of each record, or None.

        Returns:
            One delivery for all of them.

        Raises:
            KafkaError: As ``send``; the records before the refused one were taken.
        """
        values, keys = as_sequence(values), None if keys is None else as_sequence(keys, "keys")
        if timestamps_ms is not None and not isinstance(timestamps_ms, int):
            timestamps_ms = as_sequence(timestamps_ms, "timestamps_ms")
        if headers is not None:
            headers = as_sequence(headers, "headers")
        if self._interception is not None:
            records = as_records(topic, values, keys, partition, timestamps_ms, headers)
            bulk = await self._send_intercepted(self._interception, topic, records)
        else:
            bulk = await self._bulk(
                topic,
                values,
                keys,
                partition,
                int(time.time() * 1000) if timestamps_ms is None else timestamps_ms,
                headers,
            )
            await self._take(bulk)
        return AsyncDeliveries(bulk.parts, bulk.partitions, bulk.timestamps_ms)

    async def _bulk(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None,
        partition: int | Sequence[int | None] | None,
        timestamps_ms: Sequence[int] | int,
        headers: Sequence[Headers] | None,
    ) -> BulkAppend:
        self._engine.check_usable()
        check_topic_name(topic)
        make = functools.partial(
            make_bulk,
            self._engine.accumulator,
            self._config,
            self._topics.get(topic) or await self._engine.topic(topic),
            values,
            keys,
            partition=partition,
            timestamps_ms=timestamps_ms,
            headers=headers,
        )
        return await after_lookups(make)

    async def _take(self, bulk: BulkAppend) -> None:
        while not bulk.advance():
            await self._engine.wait_memory()
        if self._engine.accumulator.batch_sealed:
            await asyncio.sleep(0)

    async def _send_intercepted(
        self, interception: ProducerInterception, topic: str, given: Sequence[ProducerRecord]
    ) -> BulkAppend:
        now_ms = int(time.time() * 1000)
        records = [interception.on_send(record, now_ms) for record in given]
        bulk: BulkAppend | None = None
        failure: KafkaError | None = None
        try:
            bulk = await self._bulk(topic, *columns(records))
            await self._take(bulk)
        except KafkaError as error:
            failure = error
            raise
        finally:
            interception.taken(records, bulk, failure)
        return bulk

    async def send_batch(self, topic: str, batch: EncodedBatch) -> AsyncDeliveries:
        """Hand over a finished batch that a ``BatchEncoder`` made, here or in another process.

        It follows the earlier records of its partition. Producer id, epoch and sequence are
        set when it is sent, so one batch may be handed over only once.

        Args:
            topic: Topic name.
            batch: The batch.

        Returns:
            One delivery for all its records, without their timestamps.

        Raises:
            ConfigError: There is no such partition, the bytes are not a batch, or the producer has
                interceptors, which could not see the records.
            KafkaError: As ``send``.
        """
        made = await self._engine.send_batch(topic, batch)
        parts = {batch.partition: [(made, 0, batch.records_count)]}
        return AsyncDeliveries(parts, [batch.partition] * batch.records_count, -1)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until every record handed over so far has its outcome.

        Args:
            timeout_ms: Limit; default ``delivery_timeout_ms``, within which every outcome is
                known anyway.

        Raises:
            RequestTimedOutError: The limit passed; the records stay on their way.
            KafkaError: A record failed and its delivery was not awaited.
        """
        await self._engine.flush(timeout_ms)

    # topics

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partition numbers of a topic.

        Args:
            topic: Topic name.
        """
        state = await self._engine.topic(topic)
        return set(range(state.partition_count))

    async def partition_infos(self, topic: str) -> list[PartitionInfo]:
        """Return the partitions of a topic, with leaders and replicas.

        Args:
            topic: Topic name.
        """
        await self._engine.topic(topic)
        return self._engine.pool.metadata.partition_infos(topic)

    async def partition_for(self, topic: str, key: object) -> int:
        """Return the partition that a record with this key goes to.

        Args:
            topic: Topic name.
            key: Key; None gives the partition that takes records without a key now.
        """
        state = await self._engine.topic(topic)
        data = None if key is None else await encode(key, self._config.key_serializer, "key", topic)
        number = choose_partition(state, data, None, self._config.partitioner)
        return number if number >= 0 else state.sticky.current

    # transactions

    @property
    def identity(self) -> ProducerIdentity | None:
        """The transactional id, producer id and epoch; None without transactions."""
        return self._engine.identity

    @property
    def config(self) -> ProducerConfig:
        """The settings."""
        return self._config

    def metrics(self) -> ProducerMetrics:
        """Return the figures of this producer; cheap, from any thread, and also after ``close``."""
        from onceflow.sdk.aio.snapshots import producer_metrics  # Late: most programs never ask.

        return producer_metrics(cast("ProducerEngine[DeliveryHandle]", self._engine))

    def transaction(self) -> AsyncTransaction:
        """A context that begins a transaction, commits at its end, aborts on an exception."""
        return AsyncTransaction(self)

    async def init_transactions(self, timeout_ms: int | None = None) -> None:
        """Take over the transactional id; ``start`` has done so already.

        Calling it on a producer in use raises the epoch. An open transaction must be committed or
        aborted first, and an end without an answer must be asked for again.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            ProducerFencedError: A newer producer has the transactional id; close this one.
            InvalidProducerIdMappingError: The coordinator has forgotten the id, and another
                producer may have used it since; close this one.
            KafkaError: The coordinator refuses or does not answer.
            IllegalStateError: A transaction is open, or this producer has no transactional id.
        """
        await self._transactions.init(timeout_ms)

    async def begin_transaction(self) -> None:
        """Open a transaction. The broker begins it with the first record or offset.

        Raises:
            ProducerFencedError: A newer producer has the transactional id; close this one.
            IllegalStateError: One is open, the last commit has no answer yet (commit again), or
                this producer has no transactional id.
        """
        self._engine.check_usable()
        if not self._transactions.begin_now():
            await self._transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction (KIP-447).

        Args:
            offsets: Next offset to read by partition.
            group_metadata: Taken from the consumer when the records were polled.
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            KafkaError: The member was replaced, a record was lost, or a coordinator refuses:
                abort then.
        """
        await self._transactions.send_offsets(offsets, group_metadata, timeout_ms)

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:
        """Make the transaction visible.

        A commit whose answer did not come (also one that was cancelled or interrupted) must be
        called again until its outcome is known, as with Kafka's own client. It commits if the
        request was lost, and nothing else is allowed meanwhile. ``close`` asks again, too.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            CommitOutcomeUnknownError: No answer: it may be committed or not, never half.
            RequestTimedOutError: Records were not acknowledged in time, so no commit was asked
                for. The transaction is open still: commit again, or abort.
            ProducerFencedError: A newer producer has the id. If an earlier answer to this commit
                was lost, it may be committed or not.
            InvalidProducerIdMappingError: The coordinator has forgotten the id; close this one.
            TransactionAbortedError: The coordinator had aborted it.
            KafkaError: A record of it failed; abort it.
        """
        await self._transactions.commit(timeout_ms)

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:
        """Abort the transaction: drop its records, and clear the error that broke it.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            IllegalStateError: No transaction is open, or a commit was asked for and has no answer
                yet: commit again.
            KafkaError: The coordinator could not be reached. Call it again, or begin the next
                transaction, which aborts this one first.
        """
        await self._transactions.abort(timeout_ms)

    def note_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that other producers write to in this transaction.

        Args:
            partitions: What producers with ``joined_identity`` wrote to.
        """
        self._engine.check_usable()
        self._transactions.note_partitions(partitions)

    async def _leave_transaction(self, error: BaseException | None) -> None:
        if error is None:
            try:
                await self.commit_transaction()
            except BaseException as failure:
                await self._transactions.abort_quietly(abort_timeout_at_exit(failure))
                raise
        else:
            await self._transactions.abort_quietly(abort_timeout_at_exit(error))
