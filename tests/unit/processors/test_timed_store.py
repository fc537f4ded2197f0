"""Goal: what a store of rows that fall due keeps in memory is what its map and its writes hold.

Method: random rows, marks, commits and aborts; after each step the store answers as one that was
just made over the same committed rows with the same writes.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onceflow.processors.state.bytemap import Marks
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.keys import close, pack_int
from onceflow.processors.state.timed import BY_STREAM, BY_WALL, MARK, ROW, TimedStore, timer_layout
from onceflow.processors.stores.memory import MemoryMap

KEYS = st.sampled_from([b"", b"a", b"ab", b"\x00", b"\xff"])
VALUES = st.one_of(st.none(), st.binary(max_size=2))
DUE_MS = 5


class Stores(RuleBasedStateMachine):
    """One store through commits and aborts."""

    def __init__(self) -> None:
        super().__init__()
        self.map = MemoryMap()
        self.store = self.new()

    def new(self) -> TimedStore:
        codec = ValueCodec(bytes, "rows")
        return TimedStore("f.timers", 1, self.map, codec, timer_layout().due_of)

    @rule(key=KEYS, value=VALUES)
    def mark(self, key: bytes, value: bytes | None) -> None:
        self.store.put(MARK + key, value)

    @rule(key=KEYS, clock=st.sampled_from([BY_STREAM, BY_WALL]), due_ms=st.integers(0, 9))
    def add(self, key: bytes, clock: bytes, due_ms: int) -> None:
        self.store.put(ROW + clock + close(key) + pack_int(due_ms), b"x")

    @rule(key=KEYS, clock=st.sampled_from([BY_STREAM, BY_WALL]), due_ms=st.integers(0, 9))
    def remove(self, key: bytes, clock: bytes, due_ms: int) -> None:
        row = ROW + clock + close(key) + pack_int(due_ms)
        if self.store.get(row) is not None:
            self.store.put(row, None)

    @rule()
    def finish_due(self) -> None:
        row = self.store.next_due(BY_WALL, DUE_MS)
        if row is not None:
            self.store.put(row, None)

    @rule()
    def commit(self) -> None:
        prefix = self.store.prefix
        self.map.apply({prefix + k: v for k, v in self.store.writes.items()}, Marks())
        self.store.committed()

    @rule()
    def abort(self) -> None:
        self.store.drop()

    @invariant()
    def answers_as_a_new_one(self) -> None:
        fresh = self.new()
        for key, value in self.store.writes.items():
            fresh.writes[key] = value
        for key in (b"", b"a", b"ab", b"\x00", b"\xff"):
            assert self.store.is_marked(key) == fresh.is_marked(key)
            assert self.store.get(MARK + key) == fresh.get(MARK + key)
        for clock in (BY_STREAM, BY_WALL):
            first_ms = self.store.first_due_ms(clock)
            assert first_ms == fresh.first_due_ms(clock)
            found = self.store.next_due(clock, DUE_MS)
            wanted = fresh.next_due(clock, DUE_MS)
            assert (found is None) == (wanted is None)
            # Among rows that are due, one that came meanwhile may wait for those read before it.
            assert found is None or self.store.get(found) is not None


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
