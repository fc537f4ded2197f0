"""The segments of a partition in order: which one holds an offset, and where.

It remembers where recent reads ended, since most reads continue there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from onceflow.broker_lite.log.segment import Segment

POSITIONS_MAX = 64
"""Most ends of reads that are remembered."""


class SegmentList:
    """Segments by base offset; the last one is active.

    Args:
        segments: At least one, in order.

    Attributes:
        dropped: How many of the oldest segments were removed so far.
    """

    __slots__ = ("_bases", "_positions", "_segments", "dropped")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._positions: dict[int, tuple[Segment, int]] = {}
        self.dropped: int = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    @property
    def active(self) -> Segment:
        """The segment that is written to."""
        return self._segments[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes in all log files."""
        return sum(segment.size for segment in self._segments)

    def number_of(self, offset: int) -> int:
        """Index of the segment for an offset: the last one that does not begin after it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def next_base(self, number: int, log_end_offset: int) -> int:
        """Return the begin of the next segment; the log's end for the active one."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else log_end_offset

    def append(self, segment: Segment) -> None:
        """Make a segment the active one."""
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def drop_first(self) -> Segment:
        """Remove the oldest segment from the list and return it."""
        self.dropped += 1
        self._positions.clear()
        self._bases.pop(0)
        return self._segments.pop(0)

    def replace(self, old: list[Segment], new: list[Segment]) -> None:
        """Replace neighbouring segments by ones with the same offsets."""
        self._positions.clear()
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = new
        self._bases = [segment.base_offset for segment in self._segments]

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Note the position at which the batch of an offset begins, or will begin."""
        positions = self._positions
        if len(positions) >= POSITIONS_MAX and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)

    def locate(self, offset: int, end_offset: int) -> tuple[Segment, int] | None:
        """Return segment and position of the first batch that ends at or after an offset.

        Args:
            offset: The offset to find.
            end_offset: End of the log.

        Returns:
            Segment and file position; None if there is no such batch.

        Raises:
            ReadError: CORRUPT_MESSAGE: the log is damaged there.
        """
        known = self._positions.get(offset)
        if known is not None and known[1] < known[0].size:
            return known
        number = self.number_of(offset)
        while number < len(self._segments):
            segment = self._segments[number]
            border = segment.find(offset)
            if border is not None:
                if border.last_offset >= self.next_base(number, end_offset):
                    # The checksum of a batch does not cover its offsets.
                    raise segment.corrupt(
                        f"holds offset {border.last_offset}, which is behind its last"
                    )
                return segment, border.position
            number += 1
        return None

    def position_of(self, offset: int, segment: Segment, number: int, end_offset: int) -> int:
        """Return the position up to which a segment holds only offsets below a bound.

        Args:
            offset: The bound; no batch begins before it and ends after it.
            segment: The segment.
            number: Its index.
            end_offset: End of the log.

        Returns:
            A border in the segment.
        """
        if offset >= self.next_base(number, end_offset):
            return segment.size
        known = self._positions.get(offset)
        if known is not None and known[0] is segment:
            return known[1]
        border = segment.find(offset)
        position = segment.size if border is None else border.position
        self.remember(offset, segment, position)
        return position
