"""Record batches, format version 2 (KIP-98): building, reading, looking up, control batches.

Decides how records become bytes and how bytes become records, at the speed of a compiled codec
that is loaded at first use. Header fields are `batch_header`'s business, and whether a producer's
batch may enter a log is `record_validation`'s; the names that users of batches need are offered
here together.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onceflow.sdk.model import ConsumerRecord
from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    InvalidBatchError,
    RecordIssue,
    check_crc,
    increment_sequence,
    iter_batch_headers,
    pack_batch,
    parse_batch_header,
    patch_base_offset,
    plain_header,
    set_log_append_time,
    set_producer_state,
    set_timestamps,
)
from onceflow.sdk.protocol.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    DecompressionError,
    compress,
    decompress,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.record_validation import ValidBatch, validate_batch
from onceflow.sdk.protocol.record_walk import read_records

if TYPE_CHECKING:
    from onceflow.sdk.protocol.record_codec import RawRecord

__all__ = [
    "HEADER_SIZE",
    "MAX_SEQUENCE",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Codec",
    "ControlRecord",
    "ControlType",
    "InvalidBatchError",
    "RecordBatchBuilder",
    "RecordIssue",
    "RecordTuple",
    "ValidBatch",
    "check_crc",
    "consumer_records",
    "control_batch",
    "decode_batch",
    "decode_values",
    "encode_batch",
    "first_record_at_or_after",
    "increment_sequence",
    "iter_batch_headers",
    "max_timestamp_record",
    "parse_batch_header",
    "parse_control_batch",
    "patch_base_offset",
    "set_log_append_time",
    "set_producer_state",
    "set_timestamps",
    "validate_batch",
]

_T = TypeVar("_T")

RecordHeaders = list[tuple[str, bytes | None]]
RecordTuple = tuple[int, Buffer | None, Buffer | None, RecordHeaders]
"""A record to encode: timestamp in milliseconds, key, value, headers."""


# Building -----------------------------------------------------------------------------------


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
        self.append_raw = self._builder.append
        self.codec = codec
        self.level = level
        self.records_count = 0

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


# Reading ------------------------------------------------------------------------------------


def decode_batch(
    data: Buffer,
    position: int = 0,
    *,
    header: BatchHeader | None = None,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[RawRecord]:
    """Read all records of the batch at `position`.

    Args:
        data: Bytes that hold the batch.
        position: Where it begins.
        header: Its header, if already read.
        verify_crc: Whether to compare the checksum first (consumer property `check.crcs`).
        max_bytes: Bound on the size of the records after decompression.

    Returns:
        Slotted records with `offset`, `timestamp` (None for none), `key`, `value`, `headers`.
        Offsets keep the gaps that compaction left. A control batch's record is returned raw.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    return _read(data, position, header, verify_crc, max_bytes, list)


def decode_values(
    data: Buffer,
    position: int = 0,
    *,
    header: BatchHeader | None = None,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[bytes | None]:
    """Read only the values of the batch at `position`; see `decode_batch`."""

    def values(reader: Iterable[RawRecord]) -> list[bytes | None]:
        return [record.value for record in reader]

    return _read(data, position, header, verify_crc, max_bytes, values)


def consumer_records(
    data: Buffer,
    header: BatchHeader,
    position: int,
    topic: str,
    partition: int,
    *,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[ConsumerRecord]:
    """Read the batch at `position` as records for a consumer; see `decode_batch`.

    A broker answers with the whole batch that holds the offset asked for, so the first records
    may lie before it; the caller drops them.

    Args:
        data: Bytes that hold the batch.
        header: The batch's header.
        position: Where it begins.
        topic: Topic of the records.
        partition: Partition of the records.
        verify_crc: Whether to compare the checksum first (`check.crcs`).
        max_bytes: Bound on the size of the records after decompression.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    kind = header.timestamp_type
    epoch = header.partition_leader_epoch

    def records(reader: Iterable[RawRecord]) -> list[ConsumerRecord]:
        return [
            ConsumerRecord(
                topic,
                partition,
                record.offset,
                NO_TIMESTAMP if (timestamp := record.timestamp) is None else timestamp,
                kind,
                record.key,
                record.value,
                record.headers,
                epoch,
            )
            for record in reader
        ]

    return _read(data, position, header, verify_crc, max_bytes, records)


def _read(
    data: Buffer,
    position: int,
    header: BatchHeader | None,
    verify_crc: bool,
    max_bytes: int,
    collect: Callable[[Iterable[RawRecord]], list[_T]],
) -> list[_T]:
    """Open one batch with the compiled reader and collect what the caller wants of it."""
    from onceflow.sdk.protocol import record_codec

    if header is None:
        header = parse_batch_header(data, position)
    end = position + header.batch_length + LENGTH_END
    if end > len(data):
        raise InvalidBatchError("a record batch is cut", ErrorCode.CORRUPT_MESSAGE)
    if verify_crc:
        check_crc(data, position, header)
    if header.records_count == 0 and end == position + HEADER_SIZE:
        return []  # Compaction keeps the header of a producer's last batch (KAFKA-5298).
    batch: Buffer = memoryview(data)[position:end]
    if header.codec != Codec.NONE:
        try:
            body = decompress(header.codec, batch[HEADER_SIZE:], max_bytes=max_bytes)
        except DecompressionError as error:
            raise InvalidBatchError(
                f"the batch at offset {header.base_offset} cannot be unpacked: {error}"
            ) from None
        plain = plain_header(data, position, header.records_count, header.base_offset)
        batch = b"".join((plain, body))
    try:
        return collect(record_codec.new_reader(batch))
    except UnicodeDecodeError:
        # Java reads a header name that is not UTF-8 with replacement characters; so do we, by
        # hand, or the consumer would be stuck at this batch.
        return collect(read_records(batch, header))
    except record_codec.READ_ERRORS as error:
        raise InvalidBatchError(
            f"the batch at offset {header.base_offset} is malformed: {error}"
        ) from None


# Looking up ---------------------------------------------------------------------------------


def first_record_at_or_after(
    data: Buffer, position: int, timestamp_ms: int, first_offset: int = 0
) -> tuple[int, int] | None:
    """Find the first record whose timestamp is not less than the one asked for.

    Args:
        data: Bytes that hold the batch.
        position: Where it begins.
        timestamp_ms: Time asked for, in milliseconds.
        first_offset: Records before it do not count (a log that starts inside the batch).

    Returns:
        (offset, timestamp in milliseconds), or None if the batch has no such record.

    Raises:
        InvalidBatchError: The batch is malformed.
    """
    header = parse_batch_header(data, position)
    if header.max_timestamp < timestamp_ms or header.last_offset < first_offset:
        return None

    def search(reader: Iterable[RawRecord]) -> list[tuple[int, int]]:
        for record in reader:
            timestamp = record.timestamp
            if timestamp is not None and timestamp >= timestamp_ms:
                offset = record.offset
                if offset >= first_offset:
                    return [(offset, timestamp)]
        return []

    found = _read(data, position, header, False, MAX_DECOMPRESSED_BYTES, search)
    return found[0] if found else None


def max_timestamp_record(data: Buffer, position: int = 0) -> tuple[int, int] | None:
    """Find the first record that has the batch's largest timestamp (ListOffsets -3, KIP-734).

    Returns:
        (offset, timestamp in milliseconds), or None if no record has a timestamp.

    Raises:
        InvalidBatchError: The batch is malformed.
    """
    header = parse_batch_header(data, position)
    if header.max_timestamp == NO_TIMESTAMP:
        return None
    return first_record_at_or_after(data, position, header.max_timestamp)


# Control batches ----------------------------------------------------------------------------


class ControlType(enum.IntEnum):
    """Kinds of control records that concern clients and brokers of data (KIP-98)."""

    ABORT = 0
    COMMIT = 1


class ControlRecord(NamedTuple):
    """What a control batch says.

    Attributes:
        type: 0 abort, 1 commit; larger numbers belong to Kafka's own metadata log.
        coordinator_epoch: Epoch of the transaction coordinator, -1 for other types.
    """

    type: int
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        """Whether the marker commits the producer's open transaction."""
        return self.type == ControlType.COMMIT

    @property
    def is_abort(self) -> bool:
        """Whether the marker aborts the producer's open transaction."""
        return self.type == ControlType.ABORT


CONTROL_BATCH_SIZE = 78
_CONTROL_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
# One record: length 16, no attributes, both deltas 0, key of 4 bytes, value of 6, no headers.
_MARKER = struct.Struct(">bbbbbhhbhib")


def control_batch(
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    committed: bool,
    *,
    base_offset: int = 0,
    timestamp_ms: int,
    leader_epoch: int = -1,
) -> bytearray:
    """Build the marker that ends a transaction in one partition: exactly 78 bytes.

    Args:
        producer_id: Producer whose transaction ends.
        producer_epoch: Its epoch (the bumped one under transaction version 2, KIP-890).
        coordinator_epoch: Epoch of the coordinator that decided.
        committed: True to commit, False to abort.
        base_offset: Offset that the marker takes in the log.
        timestamp_ms: Time of the decision.
        leader_epoch: Leader epoch of the partition.
    """
    kind = ControlType.COMMIT if committed else ControlType.ABORT
    body = _MARKER.pack(32, 0, 0, 0, 8, 0, kind, 12, 0, coordinator_epoch, 0)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=CONTROL_BATCH_SIZE - LENGTH_END,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        records_count=1,
    )
    return pack_batch(header, body)


def parse_control_batch(data: Buffer, position: int = 0) -> ControlRecord:
    """Read the control batch at `position`.

    Raises:
        InvalidBatchError: It is not one, or it is malformed.
    """
    header = parse_batch_header(data, position)
    if not header.is_control:
        raise InvalidBatchError(f"the batch at offset {header.base_offset} is no control batch")
    for record in decode_batch(data, position, header=header):
        key, value = record.key, record.value
        if key is None or len(key) < _CONTROL_KEY.size:
            break
        kind = _CONTROL_KEY.unpack_from(key)[1]
        if kind > ControlType.COMMIT:
            return ControlRecord(kind, -1)
        if value is None or len(value) < _MARKER_VALUE.size:
            break
        return ControlRecord(kind, _MARKER_VALUE.unpack_from(value)[1])
    raise InvalidBatchError(f"the control batch at offset {header.base_offset} is malformed")
