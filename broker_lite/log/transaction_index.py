"""The aborted transactions of a segment (``.txnindex``), and which of them a reader must know.

Kafka's format: 34-byte entries, one for each abort marker in the segment, in the order of the
markers. The file is made by the first abort, so most segments have none.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from onceflow.broker_lite.log.storage import LogFile

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0
_CHUNK_ENTRIES = 128


class AbortedTransaction(NamedTuple):
    """One aborted transaction of one producer on one partition.

    Attributes:
        producer_id: Whose it was.
        first_offset: First offset of its data.
        last_offset: Offset of its abort marker.
        last_stable_offset: Last stable offset once the marker was written; no transaction that
            begins before it was still open, so none that is aborted later can begin before it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Aborted transactions by the offset of their markers.

    Args:
        file: The ``.txnindex`` file.
    """

    __slots__ = ("_count", "_file")

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._count = file.size // _ENTRY.size

    def __len__(self) -> int:
        return self._count

    def append(self, aborted: AbortedTransaction) -> None:
        """Add the transaction whose marker was just written.

        Raises:
            OSError: Nothing was added.
        """
        self._file.append([_ENTRY.pack(_VERSION, *aborted)])
        self._count += 1

    def entry(self, number: int) -> AbortedTransaction:
        """One entry, counted from 0."""
        data = self._file.read(number * _ENTRY.size, _ENTRY.size)
        return AbortedTransaction(*_ENTRY.unpack(data)[1:])

    def entries_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """Entries whose marker lies at or after an offset."""
        number = bisect_left(range(self._count), offset, key=lambda at: self.entry(at).last_offset)
        while number < self._count:
            data = self._file.read(number * _ENTRY.size, _CHUNK_ENTRIES * _ENTRY.size)
            for fields in _ENTRY.iter_unpack(data):
                yield AbortedTransaction(*fields[1:])
                number += 1

    def sound(self) -> bool:
        """Whether the file looks like a transaction index."""
        return self._file.size % _ENTRY.size == 0

    def clear(self) -> None:
        """Forget every entry."""
        if self._count or self._file.size:
            self._file.truncate(0)
            self._count = 0

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()
