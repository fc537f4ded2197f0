"""Whether a batch that a producer sent may enter a log: Kafka's checks, in one pass.

Format, checksum, counts, inner offsets, record lengths, keys and timestamps are judged here.
Sequences, epochs, transactions and sizes are judged by the log, which knows its producers and its
topic's settings. Memory is bounded whatever the batch unpacks to.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, cast

from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatchError,
    RecordIssue,
    check_crc,
    parse_batch_header,
    plain_header,
)
from onceflow.sdk.protocol.batch_reading import READ_ERRORS, compiled_reader, guarded
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
from onceflow.sdk.protocol.record_engine import kernel_in_use
from onceflow.sdk.protocol.record_walk import RecordStream, has_plain_attributes

if TYPE_CHECKING:
    from onceflow.sdk.protocol.record_codec import RawRecord

HELD_BYTES = 4 * 1024 * 1024
"""Records of up to this size are unpacked at once and read by the compiled codec."""

MAX_UNPACKED_PIECE_BYTES = 64 * 1024 * 1024
"""Bound on what is unpacked at once where a codec cannot work in pieces."""

MAX_UNPACKED_BYTES = 2**31 - 1
"""Bound on what one batch unpacks to, against bombs; a Java client cannot hold more either."""

MAX_RECORDS = 1024 * 1024
"""Bound on the records of one batch: checking them takes some tenths of a second."""

RECORD_BYTES_MAX = 2**31 - 9
"""Bound on one record of a compressed batch, unpacked: Kafka's default, the largest Java array."""

MAX_ISSUES = 100
"""Bound on the list of faulty records that one refusal carries."""

_GROUP_RECORDS = 256
_PIECE_BYTES = 1024 * 1024


class ValidBatch(NamedTuple):
    """A batch that may enter a log.

    Attributes:
        header: Its header.
        max_timestamp: Largest timestamp that its records really have, -1 for none. Where it
            differs from the header, the log writes it there, as Kafka does.
    """

    header: BatchHeader
    max_timestamp: int


class _UnusualAttributesError(Exception):
    """A record's attributes are such that the codec would read something else."""


class _NotInOnePassError(Exception):
    """The quick look at a batch did not find it good; the careful one says why, or that it is."""


class _Rules(NamedTuple):
    require_keys: bool
    timestamp_range: tuple[int, int] | None

    @property
    def one_by_one(self) -> bool:
        """Whether more than offsets and the largest time has to be looked at."""
        limits = self.timestamp_range
        return self.require_keys or (limits is not None and limits[0] > 0)


def validate_batch(
    data: Buffer,
    *,
    require_keys: bool = False,
    timestamp_range: tuple[int, int] | None = None,
    max_record_bytes: int = RECORD_BYTES_MAX,
) -> ValidBatch:
    """Check the records that a producer sent for one partition: exactly one batch.

    Args:
        data: The records field of the request.
        require_keys: Whether every record needs a key (a compacted topic).
        timestamp_range: Least and largest allowed timestamp in milliseconds, for topics with
            CreateTime and the limits `message.timestamp.before.max.ms` and `.after.max.ms`.
        max_record_bytes: Bound on one record of a compressed batch, behind its length
            (`max.decompressed.message.bytes`); uncompressed batches have no such bound.

    Returns:
        The header, and what the log needs to know of the records.

    Raises:
        InvalidBatchError: The batch is refused; `code` is what the broker answers
            (INVALID_RECORD, CORRUPT_MESSAGE, INVALID_TIMESTAMP or
            UNSUPPORTED_COMPRESSION_TYPE), `record_issues` names single records at fault.
    """
    header = _checked_header(data)
    rules = _Rules(require_keys, timestamp_range)
    check = _RecordCheck(header, rules)
    try:
        if header.codec != Codec.NONE and max_record_bytes < RECORD_BYTES_MAX:
            _check_record_sizes(data, header, max_record_bytes)
        held = _held_batch(data, header)
        if held is None:
            check.stream(data)
        else:
            check.held(held, header.records_count)
    except (UnicodeDecodeError, _UnusualAttributesError):
        # Kafka takes header names that are not UTF-8, and the compiled codec does not.
        check = _RecordCheck(header, rules)
        check.stream(data, by_hand=True)
    except DecompressionError as error:
        raise InvalidBatchError(f"the records cannot be unpacked: {error}") from None
    except CodecUnavailableError as error:
        raise InvalidBatchError(str(error), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from None
    check.raise_issues()
    return ValidBatch(header, check.max_timestamp)


def _held_batch(data: Buffer, header: BatchHeader) -> Buffer | None:
    """The batch without compression, or None if its records are too large to be held."""
    if header.codec == Codec.NONE:
        return data if len(data) <= HELD_BYTES else None
    try:
        plain = decompress(header.codec, memoryview(data)[HEADER_SIZE:], max_bytes=HELD_BYTES)
    except DecompressedTooLargeError:
        return None
    return b"".join((plain_header(data, 0, header.records_count), plain))


def _checked_header(data: Buffer) -> BatchHeader:
    """Judge everything that the header alone tells, and the checksum."""
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

    def held(self, batch: Buffer, count: int) -> None:
        """Check `count` further records, which fill `batch` behind a header that counts them."""
        records = memoryview(batch)[HEADER_SIZE:]
        if kernel_in_use() and self._whole(bytes(records), count):
            return
        if not has_plain_attributes(records, count):
            raise _UnusualAttributesError
        # The compiled reader checks lengths and counts while it reads.
        batch = guarded(batch)
        if not self._rules.one_by_one:
            first, largest = self._next_delta, self.max_timestamp
            try:
                self._pass_over(compiled_reader()(batch))
                return
            except _NotInOnePassError:
                self._next_delta, self.max_timestamp = first, largest
        try:
            found: Iterator[RawRecord] = chain.from_iterable((compiled_reader()(batch),))
            while group := list(islice(found, _GROUP_RECORDS)):
                self._group(group)
        except UnicodeDecodeError:
            raise
        except READ_ERRORS as error:
            raise InvalidBatchError(f"the records are malformed: {error}") from None

    def _pass_over(self, reader: Iterator[RawRecord]) -> None:
        """Check records one after the other, none kept: of each only offset and time are looked at.

        Raises:
            _NotInOnePassError: Something is not as it mostly is; nothing is decided.
        """
        expected, largest = self._next_delta, self.max_timestamp
        try:
            for record in reader:
                if record.offset != expected:
                    break
                expected += 1
                timestamp = record.timestamp
                if timestamp > largest:  # type: ignore[operator] # None is the exception below
                    largest = timestamp  # type: ignore[assignment]
            else:
                limits = self._rules.timestamp_range
                if limits is None or largest <= limits[1]:
                    self._next_delta, self.max_timestamp = expected, largest
                    return
        except UnicodeDecodeError:
            raise
        except READ_ERRORS:
            pass
        raise _NotInOnePassError

    def _whole(self, records: bytes, count: int) -> bool:
        """Check further records at once; False if one is at fault and must be found."""
        from onceflow.sdk.protocol import record_kernel

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

    def stream(self, data: Buffer, *, by_hand: bool = False) -> None:
        """Check all records piece by piece, for batches that are too large to be held.

        Records that lie complete in a piece still go through the compiled reader, unless
        `by_hand`; only those that straddle pieces are walked over field by field.
        """
        header = self._header
        stream = _unpacked(data, header)
        count = header.records_count
        while self._next_delta < count:
            if not by_hand:
                most = count - self._next_delta
                records, taken = stream.take_whole_records(most, _PIECE_BYTES)
                if taken:
                    self.held(b"".join((plain_header(data, 0, taken), records)), taken)
                    continue
            frame = stream.walk_record(header.base_timestamp)
            timestamp = frame.timestamp
            if header.attributes & LOG_APPEND_TIME_BIT:
                timestamp = header.max_timestamp
            self._one(frame.offset_delta, timestamp, frame.has_key)
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

    def _group(self, group: list[RawRecord]) -> None:
        first = self._next_delta
        if [record.offset for record in group] != list(range(first, first + len(group))):
            for index, record in enumerate(group, first):
                self._expect(index, record.offset)
        self._next_delta = first + len(group)
        given = [record.timestamp for record in group]
        if None in given:
            times = [time for time in given if time is not None] or [NO_TIMESTAMP]
        else:
            times = cast(list[int], given)
        least, largest = min(times), max(times)
        if largest > self.max_timestamp:
            self.max_timestamp = largest
        limits = self._rules.timestamp_range
        late = limits is not None and (least < limits[0] or largest > limits[1])
        keyless = self._rules.require_keys and None in [record.key for record in group]
        if late or keyless:
            for index, record in enumerate(group, first):
                self._judge(index, record.timestamp, record.key is not None)

    def _one(self, offset_delta: int, timestamp: int, has_key: bool) -> None:
        index = self._next_delta
        self._expect(index, offset_delta)
        self._next_delta = index + 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self._judge(index, timestamp, has_key)

    def _expect(self, index: int, offset_delta: int) -> None:
        if offset_delta != index:
            raise InvalidBatchError(
                f"inner offsets must count up by one: record {index} has {offset_delta}"
            )

    def _judge(self, index: int, timestamp: int | None, has_key: bool) -> None:
        if len(self.issues) >= MAX_ISSUES:
            return
        limits = self._rules.timestamp_range
        if self._rules.require_keys and not has_key:
            self.issues.append(
                RecordIssue(index, "a compacted topic takes no record without a key")
            )
        elif (
            limits is not None
            and timestamp is not None
            and timestamp != NO_TIMESTAMP
            and not limits[0] <= timestamp <= limits[1]
        ):
            self.wrong_times = True
            allowed = f"{limits[0]} to {limits[1]}"
            self.issues.append(
                RecordIssue(index, f"timestamp {timestamp} is out of range; allowed are {allowed}")
            )
