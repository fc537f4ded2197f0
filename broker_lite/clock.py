"""The broker's clocks: the system's, and those that tests move by hand.

It is the only module of the broker that reads a clock. Others get ``now_ms`` as an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

CLOCK_STEP_NS = 1_000_000_000
"""A larger jump means that the system's clock was set; a smaller one is read jitter."""

work_clock_ns: Callable[[], int] = time.perf_counter_ns
"""Measures how long requests take, in nanoseconds from any beginning."""


@runtime_checkable
class MovableTime(Protocol):
    """A clock that can be moved by hand; subscribers hear of each move.

    Attributes:
        stands_still: Whether it moves only by hand; then the server sets no alarm.
    """

    stands_still: bool

    def __call__(self) -> int:
        """Wall milliseconds."""
        ...

    def advance(self, duration_ms: int) -> None:
        """Move it and call the subscribers."""
        ...

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after every move."""
        ...

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Stop calling ``callback``."""
        ...


@runtime_checkable
class SettableTime(Protocol):
    """A clock driven by an external source, which may be set.

    Attributes:
        on_set: Called within a reading after the source was set, with the milliseconds by which
            this clock jumped forward, and by which it is ahead of its source now.
    """

    on_set: Callable[[int, int], None] | None

    def __call__(self) -> int:
        """Wall milliseconds."""
        ...


class SystemClock:
    """Wall milliseconds that never go back: the monotonic clock, and each step of the wall's.

    If the system's clock is set forward, or the machine slept, this one follows. Otherwise topics
    would refuse clients' records, whose timestamps would be far ahead. If it is set back, this one
    stays ahead.
    """

    __slots__ = ("_ahead_ns", "_offset_ns", "on_set")

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._ahead_ns = 0
        self.on_set: Callable[[int, int], None] | None = None

    def __call__(self) -> int:
        now_ns = time.monotonic_ns() + self._offset_ns
        apart_ns = time.time_ns() - now_ns + self._ahead_ns
        if not -CLOCK_STEP_NS < apart_ns < CLOCK_STEP_NS:
            now_ns += self._follow(apart_ns)
        return now_ns // 1_000_000

    def _follow(self, apart_ns: int) -> int:
        """Adjust to a system clock that was set; return by how much this one jumps forward."""
        ahead_ns = self._ahead_ns - apart_ns
        forward_ns = max(0, -ahead_ns)
        self._ahead_ns = max(0, ahead_ns)
        self._offset_ns += forward_ns
        if self.on_set is not None:
            self.on_set(forward_ns // 1_000_000, self._ahead_ns // 1_000_000)
        return forward_ns
