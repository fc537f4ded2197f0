"""Whether a batch that a producer sent may enter a log: Kafka's checks, in one pass.

Format, checksum, counts, inner offsets, record lengths, keys and timestamps are judged here.
Sequences, epochs, transactions and sizes are judged by the log, which knows its producers and its
topic's settings. Memory is bounded whatever the batch unpacks to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onceflow.sdk.protocol import record_kernel
from onceflow.sdk.protocol.batch_errors import InvalidBatchError, RecordIssue
from onceflow.sdk.protocol.batch_header import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    parse_batch_header,
)
from onceflow.sdk.protocol.batch_reading import READ_ERRORS
from onceflow.sdk.protocol.compression import (
    Codec,
    CodecUnavailableError,
    DecompressedTooLargeError,
    DecompressionError,
    decompress,
    decompress_chunks,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.record_walk import RecordStream

HELD_BYTES = 4 * 1024 * 1024
"""Records of up to this size are unpacked at once and read by the kernel."""

MAX_UNPACKED_PIECE_BYTES = 64 * 1024 * 1024
"""Bound on what is unpacked at once where a codec cannot work in pieces."""

MAX_UNPACKED_BYTES = 2**31 - 1
"""Most bytes that one batch may unpack to, against bombs; a Java client cannot hold more either. A
larger batch is refused with MESSAGE_TOO_LARGE."""

MAX_RECORDS = 1024 * 1024
"""Most records of one batch: checking them takes some tenths of a second. A larger batch is refused
with INVALID_RECORD."""

RECORD_BYTES_MAX = 2**31 - 9
"""Bound on one record of a compressed batch, unpacked: Kafka's default, the largest Java array."""

MAX_ISSUES = 100
"""Bound on the list of faulty records that one refusal carries."""

_PIECE_BYTES = 1024 * 1024
_UNUSUAL_BITS = CODEC_MASK | LOG_APPEND_TIME_BIT
"""Attributes with which a batch is not looked at in one go."""


class ValidBatch(NamedTuple):
    """A batch that may enter a log.

    Attributes:
        header: Its header.
        max_timestamp: Largest timestamp that its records really have, -1 for none. Where it
            differs from the header, the log writes it there, as Kafka does.
    """

    header: BatchHeader
    max_timestamp: int


class _Rules(NamedTuple):
    require_keys: bool
    timestamp_range: tuple[int, int] | None


def validate_batch(
    data: Buffer,
    *,
    require_keys: bool = False,
    timestamp_range: tuple[int, int] | None = None,
    max_record_bytes: int = RECORD_BYTES_MAX,
    header: BatchHeader | None = None,
) -> ValidBatch:
    """Check the records that a producer sent for one partition: exactly one batch.

    Args:
        data: The records field of the request.
        require_keys: Whether every record needs a key (a compacted topic).
        timestamp_range: Least and largest allowed timestamp in milliseconds, for topics with
            CreateTime and the limits `message.timestamp.before.max.ms` and `.after.max.ms`.
        max_record_bytes: Bound on one record of a compressed batch, behind its length
            (`max.decompressed.message.bytes`); uncompressed batches have no such bound.
        header: What `parse_batch_header` gives for the data, if the caller has it.

    Returns:
        The header, and what the log needs to know of the records.

    Raises:
        InvalidBatchError: The batch is refused; `code` is what the broker answers
            (INVALID_RECORD, CORRUPT_MESSAGE, INVALID_TIMESTAMP or
            UNSUPPORTED_COMPRESSION_TYPE), `record_issues` names single records at fault.
    """
    header = _checked_header(data, header)
    if not header.attributes & _UNUSUAL_BITS and len(data) <= HELD_BYTES:
        largest = _quick_look(data, header, require_keys, timestamp_range)
        if largest is not None:
            return ValidBatch(header, largest)
    check = _RecordCheck(header, _Rules(require_keys, timestamp_range))
    try:
        if header.codec != Codec.NONE and max_record_bytes < RECORD_BYTES_MAX:
            _check_record_sizes(data, header, max_record_bytes)
        held = _held_records(data, header)
        if held is None:
            check.stream(data)
        else:
            check.held(held, header.records_count)
    except DecompressionError as error:
        raise InvalidBatchError(f"the records cannot be unpacked: {error}") from None
    except CodecUnavailableError as error:
        raise InvalidBatchError(str(error), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None
    check.raise_issues()
    return ValidBatch(header, check.max_timestamp)


def _quick_look(
    data: Buffer,
    header: BatchHeader,
    require_keys: bool,
    timestamp_range: tuple[int, int] | None,
) -> int | None:
    """Look at the records of an uncompressed batch once, which is enough for nearly all.

    Returns:
        The largest timestamp; None when a record is at fault, and the careful look says why.
    """
    try:
        found = record_kernel.walk(
            bytes(memoryview(data)[HEADER_SIZE:]),
            0,
            header.records_count,
            0,
            header.base_timestamp,
            record_kernel.NOTHING,
            0,
        )
    except READ_ERRORS:
        return None
    largest = found.max_timestamp
    if found.misplaced >= 0 or (require_keys and found.keyless):
        return None
    if timestamp_range is not None and (
        found.min_timestamp < timestamp_range[0] or largest > timestamp_range[1]
    ):
        return None
    return largest if largest > NO_TIMESTAMP else NO_TIMESTAMP


def _held_records(data: Buffer, header: BatchHeader) -> bytes | None:
    """The records without compression, or None if they are too large to be held."""
    body = memoryview(data)[HEADER_SIZE:]
    if header.codec == Codec.NONE:
        return bytes(body) if len(data) <= HELD_BYTES else None
    try:
        return bytes(decompress(header.codec, body, max_bytes=HELD_BYTES))
    except DecompressedTooLargeError:
        return None


def _checked_header(data: Buffer, header: BatchHeader | None) -> BatchHeader:
    """Judge everything that the header alone tells, and the checksum."""
    if header is None:
        if len(data) < HEADER_SIZE:
            raise InvalidBatchError("a partition's records must hold one batch, and hold none")
        header = parse_batch_header(data)
    size = header.batch_length + LENGTH_END
    if size > len(data):
        raise InvalidBatchError("a partition's records must hold one batch, and hold a cut one")
    if size < len(data):
        raise InvalidBatchError("a partition's records must hold one batch, and hold more")
    check_crc(data, 0, header)
    count = header.records_count
    if header.base_offset != 0:
        raise InvalidBatchError(f"the base offset must be 0, and is {header.base_offset}")
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise InvalidBatchError(
            f"the last offset delta {header.last_offset_delta} does not fit {count} records"
        )
    if count > MAX_RECORDS:
        raise InvalidBatchError(f"a batch of {count} records is too long; split it")
    if header.attributes & CONTROL_BIT:
        raise InvalidBatchError("clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidBatchError(
            f"sequence {header.base_sequence} is not valid for producer {header.producer_id}"
        )
    return header


def _unpacked(data: Buffer, header: BatchHeader) -> RecordStream:
    """The records piece by piece, as a stream."""
    body = memoryview(data)[HEADER_SIZE:]
    pieces = decompress_chunks(header.codec, body, max_bytes=MAX_UNPACKED_PIECE_BYTES)
    return RecordStream(_bounded(pieces))


def _check_record_sizes(data: Buffer, header: BatchHeader, max_bytes: int) -> None:
    """Refuse a batch with a record above the bound, before anything else is done with it."""
    stream = _unpacked(data, header)
    for index in range(header.records_count):
        size = stream.varint()
        if size < 0:
            return  # What is malformed is refused later, with its own reason.
        if size > max_bytes:
            raise InvalidBatchError(
                f"record {index} unpacks to {size} bytes; "
                f"max.decompressed.message.bytes is {max_bytes}"
            )
        stream.skip(size)


def _bounded(pieces: Iterator[Buffer]) -> Iterator[Buffer]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_UNPACKED_BYTES:
            raise InvalidBatchError(
                f"the batch unpacks to more than {MAX_UNPACKED_BYTES} bytes; split it",
                ErrorCode.MESSAGE_TOO_LARGE,
            )
        yield piece


class _RecordCheck:
    """The pass over the records of one batch."""

    __slots__ = ("_header", "_next_delta", "_rules", "issues", "max_timestamp", "wrong_times")

    def __init__(self, header: BatchHeader, rules: _Rules) -> None:
        self._header = header
        self._rules = rules
        self._next_delta = 0
        self.max_timestamp = NO_TIMESTAMP
        self.issues: list[RecordIssue] = []
        self.wrong_times = False

    def held(self, records: bytes, count: int) -> None:
        """Check `count` further records, which fill `records`."""
        if self._at_once(records, count):
            return
        stream = RecordStream(iter((records,)))
        for _ in range(count):
            self._next_of(stream)

    def _at_once(self, records: bytes, count: int) -> bool:
        """Check further records in one pass; False if one is at fault and must be found."""
        header, limits = self._header, self._rules.timestamp_range
        first = self._next_delta
        try:
            found = record_kernel.walk(
                records, 0, count, 0, header.base_timestamp, record_kernel.NOTHING, first
            )
        except READ_ERRORS as error:
            raise InvalidBatchError(f"the records are malformed: {error}") from None
        if found.misplaced >= 0:
            self._expect(found.misplaced, found.misplaced_delta)
        least, largest = found.min_timestamp, found.max_timestamp
        if header.attributes & LOG_APPEND_TIME_BIT:
            least = largest = header.max_timestamp
        if limits is not None and (least < limits[0] or largest > limits[1]):
            return False
        if found.keyless and self._rules.require_keys:
            return False
        self._next_delta = first + count
        self.max_timestamp = max(self.max_timestamp, largest)
        return True

    def stream(self, data: Buffer) -> None:
        """Check all records piece by piece, for batches that are too large to be held.

        Records that lie complete in a piece still go through the kernel; only those that straddle
        pieces are walked over field by field.
        """
        stream = _unpacked(data, self._header)
        count = self._header.records_count
        while self._next_delta < count:
            most = count - self._next_delta
            records, taken = stream.take_whole_records(most, _PIECE_BYTES)
            if taken:
                self.held(bytes(records), taken)
            else:
                self._next_of(stream)
        if not stream.at_end():
            raise InvalidBatchError("bytes follow the last record")

    def raise_issues(self) -> None:
        """Refuse the batch if any record is at fault."""
        if not self.issues:
            return
        code = ErrorCode.INVALID_TIMESTAMP if self.wrong_times else ErrorCode.INVALID_RECORD
        first = "; ".join(
            f"record {issue.batch_index}: {issue.message}" for issue in self.issues[:3]
        )
        raise InvalidBatchError(
            f"{len(self.issues)} records of the batch are refused, first of all {first}",
            code,
            self.issues,
        )

    def _next_of(self, stream: RecordStream) -> None:
        """Check the next record of a stream by itself."""
        header, index = self._header, self._next_delta
        frame = stream.walk_record(header.base_timestamp)
        timestamp = frame.timestamp
        if header.attributes & LOG_APPEND_TIME_BIT:
            timestamp = header.max_timestamp
        self._expect(index, frame.offset_delta)
        self._next_delta = index + 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self._judge(index, timestamp, frame.has_key)

    def _expect(self, index: int, offset_delta: int) -> None:
        if offset_delta != index:
            raise InvalidBatchError(
                f"inner offsets must count up by one: record {index} has {offset_delta}"
            )

    def _judge(self, index: int, timestamp: int, has_key: bool) -> None:
        if len(self.issues) >= MAX_ISSUES:
            return
        limits = self._rules.timestamp_range
        if self._rules.require_keys and not has_key:
            self.issues.append(
                RecordIssue(index, "a compacted topic takes no record without a key")
            )
        elif (
            limits is not None
            and timestamp != NO_TIMESTAMP
            and not limits[0] <= timestamp <= limits[1]
        ):
            self.wrong_times = True
            allowed = f"{limits[0]} to {limits[1]}"
            self.issues.append(
                RecordIssue(index, f"timestamp {timestamp} is out of range; allowed are {allowed}")
            )
