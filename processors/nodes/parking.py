"""Parks a failed record until its retry, with later records of its key (``park=``).

Parked records are rows of the function's state: they are written to the changelog in the
transaction of the offset that moves past them, and move with their partition. The first one of a
key is tried again when it is due by the wall clock. The next one becomes due when the first is
done, so a key keeps its order. Other keys continue.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec

from onceflow.processors.errors import ParkingFullError
from onceflow.processors.frame import Due, Frame, Item
from onceflow.processors.graph.nodes import FunctionNode
from onceflow.processors.graph.specs import PARKED_STATE, ParkedRecord
from onceflow.processors.nodes.base import Stores, Surroundings
from onceflow.processors.nodes.function import FunctionWork
from onceflow.processors.policies import Parking
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import after, close, pack_int, split, unpack_int
from onceflow.processors.state.store import Rows
from onceflow.processors.state.timed import BY_WALL, MARK, ROW, TimedStore
from onceflow.sdk.model.consumer_record import ConsumerRecord

NEVER_MS: Final = 2**63 - 1
"""Due time of records that are not the first of their key."""

_MARK_CODEC: Final = ValueCodec(tuple[int, int], "records that are parked")


class _ParkedRows:
    """The parked records of one key.

    Args:
        rows: A layer on the store.
        codec: Codec of the rows' values.
        key: The key.
    """

    __slots__ = ("_codec", "_key", "_mark", "_prefix", "_rows")

    def __init__(self, rows: Rows, codec: ValueCodec, key: bytes) -> None:
        self._rows = rows
        self._codec = codec
        self._key = key
        self._mark = MARK + key
        self._prefix = ROW + BY_WALL + close(key)

    def count(self) -> tuple[int, int]:
        """Return how many there are, and the number of the next one."""
        data = self._rows.get(self._mark)
        if data is None:
            return 0, 0
        return cast("tuple[int, int]", _MARK_CODEC.decode(self._mark, data))

    def _set_count(self, count: int, number: int) -> None:
        value = (count, number)
        self._rows.put(
            self._mark, _MARK_CODEC.encode(self._mark, _MARK_CODEC.keep(value)) if count else None
        )

    def add(self, record: ParkedRecord, due_ms: int) -> None:
        """Park a record after the others."""
        count, number = self.count()
        self.put(number, record, due_ms)
        self._set_count(count + 1, number + 1)

    def put(self, number: int, record: ParkedRecord, due_ms: int) -> None:
        row = self._prefix + pack_int(number) + pack_int(due_ms)
        self._rows.put(row, self._codec.encode(row, self._codec.keep(record)))

    def first(self) -> bytes | None:
        """Return the row of the first one, or None."""
        found = next(self._rows.range(self._prefix, after(self._prefix)), None)
        return None if found is None else found[0]

    def read(self, row: bytes) -> ParkedRecord:
        data = self._rows.get(row)
        assert data is not None
        return cast(ParkedRecord, self._codec.decode(row, data))

    def again(self, row: bytes, record: ParkedRecord, due_ms: int) -> None:
        """Store a record with its next due time, after it failed again."""
        self._rows.put(row, None)
        self.put(unpack_int(row[-16:-8]), record, due_ms)

    def remove(self, row: bytes, now_ms: int) -> None:
        """Delete a record that is done, and make the next one of its key due."""
        self._rows.put(row, None)
        count, number = self.count()
        self._set_count(count - 1, number)
        following = self.first()
        if following is not None:
            self.again(following, self.read(following), now_ms)


class ParkedDue(Due):
    """A parked record that is due.

    Attributes:
        attempt: Attempts so far.
        parked: What was parked.
    """

    __slots__ = ("_codec", "_wall_ms", "attempt", "parked")

    def __init__(
        self, store: TimedStore, row: bytes, key: bytes, parked: ParkedRecord, wall_ms: int
    ) -> None:
        record = parked.record(key)
        super().__init__(store, wall_ms, row, key, record.timestamp_ms, record)
        self.attempt: int = parked.attempt
        self.parked: ParkedRecord = parked
        self._codec = store.codec
        self._wall_ms = wall_ms

    def forget(self, frame: Frame) -> None:
        """Delete the record, as it is done."""
        _ParkedRows(frame.rows(self._store), self._codec, self.key).remove(self.row, self._wall_ms)


class ParkingWork(FunctionWork):
    """Runs one function whose failed records are parked.

    Args:
        node: The function.
        around: Objects of the worker that it uses.
        feeds: Whether other functions take its results.
        parking: The bounds.
    """

    def __init__(
        self, node: FunctionNode, around: Surroundings, *, feeds: bool, parking: Parking
    ) -> None:
        super().__init__(node, around, feeds=feeds)
        self._state = f"{node.name}.{PARKED_STATE}"
        self._limits = parking
        self._wall_ms = around.wall_ms
        self._bytes_max = around.record_bytes_max
        self.failures.parks = self.park
        self.failures.is_parked = self._is_parked

    # Calls ---------------------------------------------------------------------------------

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process a record, park it after others of its key, or try a parked one again."""
        if not self._is_behind(frame, stores):
            self._take_parked(frame)
            super().call(frame, stores)

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Do as ``call``, for any function."""
        if not self._is_behind(frame, stores):
            self._take_parked(frame)
            await super().call_async(frame, stores)

    def _is_behind(self, frame: Frame, stores: Stores) -> bool:
        """Park a record if earlier ones of its key are parked; return whether.

        Raises:
            ParkingFullError: Too many are parked; the partition waits for them.
        """
        item, store = frame.item, cast(TimedStore, stores[self._state])
        key = item.key
        if isinstance(item, Due) or type(key) is not bytes or not store.is_marked(key):
            return False
        parked = _ParkedRows(frame.rows(store), store.codec, key)
        count, _ = parked.count()
        record = self._parked(frame.record, 0)
        if count >= self._limits.records_max or not self._fits(record, key):
            first = parked.first()
            assert first is not None
            raise ParkingFullError(
                f"{self.name}: {count} records of a key are parked already",
                max(1, unpack_int(first[-8:]) - self._wall_ms()),
            )
        parked.add(record, NEVER_MS)
        return True

    def _is_parked(self, stores: Stores, key: bytes | None) -> bool:
        return key is not None and cast(TimedStore, stores[self._state]).is_marked(key)

    @staticmethod
    def _take_parked(frame: Frame) -> None:
        item = frame.item
        if isinstance(item, ParkedDue):
            item.forget(frame)
            frame.item = item.record

    # Failures ------------------------------------------------------------------------------

    def park(
        self, frame: Frame, stores: Stores, item: Item, attempt: int, delay_ms: int
    ) -> bool | None:
        """Park the record of a failed call until its next attempt.

        Args:
            frame: The frame of the record.
            stores: The stores of the task.
            item: The input of the call.
            attempt: Number of the attempt.
            delay_ms: Wait before the next one.

        Returns:
            Whether it is parked; None if it was parked for ``age_max_ms`` and gets no attempt.
        """
        store = cast(TimedStore, stores[self._state])
        now_ms, key = self._wall_ms(), item.key
        if type(key) is not bytes:
            return False  # Without a key it cannot be parked, and waits in its place.
        parked = _ParkedRows(frame.rows(store), store.codec, key)
        if isinstance(item, ParkedDue):
            if now_ms - item.parked.parked_ms >= self._limits.age_max_ms:
                return None
            again = msgspec.structs.replace(item.parked, attempt=attempt)
            parked.again(item.row, again, now_ms + delay_ms)
            return True
        record = self._parked(frame.record, attempt)
        if not self._fits(record, key):
            return False
        parked.add(record, now_ms + delay_ms)
        return True

    def _parked(self, record: ConsumerRecord, attempt: int) -> ParkedRecord:
        return ParkedRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.value,
            list(record.headers),
            attempt,
            self._wall_ms(),
        )

    def _fits(self, record: ParkedRecord, key: bytes) -> bool:
        """Whether the record fits into a changelog record."""
        size = sum(len(name) + len(value or b"") + 16 for name, value in record.headers)
        return len(record.value or b"") + len(key) + size + 256 <= self._bytes_max

    # What is due ---------------------------------------------------------------------------

    def waits_ms(self, stores: Stores) -> int | None:
        """Return the milliseconds until a parked record is due: 0 for now, None for none."""
        first_ms = cast(TimedStore, stores[self._state]).first_due_ms(BY_WALL)
        return None if first_ms is None else max(0, first_ms - self._wall_ms())

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """Return the next due parked record."""
        store, now_ms = cast(TimedStore, stores[self._state]), self._wall_ms()
        row = store.next_due(BY_WALL, now_ms)
        if row is None:
            return None
        key, _ = split(row[2:])
        return ParkedDue(store, row, key, _ParkedRows(store, store.codec, key).read(row), now_ms)
