"""Committed state in memory: rebuilt from the changelog after every start and assignment.

For small states, for hosts without a disk, and for the test driver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from onceflow.processors.stores.base import Writes


class MemoryTaskStore:
    """Dictionaries."""

    def __init__(self) -> None:
        self._values: dict[str, dict[bytes, bytes]] = defaultdict(dict)
        self._offsets: dict[str, int] = {}

    def get(self, state: str, key: bytes) -> bytes | None:
        """The committed value, or None."""
        return self._values[state].get(key)

    def apply(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        """Write values and changelog offsets."""
        for state, changes in writes.items():
            values = self._values[state]
            for key, value in changes.items():
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        self._offsets.update(offsets)

    def offset(self, state: str) -> int | None:
        """Changelog offset up to which the state is complete, or None for an empty store."""
        return self._offsets.get(state)

    def items(self, state: str) -> Iterator[tuple[bytes, bytes]]:
        """All committed entries."""
        yield from self._values[state].items()

    def wipe(self, state: str) -> None:
        """Forget the values and the offset of one state."""
        self._values.pop(state, None)
        self._offsets.pop(state, None)

    def note_complete(self, now_ms: int) -> None:
        """Nothing to note: it does not outlive its process."""

    def close(self) -> None:
        """Nothing to release."""
