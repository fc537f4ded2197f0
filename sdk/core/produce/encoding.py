"""Finished record batches without a producer's sequence: encoded in one process, sent in another.

A distributed engine encodes records where they are, moves the batches as bytes, and sends them from
the process that owns a partition. Producer id, epoch and sequence are set when a batch is sent
(KIP-98); its records do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceflow.sdk.core.produce.accumulator import STICKY, TopicState, check_record_size
from onceflow.sdk.core.produce.appending import (
    all_to_bytes,
    check_lengths,
    checked_timestamps,
    resolve_partitions,
)
from onceflow.sdk.core.produce.batch import ProducerBatch
from onceflow.sdk.errors import ConfigError, RecordTooLargeError, SerializationError
from onceflow.sdk.model.columns import Column, as_sequence
from onceflow.sdk.model.partitions import Headers
from onceflow.sdk.model.record_checks import NO_HEADERS, to_headers
from onceflow.sdk.protocol.batch_building import RecordBatchBuilder, append_scattered
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import LENGTH_END, check_crc, parse_batch_header
from onceflow.sdk.protocol.compression import CODEC_NAMES, require_codec
from onceflow.sdk.settings.config import ProducerConfig


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records of one partition as the bytes of a record batch (magic 2).

    Attributes:
        partition: Partition that the records belong to.
        records_count: How many there are.
        data: The batch, without a producer id.
    """

    partition: int
    records_count: int
    data: bytes


class BatchEncoder:
    """Encodes records of one topic into finished batches, without a producer.

    ``Producer.send_batch`` sends them, in this process or in another one. Records of one partition
    keep their order within an encoder.

    Args:
        topic: Topic name; serializers see it.
        partition_count: Partitions of the topic.
        config: Serializers, partitioner, ``batch_size``, compression and the limits of a record;
            no other settings are used.
        first_partition: Partition of the first records without a key; it rises with each batch.

    Raises:
        ConfigError: ``partition_count`` is not above 0.
    """

    def __init__(
        self, topic: str, partition_count: int, config: ProducerConfig, first_partition: int = 0
    ) -> None:
        if partition_count < 1:
            raise ConfigError("partition_count", partition_count, "must be at least 1")
        self._codec: int = CODEC_NAMES[config.compression_type or "none"]
        require_codec(self._codec)
        # Used only for the partitioner; nothing is queued in it.
        self._state = TopicState(topic, partition_count, (), lambda: 0.0)
        self._config = config
        self._batch_size = min(config.batch_size, config.max_request_size)
        self._builders: list[RecordBatchBuilder | None] = [None] * partition_count
        self._sticky = first_partition % partition_count

    @property
    def partition_count(self) -> int:
        """Partitions of the topic."""
        return len(self._builders)

    def encode(
        self,
        values: Column[object],
        keys: Column[object] | None = None,
        *,
        timestamps_ms: Column[int] | int,
        partitions: Column[int | None] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> list[EncodedBatch]:
        """Add records, and return the batches that became full.

        Args:
            values: Values: a sequence, or a column of Arrow, numpy or pandas.
            keys: Keys beside the values, or None.
            timestamps_ms: One timestamp each, or one for all, in milliseconds since 1970.
            partitions: Partition of each record; None, for a record or for all, chooses by key.
            headers: Headers of each record, or None.

        Raises:
            ConfigError: The columns differ in length, or there is no such partition.
            SerializationError: A record cannot be turned into bytes.
            RecordTooLargeError: A record is larger than ``max_request_size``.
        """
        config, topic = self._config, self._state.topic
        values = as_sequence(values)
        keys = None if keys is None else as_sequence(keys, "keys")
        wanted = None if partitions is None else as_sequence(partitions, "partitions")
        if not isinstance(timestamps_ms, int):
            timestamps_ms = as_sequence(timestamps_ms, "timestamps_ms")
        check_lengths(values, keys, timestamps_ms, headers)
        if wanted is not None and len(wanted) != len(values):
            raise ConfigError(
                "partitions", f"{len(wanted)} entries", f"there are {len(values)} values"
            )
        times = checked_timestamps(timestamps_ms)
        data = all_to_bytes(values, config.value_serializer, "value", topic)
        key_data = None if keys is None else all_to_bytes(keys, config.key_serializer, "key", topic)
        pairs = None if headers is None else [to_headers(item) for item in headers]
        targets = resolve_partitions(self._state, key_data, len(data), wanted, config.partitioner)
        return self._append(targets, times, key_data, data, pairs)

    def finish(self) -> list[EncodedBatch]:
        """Return the open batches; afterwards records can be added again."""
        return [
            self._close(number)
            for number, builder in enumerate(self._builders)
            if builder is not None
        ]

    def _append(
        self,
        targets: list[int],
        times: list[int] | int,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        headers: list[list[tuple[str, bytes | None]]] | None,
    ) -> list[EncodedBatch]:
        full: list[EncodedBatch] = []
        has_sticky, position = STICKY in targets, 0
        chosen = self._chosen(targets) if has_sticky else targets
        while True:
            try:
                position = append_scattered(
                    self._builders, chosen, position, len(values), times, keys, values, headers
                )
            except (TypeError, ValueError, OverflowError, AttributeError) as error:
                raise SerializationError(f"a record cannot be written: {error}") from error
            if position >= len(values):
                return full
            number = chosen[position]
            if self._builders[number] is not None:
                full.append(self._close(number))
                if has_sticky and targets[position] == STICKY:
                    self._sticky = (self._sticky + 1) % len(self._builders)
                    chosen = self._chosen(targets)
                    continue
            check_record_size(
                None if keys is None else keys[position],
                values[position],
                NO_HEADERS if headers is None else headers[position],
                self._config.max_request_size,
                self._config.buffer_memory,
            )
            self._builders[number] = RecordBatchBuilder(
                self._batch_size, self._codec, self._config.compression_level
            )

    def _chosen(self, targets: list[int]) -> list[int]:
        return [self._sticky if number == STICKY else number for number in targets]

    def _close(self, number: int) -> EncodedBatch:
        builder = self._builders[number]
        assert builder is not None, "only open batches are closed"
        self._builders[number] = None
        return EncodedBatch(number, builder.records_count, bytes(builder.build()))


def to_producer_batch(topic: str, batch: EncodedBatch, config: ProducerConfig) -> ProducerBatch:
    """Convert an encoded batch for the accumulator.

    Args:
        topic: Topic name.
        batch: The encoded batch.
        config: The producer's settings.

    Raises:
        ConfigError: It is not an encoded batch, its bytes are not one whole batch of that many
            records, or the producer has interceptors, which could not see the records.
        RecordTooLargeError: The batch is larger than ``max_request_size`` or ``buffer_memory``.
    """
    if not isinstance(batch, EncodedBatch):
        raise ConfigError("batch", batch, "must be an EncodedBatch, as BatchEncoder makes them")
    if config.interceptors:
        raise ConfigError("interceptors", "...", "cannot see encoded records; use send_many()")
    size = len(batch.data)
    if size > min(config.max_request_size, config.buffer_memory):
        raise RecordTooLargeError(
            f"a batch of {size} bytes exceeds max_request_size ({config.max_request_size}) or "
            f"buffer_memory ({config.buffer_memory}); encode it with a smaller batch_size"
        )
    try:
        header = parse_batch_header(batch.data)
        check_crc(batch.data, 0, header)
    except InvalidBatchError as error:
        raise ConfigError("batch", f"{size} bytes", f"make it by BatchEncoder: {error}") from error
    whole = header.batch_length + LENGTH_END == size and not header.is_control
    counts = {header.records_count, header.last_offset_delta + 1, batch.records_count}
    if not whole or len(counts) > 1 or batch.records_count < 1:
        raise ConfigError("batch", f"{size} bytes", "make it by BatchEncoder: it is not one batch")
    made = ProducerBatch(topic, batch.partition, batch_size=0, codec=0, created_ms=0)
    made.take_encoded(bytearray(batch.data), batch.records_count)
    return made
