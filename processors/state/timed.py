"""A store whose rows become due: windows, join buffers, timers.

A row's key contains its due time, by stream time or by the wall clock. So the index by due time can
be derived from the rows: it is stored in the same map but not in the changelog, and a restoration
writes it again with the rows. Stream time is a row too, so that it is rolled back, committed and
restored together with the rows that depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import after, close, pack_int, split, unpack_int
from onceflow.processors.state.store import Rows, Store

ROW: Final = b"r"
"""Tag of keys that hold rows."""

MARK: Final = b"p"
"""Tag of keys that say something of a record key, without being due."""

BY_STREAM: Final = b"s"
BY_WALL: Final = b"w"
"""The clock by which a row is due."""

NO_TIME_MS: Final = -1
"""Stream time before the first record."""

_INDEX: Final = b"i"
_TIME: Final = b"t"
_TIME_CODEC: Final = ValueCodec(int, "stream time")
_DUE_AT: Final = 2
_ROW_AT: Final = 10
_PORTION: Final = 1_000

DueOf = Callable[[bytes], "tuple[bytes, int] | None"]
"""Returns the clock and the time at which the row of a key is due; None for never."""


@dataclass(frozen=True, slots=True)
class TimedLayout:
    """The layout of a timed store.

    Attributes:
        shape: Text of keys and rows, with ``{}`` for the value type; stored rows with another text
            are refused.
        due_of: When the row of a key is due.
    """

    shape: str
    due_of: DueOf


class TimedStore(Store):
    """A store whose rows become due.

    Args:
        name: ``function.state``.
        number: Its prefix in the map.
        committed: The task's map.
        codec: Codec of the rows' values.
        due_of: When the row of a key is due.

    Attributes:
        codec: Codec of the rows' values.
        moved_wall_ms: Wall clock at the last record, for the idle limit.
    """

    __slots__ = ("_due", "_due_of", "_firsts", "_marked", "codec", "moved_wall_ms")

    def __init__(
        self, name: str, number: int, committed: ByteMap, codec: ValueCodec, due_of: DueOf
    ) -> None:
        super().__init__(name, number, committed)
        self.codec: ValueCodec = codec
        self.moved_wall_ms: int | None = None
        self._due_of = due_of
        self._firsts: dict[bytes, int | None] = {}
        self._marked: dict[bytes, bytes] | None = None
        self._due: dict[bytes, deque[bytes]] = {BY_STREAM: deque(), BY_WALL: deque()}

    # Rows ----------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a row and its index entry."""
        super().put(key, value)
        found = self._due_of(key)
        if found is None:
            if self._marked is not None and key[:1] == MARK:
                if value is None:
                    self._marked.pop(key[1:], None)
                else:
                    self._marked[key[1:]] = value
            return
        clock, due_ms = found
        super().put(_INDEX + clock + pack_int(due_ms) + key, None if value is None else b"")
        if clock in self._firsts:
            first = self._firsts[clock]
            if value is None and due_ms == first:
                del self._firsts[clock]
            elif value is not None and (first is None or due_ms < first):
                self._firsts[clock] = due_ms

    def put_again(self, key: bytes, value: bytes) -> None:
        """Replace an existing row, whose index entry stays."""
        super().put(key, value)

    def collect(self) -> Mapping[bytes, bytes | None]:
        """Return the changes of the open unit, without the index."""
        return {key: value for key, value in self.writes.items() if key[:1] != _INDEX}

    def with_index(self, writes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Add the changes of the index to the changes that a changelog holds."""
        found = dict(writes)
        for key, value in writes.items():
            due = self._due_of(key)
            if due is not None:
                mark = None if value is None else b""
                found[_INDEX + due[0] + pack_int(due[1]) + key] = mark
        return found

    def drop(self) -> None:
        """Drop all writes."""
        super().drop()
        self._marked = None
        self._firsts.clear()
        for queue in self._due.values():
            queue.clear()

    def committed(self) -> None:
        """Drop the writes, which the map holds now; what is known of rows stays true.

        To find it again would read all marks, and the first rows due, after each commit.
        """
        super().drop()

    def is_marked(self, key: bytes) -> bool:
        """Whether there is a row of a key with the tag ``MARK``; without a read of the map."""
        return key in self._marks()

    def _marks(self) -> dict[bytes, bytes]:
        if self._marked is None:
            self._marked = {row[1:]: data for row, data in self.range(MARK, after(MARK))}
        return self._marked

    def get(self, key: bytes) -> bytes | None:
        """Return the stored bytes.

        Those of marks come from memory: a read of LMDB releases the interpreter lock, and the
        worker's thread would wait for it behind those of the clients.
        """
        if key[:1] == MARK:
            return self._marks().get(key[1:])
        if key in self.writes:
            return self.writes[key]
        return self._committed.get(self.prefix + key)

    # What is due ---------------------------------------------------------------------------

    def first_due_ms(self, clock: bytes) -> int | None:
        """Return the earliest due time by a clock; None without rows."""
        if clock not in self._firsts:
            prefix = _INDEX + clock
            entry = next(self.range(prefix, after(prefix)), None)
            self._firsts[clock] = None if entry is None else unpack_int(entry[0][_DUE_AT:_ROW_AT])
        return self._firsts[clock]

    def next_due(self, clock: bytes, now_ms: int) -> bytes | None:
        """Return the key of the row that has been due for longest; None if no row is due."""
        queue = self._due[clock]
        while queue:
            if self.get(queue[0]) is not None:
                return queue[0]
            queue.popleft()  # processed, or deleted by its function
        first = self.first_due_ms(clock)
        if first is None or first > now_ms:
            return None
        # Read many at once: a range over the writes of a large unit is slow to begin.
        found = self.range(_INDEX + clock, _INDEX + clock + pack_int(now_ms + 1))
        queue.extend(key[_ROW_AT:] for key, _ in islice(found, _PORTION))
        return queue[0]

    # Stream time ---------------------------------------------------------------------------

    @property
    def time_ms(self) -> int:
        """Stream time, including the records of the open unit."""
        return stream_time_ms(self)


def stream_time_ms(rows: Rows) -> int:
    """Return the stream time of a store or layer; ``NO_TIME_MS`` before the first record."""
    data = rows.get(_TIME)
    if data is None:
        return NO_TIME_MS
    found = _TIME_CODEC.decode(_TIME, data)
    assert isinstance(found, int)
    return found


def set_stream_time(rows: Rows, time_ms: int) -> None:
    """Set stream time."""
    rows.put(_TIME, _TIME_CODEC.encode(_TIME, time_ms))


def window_row(key: bytes, start_ms: int, end_ms: int) -> bytes:
    """Return the key of a window's row; rows of one record key are neighbours, sorted by start."""
    return ROW + close(key) + pack_int(start_ms) + pack_int(end_ms)


def split_window_row(row: bytes) -> tuple[bytes, int, int]:
    """Return record key, start and end from the key of a window's row."""
    key, times = split(row[len(ROW) :])
    return key, unpack_int(times[:8]), unpack_int(times[8:])


def timer_layout(shape: str = "timers") -> TimedLayout:
    """Return the layout of timers: clock, record key, name, due time.

    Args:
        shape: Names what is kept.
    """

    def due_of(key: bytes) -> tuple[bytes, int] | None:
        return (key[1:2], unpack_int(key[-8:])) if key[:1] == ROW else None

    return TimedLayout(f"{shape}: {{}}", due_of)


def window_layout(shape: str, closes_ms: Callable[[int], int]) -> TimedLayout:
    """Return the layout of a store of windows.

    Args:
        shape: Text that describes the windows.
        closes_ms: Returns the stream time at which a window closes, from the window's end.
    """

    def due_of(key: bytes) -> tuple[bytes, int] | None:
        if key[:1] != ROW:
            return None
        return BY_STREAM, closes_ms(unpack_int(key[-8:]))

    return TimedLayout(f"{shape}: {{}}", due_of)
