"""Making record batches: what a producer sends, and what a broker writes of its own accord.

Decides when a batch is full and whether compression is worth it. Which records go into one batch,
and how long it waits for more, is decided by `core.accumulator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    MAGIC,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack_batch,
    parse_batch_header,
    patch_base_offset,
)
from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.record_engine import kernel_in_use

if TYPE_CHECKING:
    from onceflow.sdk.protocol.record_codec import BatchBuilder
    from onceflow.sdk.protocol.record_kernel import RecordWriter

RecordHeaders = list[tuple[str, bytes | None]]
RecordTuple = tuple[int, Buffer | None, Buffer | None, RecordHeaders]
"""A record to encode: timestamp in milliseconds, key, value, headers."""


class RecordBatchBuilder:
    """Collects records of one partition into one batch.

    Not thread-safe; a producer guards it with its own lock.

    Attributes:
        codec: Compression codec.
        level: Its level, None for Kafka's default.
        writer: The compiled kernel's part; None where the kernel is not in use.
    """

    __slots__ = ("_count", "_foreign", "_shift_ms", "codec", "level", "writer")

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
        self.writer: RecordWriter | None = None
        self._foreign: BatchBuilder | None = None
        self._count = 0
        self._shift_ms = 0
        self.codec: int = codec
        self.level: int | None = level
        if kernel_in_use():
            from onceflow.sdk.protocol.record_kernel import RecordWriter

            self.writer = RecordWriter(batch_size - HEADER_SIZE)
        else:
            from onceflow.sdk.protocol.record_codec import new_builder

            self._foreign = new_builder(
                MAGIC, Codec.NONE, 0, NO_PRODUCER_ID, -1, NO_SEQUENCE, batch_size + 1
            )

    @property
    def records_count(self) -> int:
        """Records in the batch."""
        return self._count if self.writer is None else self.writer.count

    def write(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders | None,
    ) -> int:
        """As `append`, for what are bytes already.

        Returns:
            Bytes that the record takes, or 0 if the batch is full.
        """
        if self.writer is not None:
            return self.writer.write(self.writer.count, timestamp_ms, key, value, headers)
        assert self._foreign is not None
        if not self._count:
            # The codec takes a first timestamp of -1 for none yet, and the next one for the first.
            self._shift_ms = -1 if timestamp_ms == NO_TIMESTAMP else 0
        time_ms = timestamp_ms + self._shift_ms
        added = self._foreign.append(self._count, time_ms, key, value, headers or [])
        if added is None:
            return 0
        self._count += 1
        return added.size

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
        if self.writer is not None:
            return HEADER_SIZE + self.writer.size_bytes
        assert self._foreign is not None
        return self._foreign.size()

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
        body: Buffer
        if self.writer is not None:
            header, body = _header_of(self.writer), self.writer.take()
        else:
            assert self._foreign is not None
            batch = self._foreign.build()
            header, body = parse_batch_header(batch), memoryview(batch)[HEADER_SIZE:]
            header = header._replace(
                base_timestamp=header.base_timestamp - self._shift_ms,
                max_timestamp=header.max_timestamp - self._shift_ms,
            )
        attributes = TRANSACTIONAL_BIT if transactional else 0
        if self.codec != Codec.NONE:
            compressed = compress(self.codec, body, self.level)
            if len(compressed) < len(body):
                body, attributes = compressed, attributes | self.codec
        return pack_batch(
            header._replace(
                attributes=attributes,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            ),
            body,
        )


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
    if kernel_in_use():
        from onceflow.sdk.protocol import record_kernel

        writers = [None if builder is None else builder.writer for builder in builders]
        return record_kernel.append_scattered(
            writers, targets, start, stop, single, many, keys, values, headers
        )
    key: bytes | None = None
    record_headers: RecordHeaders = []
    at = start
    for at in range(start, stop):
        builder = builders[targets[at]]
        if builder is None:
            return at
        if keys is not None:
            key = keys[at]
        if many is not None:
            single = many[at]
        if headers is not None:
            record_headers = headers[at]
        if not builder.write(single, key, values[at], record_headers):
            return at
    return max(start, stop)


def _header_of(writer: RecordWriter) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=writer.count - 1,
        base_timestamp=writer.base_timestamp,
        max_timestamp=writer.max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        records_count=writer.count,
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
