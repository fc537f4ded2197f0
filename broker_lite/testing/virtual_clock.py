"""A clock that stands still until a test moves it.

A broker that is given one arms no alarms: sessions, transactions and long polls run out exactly
when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable

START_MS = 1_700_000_000_000
"""Where the clock starts: November 2023, wall milliseconds."""


class VirtualClock:
    """Wall milliseconds moved by hand.

    Args:
        now_ms: First reading. Producers stamp records with their own clock, and a topic refuses
            what is more than ``message.timestamp.after.max.ms`` ahead of the broker's: give the
            present time, ``int(time.time() * 1000)``, where they do.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._callbacks: list[Callable[[], None]] = []

    def __call__(self) -> int:
        return self._now_ms

    def advance(self, duration_ms: int) -> None:
        """Move the clock and let everything run that became due.

        Args:
            duration_ms: Milliseconds, not negative.
        """
        if duration_ms < 0:
            raise ValueError(f"duration_ms={duration_ms}: time does not go back")
        self._now_ms += duration_ms
        for callback in list(self._callbacks):
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every move."""
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
