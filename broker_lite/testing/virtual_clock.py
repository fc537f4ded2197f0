"""Clocks that a test moves: one that stands still otherwise, and one that runs like the system's.

A broker that is given the first arms no alarms: sessions, transactions and long polls run out
exactly when the test says so. The second is for real clients, which time out by their own clocks.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.broker_lite.clock import SystemClock

START_MS = 1_700_000_000_000
"""Where the clock starts: November 2023, wall milliseconds."""


class _Movable:
    """What both clocks do when they are moved."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def _move(self, duration_ms: int) -> None:
        """Let the clock read that much more."""
        raise NotImplementedError

    def advance(self, duration_ms: int) -> None:
        """Move the clock and let everything run that became due.

        Args:
            duration_ms: Milliseconds, not negative.

        Raises:
            ValueError: It is negative.
        """
        if duration_ms < 0:
            raise ValueError(f"duration_ms={duration_ms}: time does not go back")
        self._move(duration_ms)
        for callback in list(self._callbacks):
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every move.

        Args:
            callback: Called without arguments.
        """
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``.

        Args:
            callback: What was given to ``subscribe``; anything else is no error.
        """
        if callback in self._callbacks:
            self._callbacks.remove(callback)


class RunningClock(_Movable):
    """The system's time, which can be moved forward."""

    stands_still = False

    def __init__(self) -> None:
        super().__init__()
        self._system = SystemClock()
        self._moved_ms = 0

    @property
    def on_set(self) -> Callable[[int, int], None] | None:
        """Called when the system's clock was set; see ``SettableTime``."""
        return self._system.on_set

    @on_set.setter
    def on_set(self, callback: Callable[[int, int], None] | None) -> None:
        self._system.on_set = callback

    def __call__(self) -> int:
        return self._system() + self._moved_ms

    def _move(self, duration_ms: int) -> None:
        self._moved_ms += duration_ms


class VirtualClock(_Movable):
    """Wall milliseconds moved by hand.

    Args:
        now_ms: First reading. Producers stamp records with their own clock, and a topic refuses
            what is more than ``message.timestamp.after.max.ms`` ahead of the broker's: give the
            present time, ``int(time.time() * 1000)``, where they do.
    """

    stands_still = True

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__()
        self._now_ms = now_ms

    def __call__(self) -> int:
        return self._now_ms

    def _move(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
