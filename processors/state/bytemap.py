"""One ordered map of bytes for each task, whatever keeps it: LMDB or memory.

All stores of a task are prefixes in its map, so that their values and the marks that say what the
map corresponds to change in one atomic step. Uncommitted writes are no business of it: ``store``
keeps those on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

PREFIX_BYTES = 2
"""Length of a store's prefix; 0 is the map's own."""


class StoreMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one store of a map corresponds to.

    Attributes:
        number: Its prefix.
        changelog: Name of its changelog topic, empty for a store that has none.
        topic_id: Incarnation of that topic, empty where the brokers have no ids.
        offset: Changelog offset up to which the store is complete; None before it was restored.
        text: Structure of its keys and values.
    """

    number: int
    changelog: str = ""
    topic_id: str = ""
    offset: int | None = None
    text: str = ""


class Marks(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a map corresponds to, kept within it.

    Attributes:
        stores: By name, ``function.state``.
        group: Group whose offsets the values belong to.
        partitions: Partition count of the inputs.
        complete_ms: Wall clock when the map was last known to hold all that is committed.
    """

    stores: dict[str, StoreMark] = {}
    group: str = ""
    partitions: int = 0
    complete_ms: int = 0


class ByteMap(Protocol):
    """Committed state of one task."""

    @property
    def marks(self) -> Marks:
        """What the map corresponds to, as of the last ``apply``."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < end`` in order of their keys; no end means all above."""

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values (None deletes) and marks in one atomic step."""

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """As ``apply``, for many values under one prefix, whose keys come without it."""

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete everything under a prefix, and write marks."""

    def note_damage(self) -> None:
        """A value is not what was written: the next opening rebuilds the map."""

    def close(self) -> None:
        """Release files; committed data stays."""


def prefix_of(number: int) -> bytes:
    """The prefix of a store."""
    return number.to_bytes(PREFIX_BYTES)
