"""Checking records field by field in a stream of bytes: slow, and without holding what is read.

The record kernel reads batches that can be held. This module serves the rest: batches that unpack
to more than is wise to hold, and the search for the records that a rule of the topic refuses. It
knows the layout of a record and no rules beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.primitives import Buffer


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


def _in_64_bits(timestamp_ms: int) -> int:
    """A sum of two timestamps as Java's arithmetic and the kernel's has it."""
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

    def skip_field(self) -> bool:
        """Pass over a nullable field; tells whether it was present."""
        size = self.varint()
        if size > 0:
            self.skip(size)
        return size >= 0

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
