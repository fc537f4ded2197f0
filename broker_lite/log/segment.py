"""One segment of a partition: a log file, its three indexes, and the search for batch borders.

It decides where index entries are made and how an offset or a timestamp is found. The partition log
decides whether a batch may be appended; ``segment_writer`` decides when a segment is full.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from onceflow.broker_lite.log.index import OffsetIndex, TimeIndex
from onceflow.broker_lite.log.log_errors import ReadError
from onceflow.broker_lite.log.storage import Buffer, Files
from onceflow.broker_lite.log.transaction_index import TransactionIndex
from onceflow.sdk.protocol.batch_header import HEADER_SIZE, LENGTH_END
from onceflow.sdk.protocol.error_codes import ErrorCode

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
TRANSACTION_COPY_SUFFIX = ".txncopy"
ABORTED_SUFFIXES = (TRANSACTION_INDEX_SUFFIX, TRANSACTION_COPY_SUFFIX)
INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, *ABORTED_SUFFIXES)

RELATIVE_OFFSET_MAX = 2**31 - 1
WALK_BYTES = 4096
"""Bytes read at once in a walk from batch to batch."""

_BORDER = struct.Struct(">qi11xi8xq")  # base offset, batch length, last offset delta, max timestamp
BORDER_SIZE = _BORDER.size


class BatchBorder(NamedTuple):
    """Position, offsets and greatest timestamp of a batch.

    Attributes:
        position: File position of its first byte.
        size: Its bytes.
        base_offset: Offset of its first record.
        last_offset: Offset of its last record.
        max_timestamp_ms: Greatest timestamp in it.
    """

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        """File position after its last byte."""
        return self.position + self.size


class BatchPlace(NamedTuple):
    """The fields of a batch that the indexes need.

    Attributes:
        size: Its bytes.
        last_offset: Offset of its last record.
        max_timestamp_ms: Greatest timestamp in it.
    """

    size: int
    last_offset: int
    max_timestamp_ms: int


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a file for an offset: 20 digits and the suffix."""
    return f"{offset:020d}{suffix}"


class Segment:
    """A file of batches from one base offset on, with its indexes.

    Args:
        files: Where its files are opened.
        directory: Folder of the partition.
        base_offset: First offset of the segment.
        index_interval_bytes: Bytes of log between two index entries.
        created_ms: When it was made or first seen, for ages of segments without timestamps.
        ending: Suffix of its file names while they wait to replace others.
        without_aborted: Whether it has no files of aborted transactions.

    Attributes:
        base_offset: First offset of the segment.
        size: Bytes in the log file.
        offset_index: Positions by offset.
        time_index: Offsets by timestamp.
        aborted: Transactions whose abort marker lies in the segment.
        max_timestamp_ms: Greatest timestamp in the segment, -1 for none.
        max_timestamp_offset: Last offset of the batch that holds it.
        created_ms: When the segment was made or first seen.
        index_interval_bytes: Bytes of log between two index entries.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_ending",
        "_first_timestamp_ms",
        "_log",
        "_stem",
        "_torn",
        "aborted",
        "base_offset",
        "created_ms",
        "directory",
        "index_interval_bytes",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index",
        "size",
        "time_index",
    )

    max_timestamp_ms: int
    max_timestamp_offset: int

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        created_ms: int,
        ending: str = "",
        without_aborted: bool = False,
    ) -> None:
        self.directory: str = directory
        self._stem = f"{directory}/{file_name(base_offset, '')}"
        self._ending = ending
        self.base_offset: int = base_offset
        self.index_interval_bytes: int = index_interval_bytes
        self.created_ms: int = created_ms
        self._log = files.open(self.path(LOG_SUFFIX))
        self.size: int = self._log.size
        self.offset_index: OffsetIndex = OffsetIndex(
            files.open(self.path(OFFSET_INDEX_SUFFIX)), base_offset
        )
        self.time_index: TimeIndex = TimeIndex(
            files.open(self.path(TIME_INDEX_SUFFIX)), base_offset
        )
        self.aborted: TransactionIndex = TransactionIndex(
            files,
            self.path(TRANSACTION_INDEX_SUFFIX),
            self.path(TRANSACTION_COPY_SUFFIX),
            absent=without_aborted,
        )
        self.max_timestamp_ms, self.max_timestamp_offset = self.time_index.last_entry()
        self._bytes_since_entry = 0
        self._first_timestamp_ms: int | None = None
        # A failed write may have left bytes after the end; they are cut before the next write.
        self._torn = False

    def path(self, suffix: str) -> str:
        """Path of one of its files."""
        return self._stem + suffix + self._ending

    def create(self) -> None:
        """Make the log file, so that an empty segment is found again."""
        self._log.create()

    # Writing

    def append(self, parts: list[Buffer], places: list[BatchPlace]) -> None:
        """Append batches in one piece.

        Args:
            parts: Their bytes, base offsets and leader epochs already set.
            places: The fields of each batch for the indexes, in order.

        Raises:
            OSError: Nothing was appended.
        """
        self._cut_torn()
        try:
            self._log.append(parts)
        except OSError:
            self._torn = True
            raise
        for place in places:
            self.note(self.size, place)
            self.size += place.size

    def _cut_torn(self) -> None:
        """Cut the bytes that a failed write left after the last batch."""
        if self._torn:
            self._log.truncate(self.size)
            self._torn = False

    def disown(self, size: int) -> None:
        """Hide the last bytes, which were appended and could not be synced."""
        self.size -= size
        self._torn = True

    def note(self, position: int, place: BatchPlace) -> None:
        """Add a batch of the log file to the indexes.

        Args:
            position: File position of the batch.
            place: Its fields for the indexes.
        """
        size, last_offset, max_timestamp_ms = place
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self.index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def flush(self) -> None:
        """Return when the batches and the aborted transactions would survive a power loss."""
        self._log.flush()
        self.aborted.flush()

    def flush_all(self) -> None:
        """Return when the log file and the written part of its indexes would survive one."""
        self._log.flush()
        self.offset_index.flush()
        self.time_index.flush()
        self.aborted.flush()

    def paths(self) -> list[str]:
        """Every file that it may have."""
        return [self.path(suffix) for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES)]

    def finish(self) -> None:
        """Complete the segment: it gets no more batches, or the broker stops.

        A segment before others may hold only batches. At other bytes a start would cut the log,
        with all later segments.

        Raises:
            OSError: It is not complete.
        """
        self._cut_torn()
        self.time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
        self.offset_index.create()
        self.time_index.create()
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def close(self, *, complete: bool = True) -> None:
        """Give back the handles.

        Args:
            complete: Complete the indexes first; otherwise the files stay as a crash leaves them.
        """
        if complete:
            self.finish()
        self.offset_index.close()
        self.time_index.close()
        self.aborted.close()
        self._log.close()

    def truncate(self, size: int) -> None:
        """Cut the log file; indexes are not touched."""
        self._log.truncate(size)
        self.size = size

    def prepare_checkpoint(self) -> None:
        """Write the indexes as they are now, so that a start need not rebuild them."""
        self.time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset)
        self.offset_index.write_pending()
        self.time_index.write_pending()

    def keep_indexes_below(self, offset: int) -> int | None:
        """Cut the indexes at a checkpoint, if their entries below it are valid.

        Args:
            offset: Offset of the checkpoint.

        Returns:
            File position of that offset; None if an entry is wrong, so that nothing was cut.
        """
        if not (
            len(self.time_index)
            and self.offset_index.grows()
            and self.time_index.grows()
            and self.aborted.sound()
        ):
            return None
        indexed = self._agreed(self.offset_index.entry_before(offset - 1))
        position = last = indexed
        try:
            for border in self.borders(indexed):
                if border.base_offset >= offset:
                    if border.base_offset > offset:
                        return None
                    break
                last, position = border.position, border.end
        except ReadError:
            return None
        if last - indexed > self.index_interval_bytes or position > self.size:
            return None  # An entry is missing between them, or the log is shorter.
        self.offset_index.keep_below(offset)
        self.time_index.keep_below(offset)
        self.aborted.keep_below(offset)
        self.max_timestamp_ms, self.max_timestamp_offset = self.time_index.last_entry()
        self._bytes_since_entry = max(0, position - self.offset_index.last_entry()[1])
        self._first_timestamp_ms = None
        return position

    def clear_indexes(self) -> None:
        """Empty all indexes, so that they can be rebuilt."""
        self.offset_index.clear()
        self.time_index.clear()
        self.aborted.clear()
        self.max_timestamp_ms, self.max_timestamp_offset = -1, self.base_offset
        self._bytes_since_entry = 0
        self._first_timestamp_ms = None

    def indexes_sound(self) -> bool:
        """Whether the index files can belong to this log file."""
        return (
            self.offset_index.sound(self.size)
            and self.time_index.sound()
            and self.aborted.sound()
            and (self.size == 0 or len(self.time_index) > 0 or self._without_timestamps())
        )

    def _without_timestamps(self) -> bool:
        first = self.border_at(0)
        return first is None or first.max_timestamp_ms < 0

    # Reading

    def read(self, position: int, length: int) -> bytes:
        """Raw bytes of the log file."""
        return self._log.read(position, length)

    def border_at(self, position: int) -> BatchBorder | None:
        """The batch that begins at a border, or None at the end of the segment."""
        data = self._log.read(position, BORDER_SIZE)
        return border_in(data, 0, position) if len(data) == BORDER_SIZE else None

    def borders(self, position: int = 0) -> Iterator[BatchBorder]:
        """Batches from a border to the end of the segment, by their headers.

        Raises:
            ReadError: CORRUPT_MESSAGE: the bytes are not a batch, or only its begin.
        """
        size = self.size
        while position < size:
            data = self._log.read(position, min(WALK_BYTES, size - position))
            at = 0
            while at + BORDER_SIZE <= len(data):
                border = border_in(data, at, position + at)
                if border.size < HEADER_SIZE or border.end > size:
                    break
                yield border
                at += border.size
            else:
                if at:
                    position += at
                    continue
            raise self.corrupt(f"holds no whole batch at position {position + at}")

    def corrupt(self, what: str) -> ReadError:
        """Return the error for a damaged log file."""
        return ReadError(ErrorCode.CORRUPT_MESSAGE, f"{self.path(LOG_SUFFIX)} {what}")

    def find(self, offset: int) -> BatchBorder | None:
        """The first batch whose last offset is not below an offset, or None.

        Raises:
            ReadError: CORRUPT_MESSAGE: a batch on the way is damaged.
        """
        for border in self.borders(self._agreed(self.offset_index.entry_before(offset))):
            if border.base_offset < self.base_offset:
                raise self.corrupt(f"holds offset {border.base_offset}, which is before its first")
            if border.last_offset >= offset:
                return border
        return None

    def _agreed(self, entry: tuple[int, int]) -> int:
        """Return the position of an index entry, or 0 if the log has no such batch there.

        An index has no checksum: a damaged entry must not make readers skip records.
        """
        offset, position = entry
        border = self.border_at(position) if position else None
        return position if border is not None and self._agrees(border, offset) else 0

    def _agrees(self, border: BatchBorder, offset: int) -> bool:
        """Whether a batch can be that of an index entry with this offset."""
        return (
            border.size >= HEADER_SIZE
            and border.end <= self.size
            and self.base_offset <= border.base_offset <= border.last_offset <= offset
        )

    def _indexed_in(self, data: bytes, position: int, limit: int) -> int:
        """Return the last border up to a limit that index and bytes agree on; else ``position``."""
        offset, border = self.offset_index.entry_at(limit)
        at = border - position
        if 0 < at <= len(data) - BORDER_SIZE and self._agrees(border_in(data, at, border), offset):
            return border
        return position

    def last_border(self, data: bytes, position: int, limit: int) -> tuple[int, int]:
        """Find the last whole batch in bytes that were read.

        Args:
            data: Bytes of the segment.
            position: File position of the first one, a border.
            limit: File position that the batch must not pass.

        Returns:
            File positions of the batch's end and of its begin; the begin is -1 if not even the
            first batch fits.
        """
        border = self._indexed_in(data, position, limit - HEADER_SIZE)
        last = -1
        while True:
            at = border - position
            if at + LENGTH_END > len(data):
                return border, last
            following = border + int.from_bytes(data[at + 8 : at + LENGTH_END], "big") + LENGTH_END
            if following > limit:
                if last >= 0 or border == position:
                    return border, last
                return self._walk_to(data, position, border)
            last, border = border, following

    def _walk_to(self, data: bytes, position: int, end: int) -> tuple[int, int]:
        """Return end and begin of the batch that ends at a border; walk from an index entry."""
        border = self._indexed_in(data, position, end - 1)
        last = border
        while border < end:
            at = border - position
            last = border
            border += int.from_bytes(data[at + 8 : at + LENGTH_END], "big") + LENGTH_END
        return end, last

    @property
    def first_timestamp_ms(self) -> int:
        """Greatest timestamp of the first batch, -1 for none; the age counts from it."""
        if self._first_timestamp_ms is None:
            first = self.border_at(0)
            if first is None:
                return -1
            self._first_timestamp_ms = first.max_timestamp_ms
        return self._first_timestamp_ms

    def last_offset(self) -> int | None:
        """Offset of the last record, or None in an empty segment.

        Raises:
            ReadError: CORRUPT_MESSAGE: something else than batches lies at the end.
        """
        last = None
        for border in self.borders(self._agreed(self.offset_index.last_entry())):
            last = border.last_offset
        return last


def border_in(data: bytes, at: int, position: int) -> BatchBorder:
    """Read a border from bytes.

    Args:
        data: Bytes that hold the header.
        at: Where the batch begins in them.
        position: Where it begins in the file.
    """
    base_offset, length, delta, max_timestamp_ms = _BORDER.unpack_from(data, at)
    return BatchBorder(
        position, length + LENGTH_END, base_offset, base_offset + delta, max_timestamp_ms
    )
