"""Walks over a segment and checks each batch, for starts and for compaction.

A walk ends at the first damaged batch; the caller decides what to do then.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker_lite.log.segment import Segment
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    LENGTH_END,
    BatchHeader,
    check_crc,
    parse_batch_header,
)

CHUNK_BYTES = 1 << 20
"""Bytes read at once."""

CLEANED_SUFFIX = ".cleaned"
"""Suffix of a compacted file before the rename that decides for it."""

SWAP_SUFFIX = ".swap"
"""Suffix of a compacted file that replaces the files with the same offsets."""


class FoundBatch:
    """A batch met on a walk over a segment.

    Attributes:
        position: File position of its first byte.
        header: Its header.
        data: Its bytes.
        aborts: The transaction that it aborts; None if it is not an abort marker, or not looked up.
    """

    __slots__ = ("aborts", "data", "header", "position")

    def __init__(self, position: int, header: BatchHeader, data: memoryview) -> None:
        self.aborts: AbortedTransaction | None = None
        self.position: int = position
        self.header: BatchHeader = header
        self.data: memoryview[int] = data


class SegmentWalk:
    """A walk over a segment in pieces, with a check of each batch.

    Args:
        next_offset: Least offset that the first batch may have.
        size: Bytes of the segment.
        position: Border to begin at.

    Attributes:
        position: Where the next piece of bytes must begin.
        wanted: Length that the next piece must have.
        ended: Whether the walk is at the segment's end or at a damaged batch.
    """

    __slots__ = ("_next_offset", "_size", "ended", "position", "wanted")

    def __init__(self, next_offset: int, size: int, position: int = 0) -> None:
        self._next_offset = next_offset
        self._size = size
        self.position: int = position
        self.wanted: int = CHUNK_BYTES
        self.ended: bool = position >= size

    def batches(self, piece: bytes) -> Iterator[FoundBatch]:
        """Yield the whole batches in a piece, up to a damaged or unordered one.

        Args:
            piece: Bytes of the segment from :attr:`position` on.
        """
        data = memoryview(piece)
        start = self.position
        asked, self.wanted = self.wanted, CHUNK_BYTES
        at = 0
        while at + HEADER_SIZE <= len(data):
            try:
                header = parse_batch_header(data, at)
                length = header.batch_length + LENGTH_END
                if at + length > len(data):
                    if start + at + length <= self._size and (at or length > asked):
                        self.wanted = max(length, CHUNK_BYTES)
                        return
                    break
                batch = data[at : at + length]
                check_crc(batch, 0, header)
            except InvalidBatchError:
                break
            if header.base_offset < self._next_offset or header.last_offset_delta < 0:
                break
            at += length
            self._next_offset, self.position = header.next_offset, start + at
            yield FoundBatch(start + at - length, header, batch)
        # A piece may end within a header; the next one begins with it.
        self.ended = at == 0 or self.position >= self._size


def walk(segment: Segment, next_offset: int, position: int = 0) -> Iterator[FoundBatch]:
    """Yield the batches of a segment, up to a cut, damaged or unordered one.

    Args:
        segment: The segment.
        next_offset: Least offset that the first batch may have.
        position: Border to begin at.
    """
    steps = SegmentWalk(next_offset, segment.size, position)
    while not steps.ended:
        yield from steps.batches(segment.read(steps.position, steps.wanted))
