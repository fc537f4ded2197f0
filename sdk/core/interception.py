"""Calling interceptors so that none of them can lose anything."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from onceflow.sdk.core.produce.appending import BulkAppend, check_lengths
from onceflow.sdk.core.produce.batch import ProducerBatch, locations
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import Headers, OffsetAndMetadata, TopicPartition
from onceflow.sdk.observe.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
)
from onceflow.sdk.observe.meters import ConsumerCounters, ProducerCounters

log: logging.Logger = logging.getLogger("onceflow.interceptors")

T = TypeVar("T")


def _guarded(
    counters: ProducerCounters | ConsumerCounters, call: Callable[..., T], *arguments: object
) -> T | None:
    """Call an interceptor; what it raises is logged and counted, never raised."""
    try:
        return call(*arguments)
    except (Exception, SystemExit):  # SystemExit would end the thread that sends
        counters.interceptor_errors += 1
        log.exception("%s failed and is ignored", getattr(call, "__qualname__", call))
        return None


class ProducerInterception:
    """The interceptors of one producer."""

    def __init__(
        self, interceptors: Sequence[ProducerInterceptor], counters: ProducerCounters
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._counters = counters

    def on_send(self, record: ProducerRecord, now_ms: int) -> ProducerRecord:
        """The record as the interceptors want it sent, its timestamp filled in.

        Args:
            record: The record as the application handed it over.
            now_ms: Milliseconds since 1970.
        """
        for interceptor in self._interceptors:
            found: object = _guarded(self._counters, interceptor.on_send, record)
            if isinstance(found, ProducerRecord) and found.topic == record.topic:
                record = found
            elif found is not None:
                self._counters.interceptor_errors += 1
                log.error(
                    "%s.on_send must give a ProducerRecord of the same topic, not %.200r; it is "
                    "ignored",
                    type(interceptor).__name__,
                    found,
                )
        if record.timestamp_ms is None:
            record = dataclasses.replace(record, timestamp_ms=now_ms)
        return record

    def taken(
        self, records: Sequence[ProducerRecord], bulk: BulkAppend | None, error: KafkaError | None
    ) -> None:
        """Records were handed to the accumulator, perhaps not all of them.

        Args:
            records: The records of the call.
            bulk: How far it got, None if it did not begin.
            error: Why it ended early, None if it did not.
        """
        count = 0
        if bulk is not None:
            count = len(bulk.partitions)
            places = locations(bulk.parts, bulk.partitions)
            for record, (batch, index) in zip(records[:count], places, strict=True):
                batch.add_done_callback(functools.partial(self._settled, record, batch, index))
        if error is not None:
            for record in records[count:]:
                self.failed(record, error)

    def _settled(self, record: ProducerRecord, batch: ProducerBatch, index: int) -> None:
        error = batch.failure(index)
        if error is not None:
            self.failed(record, error)
            return
        metadata = batch.result(index, -1 if record.timestamp_ms is None else record.timestamp_ms)
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.on_acknowledgement, record, metadata)

    def failed(self, record: ProducerRecord, error: KafkaError) -> None:
        """A record was given up or refused."""
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.on_error, record, error)

    def close(self) -> None:
        """The producer is closed."""
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.close)


class ConsumerInterception:
    """The interceptors of one consumer."""

    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], counters: ConsumerCounters
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._counters = counters

    def on_records(self, records: Mapping[TopicPartition, Sequence[AnyRecord]]) -> None:
        """Records are given to the application."""
        if not records:
            return
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.on_records, records)

    def on_record(self, record: AnyRecord) -> None:
        """The same for one record of an iteration."""
        if self._interceptors:
            self.on_records({TopicPartition(record.topic, record.partition): [record]})

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed."""
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.on_commit, offsets)

    def close(self) -> None:
        """The consumer is closed."""
        for interceptor in self._interceptors:
            _guarded(self._counters, interceptor.close)


def as_records(
    topic: str,
    values: Sequence[object],
    keys: Sequence[object] | None,
    partition: int | None,
    timestamps_ms: Sequence[int] | int | None,
    headers: Sequence[Headers] | None,
) -> list[ProducerRecord]:
    """The records of one ``send_many``, one by one.

    Raises:
        ConfigError: The sequences differ in length.
    """
    check_lengths(values, keys, timestamps_ms, headers)
    return [
        ProducerRecord(
            topic,
            value,
            None if keys is None else keys[i],
            () if headers is None else headers[i],
            partition,
            timestamps_ms[i] if isinstance(timestamps_ms, Sequence) else timestamps_ms,
        )
        for i, value in enumerate(values)
    ]


def columns(
    records: Sequence[ProducerRecord],
) -> tuple[list[object], list[object], list[int | None], list[int], list[Headers]]:
    """Values, keys, partitions, timestamps and headers of records that are ready to be sent."""
    return (
        [record.value for record in records],
        [record.key for record in records],
        [record.partition for record in records],
        [record.timestamp_ms or 0 for record in records],
        [record.headers for record in records],
    )
