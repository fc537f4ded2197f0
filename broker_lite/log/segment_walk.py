"""Walking over a segment with a check of each batch, for starts and for compaction.

It decides which bytes are a sound batch; what follows from the first one that is not is decided by
the caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceflow.broker_lite.log.segment import Segment
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    LENGTH_END,
    BatchHeader,
    InvalidBatchError,
    check_crc,
    parse_batch_header,
)

CHUNK_BYTES = 1 << 20
"""Bytes read at once."""

CLEANED_SUFFIX = ".cleaned"
"""Ending of a compacted file that is not complete, or not yet decided on."""

SWAP_SUFFIX = ".swap"
"""Ending of a compacted file that replaces the files of its offsets."""


class FoundBatch:
    """A batch met on a walk over a segment.

    Attributes:
        position: File position of its first byte.
        header: Its header.
        data: Its bytes.
        aborts: The transaction that it ends, if it is an abort marker and somebody noted it.
    """

    __slots__ = ("aborts", "data", "header", "position")

    def __init__(self, position: int, header: BatchHeader, data: memoryview) -> None:
        self.aborts: AbortedTransaction | None = None
        self.position: int = position
        self.header: BatchHeader = header
        self.data: memoryview[int] = data


def walk(segment: Segment, next_offset: int, position: int = 0) -> Iterator[FoundBatch]:
    """Batches of a segment as long as they hold: whole, in order, with the right checksum.

    Args:
        segment: The segment.
        next_offset: Least offset that the first batch may have.
        position: Border to begin at.
    """
    size = segment.size
    data = memoryview(b"")
    start = position
    while position + HEADER_SIZE <= size:
        at = position - start
        if at + HEADER_SIZE > len(data):
            data, start, at = memoryview(segment.read(position, CHUNK_BYTES)), position, 0
        try:
            header = parse_batch_header(data, at)
        except InvalidBatchError:
            return
        length = header.batch_length + LENGTH_END
        if position + length > size:
            return
        if at + length > len(data):
            wanted = max(length, CHUNK_BYTES)
            data, start, at = memoryview(segment.read(position, wanted)), position, 0
        batch = data[at : at + length]
        try:
            check_crc(batch, 0, header)
        except InvalidBatchError:
            return
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            return
        yield FoundBatch(position, header, batch)
        next_offset = header.next_offset
        position += length
