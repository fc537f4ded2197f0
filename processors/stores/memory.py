"""Committed state in memory, for small states, hosts without a disk and the test driver.

A worker rebuilds it from the changelog after each start and assignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sortedcontainers import SortedDict

from onceflow.processors.state.bytemap import Marks


class MemoryMap:
    """A dictionary, which the first range replaces by a sorted one."""

    def __init__(self) -> None:
        self.marks: Marks = Marks()
        self._values: dict[bytes, bytes] = {}
        self._ordered: SortedDict | None = None

    @property
    def disk_bytes(self) -> int | None:
        """It is not on disk."""
        return None

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        return self._values.get(key)

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order of their keys."""
        if self._ordered is None:
            self._ordered = SortedDict(self._values)
            self._values = self._ordered
        ordered = self._ordered
        keys = ordered.irange(start, end, inclusive=(True, False), reverse=reverse)
        return ((key, ordered[key]) for key in keys)

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values and marks."""
        values = self._values
        for key, value in writes.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        self.marks = marks

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values under a prefix, and marks."""
        self.apply({prefix + key: value for key, value in writes.items()}, marks)

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete all entries under a prefix, and write marks."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            del self._values[key]
        self.marks = marks

    def note_damage(self) -> None:
        """Do nothing: the map ends with its process."""

    def close(self) -> None:
        """Do nothing."""
