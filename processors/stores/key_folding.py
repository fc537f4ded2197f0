"""Keys that are longer than LMDB takes, without losing their order.

LMDB bounds keys at 511 bytes; Kafka's may be longer. A longer key is stored under its first bytes
and a hash, with the whole key in front of its value. Only among long keys that share all of these
first bytes does the stored order differ from the true one; a range sorts such neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

from onceflow.processors.state.keys import after

_HASH_BYTES = 32
_SIZE_BYTES = 4

Entry = tuple[bytes, bytes]


class KeyFolding:
    """Folds keys and unfolds entries.

    Args:
        key_bytes_max: LMDB's limit.

    Attributes:
        plain_max: Longest key that is stored as it is; one byte less than LMDB takes, so that no
            plain key is as long as a folded one.
    """

    __slots__ = ("_head", "_size", "plain_max")

    def __init__(self, key_bytes_max: int) -> None:
        self.plain_max: int = key_bytes_max - 1
        self._size = key_bytes_max
        self._head = key_bytes_max - _HASH_BYTES

    def fold(self, key: bytes) -> bytes:
        """The stored form of a long key."""
        return key[: self._head] + hashlib.blake2b(key, digest_size=_HASH_BYTES).digest()

    @staticmethod
    def value_of(data: bytes) -> bytes:
        """The value of a long key's entry."""
        return data[_SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES]) :]

    def folded(self, writes: Mapping[bytes, bytes | None]) -> tuple[list[Entry], list[bytes]]:
        """Writes as LMDB takes them.

        Returns:
            Entries to put, and keys to delete.
        """
        puts: list[Entry] = []
        deletes: list[bytes] = []
        plain_max = self.plain_max
        for key, value in writes.items():
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
        """The range of stored keys that holds a range of true keys; ``in_order`` cuts it.

        Up to the length of the head, stored keys compare as the true ones do.
        """
        low = start[: self._head]
        if end is None or len(end) <= self._head:
            return low, end
        return low, after(end[: self._head])

    def in_order(
        self, entries: Iterable[Entry], start: bytes, end: bytes | None, reverse: bool
    ) -> Iterator[Entry]:
        """Entries under their true keys, in their order, within the range."""
        group: list[Entry] = []  # Neighbours with the same first bytes, one of them long.
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
