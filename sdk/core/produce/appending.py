"""From the user's call to the accumulator: serializers, partition, headers, bulk calls.

Both faces use it; nothing here waits. The face, which can block or await, decides what to do when
memory is full or a topic is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceflow.sdk.core.produce import key_hash
from onceflow.sdk.core.produce.accumulator import (
    STICKY,
    Accumulator,
    D,
    PartitionQueue,
    TopicState,
)
from onceflow.sdk.core.produce.batch import ProducerBatch
from onceflow.sdk.errors import ConfigError, KafkaError, SerializationError
from onceflow.sdk.model.partitions import Headers
from onceflow.sdk.model.record_checks import (
    NO_HEADERS,
    RecordHeaders,
    check_timestamp,
    to_headers,
)
from onceflow.sdk.model.whole_numbers import is_whole
from onceflow.sdk.protocol import record_kernel
from onceflow.sdk.protocol.batch_building import RecordBatchBuilder, append_scattered
from onceflow.sdk.serde import (
    LookupNeeded,
    TopicSerializer,
    after_lookups,
    is_structure,
    to_json,
)
from onceflow.sdk.settings.config import Partitioner, ProducerConfig, SerializerFunction

CHUNK = 1_000
"""Records of a bulk call that are appended under one lock, so that the sender gets its turn."""


def to_bytes(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """Bytes of a key or value that is not None.

    Without a serializer bytes go as they are, text as UTF-8, and the structures among values as
    JSON.

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
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise SerializationError(f"the {what} cannot be encoded as UTF-8: {error}") from error
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if serializer is None and what == "value" and is_structure(data):
        return to_json(data)
    raise SerializationError(
        f"a {what} must be bytes or a string, not {type(data).__name__}; "
        f"set {what}_serializer, for example onceflow.sdk.serde.JSON.serialize"
    )


def takes_plain(config: ProducerConfig) -> bool:
    """Whether records of bytes may take ``Accumulator.append_plain``.

    Args:
        config: The producer's settings.
    """
    return (
        config.key_serializer is None
        and config.value_serializer is None
        and config.partitioner is None
        and not config.interceptors
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
    number = partition.__index__() if is_whole(partition) else -1
    if not 0 <= number < state.partition_count:
        raise ConfigError(
            "partition",
            partition,
            f"topic {state.topic!r} has partitions 0 to {state.partition_count - 1}",
        )
    return number


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
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        partitions: list[int],
        timestamps_ms: list[int] | int,
        headers: list[RecordHeaders] | None,
    ) -> None:
        self._accumulator = accumulator
        self._state = state
        self._values = values
        self._keys = keys
        self._wanted = partitions
        self._has_sticky = STICKY in partitions
        self._sticky = STICKY
        self._chosen: list[int] = []
        self.timestamps_ms = timestamps_ms
        self._headers = headers
        self._taken = 0
        self._wake = False
        self._opening: PartitionQueue | None = None
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
            accumulator = self._accumulator
            try:
                with accumulator.lock:
                    if not accumulator.has_room():
                        return False
                    self._append_chunk(stop)
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                raise SerializationError(
                    f"record {self.position} of the call cannot be written: {error}"
                ) from error
            finally:
                if self._wake:
                    try:
                        accumulator.on_ready()
                    except BaseException:  # A signal: waking the sender twice does no harm.
                        accumulator.on_ready()
                        raise
                    self._wake = False
            if self.position == before:
                return False
        return True

    def _append_chunk(self, stop: int) -> None:
        """Append up to ``stop``; the lock is held. Notes whether to wake the sender."""
        accumulator = self._accumulator
        self._state = accumulator.present(self._state)
        queues = self._state.queues
        builders: list[RecordBatchBuilder | None] = [None] * len(queues)
        touched: dict[int, _Touched] = {}
        targets = self._wanted
        try:
            while True:
                before, targets = self.position, self._targets()
                self.position = append_scattered(
                    builders,
                    targets,
                    before,
                    stop,
                    self.timestamps_ms,
                    self._keys,
                    self._values,
                    self._headers,
                )
                self.partitions.extend(targets[before : self.position])
                if self.position >= stop:
                    break
                number = targets[self.position]
                if number in touched:  # Its batch is full.
                    self._close_part(number, touched)
                    accumulator.seal(queues[number])
                    builders[number] = None
                    self._wake = True
                    if not accumulator.has_room():
                        break
                else:
                    builders[number], new = self._open_part(number, touched)
                    self._wake = self._wake or new
        finally:
            # Twice, since a signal handler may raise within the first attempt: a batch that does
            # not know its records would be refused as a whole.
            try:
                self._close_parts(touched)
            finally:
                self._close_parts(touched)
            # A refused record ends the call; the records before it are sent all the same.
            self.position = self._taken
            self.partitions.extend(targets[len(self.partitions) : self._taken])

    def _targets(self) -> list[int]:
        """Return the partition of each record, by the present metadata."""
        if not self._has_sticky:
            return self._wanted
        sticky = self._state.sticky.current
        if sticky != self._sticky:
            self._sticky = sticky
            self._chosen = [sticky if number < 0 else number for number in self._wanted]
        return self._chosen

    def _open_part(
        self, number: int, touched: dict[int, _Touched]
    ) -> tuple[RecordBatchBuilder, bool]:
        """The open batch of a partition for the next record, and whether to wake the sender."""
        queue, at = self._state.queues[number], self.position
        batch = queue.open
        if batch is None or not batch.count:
            key = None if self._keys is None else self._keys[at]
            headers = NO_HEADERS if self._headers is None else self._headers[at]
            self._accumulator.check_size(key, self._values[at], headers)
        self._opening = queue
        batch, new = self._accumulator.batch_with_room(self._state, queue)
        builder, writer = batch.builder, batch.writer
        assert builder is not None, "an open batch is not built"
        assert writer is not None
        touched[number] = (batch, writer, batch.count, writer.size_bytes)
        self._opening = None
        return builder, new

    def _close_parts(self, touched: dict[int, _Touched]) -> None:
        for number in list(touched):
            self._close_part(number, touched)
        if self._opening is not None:  # A signal came after its batch was made.
            self._accumulator.discard_empty(self._opening)
            self._opening = None

    def _close_part(self, number: int, touched: dict[int, _Touched]) -> None:
        batch, writer, first, size_before = touched[number]
        # Without a call in between, so that a signal finds these three all done or none.
        batch.count = writer.count
        self._accumulator.memory_used += writer.size_bytes - size_before
        del touched[number]
        if not batch.count:
            self._accumulator.discard_empty(self._state.queues[number])
        elif batch.count > first:
            self.parts.setdefault(number, []).append((batch, first, batch.count - first))
            self._taken += batch.count - first


_Touched = tuple[ProducerBatch, record_kernel.RecordWriter, int, int]
"""A batch that a chunk adds to: its writer, and the records and bytes that it had before."""


def resolve_partitions(
    state: TopicState,
    keys: Sequence[bytes | None] | None,
    count: int,
    partition: int | Sequence[int | None] | None,
    partitioner: Partitioner | None,
) -> list[int]:
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
    data = cast("list[bytes | None]", keys)
    return key_hash.murmur2_partitions(data, state.partition_count, STICKY)


def all_to_bytes(
    items: Sequence[object], serializer: SerializerFunction | None, what: str, topic: str
) -> list[bytes | None]:
    """Bytes of the keys or values of a bulk call; None stays None.

    Args:
        items: What the user gave.
        serializer: The producer's serializer, or None.
        what: "key" or "value".
        topic: Topic that the records go to.
    """
    if serializer is None:
        items = list(items)
        if _only_bytes(items):
            return cast("list[bytes | None]", items)
    return [None if item is None else to_bytes(item, serializer, what, topic) for item in items]


def _only_bytes(items: list[object]) -> bool:
    if record_kernel.COMPILED:
        return record_kernel.only_bytes(items)
    return set(map(type, items)) <= {bytes, type(None)}


def checked_timestamps(timestamps_ms: Sequence[int] | int) -> list[int] | int:
    """Timestamps of a bulk call as Python's own numbers.

    Args:
        timestamps_ms: One timestamp each, or one for all.

    Raises:
        ConfigError: One is negative or no whole number.
    """
    if not isinstance(timestamps_ms, Sequence):
        check_timestamp(timestamps_ms)
        return int(timestamps_ms)
    for timestamp_ms in timestamps_ms if set(map(type, timestamps_ms)) != {int} else ():
        check_timestamp(timestamp_ms)
    checked = list(map(int, timestamps_ms))
    if checked:
        check_timestamp(min(checked))
        check_timestamp(max(checked))
    return checked


def check_lengths(
    values: Sequence[object], keys: object, timestamps_ms: object, headers: object
) -> None:
    """Require that keys, timestamps and headers of a bulk call are as long as its values.

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
    times = checked_timestamps(timestamps_ms)
    data = all_to_bytes(values, config.value_serializer, "value", state.topic)
    key_data = None
    if keys is not None:
        key_data = all_to_bytes(keys, config.key_serializer, "key", state.topic)
    pairs = None if headers is None else [to_headers(item) for item in headers]
    check_lengths(data, key_data, times, pairs)  # a serializer may have changed what was given
    partitions = resolve_partitions(state, key_data, len(data), partition, config.partitioner)
    return BulkAppend(accumulator, state, data, key_data, partitions, times, pairs)


def encode(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """``to_bytes``, blocking for what the serializer has to look up."""
    if isinstance(serializer, TopicSerializer):
        return after_lookups(lambda: to_bytes(data, serializer, what, topic))
    return to_bytes(data, serializer, what, topic)
