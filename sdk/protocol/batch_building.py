"""Builds record batches: of producers, and of the broker itself.

It decides when a batch is full and whether to compress it. `core.produce.accumulator` decides which
records go into one batch; `core.produce.sender` decides when it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceflow.sdk.protocol import record_kernel
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    MAGIC,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack_batch,
    patch_base_offset,
)
from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.primitives import Buffer

RecordHeaders = list[tuple[str, bytes | None]]
RecordTuple = tuple[int, Buffer | None, Buffer | None, RecordHeaders]
"""A record to encode: timestamp in milliseconds, key, value, headers."""


class RecordBatchBuilder:
    """Collects records of one partition into one batch.

    Not thread-safe; a producer guards it with its own lock.

    Attributes:
        codec: Compression codec.
        level: Its level, None for Kafka's default.
        writer: The kernel's part: it writes the records.
    """

    __slots__ = ("codec", "level", "writer")

    def __init__(
        self, batch_size: int = 16384, codec: int = Codec.NONE, level: int | None = None
    ) -> None:
        """Start an empty batch.

        Args:
            batch_size: Bytes, before compression and with the header, at which the batch is full
                (Kafka property `batch.size`). The first record always fits.
            codec: Compression codec (`compression.type`).
            level: The codec's level, None for Kafka's default.
        """
        self.writer: record_kernel.RecordWriter = record_kernel.RecordWriter(
            batch_size - HEADER_SIZE
        )
        self.codec: int = codec
        self.level: int | None = level

    @property
    def records_count(self) -> int:
        """Records in the batch."""
        return self.writer.count

    def write(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
    ) -> int:
        """Append bytes; see `append`.

        Returns:
            Bytes that the record takes, or 0 if the batch is full.
        """
        return self.writer.write(self.writer.count, timestamp_ms, key, value, headers)

    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: RecordHeaders,
    ) -> int | None:
        """Add one record.

        Args:
            timestamp_ms: Milliseconds since 1970-01-01 UTC, not negative.
            key: Key, or None.
            value: Value, or None for a tombstone.
            headers: Pairs of name and value; a list of tuples.

        Returns:
            Bytes that the record takes, or None if the batch is full (the record is not in it).

        Raises:
            TypeError: A key, value or header of another type.
        """
        key = None if key is None else bytes(memoryview(key))
        value = None if value is None else bytes(memoryview(value))
        return self.write(timestamp_ms, key, value, headers) or None

    @property
    def size_bytes(self) -> int:
        """Bytes used so far, before compression, header included."""
        return HEADER_SIZE + self.writer.size_bytes

    def build(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> bytearray:
        """Close the batch and give it away; the builder is used up.

        Args:
            producer_id: Idempotent producer's id, -1 for none.
            producer_epoch: Its epoch.
            base_sequence: Sequence of the first record.
            transactional: Whether the batch belongs to a transaction.

        Returns:
            The whole batch with base offset 0, compressed where that makes it smaller.
        """
        writer = self.writer
        body: Buffer = writer.take()
        attributes = TRANSACTIONAL_BIT if transactional else 0
        if self.codec != Codec.NONE:
            compressed = compress(self.codec, body, self.level)
            if len(compressed) < len(body):
                body, attributes = compressed, attributes | self.codec
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=attributes,
            last_offset_delta=writer.count - 1,
            base_timestamp=writer.base_timestamp,
            max_timestamp=writer.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=writer.count,
        )
        return pack_batch(header, body)


def append_scattered(
    builders: Sequence[RecordBatchBuilder | None],
    targets: list[int],
    start: int,
    stop: int,
    timestamps_ms: Sequence[int] | int,
    keys: list[bytes | None] | None,
    values: list[bytes | None],
    headers: list[RecordHeaders] | None,
) -> int:
    """Add records to the batches of their partitions, in order, until one is full or missing.

    Args:
        builders: The open batch of each partition; None where there is none yet.
        targets: Partition of each record.
        start: Index of the first record.
        stop: Index after the last one.
        timestamps_ms: Timestamp of each record in milliseconds, or the one of all.
        keys: Key of each record, or None for no keys.
        values: Value of each record.
        headers: Headers of each record, or None.

    Returns:
        Index of the first record that was not taken.
    """
    single = timestamps_ms if isinstance(timestamps_ms, int) else 0
    many = None if isinstance(timestamps_ms, int) else list(timestamps_ms)
    writers = [None if builder is None else builder.writer for builder in builders]
    return record_kernel.append_scattered(
        writers, targets, start, stop, single, many, keys, values, headers
    )


def encode_batch(
    records: Iterable[RecordTuple],
    *,
    codec: int = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> bytearray:
    """Build one batch of any size from (timestamp, key, value, headers).

    Raises:
        ValueError: No records; a batch is never empty when it is written.
    """
    builder = RecordBatchBuilder(MAX_SEQUENCE, codec, level)
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)
    if not builder.records_count:
        raise ValueError("a batch needs at least one record")
    batch = builder.build(producer_id, producer_epoch, base_sequence, transactional)
    patch_base_offset(batch, base_offset, leader_epoch)
    return batch
