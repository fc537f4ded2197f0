"""Runs timers: calls a function when they are due."""

from __future__ import annotations

from typing import cast

from onceflow.processors.frame import Due, Frame
from onceflow.processors.graph.nodes import TimerNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.function import FunctionWork
from onceflow.processors.nodes.timer_rows import stream_clock
from onceflow.processors.state.keys import split, unpack_int
from onceflow.processors.state.timed import BY_STREAM, BY_WALL, TimedStore
from onceflow.sdk.model.consumer_record import ConsumerRecord


class TimerWork(FunctionWork):
    """Runs one function that is called when timers are due.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
        feeds: Whether other functions take its results.
    """

    def __init__(self, node: TimerNode, around: Surroundings, *, feeds: bool) -> None:
        super().__init__(node, around, feeds=feeds)
        self._state = node.timers
        self._around = around
        self._stream = stream_clock(node.name, around)

    def call(self, frame: Frame, stores: Stores) -> None:
        """Delete the due timer, and call the function for it."""
        self._forget(frame)
        super().call(frame, stores)

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Do as ``call``, for any function."""
        self._forget(frame)
        await super().call_async(frame, stores)

    @staticmethod
    def _forget(frame: Frame) -> None:
        cast(Due, frame.item).forget(frame)

    def waits_ms(self, stores: Stores) -> int | None:
        """Return the milliseconds until a timer is due: 0 for now, None if none will be."""
        store = cast(TimedStore, stores[self._state])
        first_ms = store.first_due_ms(BY_STREAM)
        waits_ms = None if first_ms is None else self._stream.waits_ms(store, first_ms)
        wall_ms = store.first_due_ms(BY_WALL)
        if wall_ms is None or waits_ms == 0:
            return waits_ms
        return max(0, wall_ms - self._around.wall_ms())

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """Return the next due timer."""
        store = cast(TimedStore, stores[self._state])
        now_ms = self._stream.now_ms(store)
        row = store.next_due(BY_STREAM, now_ms)
        if row is None:
            row = store.next_due(BY_WALL, self._around.wall_ms())
        if row is None:
            return None
        key, _ = split(row[2:])
        due_ms = unpack_int(row[-8:])
        record = ConsumerRecord(self.name, partition, -1, due_ms, key=key, value=None)
        return Due(store, now_ms, row, key, due_ms, record)
