"""Runs aggregates: folds records into windows, and gives the windows' results.

Only stream time decides whether a window takes a record. So a window is closed even if its result
is not written yet because the unit was full. The result of a closed window is a call of its own,
which the task makes before it takes the next record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from onceflow.processors.clock import StreamClock
from onceflow.processors.declare.signatures import Argument, ArgumentKind
from onceflow.processors.frame import Due, Frame, Item
from onceflow.processors.graph.nodes import AggregateNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.late import LateRecords
from onceflow.processors.nodes.lookups import make_lookup
from onceflow.processors.nodes.own_key import check_own_key, without_key
from onceflow.processors.nodes.plain import PlainWork
from onceflow.processors.state.keys import close, pack_int
from onceflow.processors.state.store import Rows
from onceflow.processors.state.timed import (
    BY_STREAM,
    ROW,
    TimedStore,
    set_stream_time,
    split_window_row,
    stream_time_ms,
    window_row,
)
from onceflow.processors.unit import Unit
from onceflow.processors.values import decoder_for
from onceflow.processors.windows import FixedFrames, SessionFrames, Window
from onceflow.sdk.model.consumer_record import ConsumerRecord

logger: logging.Logger = logging.getLogger("onceflow.processors.windows")

Found = Mapping[str, object]
"""Rows of tables by parameter, looked up once for each record."""

NOTHING_FOUND: Found = {}

Fill = Callable[[Item, object, object, Window, Found], object]
"""Returns one argument of the function, of item, value, accumulator, window and rows of tables."""


class WindowWork(PlainWork):
    """Runs one aggregate.

    Args:
        node: The aggregate.
        around: Objects of the worker that it uses.
        feeds: Whether other functions take its results.
    """

    def __init__(self, node: AggregateNode, around: Surroundings, *, feeds: bool) -> None:
        super().__init__(node, around, feeds)
        self._node = node
        self._fold = node.fold
        self._frames = node.frames
        self._feeds = feeds
        self._state = node.own_states[0].name
        self._codec = node.own_states[0].codec
        self._timing = node.timing
        self._clock = StreamClock(node.name, node.timing, around.wall_ms, around.max_future_ms)
        self._late = LateRecords(node.name, node.late_topic, around, self.emitter, logger)
        decoded = not all(parent.startswith("topic ") for parent in node.parents)
        value = next(a for a in node.fold.arguments if a.kind is ArgumentKind.VALUE)
        what = f"value of {node.name}"
        self._decode = None if decoded else decoder_for(value.annotation, node.format, what)
        self._fill = [self._filler(argument) for argument in node.fold.arguments]
        self._finds = {
            argument.name: make_lookup(node.name, argument, around)
            for argument in node.fold.arguments
            if argument.kind is ArgumentKind.TABLE
        }
        fixed = isinstance(node.frames, FixedFrames) and not node.on_update and not self._finds
        self._is_straight = fixed and node.timing.idle_ms is None
        self.takes_slices: bool = not decoded and not feeds

    def _filler(self, argument: Argument) -> Fill:
        kind = argument.kind
        if kind is ArgumentKind.VALUE:
            return lambda item, value, accumulator, window, found: value
        if kind is ArgumentKind.ACCUMULATOR:
            return lambda item, value, accumulator, window, found: accumulator
        if kind is ArgumentKind.WINDOW:
            return lambda item, value, accumulator, window, found: window
        if kind is ArgumentKind.HEADERS:
            return lambda item, value, accumulator, window, found: item.headers
        if kind is ArgumentKind.TABLE:
            return lambda item, value, accumulator, window, found: found[argument.name]
        what = f"key of {self.name}"
        decode = decoder_for(argument.annotation, self._node.format, what)
        return lambda item, value, accumulator, window, found: decode(
            cast("bytes | None", item.key)
        )

    # One call ------------------------------------------------------------------------------

    def call(self, frame: Frame, stores: Stores) -> None:
        """Fold a record, or give the result of a closed window."""
        store = cast(TimedStore, stores[self._state])
        item = frame.item
        if isinstance(item, Due):
            self._close(frame, store, item)
            return
        key = check_own_key(self.name, "windows", frame)
        value = (
            item.value if self._decode is None else self._decode(cast("bytes | None", item.value))
        )
        time_ms = self._timing.event_time_ms(self.name, value, item.timestamp_ms)
        rows = frame.rows(store)
        now_ms = self._clock.observe(store, rows, time_ms)
        found = NOTHING_FOUND
        if self._finds:
            found = {name: find(frame, stores, value) for name, find in self._finds.items()}
        into = self._into_session if isinstance(self._frames, SessionFrames) else self._into_windows
        taken = into(frame, rows, key, value, found, time_ms, now_ms)
        if not taken:
            self._late.give(frame, time_ms, now_ms)

    def _into_windows(
        self,
        frame: Frame,
        rows: Rows,
        key: bytes,
        value: object,
        found: Found,
        time_ms: int,
        now_ms: int,
    ) -> bool:
        """Fold into all open windows that hold the time; return whether there was one."""
        frames = cast(FixedFrames, self._frames)
        taken = False
        for start_ms in frames.starts(time_ms):
            end_ms = start_ms + frames.size_ms
            if frames.closes_ms(end_ms) <= now_ms:
                continue
            taken = True
            row = window_row(key, start_ms, end_ms)
            data = rows.get(row)
            window = Window(start_ms, end_ms)
            before = None if data is None else self._codec.decode(row, data)
            exists = data is not None
            self._keep(frame, rows, row, window, exists, before, value, found, time_ms)
        return taken

    def _into_session(
        self,
        frame: Frame,
        rows: Rows,
        key: bytes,
        value: object,
        found: Found,
        time_ms: int,
        now_ms: int,
    ) -> bool:
        """Fold into the session around the time, which may join several; return whether it is
        open."""
        frames = cast(SessionFrames, self._frames)
        start_ms = last_ms = time_ms
        merged: object = None
        exists = False
        prefix = ROW + close(key)
        until = prefix + pack_int(time_ms + frames.gap_ms + 1)
        near: list[tuple[bytes, bytes, int, int]] = []
        # Sessions of a key do not overlap: those that begin earlier also end earlier.
        for row, data in rows.range(prefix, until, reverse=True):
            _, first_ms, end_ms = split_window_row(row)
            if end_ms < time_ms - frames.gap_ms:
                break
            if frames.closes_ms(end_ms) > now_ms:
                near.append((row, data, first_ms, end_ms))
        for row, data, first_ms, end_ms in reversed(near):
            accumulator = self._codec.decode(row, data)
            merged = self._merge(merged, accumulator) if exists else accumulator
            exists = True
            start_ms, last_ms = min(start_ms, first_ms), max(last_ms, end_ms)
            rows.put(row, None)
        if not exists and frames.closes_ms(last_ms) <= now_ms:
            return False
        row = window_row(key, start_ms, last_ms)
        window = Window(start_ms, last_ms)
        self._keep(frame, rows, row, window, exists, merged, value, found, time_ms)
        return True

    def _merge(self, left: object, right: object) -> object:
        ready = self._fold.ready
        if ready is not None:
            return ready._merge(left, right)
        assert self._fold.merge is not None
        return self._fold.merge(left, right)

    def _keep(
        self,
        frame: Frame,
        rows: Rows,
        row: bytes,
        window: Window,
        exists: bool,
        before: object,
        value: object,
        found: Found,
        time_ms: int,
    ) -> None:
        """Fold the value into one window."""
        ready, item = self._fold.ready, frame.item
        if ready is None:
            if not exists:
                # A copy: the function may change its argument.
                before = self._codec.open(self._codec.keep(self._fold.initial))
            after = self._fold.function(
                *[fill(item, value, before, window, found) for fill in self._fill]
            )
        else:
            given = self._fold.function(
                *[fill(item, value, None, window, found) for fill in self._fill]
            )
            if given is None:
                if exists:  # The row may be that of a session that has grown.
                    rows.put(row, self._codec.encode(row, self._codec.keep(before)))
                return
            after = ready._add(before, given) if exists else ready._first(given)
        kept = self._codec.keep(after)
        rows.put(row, self._codec.encode(row, kept))
        if self._node.on_update:
            self._give(frame, cast(bytes, item.key), window, self._codec.open(kept), time_ms)

    # Slices --------------------------------------------------------------------------------

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Fold records until a window is due; see ``WorkNode.run_slice``."""
        fold = self._fold_straight if self._is_straight else self._fold_in_frames
        stop, error = fold(records, start, stop, stores, unit)
        if self.failures.counts and stop > start:
            self.failures.good(records[start].partition, stop - start)
        return stop, error

    def _fold_in_frames(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Fold each record in its own frame, which reaches the unit at once."""
        store = cast(TimedStore, stores[self._state])
        for index in range(start, stop):
            record = records[index]
            frame = Frame(record, record)
            try:
                self.call(frame, stores)
            except Exception as raised:  # noqa: BLE001 - any failure of a fold meets the policy
                frame.drop()
                return index, raised
            frame.keep()
            first_ms = store.first_due_ms(BY_STREAM)
            is_due = first_ms is not None and first_ms <= self._clock.now_ms(store)
            if is_due or unit.clock() >= unit.due_s:
                return index + 1, None
        return stop, None

    def _fold_straight(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Fold records straight into the store.

        A record is folded into all of its windows before the first one is written, so that a
        failed record is in none of them.
        """
        store = cast(TimedStore, stores[self._state])
        now_ms = seen_ms = stream_time_ms(store)
        first_ms = store.first_due_ms(BY_STREAM)
        index, error = start, None
        try:
            for index in range(start, stop):
                record = records[index]
                now_ms, first_ms = self._fold_one(record, store, now_ms, first_ms)
                if (first_ms is not None and first_ms <= now_ms) or unit.clock() >= unit.due_s:
                    stop = index + 1
                    break
        except Exception as raised:  # noqa: BLE001 - any failure of a fold meets the policy
            stop, error = index, raised
        if now_ms > seen_ms:
            set_stream_time(store, now_ms)
        return stop, error

    def _fold_one(
        self, record: ConsumerRecord, store: TimedStore, now_ms: int, first_ms: int | None
    ) -> tuple[int, int | None]:
        """Fold a record; return stream time, and when the first window is due."""
        frames, codec, ready = cast(FixedFrames, self._frames), self._codec, self._fold.ready
        key = record.key
        if key is None:
            raise without_key(self.name, "windows")
        assert self._decode is not None
        value = self._decode(record.value)
        time_ms = self._timing.event_time_ms(self.name, value, record.timestamp_ms)
        self._clock.check(time_ms)
        now_ms = max(now_ms, time_ms)
        changes: list[tuple[bytes, object, bool, int]] = []
        taken = False
        for start_ms in frames.starts(time_ms):
            end_ms = start_ms + frames.size_ms
            if frames.closes_ms(end_ms) <= now_ms:
                continue
            taken = True
            row = window_row(key, start_ms, end_ms)
            data = store.get(row)
            window = Window(start_ms, end_ms)
            before = None if data is None else codec.decode(row, data)
            if ready is None:
                if data is None:
                    before = codec.open(codec.keep(self._fold.initial))
                after = self._fold.function(
                    *[fill(record, value, before, window, NOTHING_FOUND) for fill in self._fill]
                )
            else:
                given = self._fold.function(
                    *[fill(record, value, None, window, NOTHING_FOUND) for fill in self._fill]
                )
                if given is None:
                    continue
                after = ready._first(given) if data is None else ready._add(before, given)
            changes.append((row, codec.keep(after), data is not None, frames.closes_ms(end_ms)))
        for row, kept, exists, due_ms in changes:
            stored = codec.encode(row, kept)
            if exists:
                store.put_again(row, stored)
            else:
                store.put(row, stored)
                first_ms = due_ms if first_ms is None else min(first_ms, due_ms)
        if not taken:
            frame = Frame(record, record)
            self._late.give(frame, time_ms, now_ms)
            frame.keep()
        return now_ms, first_ms

    # Results -------------------------------------------------------------------------------

    def _give(
        self, frame: Frame, key: bytes, window: Window, accumulator: object, time_ms: int
    ) -> None:
        self.emitter.give(frame, self._fold.result(accumulator), key, time_ms, window)

    def _close(self, frame: Frame, store: TimedStore, due: Due) -> None:
        """Give the result of a closed window, and delete the window."""
        rows = frame.rows(store)
        data = rows.get(due.row)
        assert data is not None
        due.forget(frame)
        if not self._node.on_update:
            key, start_ms, end_ms = split_window_row(due.row)
            accumulator = self._codec.decode(due.row, data)
            self._give(frame, key, Window(start_ms, end_ms), accumulator, due.timestamp_ms)

    # What is due ---------------------------------------------------------------------------

    def waits_ms(self, stores: Stores) -> int | None:
        """Milliseconds until a window is to be closed: 0 for now, None for none in sight."""
        store = cast(TimedStore, stores[self._state])
        first_ms = store.first_due_ms(BY_STREAM)
        return None if first_ms is None else self._clock.waits_ms(store, first_ms)

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """The window that is to be closed next."""
        store = cast(TimedStore, stores[self._state])
        now_ms = self._clock.now_ms(store)
        row = store.next_due(BY_STREAM, now_ms)
        if row is None:
            return None
        key, _, end_ms = split_window_row(row)
        fixed = isinstance(self._frames, FixedFrames)
        time_ms = end_ms - 1 if fixed else end_ms  # The last millisecond of the window.
        value = self._letter_value(store, row) if self._feeds or self.failures.counts else None
        record = ConsumerRecord(self.name, partition, -1, time_ms, key=key, value=value)
        return Due(store, now_ms, row, key, time_ms, record)

    def _letter_value(self, store: TimedStore, row: bytes) -> bytes | None:
        """Return the value of a window's dead letter: its result, or a later function's input."""
        data = store.get(row)
        assert data is not None
        if self._node.on_update:
            return None
        accumulator = self._codec.decode(row, data)
        try:
            return self.emitter.encode(self._fold.result(accumulator))
        except Exception:  # noqa: BLE001 - the window's call fails on it too, and meets the policy
            return None
