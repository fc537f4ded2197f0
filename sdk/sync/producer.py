"""The blocking producer: the same names as the asyncio one, for code without an event loop.

``send`` appends in the caller's thread and wakes the background loop only when there is something
for it to do, so that a record costs no hop between threads. Everything else is one call into the
loop. The engine that both faces share decides when batches are sent.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Never, Self, Unpack

from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.aio.produce.producer import (
    CLOSE_TIMEOUT_MS,
    abort_timeout_at_exit,
    timeout_at_exit,
)
from onceflow.sdk.aio.produce.transaction_driver import TransactionDriver
from onceflow.sdk.core.arguments import refuse_positional, whole_ms
from onceflow.sdk.core.interception import ProducerInterception, as_records, columns
from onceflow.sdk.core.produce.appending import (
    BulkAppend,
    choose_partition,
    encode,
    make_bulk,
    takes_plain,
)
from onceflow.sdk.core.produce.batch import locations
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.columns import Column, as_sequence
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    Headers,
    OffsetAndMetadata,
    TopicPartition,
)
from onceflow.sdk.model.record_checks import (
    NO_HEADERS,
    check_timestamp,
    check_topic_name,
    to_headers,
)
from onceflow.sdk.observe.interceptors import ProducerRecord
from onceflow.sdk.serde import after_lookups
from onceflow.sdk.settings.config import ProducerConfig
from onceflow.sdk.settings.keywords import ProducerKeywords
from onceflow.sdk.sync.delivery import Deliveries, Delivery, DeliveryMaker
from onceflow.sdk.sync.portal import Portal
from onceflow.sdk.sync.producer_calls import ProducerCalls

log: logging.Logger = logging.getLogger("onceflow.producer")

EXIT_TIMEOUT_MS = 5_000
"""How long the end of the program waits for a producer that was not closed."""


class Transaction:
    """``with producer.transaction():`` commits at the end, aborts on an exception."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
    ) -> None:
        """See ``Producer.send_offsets_to_transaction``.

        Args:
            offsets: Offset of the next record by partition.
            group_metadata: Taken from the consumer when the records were polled.
        """
        self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._producer._leave_transaction(error)


class Producer(ProducerCalls):
    """Sends records to Kafka from blocking code.

    Thread-safe, and connected when the constructor returns. Idempotent with ``acks="all"`` unless
    set otherwise: a retry never duplicates a record. Make it after a fork, not before.

    Every setting of ``ProducerConfig`` is a keyword argument.

    Raises:
        ConfigError: A setting does not exist, has a wrong value, or contradicts another.
        NoBrokersAvailableError: No broker could be reached within ``max_block_ms``.
        KafkaError: The coordinator refuses the transactional id or its timeout.
    """

    def __init__(self, *given: Never, **settings: Unpack[ProducerKeywords]) -> None:
        refuse_positional(given)
        config = ProducerConfig.from_settings(settings)
        self._config = config
        self._closing = threading.RLock()
        self._portal = Portal("producer")
        try:
            self._engine: ProducerEngine[Delivery] = ProducerEngine(
                config, DeliveryMaker(), self._portal.wake
            )
            self._portal.at_end = self._engine.pool.close
            self._transactions = TransactionDriver(self._engine)
            self._append = self._engine.accumulator.append
            self._append_plain = self._engine.accumulator.append_plain
            self._topics = self._engine.accumulator.topics
            self._interception: ProducerInterception | None = None
            if config.interceptors:
                counters = self._engine.sender.counters
                self._interception = ProducerInterception(config.interceptors, counters)
            self._is_plain = takes_plain(config)
            self._portal.call(self._start)
        except BaseException:
            self._portal.close()
            raise
        _LIVE.add(self)

    async def _start(self) -> None:
        try:
            await self._engine.start()
            await self._transactions.start()
        except BaseException:
            await self._engine.close(0)
            raise

    # life

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send what waits, abort an open transaction, close the connections and end the thread.

        Calling it again does nothing.

        Args:
            timeout_ms: After that time what is left fails with ClientClosedError.

        Raises:
            IllegalStateError: Called within a callback of this producer, such as an interceptor.
            KafkaError: A record failed and its delivery was not awaited.
        """
        whole_ms(timeout_ms)
        if self._portal.is_foreign:
            _LIVE.discard(self)
            self._portal.close()  # The thread is the parent's.
            return
        self._portal.check_thread()
        _LIVE.discard(self)
        with self._closing:  # A second caller must not cut the first one short.
            if self._portal.is_closed:
                self._portal.close()  # Interrupted before.
                return
            try:
                self._portal.call(lambda: self._transactions.close(timeout_ms))
            finally:
                self._portal.close()
                if self._interception is not None:
                    self._interception.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(timeout_at_exit(error))
        except KafkaError as failure:
            if error is None:
                raise
            log.error("while closing after another error: %s", failure)

    # sending

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Hand over a record; it leaves with its batch.

        Blocks only for a topic's metadata and when ``buffer_memory`` is full. A failure whose
        delivery is not awaited is raised by the next send, flush, commit or close.

        Args:
            topic: Topic name.
            value: Value; None is a tombstone.
            key: Key; records of one key go to one partition.
            headers: Pairs of name and bytes.
            partition: Partition number; default by key, or sticky without one.
            timestamp_ms: Milliseconds since 1970; default now.

        Returns:
            The record's delivery; ``result()`` waits for the acknowledgement.

        Raises:
            RecordTooLargeError: It exceeds ``max_request_size``.
            SerializationError: Key, value or headers cannot be turned into bytes.
            BufferExhaustedError: There was no room for ``max_block_ms``.
            KafkaError: The topic is unknown or refused, the transaction is broken, or an earlier
                failure was not looked at.
        """
        if self._is_plain and partition is None and timestamp_ms is None and not headers:
            try:
                plain = self._append_plain(topic, key, value, time.time())
            except TypeError:
                check_topic_name(topic)
                raise
            if plain is not None:
                return plain
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery:
        """Append a record that needs serializing, a partition, headers or room."""
        if self._interception is not None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
            bulk = self._send_intercepted(self._interception, topic, [record])
            batch, index = next(locations(bulk.parts, bulk.partitions))
            return Delivery(batch, index, bulk.timestamp_ms(0))
        state = self._topics.get(topic) if isinstance(topic, str) else None
        if state is None:
            state = self._portal.call(lambda: self._engine.topic(topic))
        if value is not None:
            value = encode(value, self._config.value_serializer, "value", topic)
        if key is not None:
            key = encode(key, self._config.key_serializer, "key", topic)
        number = choose_partition(state, key, partition, self._config.partitioner)
        pairs = to_headers(headers) if headers else NO_HEADERS
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        else:
            check_timestamp(timestamp_ms)
            timestamp_ms = int(timestamp_ms)  # numpy's integers are not Python's
        delivery = self._append(state, number, key, value, pairs, timestamp_ms)
        while delivery is None:
            self._portal.call(self._engine.wait_memory)
            delivery = self._append(state, number, key, value, pairs, timestamp_ms)
        return delivery

    def send_many(
        self,
        topic: str,
        values: Column[object],
        keys: Column[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Column[int] | int | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> Deliveries:
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
            bulk = self._send_intercepted(self._interception, topic, records)
        else:
            bulk = self._bulk(
                topic,
                values,
                keys,
                partition,
                int(time.time() * 1000) if timestamps_ms is None else timestamps_ms,
                headers,
            )
            self._take(bulk)
        return Deliveries(bulk.parts, bulk.partitions, bulk.timestamps_ms)

    def _bulk(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None,
        partition: int | Sequence[int | None] | None,
        timestamps_ms: Sequence[int] | int,
        headers: Sequence[Headers] | None,
    ) -> BulkAppend:
        check_topic_name(topic)
        make = functools.partial(
            make_bulk,
            self._engine.accumulator,
            self._config,
            self._topics.get(topic) or self._portal.call(lambda: self._engine.topic(topic)),
            values,
            keys,
            partition=partition,
            timestamps_ms=timestamps_ms,
            headers=headers,
        )
        return after_lookups(make)

    def _take(self, bulk: BulkAppend) -> None:
        while not bulk.advance():
            self._portal.call(self._engine.wait_memory)

    def _send_intercepted(
        self, interception: ProducerInterception, topic: str, given: Sequence[ProducerRecord]
    ) -> BulkAppend:
        now_ms = int(time.time() * 1000)
        records = [interception.on_send(record, now_ms) for record in given]
        bulk: BulkAppend | None = None
        failure: KafkaError | None = None
        try:
            bulk = self._bulk(topic, *columns(records))
            self._take(bulk)
        except KafkaError as error:
            failure = error
            raise
        finally:
            interception.taken(records, bulk, failure)
        return bulk

    # topics

    def partition_for(self, topic: str, key: object) -> int:
        """Return the partition that a record with this key goes to.

        Args:
            topic: Topic name.
            key: Key; None gives the partition that takes records without a key now.
        """
        self._portal.check_usable()
        state = self._topics.get(topic) if isinstance(topic, str) else None
        if state is None:
            state = self._portal.call(lambda: self._engine.topic(topic))
        data = None if key is None else encode(key, self._config.key_serializer, "key", topic)
        number = choose_partition(state, data, None, self._config.partitioner)
        return number if number >= 0 else state.sticky.current

    # transactions

    def transaction(self) -> Transaction:
        """A context that begins a transaction, commits at its end, aborts on an exception."""
        return Transaction(self)

    def _leave_transaction(self, error: BaseException | None) -> None:
        if error is None:
            try:
                self.commit_transaction()
            except BaseException as failure:
                self._abort_quietly(failure)
                raise
        else:
            self._abort_quietly(error)

    def _abort_quietly(self, error: BaseException) -> None:
        limit_ms = abort_timeout_at_exit(error)
        self._portal.call(lambda: self._transactions.abort_quietly(limit_ms))


_LIVE: set[Producer] = set()
"""Producers that are not closed. They are kept until the end of the program, so that a producer
without a close() still sends what it took."""


def _close_forgotten() -> None:
    for producer in list(_LIVE):
        log.warning("a producer was not closed; closing it at the end of the program")
        try:
            producer.close(EXIT_TIMEOUT_MS)
        except KafkaError as error:
            log.error("records of a producer that was not closed are lost: %s", error)


atexit.register(_close_forgotten)
os.register_at_fork(after_in_child=_LIVE.clear)  # The parent closes them.
