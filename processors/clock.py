"""Stream time: the greatest timestamp that a task has seen, kept from running into the future.

It never goes back, it is kept with the committed offsets, and a restart goes on with it, so that a
window that was closed stays closed. One record from a wrong clock must not close all windows: a
timestamp that is further ahead of the wall clock than ``max_future_ms`` does not move it, and the
caller decides what becomes of such a record. An input that is silent for longer than the idle bound
lets the wall clock move it on, where that is declared.
"""

from __future__ import annotations

import enum

UNKNOWN_MS = -1
"""Stream time before the first record."""


class Arrival(enum.Enum):
    """Where a timestamp stands."""

    ON_TIME = "at or before stream time, or moving it on"
    FUTURE = "too far ahead of the wall clock"


class StreamTime:
    """Stream time of one task.

    Args:
        max_future_ms: How far a timestamp may be ahead of the wall clock.
        idle_ms: Silence after which the wall clock moves it on; None for never.
        start_ms: As of the committed offsets.

    Attributes:
        now_ms: Stream time; -1 before the first record.
    """

    __slots__ = ("_idle_ms", "_max_future_ms", "_moved_wall_ms", "now_ms")

    def __init__(
        self, max_future_ms: int, idle_ms: int | None = None, start_ms: int = UNKNOWN_MS
    ) -> None:
        self.now_ms: int = start_ms
        self._max_future_ms = max_future_ms
        self._idle_ms = idle_ms
        self._moved_wall_ms: int | None = None

    def observe(self, timestamp_ms: int, wall_ms: int) -> Arrival:
        """A record came.

        Args:
            timestamp_ms: Its time.
            wall_ms: Wall clock.

        Returns:
            FUTURE leaves stream time where it is; the caller follows its policy.
        """
        if timestamp_ms - wall_ms > self._max_future_ms:
            return Arrival.FUTURE
        self._moved_wall_ms = wall_ms
        if timestamp_ms > self.now_ms:
            self.now_ms = timestamp_ms
        return Arrival.ON_TIME

    def idle(self, wall_ms: int) -> bool:
        """Let the wall clock move stream time on when no record came for long.

        Stream time goes on as fast as the wall clock from the end of the idle bound, so that a
        window closes as long after the last record as it would with later ones.

        Args:
            wall_ms: Wall clock.

        Returns:
            Whether it moved.
        """
        moved = self._moved_wall_ms
        if self._idle_ms is None or moved is None or self.now_ms < 0:
            return False
        ahead_ms = wall_ms - moved - self._idle_ms
        if ahead_ms <= 0:
            return False
        self._moved_wall_ms = wall_ms - self._idle_ms
        self.now_ms += ahead_ms
        return True
