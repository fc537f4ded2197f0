"""Runs joins: of two streams within a time, and of two tables.

The records of each stream wait in a buffer for partners of the other stream. Only stream time
decides whether a record can still find a partner. A result without a partner is given when that
time is over, and not before, so no result is ever taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

from onceflow.processors.clock import StreamClock
from onceflow.processors.declare.signatures import Argument, ArgumentKind
from onceflow.processors.frame import Change, Due, Frame
from onceflow.processors.graph.nodes import JoinNode, TableJoinNode
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.nodes.late import LateRecords
from onceflow.processors.nodes.own_key import check_own_key
from onceflow.processors.nodes.plain import PlainWork
from onceflow.processors.state.keys import after, close, pack_int, split, unpack_int
from onceflow.processors.state.store import ABSENT, Rows, ValueStore
from onceflow.processors.state.timed import (
    BY_STREAM,
    ROW,
    TimedStore,
)
from onceflow.processors.unit import Unit
from onceflow.processors.values import Decoder, decoder_for
from onceflow.sdk.model.consumer_record import ConsumerRecord

logger: logging.Logger = logging.getLogger("onceflow.processors.joins")

LEFT = b"l"
RIGHT = b"r"
_TIMES_BYTES = 16

Kept = tuple[bool, "bytes | None"]
"""A record in the buffer: whether it found a partner, and its value."""


class JoinWork(PlainWork):
    """Runs one join of two streams.

    Args:
        node: The join.
        around: Objects of the worker that it uses.
        feeds: Whether other nodes take its results.
    """

    def __init__(self, node: JoinNode, around: Surroundings, *, feeds: bool) -> None:
        super().__init__(node, around, feeds)
        self._node = node
        self._state = node.own_states[0].name
        self._codec = node.own_states[0].codec
        self._clock = StreamClock(node.name, node.timing, around.wall_ms, around.max_future_ms)
        self._late = LateRecords(node.name, node.late_topic, around, self.emitter, logger)
        values = [a for a in node.arguments if a.kind is not ArgumentKind.KEY]
        what = f"value of {node.name}"
        self._decode: dict[bytes, Decoder] = {
            side: decoder_for(argument.annotation, node.format, what)
            for side, argument in zip((LEFT, RIGHT), values, strict=True)
        }
        self._call = caller(node.function, node.arguments, node, f"key of {node.name}")
        self._alone = {LEFT: node.kind_of.left, RIGHT: node.kind_of.right}

    @property
    def ordered(self) -> tuple[str, ...]:
        """Topics whose records are ordered by a time in their values."""
        left, right = self._node.topics
        if self._node.timing.time_of is None or left is None or right is None:
            return ()
        return left, right

    def side(self, parent: str) -> JoinSide:
        """Return the work node that takes the records of one side.

        Args:
            parent: Name of the node whose results they are.
        """
        return JoinSide(self, LEFT if parent == self._node.sides[0] else RIGHT)

    def _topic(self, side: bytes) -> str | None:
        return self._node.topics[0 if side == LEFT else 1]

    def time_of(self, record: ConsumerRecord) -> int:
        """Return the event time of a record, to order both sides; errors are left to its call."""
        side = LEFT if record.topic == self._node.topics[0] else RIGHT
        try:
            value = self._decode[side](record.value)
            return self._node.timing.event_time_ms(self.name, value, record.timestamp_ms)
        except Exception:  # noqa: BLE001 - time= is the user's, and is called again for the record
            return record.timestamp_ms

    # One call ------------------------------------------------------------------------------

    def call(self, frame: Frame, stores: Stores) -> None:
        """Remove a record for which no partner can come any more."""
        self._give_up(frame, cast(TimedStore, stores[self._state]), cast(Due, frame.item))

    def take(self, frame: Frame, stores: Stores, side: bytes) -> None:
        """Join a record of one side with the waiting records of the other one."""
        store = cast(TimedStore, stores[self._state])
        item = frame.item
        key = check_own_key(self.name, "buffer", frame)
        is_read = self._topic(side) is not None
        data = cast("bytes | None", item.value) if is_read else self.emitter.encode(item.value)
        value = self._decode[side](data)
        time_ms = self._node.timing.event_time_ms(self.name, value, item.timestamp_ms)
        rows = frame.rows(store)
        now_ms = self._clock.observe(store, rows, time_ms)
        if self._node.closes_ms(time_ms) <= now_ms:
            self._late.give(frame, time_ms, now_ms)
            return
        found = self._match(frame, rows, side, key, value, time_ms, now_ms)
        place = ROW + side + close(key) + pack_int(time_ms)
        number = frame.record.offset if is_read else _next_number(rows, place)
        own = place + pack_int(number)
        rows.put(own, self._codec.encode(own, self._codec.keep((found, data))))

    def _match(
        self,
        frame: Frame,
        rows: Rows,
        side: bytes,
        key: bytes,
        value: object,
        time_ms: int,
        now_ms: int,
    ) -> bool:
        """Give a result for each partner; return whether there was one."""
        other = RIGHT if side == LEFT else LEFT
        prefix, within_ms = ROW + other + close(key), self._node.within_ms
        start = prefix + pack_int(max(0, time_ms - within_ms))
        end = prefix + pack_int(time_ms + within_ms + 1)
        found = False
        for row, stored in list(rows.range(start, end)):
            other_ms = unpack_int(row[-_TIMES_BYTES:-8])
            if self._node.closes_ms(other_ms) <= now_ms:
                continue
            found = True
            matched, data = cast(Kept, self._codec.decode(row, stored))
            if not matched:
                rows.put(row, self._codec.encode(row, self._codec.keep((True, data))))
            partner = self._decode[other](data)
            left, right = (value, partner) if side == LEFT else (partner, value)
            result = self._call(left, right, key)
            self.emitter.give(frame, result, key, max(time_ms, other_ms))
        return found

    def _give_up(self, frame: Frame, store: TimedStore, due: Due) -> None:
        """Delete a record from the buffer, and give its result without a partner, if it has one."""
        rows = frame.rows(store)
        stored = rows.get(due.row)
        assert stored is not None
        due.forget(frame)
        side = due.row[1:2]
        matched, data = cast(Kept, self._codec.decode(due.row, stored))
        if not matched and self._alone[side]:
            value = self._decode[side](data)
            left, right = (value, None) if side == LEFT else (None, value)
            result = self._call(left, right, due.key)
            self.emitter.give(frame, result, due.key, due.timestamp_ms)

    # What is due ---------------------------------------------------------------------------

    def waits_ms(self, stores: Stores) -> int | None:
        """Return the milliseconds until a record is due: 0 for now, None if none will be."""
        store = cast(TimedStore, stores[self._state])
        first_ms = store.first_due_ms(BY_STREAM)
        return None if first_ms is None else self._clock.waits_ms(store, first_ms)

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """Return the next due record of the buffer."""
        store = cast(TimedStore, stores[self._state])
        now_ms = self._clock.now_ms(store)
        row = store.next_due(BY_STREAM, now_ms)
        if row is None:
            return None
        key, times = split(row[2:])
        time_ms, number = unpack_int(times[:8]), unpack_int(times[8:])
        stored = store.get(row)
        assert stored is not None
        _, data = cast(Kept, self._codec.decode(row, stored))
        topic = self._topic(row[1:2])
        offset = -1 if topic is None else number
        record = ConsumerRecord(topic or self.name, partition, offset, time_ms, key=key, value=data)
        return Due(store, now_ms, row, key, time_ms, record)


def _next_number(rows: Rows, place: bytes) -> int:
    """Return a number for a function's result: a record may give several of one key and time."""
    last = next(rows.range(place, after(place), reverse=True), None)
    return 0 if last is None else unpack_int(last[0][-8:]) + 1


class JoinSide:
    """The work node that takes the records of one side of a join.

    Args:
        join: The join.
        side: ``LEFT`` or ``RIGHT``.
    """

    is_async = False
    takes_slices = False

    def __init__(self, join: JoinWork, side: bytes) -> None:
        self.name: str = join.name
        self.failures: Failures = join.failures
        self._join = join
        self._side = side

    def call(self, frame: Frame, stores: Stores) -> None:
        """Join a record; see ``WorkNode.call``."""
        self._join.take(frame, stores, self._side)

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Do as ``call``; nothing is awaited."""
        self.call(frame, stores)

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Not supported."""
        raise NotImplementedError


class TableJoinWork(PlainWork):
    """Runs one join of two tables: a result for each change of either.

    Args:
        node: The join.
        around: Objects of the worker that it uses.
        feeds: Whether other nodes take its results.
    """

    def __init__(self, node: TableJoinNode, around: Surroundings, *, feeds: bool) -> None:
        super().__init__(node, around, feeds)
        self._node = node
        self._call = caller(node.function, node.arguments, node, f"key of {node.name}")

    def call(self, frame: Frame, stores: Stores) -> None:
        """Give the new result of a key, or delete it."""
        change = frame.item
        assert isinstance(change, Change)
        key = check_own_key(self.name, "table", frame)
        left, right = (self._row(frame, stores, state, key) for state in self._node.sides)
        has = (left is not ABSENT, right is not ABSENT)
        by_left = change.table == self._node.parents[0]
        had = (change.existed, has[1]) if by_left else (has[0], change.existed)
        if self._node.kind_of.holds(*has):
            result = self._call(
                None if left is ABSENT else left, None if right is ABSENT else right, key
            )
            self.emitter.change(frame, result, key, change.timestamp_ms)
        elif self._node.kind_of.holds(*had):
            self.emitter.change(frame, None, key, change.timestamp_ms)

    @staticmethod
    def _row(frame: Frame, stores: Stores, state: str, key: bytes) -> object:
        store = cast(ValueStore, stores[state])
        kept = frame.values(store).load(key)
        return kept if kept is ABSENT else store.codec.open(kept)


def caller(
    function: Callable[..., object],
    arguments: tuple[Argument, ...],
    node: JoinNode | TableJoinNode,
    what: str,
) -> Callable[[object, object, bytes], object]:
    """Return a function that calls the join's function with both values, and the key if taken."""
    keyed = next((a for a in arguments if a.kind is ArgumentKind.KEY), None)
    if keyed is None:
        return lambda left, right, key: function(left, right)
    decode = decoder_for(keyed.annotation, node.format, what)
    names = [a.name for a in arguments if a is not keyed]

    def call(left: object, right: object, key: bytes) -> object:
        return function(**{names[0]: left, names[1]: right, keyed.name: decode(key)})

    return call
