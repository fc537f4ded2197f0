"""The first offset of each leader epoch (``leader-epoch-checkpoint``, KIP-101, KIP-320).

By the end of an epoch a client notices that a log lost records. This broker begins a new epoch only
after a crash that may have lost records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class LeaderEpochs:
    """Epochs and their first offsets, both growing.

    Args:
        entries: Pairs of epoch and start offset, as kept in the checkpoint file.
    """

    __slots__ = ("_epochs", "_start_offsets")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        for epoch, start_offset in sorted(entries):
            self.assign(epoch, start_offset)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 without one."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    def entries(self) -> list[tuple[int, int]]:
        """Pairs of epoch and start offset."""
        return list(zip(self._epochs, self._start_offsets, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note the first offset of an epoch.

        Entries with the same or a later offset are dropped: the log was cut before them.

        Returns:
            Whether anything changed.
        """
        if epoch <= self.latest:
            return False
        while self._start_offsets and self._start_offsets[-1] >= start_offset:
            self._epochs.pop()
            self._start_offsets.pop()
        self._epochs.append(epoch)
        self._start_offsets.append(start_offset)
        return True

    def epoch_at(self, offset: int) -> int:
        """Epoch in which an offset was written, -1 if unknown."""
        number = bisect_right(self._start_offsets, offset)
        return self._epochs[number - 1] if number else UNDEFINED_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the greatest known epoch up to a given one, and its end.

        Args:
            epoch: Epoch that the client saw.
            log_end_offset: End of the log.

        Returns:
            Epoch and end offset; (-1, -1) when the epoch is unknown here.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        number = bisect_right(self._epochs, epoch)
        floor = self._epochs[number - 1] if number else epoch
        return floor, self._start_offsets[number]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drop epochs that begin at or after the end; return whether anything changed."""
        changed = False
        while len(self._epochs) > 1 and self._start_offsets[-1] > end_offset:
            self._epochs.pop()
            self._start_offsets.pop()
            changed = True
        return changed

    def truncate_from_start(self, start_offset: int) -> bool:
        """Move the first epoch up to the new start of the log; return whether it changed."""
        number = bisect_right(self._start_offsets, start_offset) - 1
        if number < 0 or (number == 0 and self._start_offsets[0] == start_offset):
            return False
        del self._epochs[:number], self._start_offsets[:number]
        self._start_offsets[0] = start_offset
        return True
