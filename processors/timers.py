"""Timers of a key: one function sets them, and another one is called when they are due.

They are rows of the function's state, with a changelog, so they survive restarts and go with their
partition. A timer by stream time is due when records, or nothing but records, have moved stream
time to it; one by the wall clock is due when the clock shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from onceflow.processors.errors import EventTimeError, OutputRefusedError
from onceflow.processors.windows import EPOCH, MS


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that is set, or that is due.

    Attributes:
        name: Its name among those of its key.
        due_ms: When it is due, in milliseconds since 1970.
        by_wall: Whether it is due by the wall clock, and not by stream time.
    """

    name: str
    due_ms: int
    by_wall: bool = False

    @property
    def due(self) -> datetime:
        """``due_ms`` as a time in UTC."""
        return EPOCH + self.due_ms * MS


class TimerRows(Protocol):
    """The rows that hold timers."""

    def now_ms(self, by_wall: bool) -> int: ...
    def get(self, name: str) -> Timer | None: ...
    def put(self, timer: Timer) -> None: ...
    def delete(self, name: str) -> None: ...


class PlainTimers:
    """The rows of ``Timers()`` that a test makes."""

    def __init__(self) -> None:
        self._timers: dict[str, Timer] = {}

    def now_ms(self, by_wall: bool) -> int:
        """Return 0 (1970), so that a test sees how far ahead a timer is."""
        return 0

    def get(self, name: str) -> Timer | None:
        """Return the timer, or None."""
        return self._timers.get(name)

    def put(self, timer: Timer) -> None:
        """Set a timer."""
        self._timers[timer.name] = timer

    def delete(self, name: str) -> None:
        """Delete a timer."""
        self._timers.pop(name, None)


class Timers:
    """The timers of the record's key; annotate a parameter with it.

    ::

        @app.processor("readings")
        def watch(reading: float, timers: Timers) -> None:
            timers.set(after=minutes(5))   # in place of the one that was set before

        @app.timer(watch, to="alarms")
        def silent(key: str, timer: Timer) -> str:
            return f"{key} is silent"

    Changes take effect when the function returns.
    """

    __slots__ = ("_open", "_rows")

    def __init__(self) -> None:
        self._rows: TimerRows = PlainTimers()
        self._open = True

    def set(
        self,
        name: str = "",
        *,
        at: datetime | None = None,
        after: timedelta | None = None,
        by_wall: bool = False,
    ) -> Timer:
        """Set a timer; it replaces one of the same name.

        Args:
            name: Its name among those of the key.
            at: When it is due: a time with a zone.
            after: How long after the record's time, or after now by the wall clock.
            by_wall: Whether it is due by the wall clock, and not by stream time.

        Returns:
            The timer.

        Raises:
            EventTimeError: ``at`` has no zone, both are given, or neither.
            OutputRefusedError: The record was finished already (a task was not awaited).
        """
        if not self._open:
            raise OutputRefusedError(
                "a timer was set after its record was finished; await the task in the handler"
            )
        if (at is None) == (after is None):
            raise EventTimeError(f"timer {name!r}: give either at= or after=")
        if at is not None:
            if at.tzinfo is None:
                raise EventTimeError(
                    f"timer {name!r}: at={at!r} has no zone; add one, as with .replace(tzinfo=UTC)"
                )
            due_ms = (at - EPOCH) // MS
        else:
            assert after is not None
            due_ms = self._rows.now_ms(by_wall) + after // MS
        self._rows.delete(name)
        timer = Timer(name, due_ms, by_wall)
        self._rows.put(timer)
        return timer

    def get(self, name: str = "") -> Timer | None:
        """Return the timer of a name, or None.

        Args:
            name: Its name.
        """
        return self._rows.get(name)

    def cancel(self, name: str = "") -> None:
        """Delete a timer; do nothing if it is not set.

        Args:
            name: Its name.

        Raises:
            OutputRefusedError: The record was finished already (a task was not awaited).
        """
        if not self._open:
            raise OutputRefusedError(
                "a timer was cancelled after its record was finished; await the task in the handler"
            )
        self._rows.delete(name)

    def _finish(self, keep: bool) -> None:
        """End the call; its frame keeps or drops the rows."""
        self._open = False


def bound_timers(rows: TimerRows) -> Timers:
    """Make the timers of one call."""
    timers = Timers()
    timers._rows = rows
    return timers
