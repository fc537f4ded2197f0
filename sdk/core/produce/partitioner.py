"""Chooses the partition of records without a key, and when to switch to another one.

They go to one partition until its batch is full (KIP-480, KIP-794). `key_hash` chooses the
partition of records with a key. Randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class StickyPartition:
    """The partition that takes records without a key at the moment.

    Attributes:
        current: Its number.
    """

    __slots__ = ("_available", "_random", "current")

    def __init__(self, available: Sequence[int], random: Callable[[], float]) -> None:
        self._random = random
        self._available = tuple(available)
        self.current: int = self._pick(None)

    def update(self, available: Sequence[int]) -> None:
        """Take over the partitions that have a leader now."""
        self._available = tuple(available)
        if self.current not in self._available:
            self.current = self._pick(None)

    def switch(self) -> int:
        """Go to another partition if there is one, and return it."""
        self.current = self._pick(self.current)
        return self.current

    def _pick(self, unwanted: int | None) -> int:
        choice = [p for p in self._available if p != unwanted] or list(self._available)
        return choice[int(self._random() * len(choice))] if choice else 0
