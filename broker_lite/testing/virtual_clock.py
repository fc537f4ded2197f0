"""Clocks that a test can move: VirtualClock stands still otherwise, RunningClock keeps running.

With a VirtualClock, sessions, transactions and long polls expire only when the test moves it. A
RunningClock suits real clients, whose timeouts follow their own clocks.
"""

from __future__ import annotations

from collections.abc import Callable

from onceflow.broker_lite.clock import SystemClock

START_MS = 1_700_000_000_000
"""First reading of a VirtualClock: November 2023, wall milliseconds."""


class _Movable:
    """Base of both clocks: calls the subscribers after each move."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def _move(self, duration_ms: int) -> None:
        """Increase the reading."""
        raise NotImplementedError

    def advance(self, duration_ms: int) -> None:
        """Move the clock forward and run the timers that became due.

        Args:
            duration_ms: Milliseconds, not negative.

        Raises:
            ValueError: It is negative.
        """
        if duration_ms < 0:
            raise ValueError(f"duration_ms={duration_ms}: must not be negative")
        self._move(duration_ms)
        for callback in list(self._callbacks):
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` without arguments after every move.

        Args:
            callback: The function.
        """
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``.

        Args:
            callback: The function that was given to ``subscribe``; any other is ignored.
        """
        if callback in self._callbacks:
            self._callbacks.remove(callback)


class RunningClock(_Movable):
    """A clock that follows the system's and can be moved forward."""

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
    """A clock in wall milliseconds that stands still until it is moved.

    Args:
        now_ms: First reading. Use the present time, ``int(time.time() * 1000)``, if producers
            stamp records by their own clock: a topic refuses records that are more than
            ``message.timestamp.after.max.ms`` ahead of the broker's clock.
    """

    stands_still = True

    def __init__(self, now_ms: int = START_MS) -> None:
        super().__init__()
        self._now_ms = now_ms

    def __call__(self) -> int:
        return self._now_ms

    def _move(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
