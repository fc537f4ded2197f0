"""What a store of committed state must do, whatever keeps the bytes.

One store holds all states of one task (a processor's share of one partition), so that their values
and the changelog offsets that they correspond to change in one atomic step. Uncommitted writes
are not its business: ``processors.state`` keeps those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Writes: TypeAlias = Mapping[str, Mapping[bytes, bytes | None]]
"""By state: new value by key, None deletes."""


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """What a store on disk must belong to, or it is rebuilt.

    Attributes:
        changelogs: Topic id by state (empty when the brokers have none).
        partitions: Partition count of the input topic.
    """

    changelogs: Mapping[str, str]
    partitions: int


class TaskStore(Protocol):
    """Committed state of one task."""

    def get(self, state: str, key: bytes) -> bytes | None:
        """The committed value, or None."""

    def apply(self, writes: Writes, offsets: Mapping[str, int]) -> None:
        """Write values and changelog offsets in one atomic step."""

    def offset(self, state: str) -> int | None:
        """Changelog offset up to which the state is complete, or None for an empty store."""

    def items(self, state: str) -> Iterator[tuple[bytes, bytes]]:
        """All committed entries, for tests and inspection."""

    def wipe(self, state: str) -> None:
        """Forget the values and the offset of one state."""

    def note_complete(self, now_ms: int) -> None:
        """The store holds everything that was committed up to now, deletions included.

        A store that was not complete for longer than changelogs keep deletions must be rebuilt.
        """

    def close(self) -> None:
        """Release files; committed data stays."""
