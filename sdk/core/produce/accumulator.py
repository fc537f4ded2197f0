"""Records that wait to be sent: one queue of batches per partition, bounded by memory.

Appending runs in the caller's thread, so it is short. Under one lock, a single comparison checks
that the producer is open, has no error, and has room. The sender decides which batch is sent when;
the gate of the producer knows why it refuses records.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from onceflow.sdk.core.produce.batch import DeliveryHandle, HandleMaker, ProducerBatch
from onceflow.sdk.core.produce.key_hash import murmur2_partition
from onceflow.sdk.core.produce.partitioner import StickyPartition
from onceflow.sdk.errors import KafkaError, RecordTooLargeError, SerializationError
from onceflow.sdk.model.record_checks import RecordHeaders
from onceflow.sdk.protocol.primitives import ZERO_UUID

D = TypeVar("D", bound=DeliveryHandle)

NEVER_MS = 1 << 62
BATCH_OVERHEAD = 61
RECORD_OVERHEAD = 36
"""Most bytes of a record beside key, value and headers: lengths, time, offset, attributes."""
STICKY = -1
"""Stands for the partition that takes records without a key at present."""


COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled."""


class Lock(Protocol):
    """The interface of a lock."""

    def acquire(self) -> object:
        """Wait for the lock and take it."""

    def release(self) -> None:
        """Release the lock."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> object: ...


class PartitionQueue:
    """The batches for one partition, in the order in which they were begun.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        open: The batch that takes records, or None.
        sealed: Complete batches that wait to be sent, those to be retried first.
        in_flight: Batches that were sent and not answered, in order.
        producer_id: Producer id under which ``next_sequence`` counts, -1 for none yet.
        producer_epoch: Epoch under which ``next_sequence`` counts.
        next_sequence: Sequence of the next new record.
        bump_needed: Whether a batch of this partition was given up after it had been sent, so
            that the sequences have a gap that only a new epoch closes (KIP-360).
        known_until_ms: Time until which the broker certainly knows this producer: some time after
            its last acknowledgement here; 0 under a new producer id.
        retry_at_ms: No batch is sent before this time.
        failures: Failures in a row, for the back-off.
        last_error: The last error; None after a success.
        transaction: Number of the last transaction in which a batch was stored.
    """

    __slots__ = (
        "bump_needed",
        "failures",
        "in_flight",
        "known_until_ms",
        "last_error",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "retry_at_ms",
        "sealed",
        "topic",
        "transaction",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.open: ProducerBatch | None = None
        self.sealed: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.producer_id: int = -1
        self.producer_epoch: int = -1
        self.next_sequence: int = 0
        self.bump_needed: bool = False
        self.known_until_ms: int = 0
        self.retry_at_ms: int = 0
        self.failures: int = 0
        self.last_error: KafkaError | None = None
        self.transaction: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits to be sent."""
        return self.open is None and not self.sealed

    def unsettled(self) -> Iterator[ProducerBatch]:
        """Yield the batches that have a sequence and no outcome yet, in order."""
        for batch in self.in_flight:
            if not batch.done:
                yield batch
        for batch in self.sealed:
            if batch.base_sequence >= 0:
                yield batch

    def requeue(self, batch: ProducerBatch) -> None:
        """Put a sent batch back among those that wait, in its place in the order."""
        position = 0
        for waiting in self.sealed:
            if waiting.order > batch.order:
                break
            position += 1
        self.sealed.insert(position, batch)


class TopicState:
    """State of a topic, for appending.

    Attributes:
        topic: Topic name.
        queues: Queue of each partition; never fewer than there were.
        partition_count: How many partitions records go to.
        sticky: The partition for records without a key.
        available: Partitions that have a leader.
        topic_id: The topic's id, all zero while unknown. It changes if the topic is deleted and
            created again.
        used_ms: When the last batch was begun, or this state was made.
    """

    __slots__ = (
        "available",
        "partition_count",
        "queues",
        "sticky",
        "topic",
        "topic_id",
        "used_ms",
    )

    def __init__(
        self,
        topic: str,
        partition_count: int,
        available: Sequence[int],
        random: Callable[[], float],
        now_ms: int = 0,
    ) -> None:
        self.topic: str = topic
        self.used_ms: int = now_ms
        self.queues: list[PartitionQueue] = [
            PartitionQueue(topic, number) for number in range(partition_count)
        ]
        self.partition_count: int = partition_count
        self.topic_id: uuid.UUID = ZERO_UUID
        self.available: Sequence[int] = tuple(available) or range(partition_count)
        self.sticky: StickyPartition = StickyPartition(self.available, random)

    def update(self, partition_count: int, available: Sequence[int]) -> None:
        """Apply newer metadata; partitions are never removed."""
        if partition_count > self.partition_count:
            self._set_count(partition_count)
        self.available = tuple(available) or range(self.partition_count)
        self.sticky.update(self.available)

    def made_anew(self, partition_count: int) -> None:
        """Adapt to a topic that was deleted and created again: its brokers do not know the
        producer.

        The new topic may have fewer partitions; records for the missing ones stay until they time
        out. A batch in flight may be stored in the former topic, which its answer shows.
        """
        self._set_count(partition_count)
        for queue in self.queues:
            queue.known_until_ms = 0
            for batch in queue.in_flight:
                batch.topic_gone = True

    def _set_count(self, partition_count: int) -> None:
        self.grow(partition_count)
        self.partition_count = partition_count

    def grow(self, count: int) -> None:
        """Make queues for at least this many partitions."""
        first = len(self.queues)
        self.queues.extend(PartitionQueue(self.topic, n) for n in range(first, count))

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits to be sent or answered."""
        return all(queue.is_empty and not queue.in_flight for queue in self.queues)

    def partition_for(self, key: bytes) -> int:
        """Return the partition of a key by Kafka's hash."""
        return murmur2_partition(key, self.partition_count)


class Accumulator(Generic[D]):
    """The queues of all partitions, and the memory that they take.

    Attributes:
        lock: Guards everything here; held for microseconds only.
        topics: State by topic name.
        active: Queues with batches to send, in the order of their turn.
        incomplete: Batches without an outcome.
        memory_used: Bytes of records without an outcome.
        memory_waiters: Callers that wait for memory; meanwhile every batch is due at once.
        flush_count: Running flushes; meanwhile every batch is due at once.
        next_wake_ms: When the sender next looks at the queues by itself.
        transaction: Number of the open transaction, 0 for none.
        batch_sealed: Whether a batch became full since the sender last looked. An asyncio
            caller then yields to the loop, or it would fill the memory before any batch is sent.
        left_producer_id: Producer id of `left_epoch`.
        left_epoch: Highest epoch used in topics that were dropped from `topics`, -1 for none.
        refusal: Returns why nothing may be appended; called only while ``gate_closed``.
        buffer_memory: Most bytes that records without an outcome may take.
    """

    def __init__(
        self,
        *,
        lock: Lock,
        clock_ms: Callable[[], int],
        random: Callable[[], float],
        handles: HandleMaker[D],
        on_ready: Callable[[], None],
        batch_size: int,
        linger_ms: int,
        max_request_size: int,
        buffer_memory: int,
        codec: int,
        level: int | None = None,
    ) -> None:
        self.lock: Lock = lock
        self.topics: dict[str, TopicState] = {}
        self.active: dict[PartitionQueue, None] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        self.memory_used: int = 0
        self.memory_waiters = 0
        self.flush_count = 0
        self.next_wake_ms = NEVER_MS
        self.transaction = 0
        self.batch_sealed: bool = False
        self.left_producer_id: int = -1
        self.left_epoch: int = -1
        self.refusal: Callable[[], KafkaError | None] = lambda: None
        self.on_ready = on_ready
        self.clock_ms = clock_ms
        self.linger_ms = linger_ms
        self._handles = handles
        self.batch_size: int = min(batch_size, max_request_size)
        self.codec = codec
        self.level = level
        self._random = random
        self._max_request_size = max_request_size
        self.buffer_memory = buffer_memory
        self._limit = buffer_memory
        self._order = 0

    # the gate

    @property
    def gate_closed(self) -> bool:
        """Whether records are refused for another reason than memory."""
        return self._limit < 0

    def close_gate(self) -> None:
        """Call ``refusal`` before each append from now on."""
        self._limit = -1

    def open_gate(self) -> None:
        """Append without calling ``refusal`` again."""
        self._limit = self.buffer_memory

    # topics

    def topic_state(self, topic: str, partition_count: int, available: Sequence[int]) -> TopicState:
        """Return the topic's state, new or updated.

        Args:
            topic: Topic name.
            partition_count: Partitions of the topic.
            available: Those that have a leader.
        """
        with self.lock:
            state = self.topics.get(topic)
            if state is None:
                now_ms = self.clock_ms()
                state = TopicState(topic, partition_count, available, self._random, now_ms)
                self.topics[topic] = state
            else:
                state.update(partition_count, available)
            return state

    def leave_idle(
        self, idle_ms: int, producer_id: int, needed: Callable[[PartitionQueue], bool]
    ) -> list[str]:
        """Drop topics to which nothing was sent for some time.

        The highest epoch of the dropped topics is kept. A later record begins a new epoch: under
        the old one, a broker would take sequences that begin again for duplicates.

        Args:
            idle_ms: For how long.
            producer_id: The present one.
            needed: Whether the sequences of a queue must be kept.

        Returns:
            The idle topics, including those whose sequences are still needed.
        """
        idle: list[str] = []
        with self.lock:
            before_ms = self.clock_ms() - idle_ms
            for name, state in list(self.topics.items()):
                if state.used_ms > before_ms or not state.is_empty:
                    continue
                idle.append(name)
                if any(needed(queue) for queue in state.queues):
                    continue
                del self.topics[name]
                for queue in state.queues:
                    if queue.producer_id == producer_id >= 0:
                        self._note_left(queue)
        return idle

    def _note_left(self, queue: PartitionQueue) -> None:
        if self.left_producer_id != queue.producer_id:
            self.left_producer_id, self.left_epoch = queue.producer_id, -1
        self.left_epoch = max(self.left_epoch, queue.producer_epoch)

    def first_epoch(self, producer_id: int, producer_epoch: int) -> int:
        """Return the epoch under which a queue without one begins.

        Args:
            producer_id: The present producer id.
            producer_epoch: Its epoch, as the broker gave it.
        """
        if producer_id != self.left_producer_id:
            return producer_epoch
        return max(producer_epoch, self.left_epoch + 1)

    def present(self, state: TopicState) -> TopicState:
        """Return the present state of a topic; the lock is held.

        A caller may hold a state that was dropped meanwhile. This one is used again with its
        sequences, unless the topic has a newer state by now.
        """
        found = self.topics.get(state.topic)
        if found is None:
            self.topics[state.topic] = found = state
        elif found is not state:
            found.grow(len(state.queues))
        return found

    def waiting_topics(self) -> list[str]:
        """Return the topics of waiting records."""
        with self.lock:
            waiting = (queue.topic for queue in self.active if not queue.is_empty)
            return list(dict.fromkeys(waiting))

    # appending, in the caller's thread

    def append_plain(self, topic: str, key: object, value: object, now_s: float) -> D | None:
        """Add a record of bytes: the fast way, which nearly all records take.

        Args:
            topic: Topic name.
            key: Key or None.
            value: Value or None.
            now_s: Seconds since 1970, for the timestamp.

        Returns:
            The record's handle, or None if the record must take the general way, ``append``: the
            topic is unknown, key or value is not bytes, or there is no room or no open batch.

        Raises:
            SerializationError: The record cannot be written.
        """
        state = self.topics.get(topic)
        if state is None or not (value is None or type(value) is bytes):
            return None
        if key is None:
            partition = state.sticky.current
        elif type(key) is bytes:
            partition = murmur2_partition(key, state.partition_count)
        else:
            return None
        queue = state.queues[partition]
        return self._append_open(queue, key, value, None, int(now_s * 1000))

    def append(
        self,
        state: TopicState,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        timestamp_ms: int,
    ) -> D | None:
        """Add a record to the open batch of its partition.

        Args:
            state: The topic.
            partition: Partition number, or STICKY.
            key: Key or None.
            value: Value or None.
            headers: Headers as a list of pairs.
            timestamp_ms: Timestamp of the record.

        Returns:
            The record's handle, or None if ``buffer_memory`` is full.

        Raises:
            KafkaError: The gate is closed, the record is too large, or it has a wrong type.
        """
        try:
            queue = state.queues[partition if partition >= 0 else state.sticky.current]
            return self._append_open(
                queue, key, value, headers, timestamp_ms
            ) or self._append_slowly(state, partition, key, value, headers, timestamp_ms)
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise SerializationError(f"the record cannot be written: {error}") from error

    def _append_open(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
        timestamp_ms: int,
    ) -> D | None:
        """Add a record to the open batch of a queue, if there is one with room."""
        if not COMPILED:
            with self.lock:
                return self._append_locked(queue, key, value, headers, timestamp_ms)
        # The same as `with`, at a third of its cost. Compiled code cannot be interrupted between
        # the first two lines. Plain Python can, and Ctrl-C would leave the lock taken for ever.
        self.lock.acquire()
        try:
            return self._append_locked(queue, key, value, headers, timestamp_ms)
        finally:
            self.lock.release()

    def _append_locked(
        self,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
        timestamp_ms: int,
    ) -> D | None:
        batch = queue.open
        if batch is None or self.memory_used >= self._limit:
            return None
        size = batch.write(timestamp_ms, key, value, headers)
        if not size:
            return None
        self.memory_used += size
        return self._handles.make(batch, batch.count - 1, timestamp_ms)

    def _append_slowly(
        self,
        state: TopicState,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        timestamp_ms: int,
    ) -> D | None:
        self.check_size(key, value, headers)
        wake = False
        try:
            with self.lock:
                if not self.has_room():
                    return None
                state = self.present(state)
                while True:
                    number = partition if partition >= 0 else state.sticky.current
                    queue = state.queues[number]
                    batch, wake = self.batch_with_room(state, queue)
                    try:
                        size = batch.write(timestamp_ms, key, value, headers)
                        self.memory_used += size
                    finally:
                        self.discard_empty(queue)
                    if size:
                        break
                    self.seal(queue)
                index = batch.count - 1
                wake = wake or bool(queue.sealed)
            if wake:
                self.on_ready()
        except BaseException:
            # A signal handler may raise before the sender is woken, and no later record of this
            # batch would wake it. Waking it twice is harmless.
            if wake:
                self.on_ready()
            raise
        return self._handles.make(batch, index, timestamp_ms)

    @property
    def is_full(self) -> bool:
        """Whether ``buffer_memory`` is full."""
        return self.memory_used >= self.buffer_memory

    def has_room(self) -> bool:
        """Whether there is memory for more; the lock is held.

        Raises:
            KafkaError: The reason why the gate is closed.
        """
        if self._limit < 0:
            error = self.refusal()
            if error is not None:
                raise error.with_traceback(None)  # Raised by every append: it must not grow.
        return not self.is_full

    def check_size(self, key: bytes | None, value: bytes | None, headers: RecordHeaders) -> None:
        """Refuse a record that no request can carry.

        Raises:
            RecordTooLargeError: Names the setting that limits it.
        """
        check_record_size(key, value, headers, self._max_request_size, self.buffer_memory)

    def append_batch(self, state: TopicState, batch: ProducerBatch) -> bool:
        """Add a finished batch after the other batches of its partition.

        Args:
            state: The topic.
            batch: The batch, which has its bytes already.

        Returns:
            Whether it was taken; False if ``buffer_memory`` is full.

        Raises:
            KafkaError: The gate is closed.
        """
        with self.lock:
            if not self.has_room():
                return False
            state = self.present(state)
            queue = state.queues[batch.partition]
            self.seal(queue)
            batch.created_ms = state.used_ms = self.clock_ms()
            self._order += 1
            batch.order = (self._order,)
            batch.transaction = self.transaction
            queue.sealed.append(batch)
            self.active[queue] = None
            self.incomplete[batch] = None
            self.memory_used += batch.reserved
            self.batch_sealed = True
        self.on_ready()
        return True

    def batch_with_room(
        self, state: TopicState, queue: PartitionQueue
    ) -> tuple[ProducerBatch, bool]:
        """Return the open batch of a queue, a new one if needed, and whether to wake the sender.

        The lock is held.
        """
        batch = queue.open
        if batch is not None:
            return batch, False
        now_ms = state.used_ms = self.clock_ms()
        self._order += 1
        batch = ProducerBatch(
            queue.topic,
            queue.partition,
            batch_size=self.batch_size,
            codec=self.codec,
            level=self.level,
            created_ms=now_ms,
            order=(self._order,),
            transaction=self.transaction,
        )
        queue.open = batch
        self.active[queue] = None
        self.incomplete[batch] = None
        self.memory_used += BATCH_OVERHEAD
        return batch, now_ms + self.linger_ms < self.next_wake_ms or self.flush_count > 0

    def discard_empty(self, queue: PartitionQueue) -> None:
        """Drop the open batch of a queue whose first record was refused; the lock is held."""
        batch = queue.open
        if batch is not None and not batch.count:
            queue.open = None
            self.memory_used -= BATCH_OVERHEAD
            self.incomplete.pop(batch, None)

    def seal(self, queue: PartitionQueue) -> None:
        """Close the open batch of a queue; the lock is held."""
        batch = queue.open
        if batch is None:
            return
        assert batch.builder is not None
        batch.reserved = batch.builder.size_bytes
        self.batch_sealed = True
        queue.open = None
        queue.sealed.append(batch)
        sticky = self.topics[queue.topic].sticky
        if sticky.current == queue.partition:
            sticky.switch()

    # outcomes, by the sender

    def settle(self, batch: ProducerBatch) -> None:
        """Free the memory of a batch that has its outcome; no lock is held."""
        with self.lock:
            self.memory_used -= batch.reserved
            batch.reserved = 0
            self.incomplete.pop(batch, None)

    def remove_open_and_sealed(self) -> list[ProducerBatch]:
        """Remove and return all batches that wait to be sent, in order."""
        taken: list[ProducerBatch] = []
        with self.lock:
            for queue in list(self.active):
                self.seal(queue)
                taken.extend(queue.sealed)
                queue.sealed.clear()
            self.active.clear()
        return taken


def check_record_size(
    key: bytes | None,
    value: bytes | None,
    headers: RecordHeaders,
    max_request_size: int,
    buffer_memory: int,
) -> None:
    """Refuse a record that no request can carry.

    Args:
        key: Key or None.
        value: Value or None.
        headers: Headers as a list of pairs.
        max_request_size: The setting.
        buffer_memory: The setting.

    Raises:
        RecordTooLargeError: Names the setting that limits it.
    """
    size = BATCH_OVERHEAD + RECORD_OVERHEAD
    size += (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, content in headers:
        size += 10 + 4 * len(name) + (0 if content is None else len(content))
    if size > max_request_size:
        raise RecordTooLargeError(
            f"a record of {size} bytes exceeds max_request_size "
            f"({max_request_size}); raise it, and max.message.bytes of the topic"
        )
    if size > buffer_memory:
        raise RecordTooLargeError(
            f"a record of {size} bytes exceeds buffer_memory ({buffer_memory})"
        )
