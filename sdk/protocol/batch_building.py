"""Making record batches: what a producer sends, and what a broker writes of its own accord.

Decides when a batch is full and whether compression is worth it. Which records go into one batch,
and how long it waits for more, is decided by `core.accumulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    MAGIC,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    pack_batch,
    parse_batch_header,
    patch_base_offset,
    set_producer_state,
)
from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.record_codec import RecordSize

RecordHeaders = list[tuple[str, bytes | None]]
RecordTuple = tuple[int, Buffer | None, Buffer | None, RecordHeaders]
"""A record to encode: timestamp in milliseconds, key, value, headers."""


AppendRecord = Callable[[int, int, Buffer | None, Buffer | None, RecordHeaders], RecordSize | None]
"""``append(offset, timestamp_ms, key, value, headers)``; None when the batch is full."""


class RecordBatchBuilder:
    """Collects records of one partition into one batch.

    Not thread-safe; a producer guards it with its own lock.

    Attributes:
        append_raw: The compiled `append(offset, timestamp_ms, key, value, headers)` itself, for
            callers that count a microsecond: `offset` is the record's index in the batch, the
            result None when the batch is full. Such a caller counts its records itself and uses
            no other `append` on the same builder.
        codec: Compression codec.
        level: Its level, None for Kafka's default.
        records_count: Records added by `append` and `append_values`.
    """

    __slots__ = ("_builder", "append_raw", "codec", "level", "records_count")

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
        from onceflow.sdk.protocol import record_codec

        self._builder = record_codec.new_builder(
            MAGIC, Codec.NONE, 0, NO_PRODUCER_ID, -1, NO_SEQUENCE, batch_size
        )
        self.append_raw: AppendRecord = self._builder.append
        self.codec: int = codec
        self.level: int | None = level
        self.records_count: int = 0

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
        added = self.append_raw(self.records_count, timestamp_ms, key, value, headers)
        if added is None:
            return None
        self.records_count += 1
        return added.size

    def append_values(
        self,
        timestamp_ms: int,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> int:
        """Add records with one timestamp and no headers until the batch is full.

        Args:
            timestamp_ms: Timestamp of all of them.
            values: Values; those from `start` to `stop` are taken.
            keys: Keys beside the values, or None for no keys.
            start: Index of the first one.
            stop: Index after the last one, None for all.

        Returns:
            Index of the first value that was not taken.
        """
        append = self.append_raw
        end = len(values) if stop is None else stop
        offset = self.records_count - start
        index = start
        no_headers: RecordHeaders = []
        try:
            if keys is None:
                for index in range(start, end):
                    value = values[index]
                    if append(offset + index, timestamp_ms, None, value, no_headers) is None:
                        return index
            else:
                for index in range(start, end):
                    added = append(
                        offset + index, timestamp_ms, keys[index], values[index], no_headers
                    )
                    if added is None:
                        return index
            index = max(end, start)
            return index
        finally:
            self.records_count = offset + index

    @property
    def size_bytes(self) -> int:
        """Bytes used so far, before compression, header included."""
        return self._builder.size()

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
        batch = self._builder.build()
        del self.append_raw
        if self.codec != Codec.NONE:
            body = compress(self.codec, memoryview(batch)[HEADER_SIZE:], self.level)
            if HEADER_SIZE + len(body) < len(batch):
                header = parse_batch_header(batch)
                attributes = self.codec | (TRANSACTIONAL_BIT if transactional else 0)
                return pack_batch(
                    header._replace(
                        attributes=attributes,
                        producer_id=producer_id,
                        producer_epoch=producer_epoch,
                        base_sequence=base_sequence,
                    ),
                    body,
                )
        if producer_id != NO_PRODUCER_ID or transactional:
            set_producer_state(batch, producer_id, producer_epoch, base_sequence, transactional)
        return batch


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
