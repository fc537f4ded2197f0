"""The aborted transactions of a segment (``.txnindex``), which committed readers filter.

The format is Kafka's: 34-byte entries, one for each abort marker in the segment, in the order of
the markers. The first abort makes the file, so most segments have none. So a lost file would not be
noticed, and a reader would get aborted records as committed ones. Therefore the broker keeps a copy
of the file beside it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from onceflow.broker_lite.log.storage import Files, LogFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_CHUNK_ENTRIES = 128


class AbortedTransaction(NamedTuple):
    """One aborted transaction of one producer on one partition.

    Attributes:
        producer_id: Its producer.
        first_offset: First offset of its data.
        last_offset: Offset of its abort marker.
        last_stable_offset: Last stable offset after the marker was written. No transaction that
            begins before it was still open, so none that is aborted later begins before it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions by the offset of their markers.

    Args:
        files: Opens them.
        path: Path of the ``.txnindex`` file.
        copy_path: Path of the copy, which a folder of Apache Kafka does not have.
        absent: Whether neither file exists, as in most segments; then they are not looked for.
    """

    __slots__ = ("_count", "_opened_files", "_opener", "_paths")

    def __init__(self, files: Files, path: str, copy_path: str, *, absent: bool = False) -> None:
        self._opener = files
        self._paths = (path, copy_path)
        self._opened_files: tuple[LogFile, LogFile] | None = None
        self._count = 0 if absent else self._file.size // _ENTRY.size

    def _opened(self) -> tuple[LogFile, LogFile]:
        if self._opened_files is None:
            path, copy_path = self._paths
            self._opened_files = self._opener.open(path), self._opener.open(copy_path)
        return self._opened_files

    @property
    def _file(self) -> LogFile:
        return self._opened()[0]

    @property
    def _copy(self) -> LogFile:
        return self._opened()[1]

    def __len__(self) -> int:
        return self._count

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction whose marker was just written.

        Raises:
            OSError: It was not added to both files.
        """
        entry = _ENTRY.pack(_VERSION, *aborted)
        self._file.append([entry])
        self._count += 1
        self._copy.append([entry])

    def entry(self, number: int) -> AbortedTransaction:
        """Return one entry, counted from 0."""
        data = self._file.read(number * _ENTRY.size, _ENTRY.size)
        return AbortedTransaction(*_ENTRY.unpack(data)[1:])

    def entries_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the entries whose marker is at or after an offset."""
        number = bisect_left(range(self._count), offset, key=lambda at: self.entry(at).last_offset)
        while number < self._count:
            data = self._file.read(number * _ENTRY.size, _CHUNK_ENTRIES * _ENTRY.size)
            for fields in _ENTRY.iter_unpack(data):
                yield AbortedTransaction(*fields[1:])
                number += 1

    def sound(self) -> bool:
        """Whether the file is a valid transaction index and agrees with its copy."""
        if self._opened_files is None:
            return True
        size, copied = self._file.size, self._copy.size
        if not size and not copied:
            return True
        data = self._file.read(0, size)
        if copied and data != self._copy.read(0, copied):
            return False
        return size % _ENTRY.size == 0 and all(
            fields[0] == _VERSION for fields in _ENTRY.iter_unpack(data)
        )

    def keep_below(self, offset: int) -> None:
        """Drop the entries whose marker is at or after an offset."""
        count = bisect_left(range(self._count), offset, key=lambda at: self.entry(at).last_offset)
        if count < self._count:
            self._file.truncate(count * _ENTRY.size)
            self._copy.truncate(count * _ENTRY.size)
            self._count = count

    def clear(self) -> None:
        """Drop every entry."""
        if self._opened_files is None:
            return
        if self._count or self._file.size or self._copy.size:
            self._file.truncate(0)
            self._copy.truncate(0)
            self._count = 0

    def flush(self) -> None:
        """Return when the entries would survive a power loss."""
        if self._count:
            self._file.flush()
            self._copy.flush()

    def close(self) -> None:
        """Close the files."""
        for file in self._opened_files or ():
            file.close()
