"""A batch on its way to a partition, and the handles of the records in it.

The batch knows its state and its outcome; a delivery is a batch and an index. This module passes
outcomes to the callers that wait, and knows which failures the application has not seen. The
accumulator and the sender decide where batches go and when they are retried.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from onceflow.sdk.errors import IllegalStateError, KafkaError
from onceflow.sdk.model.partitions import RecordMetadata
from onceflow.sdk.model.record_checks import RecordHeaders
from onceflow.sdk.model.special_values import NO_OFFSET
from onceflow.sdk.protocol.batch_building import RecordBatchBuilder
from onceflow.sdk.protocol.batch_header import NO_SEQUENCE

if TYPE_CHECKING:
    from onceflow.sdk.protocol.record_kernel import RecordWriter

D = TypeVar("D", bound="DeliveryHandle")


class ProducerBatch:
    """Records for one partition that are sent, stored and acknowledged together.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        builder: Collects its records; None after it is built.
        writer: The builder's writer; None after it is built.
        count: Records in the batch.
        created_ms: When the batch was begun, on the clock of the sender.
        order: Place among the batches of its partition; parts of a split batch take its place.
        reserved: Bytes that it takes of ``buffer_memory``.
        transaction: Number of the transaction that it belongs to; 0 outside of transactions.
        data: The built bytes; None while it is open.
        base_sequence: Sequence of its first record, -1 until first sent.
        producer_id: Producer id that it was last built with.
        producer_epoch: Epoch that it was last built with.
        attempts: How often it was sent.
        rejected: Whether a broker said for certain that it is not stored under its sequence.
        topic_gone: Whether its topic was deleted and created again while it is in flight.
        done: Whether it has an outcome.
        error: Why it failed, None on success.
        base_offset: Offset of the first record once stored.
        log_append_time_ms: Timestamp that the broker set, -1 if the records keep theirs.
    """

    __slots__ = (
        "_callbacks",
        "_children",
        "_record_errors",
        "_watched",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "count",
        "created_ms",
        "data",
        "done",
        "error",
        "log_append_time_ms",
        "order",
        "partition",
        "producer_epoch",
        "producer_id",
        "rejected",
        "reserved",
        "topic",
        "topic_gone",
        "transaction",
        "writer",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        batch_size: int,
        codec: int,
        level: int | None = None,
        created_ms: int,
        order: tuple[int, ...] = (0,),
        transaction: int = 0,
    ) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.builder: RecordBatchBuilder | None = RecordBatchBuilder(batch_size, codec, level)
        self.writer: RecordWriter | None = self.builder.writer
        self.count: int = 0
        self.created_ms: int = created_ms
        self.order: tuple[int, ...] = order
        self.reserved: int = 0
        self.transaction: int = transaction
        self.data: bytearray | None = None
        self.base_sequence: int = NO_SEQUENCE
        self.producer_id: int = -1
        self.producer_epoch: int = -1
        self.attempts: int = 0
        self.rejected: bool = False
        self.topic_gone: bool = False
        self.done: bool = False
        self.error: KafkaError | None = None
        self.base_offset: int = NO_OFFSET
        self.log_append_time_ms: int = -1
        self._record_errors: Mapping[int, KafkaError] | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._children: Sequence[tuple[int, ProducerBatch]] = ()
        self._watched: set[int] = set()

    def __repr__(self) -> str:
        return (
            f"ProducerBatch({self.topic}-{self.partition}, {self.count} records, "
            f"sequence {self.base_sequence}, attempts {self.attempts})"
        )

    @property
    def unseen_failures(self) -> int:
        """Number of failed records whose delivery was not awaited."""
        if self._children:
            return sum(child.unseen_failures for _, child in self._children)
        return self.count - len(self._watched) if self.error is not None else 0

    def write(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
    ) -> int:
        """Add a record while the batch is open.

        Args:
            timestamp_ms: Timestamp of the record.
            key: Key or None.
            value: Value or None.
            headers: Headers as a list of pairs.

        Returns:
            Bytes that it takes, or 0 if the batch is full.
        """
        writer = self.writer
        assert writer is not None, "the batch is built"
        # No call is between the write and the count, so no signal handler can run there.
        size: int = writer.write(self.count, timestamp_ms, key, value, headers)
        if size:
            self.count += 1
        return size

    def build(self, transactional: bool) -> int:
        """Build the batch's bytes; no record can be added afterwards.

        Args:
            transactional: Whether it belongs to a transaction.

        Returns:
            Bytes that it had before compression.
        """
        builder = self.builder
        assert builder is not None, "the batch is built"
        size = builder.size_bytes
        self.builder = self.writer = None
        self.data = builder.build(
            self.producer_id, self.producer_epoch, self.base_sequence, transactional
        )
        return size

    def take_encoded(self, data: bytearray, count: int) -> None:
        """Take the bytes of a batch that was built elsewhere, and no further records.

        Args:
            data: Its bytes; producer and sequence are set when it is sent.
            count: Records in it.
        """
        self.builder = self.writer = None
        self.data = data
        self.count = count
        self.reserved = len(data)

    def complete(self, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Note that the batch is stored.

        Args:
            base_offset: Offset of its first record, -1 if the broker does not tell.
            log_append_time_ms: Timestamp set by the broker, -1 for none.
        """
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(
        self, error: KafkaError, record_errors: Mapping[int, KafkaError] | None = None
    ) -> None:
        """Note that the batch failed.

        Args:
            error: Why.
            record_errors: More exact reasons for single records, by index.
        """
        self.error = error
        self._record_errors = record_errors
        self._finish()

    def leave_to_parent(self, error: KafkaError) -> None:
        """End the batch in a forked child: the parent sends it, so its outcome is unknown here.

        Waiters belong to the parent's threads and loops, so they are not woken.

        Args:
            error: The error for callers that ask for the outcome.
        """
        if not self.done:
            self._callbacks.clear()
            self.error = error
            self.done = True

    def split_into(self, children: Sequence[tuple[int, ProducerBatch]]) -> None:
        """Move the records to smaller batches, which get the outcomes.

        Args:
            children: First index (of this batch) and batch, in order.
        """
        waiting = {id(child) for _, child in children}

        def one_done(child: ProducerBatch) -> None:
            waiting.discard(id(child))
            if not waiting:
                self.error = next((c.error for _, c in children if c.error is not None), None)
                self._finish()

        # Children first: a thread that watches now sees them, or the loop below passes its mark on.
        self._children = tuple(children)
        for index in list(self._watched):
            child, start = self._child(index)
            child.watch(index - start)
        for _, child in children:
            child.add_done_callback(functools.partial(one_done, child))

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the outcome is known; at once if it is known already.

        The callback runs in the sender's thread and must not block.
        """
        self._callbacks.append(callback)
        if self.done:
            self._run_callbacks()

    def result(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Return where a record was stored.

        Args:
            index: Number of the record in the batch.
            timestamp_ms: The record's own timestamp.

        Raises:
            KafkaError: Why it was not stored.
        """
        if self._children:
            child, start = self._child(index)
            return child.result(index - start, timestamp_ms)
        error = self.failure(index)
        if error is not None:
            raise error.with_traceback(None)  # Shared: its traceback must not grow.
        offset = self.base_offset + index if self.base_offset >= 0 else NO_OFFSET
        if self.log_append_time_ms >= 0:
            timestamp_ms = self.log_append_time_ms
        return RecordMetadata(self.topic, self.partition, offset, timestamp_ms)

    def failure(self, index: int) -> KafkaError | None:
        """Return why a record failed; None if it did not, or not yet."""
        if self._children:
            child, start = self._child(index)
            return child.failure(index - start)
        if self._record_errors is not None and index in self._record_errors:
            return self._record_errors[index]
        return self.error

    def watch(self, index: int, count: int = 1) -> None:
        """Note that a caller awaits the outcome of records, so that no other call raises it.

        Args:
            index: Number of the first record in the batch.
            count: How many records.
        """
        if self.done and self.error is None:
            return
        self._watched.update(range(index, index + count))
        if self._children:
            for i in range(index, index + count):
                child, start = self._child(i)
                child.watch(i - start)

    def unwatch(self, index: int) -> None:
        """Undo ``watch`` for one record whose caller stopped waiting."""
        self._watched.discard(index)
        if self._children:
            child, start = self._child(index)
            child.unwatch(index - start)

    def _child(self, index: int) -> tuple[ProducerBatch, int]:
        for start, child in reversed(self._children):
            if start <= index:
                return child, start
        raise IndexError(index)

    def _finish(self) -> None:
        if self.done:
            return
        self.done = True
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        # Two threads may get here at once. Each callback is removed, and so called, by only one.
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:
                return
            callback()


class DeliveryHandle:
    """The outcome of one record that was sent.

    A failure that is never read (by ``result``, ``exception`` or awaiting) is raised by the
    producer's next send, flush, commit or close.
    """

    __slots__ = ("_batch", "_index", "_seen", "_timestamp_ms")

    def __init__(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._seen = False

    @property
    def topic(self) -> str:
        """Topic that the record goes to."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """Partition that the record goes to."""
        return self._batch.partition

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done

    def exception(self) -> KafkaError | None:
        """Why the record failed; None if it was stored or the outcome is not known yet."""
        if not self._batch.done:
            return None
        self._mark_seen()
        return self._batch.failure(self._index)

    def _mark_seen(self) -> None:
        if not self._seen:
            self._seen = True
            self._batch.watch(self._index)

    def _mark_unseen(self) -> None:
        if self._seen:
            self._seen = False
            self._batch.unwatch(self._index)

    def _metadata(self) -> RecordMetadata:
        self._mark_seen()
        return self._batch.result(self._index, self._timestamp_ms)

    def __repr__(self) -> str:
        batch = self._batch
        state = "pending"
        if batch.done:
            state = "stored" if batch.failure(self._index) is None else "failed"
        return f"<{type(self).__name__} {batch.topic}-{batch.partition} {state}>"


class HandleMaker(ABC, Generic[D]):
    """Makes the handle of each record; blocking and asyncio producers have different ones."""

    @abstractmethod
    def make(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> D:
        """Return the handle of a record.

        Args:
            batch: Its batch.
            index: Its number there.
            timestamp_ms: Its timestamp.
        """


class DeliveryGroup:
    """The outcomes of records that were sent by one call, in the order of the call."""

    __slots__ = ("_partitions", "_parts", "_seen", "_timestamps_ms")

    def __init__(
        self,
        parts: Mapping[int, Sequence[tuple[ProducerBatch, int, int]]],
        partitions: Sequence[int],
        timestamps_ms: Sequence[int] | int,
    ) -> None:
        """Make a group; the producer does that.

        Args:
            parts: By partition: batch, index of the first record in it, and how many, in order.
            partitions: Partition of each record, in the order of the call.
            timestamps_ms: Timestamp of each record, or the one of all.
        """
        self._parts = parts
        self._partitions = partitions
        self._timestamps_ms = timestamps_ms
        self._seen = False

    def __len__(self) -> int:
        return len(self._partitions)

    def done(self) -> bool:
        """Whether the outcome of every record is known."""
        return all(batch.done for batch in self.batches())

    def batches(self) -> Iterable[ProducerBatch]:
        """The batches that hold the records."""
        return [batch for parts in self._parts.values() for batch, _, _ in parts]

    def exceptions(self) -> dict[int, KafkaError]:
        """The failures so far, by position in the call; looking at them counts as seeing them."""
        self._mark_seen()
        if all(batch.error is None for batch in self.batches()):
            return {}
        found = {}
        for position, (batch, index) in enumerate(self._locations()):
            error = batch.failure(index) if batch.done else None
            if error is not None:
                found[position] = error
        return found

    def last(self) -> RecordMetadata:
        """Return where the last record of the call was stored, without waiting: call it after a
        flush.

        Raises:
            IllegalStateError: Its outcome is not known yet.
            KafkaError: Why it was not stored.
        """
        self._mark_seen()
        batch, first, count = self._parts[self._partitions[-1]][-1]
        if not batch.done:
            raise IllegalStateError("the last record is not acknowledged yet; flush first")
        times = self._timestamps_ms
        return batch.result(first + count - 1, times if isinstance(times, int) else times[-1])

    def _metadata(self) -> list[RecordMetadata]:
        self._mark_seen()
        times = self._timestamps_ms
        return [
            batch.result(index, times if isinstance(times, int) else times[position])
            for position, (batch, index) in enumerate(self._locations())
        ]

    def _locations(self) -> Iterable[tuple[ProducerBatch, int]]:
        return locations(self._parts, self._partitions)

    def _mark_seen(self) -> None:
        if self._seen:
            return
        self._seen = True
        for parts in self._parts.values():
            for batch, index, count in parts:
                batch.watch(index, count)


def locations(
    parts: Mapping[int, Sequence[tuple[ProducerBatch, int, int]]], partitions: Sequence[int]
) -> Iterator[tuple[ProducerBatch, int]]:
    """Yield batch and index of each record of a call, in its order.

    Args:
        parts: By partition: batch, index of the first record in it, and how many, in order.
        partitions: Partition of each record.
    """
    streams = {partition: _walk(entries) for partition, entries in parts.items()}
    for partition in partitions:
        yield next(streams[partition])


def _walk(
    parts: Sequence[tuple[ProducerBatch, int, int]],
) -> Iterator[tuple[ProducerBatch, int]]:
    for batch, first, count in parts:
        for index in range(first, first + count):
            yield batch, index
