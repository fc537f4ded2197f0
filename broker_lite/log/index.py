"""The two sparse indexes of a segment: offset to file position, and timestamp to offset.

The files have Kafka's formats: ``.index`` holds 8-byte entries (offset relative to the segment,
file position), ``.timeindex`` 12-byte entries (timestamp, relative offset). New entries are kept in
memory and written many at a time; a start after a crash rebuilds them from the log. A search reads
single entries on the disk, so that an index without readers takes no memory. The segment decides
when to add an entry.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from onceflow.broker_lite.log.storage import LogFile

PENDING_ENTRIES_MAX = 512
"""Most entries that wait in memory before they are written."""

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")


def _strictly(values: Sequence[int]) -> bool:
    return all(value < following for value, following in pairwise(values))


class _Index:
    """A file of pairs of numbers, both growing, whose newest entries wait in memory.

    Args:
        file: The file.
        base_offset: First offset of the segment.
        layout: Layout of an entry in the file.
        first_type: Type code of ``array`` for the first numbers.
    """

    __slots__ = ("_base_offset", "_file", "_firsts", "_layout", "_seconds", "_written")

    def __init__(
        self, file: LogFile, base_offset: int, layout: struct.Struct, first_type: str
    ) -> None:
        self._file = file
        self._base_offset = base_offset
        self._layout = layout
        self._written = file.size // layout.size
        self._firsts: array[int] = array(first_type)
        self._seconds: array[int] = array("I")

    def __len__(self) -> int:
        return self._written + len(self._firsts)

    def _add(self, first: int, second: int) -> None:
        self._firsts.append(first)
        self._seconds.append(second)
        if len(self._firsts) >= PENDING_ENTRIES_MAX:
            self.write_pending()

    def write_pending(self) -> None:
        """Write the entries that wait in memory.

        Raises:
            OSError: They stay in memory.
        """
        if self._firsts:
            pairs = zip(self._firsts, self._seconds, strict=True)
            self._file.append([b"".join(self._layout.pack(*pair) for pair in pairs)])
            self._written += len(self._firsts)
            del self._firsts[:], self._seconds[:]

    def _pair(self, number: int) -> tuple[int, int]:
        """Return one stored entry, counted from 0."""
        if number >= self._written:
            number -= self._written
            return self._firsts[number], self._seconds[number]
        data = self._file.read(number * self._layout.size, self._layout.size)
        first, second = self._layout.unpack(data)
        return first, second

    def grows(self) -> bool:
        """Whether both numbers grow from each entry on the disk to the next."""
        data = self._file.read(0, self._written * self._layout.size)
        if len(data) % self._layout.size:
            return False
        firsts, seconds = [], []
        for first, second in self._layout.iter_unpack(data):
            firsts.append(first)
            seconds.append(second)
        return _strictly(firsts) and _strictly(seconds)

    def _keep(self, count: int) -> None:
        """Drop all entries but the first ones."""
        self.write_pending()
        if count < self._written:
            self._file.truncate(count * self._layout.size)
            self._written = count

    def clear(self) -> None:
        """Drop all entries."""
        del self._firsts[:], self._seconds[:]
        self._file.truncate(0)
        self._written = 0

    def create(self) -> None:
        """Create the file even if it stays empty, as Kafka does."""
        self._file.create()

    def flush(self) -> None:
        """Return when the written entries would survive a power loss."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class OffsetIndex(_Index):
    """File position by offset; an entry names the largest offset of the batch at its position.

    Args:
        file: The ``.index`` file.
        base_offset: First offset of the segment.
    """

    __slots__ = ()

    def __init__(self, file: LogFile, base_offset: int) -> None:
        super().__init__(file, base_offset, _OFFSET_ENTRY, "I")

    def append(self, offset: int, position: int) -> None:
        """Add an entry; offsets and positions must grow.

        Args:
            offset: Largest offset of the batch.
            position: Where the batch begins in the segment.
        """
        self._add(offset - self._base_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        """Return offset and position of one entry, counted from 0."""
        relative, position = self._pair(number)
        return relative + self._base_offset, position

    def entry_before(self, offset: int) -> tuple[int, int]:
        """Return the last entry whose offset is at most ``offset``, or the segment's begin.

        Entries on the disk may be damaged: compare the result with the log.
        """
        relative = offset - self._base_offset
        if self._firsts and self._firsts[0] <= relative:
            number = self._written + bisect_right(self._firsts, relative)
        else:
            number = bisect_right(range(self._written), relative, key=lambda at: self._pair(at)[0])
        return self.entry(number - 1) if number else (self._base_offset, 0)

    def entry_at(self, position: int) -> tuple[int, int]:
        """Return the last entry at or before a file position, or the segment's begin."""
        if self._seconds and self._seconds[0] <= position:
            number = self._written + bisect_right(self._seconds, position)
        else:
            number = bisect_right(range(self._written), position, key=lambda at: self._pair(at)[1])
        return self.entry(number - 1) if number else (self._base_offset, 0)

    def last_entry(self) -> tuple[int, int]:
        """Return the last entry, or the segment's begin."""
        count = len(self)
        return self.entry(count - 1) if count else (self._base_offset, 0)

    def sound(self, log_size: int) -> bool:
        """Whether the file can belong to a log of that size."""
        if self._file.size % self._layout.size:
            return False
        if not self._written:
            return True
        relative, position = self._pair(self._written - 1)
        # The first batch has no entry, so zeros come from a preallocated file that was not trimmed.
        return 0 < position < log_size and relative > 0

    def keep_below(self, offset: int) -> None:
        """Drop the entries of batches that end at or after an offset."""
        self._keep(bisect_left(range(len(self)), offset, key=lambda at: self.entry(at)[0]))


class TimeIndex(_Index):
    """Offset by timestamp; entries grow strictly in timestamp.

    Args:
        file: The ``.timeindex`` file.
        base_offset: First offset of the segment.
    """

    __slots__ = ("_last_timestamp_ms",)

    def __init__(self, file: LogFile, base_offset: int) -> None:
        super().__init__(file, base_offset, _TIME_ENTRY, "q")
        self._last_timestamp_ms = self.last_entry()[0]

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the last entry, -1 without one."""
        return self._last_timestamp_ms

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Add an entry if its timestamp is greater than that of the last one."""
        if timestamp_ms > self._last_timestamp_ms:
            self._last_timestamp_ms = timestamp_ms
            self._add(timestamp_ms, offset - self._base_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """Return timestamp and offset of one entry, counted from 0."""
        timestamp_ms, relative = self._pair(number)
        return timestamp_ms, relative + self._base_offset

    def last_entry(self) -> tuple[int, int]:
        """Return the greatest timestamp and its offset; (-1, base offset) without entries."""
        count = len(self)
        return self.entry(count - 1) if count else (-1, self._base_offset)

    def offset_before(self, timestamp_ms: int) -> int:
        """Return the offset of the last entry with a smaller timestamp, or the base offset.

        All records before that offset have a smaller timestamp.
        """
        number = bisect_right(range(len(self)), timestamp_ms - 1, key=lambda at: self._pair(at)[0])
        return self.entry(number - 1)[1] if number else self._base_offset

    def sound(self) -> bool:
        """Whether the file looks like a time index."""
        if self._file.size % self._layout.size:
            return False
        # A preallocated file that was never trimmed ends with zeros.
        return not self._written or self._pair(self._written - 1)[0] >= self._pair(0)[0]

    def keep_below(self, offset: int) -> None:
        """Drop the entries of batches that end at or after an offset."""
        self._keep(bisect_left(range(len(self)), offset, key=lambda at: self.entry(at)[1]))
        self._last_timestamp_ms = self.last_entry()[0]

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self._last_timestamp_ms = -1
