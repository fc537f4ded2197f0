"""Event time of records, and stream time: the greatest event time that a function has seen.

Each function of a task has its own stream time, since two functions may take a record's time from
different places. Stream time never goes back and is restored with the state that depends on it, so
that a closed window stays closed. One record from a wrong clock must not close all windows: a
record whose event time is too far ahead of the wall clock fails. If an input is silent for longer
than a declared time, the wall clock moves stream time on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from onceflow.processors.errors import EventTimeError
from onceflow.processors.state.store import Rows
from onceflow.processors.state.timed import (
    NO_TIME_MS,
    TimedStore,
    set_stream_time,
    stream_time_ms,
)
from onceflow.processors.windows import EPOCH, MS

TimeOf = Callable[..., object]
"""Returns the event time for a value: a datetime with a zone, or milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How a function takes the time of its records.

    Attributes:
        time_of: Returns the event time for a value; None takes the record's timestamp.
        idle_ms: Silence after which the wall clock moves stream time on; None for never.
    """

    time_of: TimeOf | None = None
    idle_ms: int | None = None

    def event_time_ms(self, name: str, value: object, timestamp_ms: int) -> int:
        """Return the event time of a record.

        Args:
            name: The function, for messages.
            value: The decoded value.
            timestamp_ms: The record's timestamp, -1 for none.

        Raises:
            EventTimeError: The record has no time, or ``time=`` returned something else.
        """
        if self.time_of is None:
            if timestamp_ms < 0:
                raise EventTimeError(
                    f"{name}: the record has no timestamp; declare time= to take it from the value"
                )
            return timestamp_ms
        found = self.time_of(value)
        if type(found) is int and found >= 0:
            return found
        if isinstance(found, datetime) and found.tzinfo is not None and found >= EPOCH:
            return (found - EPOCH) // MS
        hint = ""
        if isinstance(found, datetime) and found.tzinfo is None:
            hint = "; say which zone it is in, as with .replace(tzinfo=UTC)"
        raise EventTimeError(
            f"{name}: time= gave {found!r}: must be a datetime with a zone, or an int of "
            f"milliseconds, from 1970 on{hint}"
        )


class StreamClock:
    """Stream time of one function, for all of its tasks; each task keeps it in its store.

    Args:
        name: The function, for messages.
        timing: The declared timing.
        wall_ms: Wall clock in milliseconds.
        max_future_ms: How far an event time may be ahead of the wall clock; None for no limit.
    """

    __slots__ = ("_idle_ms", "_max_future_ms", "_name", "wall_ms")

    def __init__(
        self,
        name: str,
        timing: Timing,
        wall_ms: Callable[[], int],
        max_future_ms: int | None,
    ) -> None:
        self.wall_ms: Callable[[], int] = wall_ms
        self._name = name
        self._idle_ms = timing.idle_ms
        self._max_future_ms = max_future_ms

    def observe(self, store: TimedStore, rows: Rows, time_ms: int) -> int:
        """Move stream time on for a record, and return it.

        Args:
            store: The task's store.
            rows: A layer on the store, which is dropped if the record fails.
            time_ms: Event time of the record.

        Raises:
            EventTimeError: The record is too far ahead of the wall clock.
        """
        self.check(time_ms)
        if self._idle_ms is not None:
            if store.moved_wall_ms is not None:
                idle_ms = self.now_ms(store)  # Windows that the silence closed stay closed.
                if idle_ms > stream_time_ms(rows):
                    set_stream_time(rows, idle_ms)
            store.moved_wall_ms = self.wall_ms()
        now_ms = stream_time_ms(rows)
        if time_ms > now_ms:
            set_stream_time(rows, time_ms)
            return time_ms
        return now_ms

    def check(self, time_ms: int) -> None:
        """Refuse a time that would close windows too early.

        Raises:
            EventTimeError: It is too far ahead of the wall clock.
        """
        if self._max_future_ms is not None:
            ahead_ms = time_ms - self.wall_ms()
            if ahead_ms > self._max_future_ms:
                raise EventTimeError(
                    f"{self._name}: event time {time_ms} is {ahead_ms} ms ahead of the clock and "
                    "would close windows too early; correct the time, or raise max_future_ms "
                    f"({self._max_future_ms})"
                )

    def now_ms(self, store: TimedStore) -> int:
        """Return stream time, including its movement by silence.

        After ``idle_ms`` of silence it moves as fast as the wall clock, so that a window closes as
        long after the last record as later records would close it.
        """
        now_ms = store.time_ms
        if self._idle_ms is None or now_ms == NO_TIME_MS:
            return now_ms
        wall_ms = self.wall_ms()
        if store.moved_wall_ms is None:
            store.moved_wall_ms = wall_ms  # The silence is counted from the start of the task.
        return now_ms + max(0, wall_ms - store.moved_wall_ms - self._idle_ms)

    def waits_ms(self, store: TimedStore, due_ms: int) -> int | None:
        """Return the milliseconds until silence moves stream time to ``due_ms``; None for never."""
        if self._idle_ms is None:
            return 0 if store.time_ms >= due_ms else None
        left_ms = due_ms - self.now_ms(store)
        if left_ms <= 0:
            return 0
        assert store.moved_wall_ms is not None
        idle_left_ms = store.moved_wall_ms + self._idle_ms - self.wall_ms()
        return left_ms + max(0, idle_left_ms)
