"""Reading record batches: records for a consumer, and look-ups by time for a broker.

It unpacks a batch and passes it to the record kernel, and raises one error for every kind of
damage. `core.consume.fetch_buffer` decides which batches and records a consumer sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from onceflow.sdk.protocol import record_kernel
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    crc32c,
    parse_batch_header,
)
from onceflow.sdk.protocol.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    DecompressionError,
    decompress,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer

if TYPE_CHECKING:
    from onceflow.sdk.model.columns import AnyColumns
    from onceflow.sdk.model.consumer_record import AnyRecord
    from onceflow.sdk.model.partitions import Headers

READ_ERRORS = (ValueError, IndexError)
"""Errors that the kernel raises for malformed bytes."""


class RawRecord(NamedTuple):
    """One decoded record.

    Attributes:
        offset: Position in the partition.
        timestamp: Milliseconds since 1970-01-01 UTC, None when the record has none.
        key: The key's bytes, or None.
        value: The value's bytes, or None.
        headers: Pairs of name and value.
    """

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def prepare_reading() -> None:
    """Load what the first batch needs, several milliseconds' work, where there is time for it."""
    from onceflow.sdk.model import consumer_record  # noqa: F401 - loaded, not used

    crc32c(b"")


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
        Its records. Offsets keep the gaps that compaction left. A control batch's record is
        returned raw.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    return list(_raw_records(*_open(data, position, header, verify_crc, max_bytes)))


def decode_values(
    data: Buffer,
    position: int = 0,
    *,
    header: BatchHeader | None = None,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[bytes | None]:
    """Read only the values of the batch at `position`; see `decode_batch`."""
    opened = _open(data, position, header, verify_crc, max_bytes)
    return _walk(*opened, record_kernel.VALUES).values


def consumer_columns(
    data: Buffer,
    header: BatchHeader,
    position: int,
    topic: str,
    partition: int,
    *,
    values_only: bool = False,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> AnyColumns:
    """Read the batch at `position` field by field; see `consumer_records`.

    Args:
        data: Bytes that hold the batch.
        header: The batch's header.
        position: Where it begins.
        topic: Topic of the records.
        partition: Partition of the records.
        values_only: Whether offsets and values are enough.
        verify_crc: Whether to compare the checksum first (`check.crcs`).
        max_bytes: Bound on the size of the records after decompression.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    from onceflow.sdk.model.columns import (
        RecordColumns as Read,  # Here, as no broker reads records.
    )

    want = record_kernel.VALUES if values_only else record_kernel.EVERYTHING
    header, body = _open(data, position, header, verify_crc, max_bytes)
    columns = _walk(header, body, want)
    if values_only and columns.misplaced >= 0:  # Compaction left gaps between the offsets.
        columns = _walk(header, body, record_kernel.EVERYTHING)
    if columns.timestamps_ms and header.attributes & LOG_APPEND_TIME_BIT:
        columns.timestamps_ms = [header.max_timestamp] * header.records_count
    first = header.base_offset
    return Read(
        topic,
        partition,
        columns.offsets or range(first, first + header.records_count),
        cast("list[object]", columns.values),
        keys=cast("list[object]", columns.keys),
        timestamps_ms=cast("list[int]", columns.timestamps_ms),
        timestamp_type=header.timestamp_type,
        headers=cast("dict[int, Headers]", columns.headers),
        leader_epoch=header.partition_leader_epoch,
    )


def extend_columns(
    into: AnyColumns,
    data: Buffer,
    header: BatchHeader,
    position: int,
    *,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> bool:
    """Read the batch at `position` behind what was read before, without a list of its own.

    Args:
        into: Columns, of values only or of everything, whose other properties the batch shares.
        data: Bytes that hold the batch.
        header: The batch's header.
        position: Where it begins.
        verify_crc: Whether to compare the checksum first (`check.crcs`).
        max_bytes: Bound on the size of the records after decompression.

    Returns:
        Whether that was possible; else, as with an error, nothing was changed.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    values_only, before = into.values_only, len(into)
    header, body = _open(data, position, header, verify_crc, max_bytes)
    columns = record_kernel.Columns()
    columns.values = cast("list[bytes | None]", into.values)
    columns.keys = cast("list[bytes | None]", into.keys)
    columns.timestamps_ms = cast("list[object]", into.timestamps_ms)
    done = False
    try:
        want = record_kernel.VALUES if values_only else record_kernel.EVERYTHING
        _walk(header, body, want, into=columns)
        done = columns.misplaced < 0 or not values_only
    finally:
        if not done:
            del into.values[before:], into.keys[before:], into.timestamps_ms[before:]
    if done:
        count, first = len(into) - before, header.base_offset
        if header.attributes & LOG_APPEND_TIME_BIT and not values_only:
            into.timestamps_ms[before:] = [header.max_timestamp] * count
        into.add_offsets(columns.offsets or range(first, first + count))
        if columns.headers:
            into.headers.update((before + at, found) for at, found in columns.headers.items())
    return done


def consumer_records(
    data: Buffer,
    header: BatchHeader,
    position: int,
    topic: str,
    partition: int,
    *,
    into: list[AnyRecord] | None = None,
    verify_crc: bool = True,
    max_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> list[AnyRecord]:
    """Read the batch at `position` as records for a consumer; see `decode_batch`.

    A broker answers with the whole batch that holds the offset asked for, so the first records
    may lie before it; the caller drops them.

    Args:
        data: Bytes that hold the batch.
        header: The batch's header.
        position: Where it begins.
        topic: Topic of the records.
        partition: Partition of the records.
        into: A list that the records are added to; an error leaves it as it was.
        verify_crc: Whether to compare the checksum first (`check.crcs`).
        max_bytes: Bound on the size of the records after decompression.

    Returns:
        The records; `into`, if it was given.

    Raises:
        InvalidBatchError: The batch is malformed, damaged or too large.
        CodecUnavailableError: The library of its codec is missing.
    """
    from onceflow.sdk.model.consumer_record import ConsumerRecord as Record

    result = [] if into is None else into
    kind, epoch = header.timestamp_type, header.partition_leader_epoch
    stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    maker = record_kernel.RecordMaker(Record, topic, partition, kind, stamp, epoch)
    header, body = _open(data, position, header, verify_crc, max_bytes)
    before, columns = len(result), record_kernel.Columns()
    columns.records = cast("list[object]", result)
    try:
        _walk(header, body, record_kernel.RECORDS, maker, columns)
    except BaseException:
        del result[before:]
        raise
    return result


def _open(
    data: Buffer, position: int, header: BatchHeader | None, verify_crc: bool, max_bytes: int
) -> tuple[BatchHeader, bytes]:
    """The header of one batch, and its records as the kernel takes them."""
    header, batch = _checked(data, position, header, verify_crc)
    body = batch[HEADER_SIZE:]
    return header, bytes(
        body if header.codec == Codec.NONE else _unpacked(header, batch, max_bytes)
    )


def _raw_records(header: BatchHeader, body: bytes) -> Iterator[RawRecord]:
    """The records of one batch, as `decode_batch` returns them."""
    columns = _walk(header, body, record_kernel.EVERYTHING)
    first, headers = header.base_offset, columns.headers
    times = cast("list[int]", columns.timestamps_ms)
    if header.attributes & LOG_APPEND_TIME_BIT:
        times = [header.max_timestamp] * len(times)
    return map(
        RawRecord,
        columns.offsets or range(first, first + len(times)),
        [None if time == NO_TIMESTAMP else time for time in times],
        columns.keys,
        columns.values,
        [headers.get(number, []) for number in range(len(times))],
    )


def _walk(
    header: BatchHeader,
    body: bytes,
    want: int,
    maker: record_kernel.RecordMaker | None = None,
    into: record_kernel.Columns | None = None,
) -> record_kernel.Columns:
    """Read the records of one batch with the kernel; what it does not want stays empty."""
    try:
        return record_kernel.walk(
            body,
            0,
            header.records_count,
            header.base_offset,
            header.base_timestamp,
            want,
            0,
            maker,
            into,
        )
    except READ_ERRORS as error:
        raise InvalidBatchError(
            f"the batch at offset {header.base_offset} is malformed: {error}"
        ) from None


def _checked(
    data: Buffer, position: int, header: BatchHeader | None, verify_crc: bool
) -> tuple[BatchHeader, memoryview]:
    if header is None:
        header = parse_batch_header(data, position)
    end = position + header.size_bytes
    if end > len(data):
        raise InvalidBatchError("a record batch is cut off", ErrorCode.CORRUPT_MESSAGE)
    if verify_crc:
        check_crc(data, position, header)
    return header, memoryview(data)[position:end]


def _unpacked(header: BatchHeader, batch: memoryview, max_bytes: int) -> Buffer:
    try:
        return decompress(header.codec, batch[HEADER_SIZE:], max_bytes=max_bytes)
    except DecompressionError as error:
        raise InvalidBatchError(
            f"the batch at offset {header.base_offset} cannot be unpacked: {error}"
        ) from None


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

    opened = _open(data, position, header, False, MAX_DECOMPRESSED_BYTES)
    for record in _raw_records(*opened):
        timestamp, offset = record.timestamp, record.offset
        if timestamp is not None and timestamp >= timestamp_ms and offset >= first_offset:
            return offset, timestamp
    return None


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
