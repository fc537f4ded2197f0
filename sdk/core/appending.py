"""From the user's call to the accumulator: serializers, partition, headers, bulk calls.

The same for both faces; nothing here waits. What to do when memory is full or a topic is unknown
is decided by the face, which can block or await.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from onceflow.sdk.config import Partitioner, ProducerConfig, SerializerFunction
from onceflow.sdk.core.accumulator import STICKY, Accumulator, D, TopicState
from onceflow.sdk.core.batch import ProducerBatch
from onceflow.sdk.errors import ConfigError, KafkaError, SerializationError
from onceflow.sdk.model import Headers
from onceflow.sdk.record_checks import (
    NO_HEADERS,
    RecordHeaders,
    check_timestamp,
    to_headers,
)
from onceflow.sdk.serde import (
    LookupNeeded,
    TopicSerializer,
    after_lookups,
    is_structure,
    structure_to_msgpack,
)

CHUNK = 1_000
"""Records of a bulk call that are appended under one lock, so that the sender gets its turn."""


def to_bytes(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """Bytes of a key or value that is not None.

    Without a serializer bytes go as they are, text as UTF-8, and the structures among values as
    MessagePack.

    Args:
        data: What the user gave.
        serializer: The producer's serializer, or None.
        what: "key" or "value".
        topic: Topic that the record goes to.

    Raises:
        LookupNeeded: The serializer must have something loaded first.
        SerializationError: The serializer raised, or gave no bytes.
    """
    if serializer is not None:
        try:
            if isinstance(serializer, TopicSerializer):
                data = serializer.serialize(data, topic, what)
            else:
                data = serializer(data)
        except (KafkaError, LookupNeeded):
            raise
        except Exception as error:
            raise SerializationError(f"the {what}_serializer failed: {error!r}") from error
        if data is None:
            return None
    if type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    if serializer is None and what == "value" and is_structure(data):
        return structure_to_msgpack(data)
    raise SerializationError(
        f"a {what} must be bytes or text, not {type(data).__name__}; "
        f"set {what}_serializer, for example onceflow.sdk.serde.JSON.serialize"
    )


def choose_partition(
    state: TopicState, key: bytes | None, partition: int | None, partitioner: Partitioner | None
) -> int:
    """The partition of a record.

    Args:
        state: The topic.
        key: The key's bytes or None.
        partition: What the user asked for.
        partitioner: The user's function, None for Kafka's own choice.

    Returns:
        A partition number, or STICKY for records without a key.

    Raises:
        ConfigError: There is no such partition.
    """
    if partition is None:
        if partitioner is None:
            return STICKY if key is None else state.partition_for(key)
        numbers = range(state.partition_count)
        partition = partitioner(state.topic, key, numbers, state.available)
    if not isinstance(partition, int) or not 0 <= partition < state.partition_count:
        raise ConfigError(
            "partition",
            partition,
            f"topic {state.topic!r} has partitions 0 to {state.partition_count - 1}",
        )
    return partition


class BulkAppend:
    """One call's records on their way into the accumulator, resumable where memory ran out.

    Attributes:
        position: Index of the next record.
        timestamps_ms: Timestamp of each record, or the one of all.
        parts: By partition: batch, index of the first record in it, and how many.
        partitions: Partition of each record so far.
    """

    def __init__(
        self,
        accumulator: Accumulator[D],
        state: TopicState,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        partitions: Sequence[int],
        timestamps_ms: Sequence[int] | int,
        headers: Sequence[RecordHeaders] | None,
    ) -> None:
        self._accumulator = accumulator
        self._state = state
        self._values = values
        self._keys = keys
        self._wanted = partitions
        self.timestamps_ms = timestamps_ms
        self._headers = headers
        self.position: int = 0
        self.partitions: list[int] = []
        self.parts: dict[int, list[tuple[ProducerBatch, int, int]]] = {}

    @property
    def is_finished(self) -> bool:
        """Whether every record was taken."""
        return self.position >= len(self._values)

    def timestamp_ms(self, index: int) -> int:
        """Timestamp of a record of the call."""
        times = self.timestamps_ms
        return times if isinstance(times, int) else times[index]

    def advance(self) -> bool:
        """Append as many records as memory allows.

        Returns:
            Whether every record was taken; False when memory is full.

        Raises:
            KafkaError: The gate is closed, or a record is refused; those before it were taken.
        """
        while not self.is_finished:
            stop = min(self.position + CHUNK, len(self._values))
            before = self.position
            wake = False
            accumulator = self._accumulator
            try:
                with accumulator.lock:
                    if not accumulator.has_room():
                        return False
                    wake = self._append_chunk(stop)
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                raise SerializationError(
                    f"record {self.position} of the call cannot be written: {error}"
                ) from error
            finally:
                if wake:
                    accumulator.on_ready()
            if self.position == before:
                return False
        return True

    def _append_chunk(self, stop: int) -> bool:
        """Append up to ``stop``; the lock is held. Returns whether to wake the sender."""
        accumulator, state = self._accumulator, self._state
        queues, limit = state.queues, accumulator.buffer_memory
        values, keys, wanted, headers = self._values, self._keys, self._wanted, self._headers
        times = self.timestamps_ms
        many_times = None if isinstance(times, int) else times
        timestamp_ms = times if isinstance(times, int) else 0
        partitions = self.partitions
        touched: dict[int, tuple[ProducerBatch, int]] = {}
        position, added_bytes, wake = self.position, 0, False
        key: bytes | None = None
        record_headers = NO_HEADERS
        try:
            while position < stop:
                number = wanted[position]
                if number < 0:
                    number = state.sticky.current
                entry = touched.get(number)
                if entry is None:
                    batch, new = accumulator.batch_with_room(state, queues[number])
                    wake = wake or new
                    touched[number] = (batch, batch.count)
                else:
                    batch = entry[0]
                index = batch.count
                value = values[position]
                if keys is not None:
                    key = keys[position]
                if headers is not None:
                    record_headers = headers[position]
                if many_times is not None:
                    timestamp_ms = many_times[position]
                if not index:
                    accumulator.check_size(key, value, record_headers)
                added = batch.append(index, timestamp_ms, key, value, record_headers)
                if added is None:
                    self._close_part(number, touched)
                    accumulator.seal(queues[number])
                    wake = True
                    if accumulator.memory_used + added_bytes >= limit:
                        break
                    accumulator.check_size(key, value, record_headers)
                    continue
                batch.count = index + 1
                added_bytes += added.size
                partitions.append(number)
                position += 1
        finally:
            self.position = position
            accumulator.memory_used += added_bytes
            for number in list(touched):
                self._close_part(number, touched)
        return wake

    def _close_part(self, number: int, touched: dict[int, tuple[ProducerBatch, int]]) -> None:
        batch, first = touched.pop(number)
        count = batch.count - first
        if not batch.count:
            self._accumulator.discard_empty(self._state.queues[number])
        if count:
            self.parts.setdefault(number, []).append((batch, first, count))


def resolve_partitions(
    state: TopicState,
    keys: Sequence[bytes | None] | None,
    count: int,
    partition: int | Sequence[int | None] | None,
    partitioner: Partitioner | None,
) -> Sequence[int]:
    """The partition of each record of a bulk call.

    Args:
        state: The topic.
        keys: Keys or None.
        count: How many records.
        partition: One partition for all, or None; or what each record asks for.
        partitioner: The user's function or None.
    """
    if isinstance(partition, Sequence):
        beside = [None] * count if keys is None else keys
        pairs = zip(beside, partition, strict=True)
        return [choose_partition(state, key, asked, partitioner) for key, asked in pairs]
    if partition is not None:
        return [choose_partition(state, None, partition, None)] * count
    if keys is None and partitioner is None:
        return [STICKY] * count
    if partitioner is not None:
        return [
            choose_partition(state, keys[i] if keys is not None else None, None, partitioner)
            for i in range(count)
        ]
    assert keys is not None
    known = state.partition_of_key
    find: Callable[[bytes], int] = state.partition_for
    return [STICKY if key is None else known[key] if key in known else find(key) for key in keys]


def all_to_bytes(
    items: Sequence[object], serializer: SerializerFunction | None, what: str, topic: str
) -> Sequence[bytes | None]:
    """Bytes of the keys or values of a bulk call; None stays None.

    Args:
        items: What the user gave.
        serializer: The producer's serializer, or None.
        what: "key" or "value".
        topic: Topic that the records go to.
    """
    if serializer is None and set(map(type, items)) <= _PLAIN:
        return cast("Sequence[bytes | None]", items)
    return [None if item is None else to_bytes(item, serializer, what, topic) for item in items]


_PLAIN = {bytes, type(None)}


def _check_timestamps(timestamps_ms: Sequence[int] | int) -> None:
    if not isinstance(timestamps_ms, Sequence):
        check_timestamp(timestamps_ms)
    elif timestamps_ms:
        try:
            lowest = min(timestamps_ms)
        except TypeError:
            for timestamp_ms in timestamps_ms:
                check_timestamp(timestamp_ms)
        else:
            check_timestamp(lowest)


def check_lengths(
    values: Sequence[object], keys: object, timestamps_ms: object, headers: object
) -> None:
    """Require that what stands beside the values of a bulk call is as long as they are.

    Raises:
        ConfigError: The first sequence that is not.
    """
    for name, items in (("keys", keys), ("headers", headers), ("timestamps_ms", timestamps_ms)):
        if isinstance(items, Sequence) and len(items) != len(values):
            raise ConfigError(name, f"{len(items)} entries", f"there are {len(values)} values")


def make_bulk(
    accumulator: Accumulator[D],
    config: ProducerConfig,
    state: TopicState,
    values: Sequence[object],
    keys: Sequence[object] | None,
    *,
    partition: int | Sequence[int | None] | None,
    timestamps_ms: Sequence[int] | int,
    headers: Sequence[Headers] | None,
) -> BulkAppend:
    """Prepare a bulk call.

    Args:
        accumulator: Where the records go.
        config: Serializers and partitioner.
        state: The topic.
        values: Values as the user gave them.
        keys: Keys beside the values, or None.
        partition: One partition for all, or None; or what each record asks for.
        timestamps_ms: One timestamp each, or one for all.
        headers: Headers of each record, or None.

    Raises:
        LookupNeeded: A serializer must have something loaded first; nothing was taken.
        ConfigError: The sequences differ in length, or there is no such partition.
        SerializationError: A key, value or header cannot be turned into bytes.
    """
    check_lengths(values, keys, timestamps_ms, headers)
    _check_timestamps(timestamps_ms)
    data = all_to_bytes(values, config.value_serializer, "value", state.topic)
    key_data = None
    if keys is not None:
        key_data = all_to_bytes(keys, config.key_serializer, "key", state.topic)
    return BulkAppend(
        accumulator,
        state,
        data,
        key_data,
        resolve_partitions(state, key_data, len(values), partition, config.partitioner),
        timestamps_ms,
        None if headers is None else [to_headers(item) for item in headers],
    )


def encode(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """``to_bytes``, blocking for what the serializer has to look up."""
    if isinstance(serializer, TopicSerializer):
        return after_lookups(lambda: to_bytes(data, serializer, what, topic))
    return to_bytes(data, serializer, what, topic)
