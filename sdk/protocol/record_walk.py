"""Reading records by hand, piece by piece: slow, and without holding what is read.

The compiled codec reads ordinary batches. This module serves what it cannot: batches that unpack
to more than is wise to hold, where only the structure is checked, and header names that are not
UTF-8. It knows the layout of a record and no rules beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidBatchError,
)
from onceflow.sdk.protocol.primitives import Buffer


class PlainRecord(NamedTuple):
    """A record as `record_codec.RawRecord`, made by hand."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class RecordFrame(NamedTuple):
    """The outline of a record that was walked over.

    Attributes:
        timestamp: Milliseconds since 1970, -1 for none.
        offset_delta: Distance from the batch's base offset.
        has_key: Whether the key is present.
    """

    timestamp: int
    offset_delta: int
    has_key: bool


def has_plain_attributes(records: Buffer, count: int) -> bool:
    """Whether the attributes of all records are ones that the codec reads as they are.

    Of a record's attributes none is defined, and Kafka looks at none. aiokafka's codec takes the
    byte for a number of variable length, which is the same below 128, as every client writes it.

    Args:
        records: Bytes of the records, uncompressed.
        count: How many there should be; what does not add up is for the codec to find.
    """
    position, end = 0, len(records)
    for _ in range(count):
        shift = length = 0
        while position < end:
            byte = records[position]
            position += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if position >= end or length & 1:
            break
        if records[position] & 0x80:
            return False
        position += length >> 1
    return True


def _in_64_bits(timestamp_ms: int) -> int:
    """A sum of two timestamps as Java's and the compiled codecs' arithmetic has it."""
    return (timestamp_ms + 2**63) % 2**64 - 2**63


class RecordStream:
    """The unpacked records of one batch as a stream of bytes, of which one piece is held."""

    __slots__ = ("_chunks", "_data", "_end", "_position", "consumed")

    def __init__(self, chunks: Iterator[Buffer]) -> None:
        """Start at the first record.

        Args:
            chunks: The bytes of all records, cut anywhere.
        """
        self._chunks = chunks
        self._data: Buffer = b""
        self._position = 0
        self._end = 0
        self.consumed: int = 0

    def at_end(self) -> bool:
        """Whether every byte was read."""
        return self._position == self._end and not self._advance()

    def varint(self, most_bytes: int = 5) -> int:
        """Read a zigzag number of at most so many bytes (5 for 32 bits, 10 for 64)."""
        raw = shift = 0
        for _ in range(most_bytes):
            if self._position == self._end and not self._advance():
                raise InvalidBatchError("the records end within a number")
            byte = self._data[self._position]
            self._position += 1
            self.consumed += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
        raise InvalidBatchError(f"a number in a record is longer than {most_bytes} bytes")

    def skip(self, size: int) -> None:
        """Pass over bytes."""
        self.consumed += size
        while size > (available := self._end - self._position):
            size -= available
            if not self._advance():
                raise InvalidBatchError("the records end within a record")
        self._position += size

    def take(self, size: int) -> bytes:
        """Read bytes; they must lie in what the stream still has."""
        self.consumed += size
        parts = []
        while size > (available := self._end - self._position):
            parts.append(bytes(self._data[self._position : self._end]))
            size -= available
            if not self._advance():
                raise InvalidBatchError("the records end within a record")
        parts.append(bytes(self._data[self._position : self._position + size]))
        self._position += size
        return b"".join(parts)

    def skip_field(self) -> bool:
        """Pass over a nullable field; tells whether it was present."""
        size = self.varint()
        if size > 0:
            self.skip(size)
        return size >= 0

    def take_field(self) -> bytes | None:
        """Read a nullable field."""
        size = self.varint()
        return None if size < 0 else self.take(size)

    def take_whole_records(self, most_records: int, most_bytes: int) -> tuple[Buffer, int]:
        """Take the records that lie complete in the piece at hand.

        Args:
            most_records: Bound on their number.
            most_bytes: Bound on their size together.

        Returns:
            Their bytes and their number; 0 if the next record is cut, too large, or damaged.
        """
        data, start = self._data, self._position
        limit = min(self._end, start + most_bytes)
        position, count = start, 0
        while count < most_records:
            raw = shift = 0
            at = position
            while at < limit:
                byte = data[at]
                at += 1
                raw |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
            else:
                break
            # An odd number is a negative length; a long run of bytes is an impossible one.
            following = at + (raw >> 1)
            if raw & 1 or following > limit:
                break
            position = following
            count += 1
        self._position = position
        self.consumed += position - start
        return memoryview(data)[start:position], count

    def walk_record(self, base_timestamp: int) -> RecordFrame:
        """Pass over one record, checking its structure.

        Args:
            base_timestamp: Time of its batch in milliseconds.

        Raises:
            InvalidBatchError: Its parts do not fill its length, or the bytes end.
        """
        length = self.varint()
        start = self.consumed
        self.skip(1)
        timestamp_delta, offset_delta = self.varint(10), self.varint()
        has_key = self.skip_field()
        self.skip_field()
        for _ in range(self._header_count()):
            if not self.skip_field():
                raise InvalidBatchError("a record header has no name")
            self.skip_field()
            if self.consumed - start > length:
                break
        self._check_length(length, start)
        return RecordFrame(_in_64_bits(base_timestamp + timestamp_delta), offset_delta, has_key)

    def take_record(self, header: BatchHeader) -> PlainRecord:
        """Read one record; header names that are not UTF-8 get replacement characters."""
        length = self.varint()
        start = self.consumed
        self.skip(1)
        timestamp: int | None = _in_64_bits(header.base_timestamp + self.varint(10))
        if header.attributes & LOG_APPEND_TIME_BIT:
            timestamp = header.max_timestamp
        offset = header.base_offset + self.varint()
        key, value = self.take_field(), self.take_field()
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(self._header_count()):
            name = self.take_field()
            if name is None:
                raise InvalidBatchError("a record header has no name")
            headers.append((name.decode("utf-8", "replace"), self.take_field()))
        self._check_length(length, start)
        return PlainRecord(
            offset, None if timestamp == NO_TIMESTAMP else timestamp, key, value, headers
        )

    def _header_count(self) -> int:
        count = self.varint()
        if count < 0:
            raise InvalidBatchError(f"a record claims {count} headers")
        return count

    def _check_length(self, length: int, start: int) -> None:
        if self.consumed - start != length:
            raise InvalidBatchError(
                f"a record of {length} bytes has parts of {self.consumed - start} bytes"
            )

    def _advance(self) -> bool:
        for chunk in self._chunks:
            if chunk:
                self._data, self._position, self._end = chunk, 0, len(chunk)
                return True
        self._data, self._position, self._end = b"", 0, 0
        return False


def read_records(batch: Buffer, header: BatchHeader) -> Iterator[PlainRecord]:
    """Read the records of an uncompressed batch that fills `batch`, header included.

    Raises:
        InvalidBatchError: The records are malformed.
    """
    stream = RecordStream(iter((memoryview(batch)[HEADER_SIZE:],)))
    for _ in range(header.records_count):
        yield stream.take_record(header)
    if not stream.at_end():
        raise InvalidBatchError("bytes follow the last record of a batch")
