"""A task's ordered map of bytes over Spark's state.

Spark keeps one map for each task, without an order. Single values are read when they are asked
for; the first range reads the whole map, since only that gives an order. What a micro-batch writes
is kept here and reaches Spark's state once, at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec
from sortedcontainers import SortedDict

from onceflow.processors.state.bytemap import Marks, prefix_of

_MARKS: Final = prefix_of(0) + b"marks"
_NOTES: Final = prefix_of(0) + b"notes"


class SparkRows(Protocol):
    """Spark's map state, with a binary key and a binary value."""

    def getValue(self, key: tuple[bytes]) -> Any:  # noqa: N802 - Spark's name
        """Return a row with the value, or None."""

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None:  # noqa: N802
        """Write a value."""

    def removeKey(self, key: tuple[bytes]) -> None:  # noqa: N802 - Spark's name
        """Delete a value."""

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """Yield rows with keys and values, in no order."""


class TaskNotes(msgspec.Struct, frozen=True):
    """What a task remembers beside its state.

    Attributes:
        begun: Whether it ever took a record that is not a table's.
        moved_wall_ms: Wall clock at the last record, by timed store, for idle limits.
    """

    begun: bool = False
    moved_wall_ms: dict[str, int] = {}


class SparkMap:
    """Committed state of one task, for one micro-batch.

    Args:
        rows: Spark's state.
    """

    def __init__(self, rows: SparkRows) -> None:
        self._rows = rows
        self._seen: dict[bytes, bytes | None] = {}
        self._ordered: SortedDict | None = None
        self._changed: set[bytes] = set()
        marks, notes = self.get(_MARKS), self.get(_NOTES)
        self.marks: Marks = Marks() if marks is None else msgspec.msgpack.decode(marks, type=Marks)
        self.notes: TaskNotes = (
            TaskNotes() if notes is None else msgspec.msgpack.decode(notes, type=TaskNotes)
        )
        self._stored = (marks, notes)

    @property
    def disk_bytes(self) -> int | None:
        """Spark's store tells no size."""
        return None

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        if self._ordered is not None:
            found: bytes | None = self._ordered.get(key)
            return found
        if key in self._seen:
            return self._seen[key]
        row = self._rows.getValue((key,))
        value = self._seen[key] = None if row is None else bytes(row[0])
        return value

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order of their keys."""
        if self._ordered is None:
            every = {bytes(key[0]): bytes(value[0]) for key, value in self._rows.iterator()}
            for key in self._changed:
                value = self._seen[key]
                if value is None:
                    every.pop(key, None)
                else:
                    every[key] = value
            self._ordered = SortedDict(every)
        ordered = self._ordered
        keys = ordered.irange(start, end, inclusive=(True, False), reverse=reverse)
        return ((key, ordered[key]) for key in keys)

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values and marks."""
        for key, value in writes.items():
            self._write(key, value)
        self.marks = marks

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values under a prefix, and marks."""
        self.apply({prefix + key: value for key, value in writes.items()}, marks)

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete all entries under a prefix, and write marks."""
        for key in [key for key, _ in self.range(prefix, None) if key.startswith(prefix)]:
            self._write(key, None)
        self.marks = marks

    def _write(self, key: bytes, value: bytes | None) -> None:
        self._changed.add(key)
        self._seen[key] = value
        if self._ordered is not None:
            if value is None:
                self._ordered.pop(key, None)
            else:
                self._ordered[key] = value

    def store(self, notes: TaskNotes) -> None:
        """Hand everything that was written to Spark's state.

        Args:
            notes: What the task remembers beside it.
        """
        packed = msgspec.msgpack.encode(self.marks), msgspec.msgpack.encode(notes)
        for own, new, stored in zip((_MARKS, _NOTES), packed, self._stored, strict=True):
            if new != stored:
                self._write(own, new)
        self._stored = packed
        for key in self._changed:
            value = self._seen[key]
            if value is None:
                self._rows.removeKey((key,))
            else:
                self._rows.updateValue((key,), (value,))
        self._changed.clear()

    def note_damage(self) -> None:
        """Do nothing: the error ends the query, and Spark's checkpoint is what it is."""

    def close(self) -> None:
        """Do nothing: Spark owns the state."""
