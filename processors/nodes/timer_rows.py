"""The parameters ``Timers`` and ``Timer`` of functions, over rows of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from onceflow.processors.clock import StreamClock, Timing
from onceflow.processors.frame import Due, Frame
from onceflow.processors.nodes.own_key import check_own_key
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import after, close, pack_int, split, unpack_int
from onceflow.processors.state.store import Rows
from onceflow.processors.state.timed import BY_STREAM, BY_WALL, ROW, TimedStore
from onceflow.processors.timers import Timer, Timers, bound_timers

if TYPE_CHECKING:
    from onceflow.processors.nodes.base import Stores, Surroundings

_CLOCKS = (BY_STREAM, BY_WALL)


class BoundTimers:
    """The timers of one key.

    Args:
        rows: A layer on the store.
        codec: Codec of the rows' values.
        key: Key of the record.
        event_ms: Time of the record.
        wall_ms: Wall clock.
    """

    __slots__ = ("_codec", "_event_ms", "_key", "_rows", "_wall_ms")

    def __init__(
        self, rows: Rows, codec: ValueCodec, key: bytes, event_ms: int, wall_ms: int
    ) -> None:
        self._rows = rows
        self._codec = codec
        self._key = close(key)
        self._event_ms = event_ms
        self._wall_ms = wall_ms

    def now_ms(self, by_wall: bool) -> int:
        """Return the time from which ``after`` counts."""
        return self._wall_ms if by_wall else self._event_ms

    def _row(self, name: str) -> bytes | None:
        for clock in _CLOCKS:
            prefix = ROW + clock + self._key + close(name.encode())
            found = next(self._rows.range(prefix, after(prefix)), None)
            if found is not None:
                return found[0]
        return None

    def get(self, name: str) -> Timer | None:
        """Return the timer, or None."""
        row = self._row(name)
        return None if row is None else Timer(name, unpack_int(row[-8:]), row[1:2] == BY_WALL)

    def put(self, timer: Timer) -> None:
        """Set a timer."""
        clock = BY_WALL if timer.by_wall else BY_STREAM
        row = ROW + clock + self._key + close(timer.name.encode()) + pack_int(timer.due_ms)
        self._rows.put(row, self._codec.encode(row, self._codec.keep(timer.due_ms)))

    def delete(self, name: str) -> None:
        """Delete a timer."""
        row = self._row(name)
        if row is not None:
            self._rows.put(row, None)


def stream_clock(name: str, around: Surroundings) -> StreamClock:
    """Return the stream clock of a function with timers."""
    return StreamClock(name, Timing(), around.wall_ms, around.max_future_ms)


def timers_binder(name: str, state: str, around: Surroundings) -> Callable[[Frame, Stores], Timers]:
    """Make the binder of a ``Timers`` parameter, by which a record moves stream time on."""
    clock = stream_clock(name, around)
    timing = Timing()

    def bind(frame: Frame, stores: Stores) -> Timers:
        store = cast(TimedStore, stores[state])
        key = check_own_key(name, "timers", frame)
        rows, item = frame.rows(store), frame.item
        event_ms = item.timestamp_ms
        if not isinstance(item, Due):
            event_ms = timing.event_time_ms(name, None, event_ms)
            clock.observe(store, rows, event_ms)
        wall_ms = around.wall_ms()
        timers = bound_timers(BoundTimers(rows, store.codec, key, event_ms, wall_ms))
        frame.faces.append(timers)
        return timers

    return bind


def timer_of(frame: Frame, stores: Stores) -> Timer:
    """Fill a parameter annotated ``Timer``."""
    row = cast(Due, frame.item).row
    _, rest = split(row[2:])
    name, _ = split(rest)
    return Timer(name.decode(), unpack_int(row[-8:]), row[1:2] == BY_WALL)
