"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

Kafka's formats: ``.index`` holds 8-byte entries (offset relative to the segment, file position),
``.timeindex`` 12-byte entries (timestamp, relative offset). New entries gather in memory and are
written in one piece, since an index is derived from the log and rebuilt after a crash; entries on
disk are searched where they are, so an index that nobody reads costs no memory. When an entry is
due is decided by the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from onceflow.broker_lite.log.storage import LogFile

PENDING_ENTRIES_MAX = 512
"""Entries that gather in memory before they are written."""

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


def _strictly(values: Sequence[int]) -> bool:
    return all(value < following for value, following in pairwise(values))


class OffsetIndex:
    """File position by offset; an entry names the largest offset of the batch at its position.

    Args:
        file: The ``.index`` file.
        base_offset: First offset of the segment.
    """

    __slots__ = ("_base_offset", "_file", "_offsets", "_positions", "_written")

    def __init__(self, file: LogFile, base_offset: int) -> None:
        self._file = file
        self._base_offset = base_offset
        self._written = file.size // _OFFSET_ENTRY.size
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return self._written + len(self._offsets)

    def append(self, offset: int, position: int) -> None:
        """Add an entry; offsets and positions must grow.

        Args:
            offset: Largest offset of the batch.
            position: Where the batch begins in the segment.
        """
        self._offsets.append(offset - self._base_offset)
        self._positions.append(position)
        if len(self._offsets) >= PENDING_ENTRIES_MAX:
            self.write_pending()

    def write_pending(self) -> None:
        """Write what gathered in memory.

        Raises:
            OSError: It stays in memory.
        """
        if self._offsets:
            pairs = zip(self._offsets, self._positions, strict=True)
            self._file.append([b"".join(_OFFSET_ENTRY.pack(*pair) for pair in pairs)])
            self._written += len(self._offsets)
            del self._offsets[:], self._positions[:]

    def entry(self, number: int) -> tuple[int, int]:
        """Offset and position of one entry, counted from 0."""
        if number >= self._written:
            number -= self._written
            return self._offsets[number] + self._base_offset, self._positions[number]
        data = self._file.read(number * _OFFSET_ENTRY.size, _OFFSET_ENTRY.size)
        relative, position = _OFFSET_ENTRY.unpack(data)
        return relative + self._base_offset, position

    def entry_before(self, offset: int) -> tuple[int, int]:
        """The last entry whose offset is at most ``offset``; that of the segment's begin if none.

        Entries on the disk may be damaged: compare with the log what one says.
        """
        relative = offset - self._base_offset
        if self._offsets and self._offsets[0] <= relative:
            number = self._written + bisect_right(self._offsets, relative)
        else:
            number = bisect_right(range(self._written), offset, key=lambda at: self.entry(at)[0])
        return self.entry(number - 1) if number else (self._base_offset, 0)

    def entry_at(self, position: int) -> tuple[int, int]:
        """The last entry at or before a file position; that of the segment's begin if none."""
        if self._positions and self._positions[0] <= position:
            number = self._written + bisect_right(self._positions, position)
        else:
            number = bisect_right(range(self._written), position, key=lambda at: self.entry(at)[1])
        return self.entry(number - 1) if number else (self._base_offset, 0)

    def last_entry(self) -> tuple[int, int]:
        """The last entry; that of the segment's begin if none."""
        count = len(self)
        return self.entry(count - 1) if count else (self._base_offset, 0)

    def sound(self, log_size: int) -> bool:
        """Whether the file can belong to a log of that size."""
        if self._file.size % _OFFSET_ENTRY.size:
            return False
        if not self._written:
            return True
        offset, position = self.entry(self._written - 1)
        # The first batch has no entry, so zeros are those of a preallocated file left untrimmed.
        return 0 < position < log_size and offset > self._base_offset

    def grows(self) -> bool:
        """Whether the entries on the disk grow from each to the next, as they were written."""
        data = self._file.read(0, self._written * _OFFSET_ENTRY.size)
        if len(data) % _OFFSET_ENTRY.size:
            return False
        relatives, positions = [], []
        for relative, position in _OFFSET_ENTRY.iter_unpack(data):
            relatives.append(relative)
            positions.append(position)
        return _strictly(relatives) and _strictly(positions)

    def keep_below(self, offset: int) -> None:
        """Drop the entries of batches that end at or after an offset.

        Args:
            offset: The first offset that does not count.
        """
        count = bisect_left(range(len(self)), offset, key=lambda at: self.entry(at)[0])
        self.write_pending()
        if count < self._written:
            self._file.truncate(count * _OFFSET_ENTRY.size)
            self._written = count

    def clear(self) -> None:
        """Forget every entry."""
        del self._offsets[:], self._positions[:]
        self._file.truncate(0)
        self._written = 0

    def create(self) -> None:
        """Make the file even if it stays empty, as Kafka does."""
        self._file.create()

    def flush(self) -> None:
        """Return when what was written would survive a power loss."""
        self._file.flush()

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()


class TimeIndex:
    """Offset by timestamp; entries grow strictly in timestamp.

    Args:
        file: The ``.timeindex`` file.
        base_offset: First offset of the segment.
    """

    __slots__ = ("_base_offset", "_file", "_last_timestamp_ms", "_offsets", "_times", "_written")

    def __init__(self, file: LogFile, base_offset: int) -> None:
        self._file = file
        self._base_offset = base_offset
        self._written = file.size // _TIME_ENTRY.size
        self._times = array("q")
        self._offsets = array("I")
        self._last_timestamp_ms = self.entry(self._written - 1)[0] if self._written else -1

    def __len__(self) -> int:
        return self._written + len(self._times)

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the last entry, -1 without one."""
        return self._last_timestamp_ms

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry if its timestamp is greater than that of the last one."""
        if timestamp_ms > self._last_timestamp_ms:
            self._times.append(timestamp_ms)
            self._offsets.append(offset - self._base_offset)
            self._last_timestamp_ms = timestamp_ms
            if len(self._times) >= PENDING_ENTRIES_MAX:
                self.write_pending()

    def write_pending(self) -> None:
        """Write what gathered in memory.

        Raises:
            OSError: It stays in memory.
        """
        if self._times:
            pairs = zip(self._times, self._offsets, strict=True)
            self._file.append([b"".join(_TIME_ENTRY.pack(*pair) for pair in pairs)])
            self._written += len(self._times)
            del self._times[:], self._offsets[:]

    def entry(self, number: int) -> tuple[int, int]:
        """Timestamp and offset of one entry, counted from 0."""
        if number >= self._written:
            number -= self._written
            return self._times[number], self._offsets[number] + self._base_offset
        data = self._file.read(number * _TIME_ENTRY.size, _TIME_ENTRY.size)
        timestamp_ms, relative = _TIME_ENTRY.unpack(data)
        return timestamp_ms, relative + self._base_offset

    def last_entry(self) -> tuple[int, int]:
        """Greatest timestamp and its offset; (-1, base offset) without entries."""
        count = len(self)
        return self.entry(count - 1) if count else (-1, self._base_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """Offset of the last entry whose timestamp is less than the given one, or the base.

        Everything before that offset has a smaller timestamp than was asked for.
        """
        number = bisect_right(range(len(self)), timestamp_ms - 1, key=lambda at: self.entry(at)[0])
        return self.entry(number - 1)[1] if number else self._base_offset

    def sound(self) -> bool:
        """Whether the file looks like a time index."""
        if self._file.size % _TIME_ENTRY.size:
            return False
        # A preallocated file that was never trimmed ends with zeros.
        return not self._written or self.entry(self._written - 1)[0] >= self.entry(0)[0]

    def grows(self) -> bool:
        """Whether the entries on the disk grow from each to the next, as they were written."""
        data = self._file.read(0, self._written * _TIME_ENTRY.size)
        if len(data) % _TIME_ENTRY.size:
            return False
        times, relatives = [], []
        for timestamp_ms, relative in _TIME_ENTRY.iter_unpack(data):
            times.append(timestamp_ms)
            relatives.append(relative)
        return _strictly(times) and _strictly(relatives)

    def keep_below(self, offset: int) -> None:
        """Drop the entries of batches that end at or after an offset.

        Args:
            offset: The first offset that does not count.
        """
        count = bisect_left(range(len(self)), offset, key=lambda at: self.entry(at)[1])
        self.write_pending()
        if count < self._written:
            self._file.truncate(count * _TIME_ENTRY.size)
            self._written = count
            self._last_timestamp_ms = self.entry(count - 1)[0] if count else -1

    def clear(self) -> None:
        """Forget every entry."""
        del self._times[:], self._offsets[:]
        self._file.truncate(0)
        self._written = 0
        self._last_timestamp_ms = -1

    def create(self) -> None:
        """Make the file even if it stays empty, as Kafka does."""
        self._file.create()

    def flush(self) -> None:
        """Return when what was written would survive a power loss."""
        self._file.flush()

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()
