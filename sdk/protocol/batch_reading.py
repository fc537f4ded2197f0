"""Reading record batches: records for a consumer, and look-ups by time for a broker.

Decides how a batch is unpacked and opened with the compiled codec, and that every kind of damage
is one error. Which batches a consumer may see, and from which record on, is decided by
`core.fetcher`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatchError,
    check_crc,
    crc32c,
    parse_batch_header,
    plain_header,
)
from onceflow.sdk.protocol.compression import (
    MAX_DECOMPRESSED_BYTES,
    Codec,
    DecompressionError,
    decompress,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.record_engine import kernel_in_use
from onceflow.sdk.protocol.record_walk import PlainRecord, has_plain_attributes, read_records

if TYPE_CHECKING:
    from onceflow.sdk.model.columns import RecordColumns
    from onceflow.sdk.model.consumer_record import ConsumerRecord
    from onceflow.sdk.model.partitions import Headers
    from onceflow.sdk.protocol.record_codec import BatchReader, RawRecord
    from onceflow.sdk.protocol.record_kernel import Columns, RecordMaker

_T = TypeVar("_T")

READ_ERRORS = (ValueError, RuntimeError, OverflowError, MemoryError, IndexError, TypeError)
"""What the compiled reader raises on malformed bytes (aiokafka's errors are RuntimeErrors)."""


_GUARD = bytes(32)


def guarded(*parts: Buffer) -> memoryview:
    """Join the bytes of one batch, with zeros behind them that do not belong to it.

    The compiled reader checks where a field ends, but lets a number run on past the end of its
    buffer, up to 20 bytes in the worst case. Behind a hostile batch it shall find zeros, which end
    every number, and not the end of the process's memory.
    """
    joined = b"".join((*parts, _GUARD))
    return memoryview(joined)[: len(joined) - len(_GUARD)]


@functools.cache
def _kernel() -> ModuleType:
    """The kernel, loaded at the first call: an import within a function costs at each one."""
    from onceflow.sdk.protocol import record_kernel

    return record_kernel


def prepare_reading() -> None:
    """Load what the first batch needs, several milliseconds' work, where there is time for it."""
    from onceflow.sdk.model import consumer_record  # noqa: F401 - loaded, not used

    crc32c(b"")
    if kernel_in_use():
        _kernel()
    else:
        compiled_reader()


@functools.cache
def compiled_reader() -> BatchReader:
    """The codec's reader of one batch, loaded at the first call."""
    from onceflow.sdk.protocol.record_codec import new_reader

    return new_reader


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
    if kernel_in_use():
        opened = _open(data, position, header, verify_crc, max_bytes)
        return _walk(*opened, _kernel().VALUES).values

    def values(reader: Iterable[RawRecord]) -> list[bytes | None]:
        return [record.value for record in reader]

    return _read(data, position, header, verify_crc, max_bytes, values)


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
) -> RecordColumns:
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

    if not kernel_in_use():
        records = consumer_records(
            data, header, position, topic, partition, verify_crc=verify_crc, max_bytes=max_bytes
        )
        return Read.from_records(records) if records else Read(topic, partition, (), [])
    kernel = _kernel()
    want = kernel.VALUES if values_only else kernel.EVERYTHING
    header, body = _open(data, position, header, verify_crc, max_bytes)
    columns = _walk(header, body, want)
    if values_only and columns.misplaced >= 0:  # Compaction left gaps between the offsets.
        columns = _walk(header, body, kernel.EVERYTHING)
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
    into: RecordColumns,
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
    if not kernel_in_use():
        return False
    kernel = _kernel()
    values_only, before = into.values_only, len(into)
    header, body = _open(data, position, header, verify_crc, max_bytes)
    columns = kernel.Columns()
    columns.values = cast("list[bytes | None]", into.values)
    columns.keys = cast("list[bytes | None]", into.keys)
    columns.timestamps_ms = cast("list[object]", into.timestamps_ms)
    done = False
    try:
        want = kernel.VALUES if values_only else kernel.EVERYTHING
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
    into: list[ConsumerRecord] | None = None,
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
    if not kernel_in_use():
        result += [
            Record(
                topic,
                partition,
                record.offset,
                NO_TIMESTAMP if (timestamp := record.timestamp) is None else timestamp,
                kind,
                record.key,
                record.value,
                record.headers or (),
                epoch,
            )
            for record in _read(data, position, header, verify_crc, max_bytes, list)
        ]
        return result
    kernel = _kernel()
    stamp = header.max_timestamp if header.attributes & LOG_APPEND_TIME_BIT else None
    maker = kernel.RecordMaker(Record, topic, partition, kind, stamp, epoch)
    header, body = _open(data, position, header, verify_crc, max_bytes)
    before, columns = len(result), kernel.Columns()
    columns.records = cast("list[object]", result)
    try:
        _walk(header, body, kernel.RECORDS, maker, columns)
    except BaseException:
        del result[before:]
        raise
    return result


def _read(
    data: Buffer,
    position: int,
    header: BatchHeader | None,
    verify_crc: bool,
    max_bytes: int,
    collect: Callable[[Iterable[RawRecord]], list[_T]],
) -> list[_T]:
    """Open one batch and collect what the caller wants of it."""
    if kernel_in_use():
        header, records = _open(data, position, header, verify_crc, max_bytes)
        return collect(_plain_records(header, records))
    header, batch = _checked(data, position, header, verify_crc)
    if header.records_count == 0 and len(batch) == HEADER_SIZE:
        return []  # Compaction keeps the header of a producer's last batch (KAFKA-5298).
    if header.codec == Codec.NONE:
        if position + len(batch) + len(_GUARD) > len(data):
            batch = guarded(batch)
    else:
        body = _unpacked(header, batch, max_bytes)
        batch = guarded(plain_header(batch, 0, header.records_count, header.base_offset), body)
    if not has_plain_attributes(batch[HEADER_SIZE:], header.records_count):
        return collect(read_records(batch, header))
    try:
        return collect(compiled_reader()(batch))
    except UnicodeDecodeError:
        # Java reads a header name that is not UTF-8 with replacement characters; so do we, by
        # hand, or the consumer would be stuck at this batch.
        return collect(read_records(batch, header))
    except READ_ERRORS as error:
        raise _malformed(header, error) from None


def _open(
    data: Buffer, position: int, header: BatchHeader | None, verify_crc: bool, max_bytes: int
) -> tuple[BatchHeader, bytes]:
    """The header of one batch, and its records as the kernel takes them."""
    header, batch = _checked(data, position, header, verify_crc)
    body = batch[HEADER_SIZE:]
    return header, bytes(
        body if header.codec == Codec.NONE else _unpacked(header, batch, max_bytes)
    )


def _plain_records(header: BatchHeader, body: bytes) -> Iterator[RawRecord]:
    """The records of one batch by the kernel, in the form that the foreign codec gives them."""
    columns = _walk(header, body, _kernel().EVERYTHING)
    first, headers = header.base_offset, columns.headers
    times = cast("list[int]", columns.timestamps_ms)
    if header.attributes & LOG_APPEND_TIME_BIT:
        times = [header.max_timestamp] * len(times)
    return map(
        PlainRecord,
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
    maker: RecordMaker | None = None,
    into: Columns | None = None,
) -> Columns:
    """Read the records of one batch with the kernel; what it does not want stays empty."""
    try:
        found: Columns = _kernel().walk(
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
        raise _malformed(header, error) from None
    return found


def _checked(
    data: Buffer, position: int, header: BatchHeader | None, verify_crc: bool
) -> tuple[BatchHeader, memoryview]:
    if header is None:
        header = parse_batch_header(data, position)
    end = position + header.size_bytes
    if end > len(data):
        raise InvalidBatchError("a record batch is cut", ErrorCode.CORRUPT_MESSAGE)
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


def _malformed(header: BatchHeader, error: Exception) -> InvalidBatchError:
    return InvalidBatchError(f"the batch at offset {header.base_offset} is malformed: {error}")


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
