"""The interface of a task's ordered map of bytes, which LMDB or memory implements.

All stores of a task are prefixes in its map, so that their values and marks (which say to what the
map corresponds) change in one atomic step. The map holds only committed values; ``store`` keeps
uncommitted writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

PREFIX_BYTES = 2
"""Length of a store's prefix; prefix 0 is for the map itself."""


class StoreMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """To what one store of a map corresponds.

    Attributes:
        number: Its prefix.
        changelog: Name of its changelog topic, empty for none.
        topic_id: Topic id of the changelog, empty if the brokers have no topic ids.
        offset: Changelog offset up to which the store is complete; None before it was restored.
        text: Structure of its keys and values.
    """

    number: int
    changelog: str = ""
    topic_id: str = ""
    offset: int | None = None
    text: str = ""


class Marks(msgspec.Struct, frozen=True, omit_defaults=True):
    """To what a map corresponds; stored within the map.

    Attributes:
        stores: Marks of the stores by ``function.state``.
        group: Group to whose offsets the values belong.
        partitions: Partition count of the inputs.
        complete_ms: Last wall-clock time at which the map held all committed values.
    """

    stores: dict[str, StoreMark] = {}
    group: str = ""
    partitions: int = 0
    complete_ms: int = 0


class ByteMap(Protocol):
    """Committed state of one task."""

    @property
    def marks(self) -> Marks:
        """The marks of the last ``apply``."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""

    def range(
        self, start: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries with ``start <= key < end`` in order of their keys; None has no end."""

    def apply(self, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Write values (None deletes) and marks in one atomic step."""

    def fill(self, prefix: bytes, writes: Mapping[bytes, bytes | None], marks: Marks) -> None:
        """Do as ``apply`` for many values under one prefix, which their keys leave out."""

    def clear(self, prefix: bytes, marks: Marks) -> None:
        """Delete all entries under a prefix, and write marks."""

    @property
    def disk_bytes(self) -> int | None:
        """How much it takes on disk; None where it is not on disk."""

    def note_damage(self) -> None:
        """Have the next opening rebuild the map, as a value is damaged."""

    def close(self) -> None:
        """Release files; committed data stays."""


def prefix_of(number: int) -> bytes:
    """Return the prefix of a store."""
    return number.to_bytes(PREFIX_BYTES)
