"""Calling interceptors so that none of them can lose anything."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from onceflow.sdk.core.batch import DeliveryGroup, DeliveryHandle, ProducerBatch
from onceflow.sdk.core.metrics import ConsumerCounters, ProducerCounters
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
)
from onceflow.sdk.model import ConsumerRecord, OffsetAndMetadata, TopicPartition

log = logging.getLogger("onceflow.interceptors")


def _guarded(
    counters: ProducerCounters | ConsumerCounters, what: str, call: Callable[[], object]
) -> object:
    """Call an interceptor; what it raises is logged and counted, never raised."""
    try:
        return call()
    except Exception:
        counters.interceptor_errors += 1
        log.exception("an interceptor failed in %s; it is passed over", what)
        return None


class ProducerInterception:
    """The interceptors of one producer."""

    def __init__(
        self, interceptors: Sequence[ProducerInterceptor], counters: ProducerCounters
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._counters = counters

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as the interceptors want it sent."""
        for interceptor in self._interceptors:
            found = _guarded(
                self._counters, "on_send", functools.partial(interceptor.on_send, record)
            )
            if isinstance(found, ProducerRecord) and found.topic == record.topic:
                record = found
            elif found is not None:
                self._counters.interceptor_errors += 1
                log.error(
                    "an interceptor's on_send must give a ProducerRecord of the same topic, not "
                    "%.200r; it is passed over",
                    found,
                )
        return record

    def watch(self, record: ProducerRecord, delivery: DeliveryHandle) -> None:
        """Tell the interceptors of the record's outcome when it is known."""
        batch, index = delivery.place
        self._watch(record, batch, index)

    def watch_many(self, records: Sequence[ProducerRecord], deliveries: DeliveryGroup) -> None:
        """The same for the records of one call."""
        for record, (batch, index) in zip(records, deliveries.locations(), strict=True):
            self._watch(record, batch, index)

    def _watch(self, record: ProducerRecord, batch: ProducerBatch, index: int) -> None:
        batch.add_done_callback(functools.partial(self._settled, record, batch, index))

    def _settled(self, record: ProducerRecord, batch: ProducerBatch, index: int) -> None:
        error = batch.failure(index)
        if error is not None:
            self.failed(record, error)
            return
        metadata = batch.result(index, -1 if record.timestamp_ms is None else record.timestamp_ms)
        for interceptor in self._interceptors:
            call = functools.partial(interceptor.on_acknowledgement, record, metadata)
            _guarded(self._counters, "on_acknowledgement", call)

    def failed(self, record: ProducerRecord, error: KafkaError) -> None:
        """A record was given up or refused."""
        for interceptor in self._interceptors:
            call = functools.partial(interceptor.on_error, record, error)
            _guarded(self._counters, "on_error", call)

    def close(self) -> None:
        """The producer is closed."""
        for interceptor in self._interceptors:
            _guarded(self._counters, "close", interceptor.close)


class ConsumerInterception:
    """The interceptors of one consumer."""

    def __init__(
        self, interceptors: Sequence[ConsumerInterceptor], counters: ConsumerCounters
    ) -> None:
        self._interceptors = tuple(interceptors)
        self._counters = counters

    def on_records(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Records are given to the application."""
        if not records:
            return
        for interceptor in self._interceptors:
            call = functools.partial(interceptor.on_records, records)
            _guarded(self._counters, "on_records", call)

    def on_record(self, record: ConsumerRecord) -> None:
        """The same for one record of an iteration."""
        if self._interceptors:
            self.on_records({TopicPartition(record.topic, record.partition): [record]})

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed."""
        for interceptor in self._interceptors:
            call = functools.partial(interceptor.on_commit, offsets)
            _guarded(self._counters, "on_commit", call)

    def close(self) -> None:
        """The consumer is closed."""
        for interceptor in self._interceptors:
            _guarded(self._counters, "close", interceptor.close)
