"""Shortens keys that are too long for LMDB, and keeps their order.

LMDB limits keys to 511 bytes; Kafka's may be longer. A longer key is stored as its first bytes and
a hash, and the whole key precedes the value. The stored order differs from the true one only among
long keys with the same first bytes; a range sorts those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from onceflow.processors.state.keys import after

_HASH_BYTES = 32
_SIZE_BYTES = 4

Entry = tuple[bytes, bytes]


class KeyFolding:
    """Shortens ("folds") keys and restores entries.

    Args:
        key_bytes_max: LMDB's limit.

    Attributes:
        plain_max: Longest key that is stored unchanged: one byte less than LMDB's limit, which is
            the length of every folded key.
    """

    __slots__ = ("_head", "_size", "plain_max")

    def __init__(self, key_bytes_max: int) -> None:
        self.plain_max: int = key_bytes_max - 1
        self._size = key_bytes_max
        self._head = key_bytes_max - _HASH_BYTES

    def fold(self, key: bytes) -> bytes:
        """Return the stored form of a long key."""
        return key[: self._head] + hashlib.blake2b(key, digest_size=_HASH_BYTES).digest()

    @staticmethod
    def value_of(data: bytes) -> bytes:
        """Return the value from a long key's entry."""
        return data[_SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES]) :]

    def folded(
        self, writes: Iterable[tuple[bytes, bytes | None]]
    ) -> tuple[list[Entry], list[bytes]]:
        """Convert writes to the entries to put and the keys to delete in LMDB."""
        puts: list[Entry] = []
        deletes: list[bytes] = []
        plain_max = self.plain_max
        for key, value in writes:
            if len(key) > plain_max:
                stored = self.fold(key)
                if value is not None:
                    value = len(key).to_bytes(_SIZE_BYTES) + key + value
            else:
                stored = key
            if value is None:
                deletes.append(stored)
            else:
                puts.append((stored, value))
        return puts, deletes

    def bounds(self, start: bytes, end: bytes | None) -> tuple[bytes, bytes | None]:
        """Return a range of stored keys that covers a range of true keys; ``in_order`` cuts it.

        The first ``_head`` bytes of stored and true keys are the same.
        """
        low = start[: self._head]
        if end is None or len(end) <= self._head:
            return low, end
        return low, after(end[: self._head])

    def in_order(
        self, entries: Iterable[Entry], start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[Entry]:
        """Yield the entries of the range with their true keys, in the order of those."""
        group: list[Entry] = []  # neighbours with the same first bytes, of which some are folded
        for stored, data in entries:
            if group and stored[: self._head] != group[0][0][: self._head]:
                yield from _within(sorted(group, reverse=reverse), start, end)
                group = []
            if len(stored) == self._size:
                size = int.from_bytes(data[:_SIZE_BYTES])
                key = data[_SIZE_BYTES : _SIZE_BYTES + size]
                group.append((key, data[_SIZE_BYTES + size :]))
            elif len(stored) >= self._head:
                group.append((stored, data))
            elif stored >= start and (end is None or stored < end):
                yield stored, data
        yield from _within(sorted(group, reverse=reverse), start, end)


def _within(entries: Iterable[Entry], start: bytes, end: bytes | None) -> Iterator[Entry]:
    return (entry for entry in entries if entry[0] >= start and (end is None or entry[0] < end))
