"""Goal: a handler reads what it and earlier records wrote, in order, and a failed call leaves none.

Method: random writes, merges, drops, commits and aborts over a store and its layers, against plain
dictionaries; then the faces a handler gets, bound and made by itself, against lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onceflow.processors import (
    App,
    ListState,
    MapState,
    OutputRefusedError,
    ProcessingError,
    State,
    StateValueError,
)
from onceflow.processors.state.bytemap import Marks
from onceflow.processors.state.codec import ValueCodec
from onceflow.processors.state.faces import BoundState
from onceflow.processors.state.store import ABSENT, Layer, Store, ValueLayer, ValueStore
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.testing import TestDriver

KEYS = st.sampled_from([b"", b"a", b"ab", b"b", b"\x00", b"\xff", b"\xff\xff"])
VALUES = st.one_of(st.none(), st.binary(max_size=2))
Model = dict[bytes, bytes | None]


def seen(*layers: Model) -> dict[bytes, bytes]:
    """What the layers say together, the last one on top."""
    together: Model = {}
    for layer in layers:
        together |= layer
    return {key: value for key, value in together.items() if value is not None}


class Layers(RuleBasedStateMachine):
    """Committed map, unit, record and call, beside four dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.map = MemoryMap()
        self.map.apply({b"\x00\x02neighbour": b"x", b"\x00\x00own": b"x"}, Marks())
        self.store = Store("f.s", 1, self.map)
        self.record = Layer(self.store)
        self.call = Layer(self.record)
        self.models: list[Model] = [{}, {}, {}, {}]

    @rule(key=KEYS, value=VALUES)
    def write(self, key: bytes, value: bytes | None) -> None:
        self.call.put(key, value)
        self.models[3][key] = value

    @rule(succeeded=st.booleans())
    def end_call(self, succeeded: bool) -> None:
        if succeeded:
            self.call.merge()
            self.models[2] |= self.models[3]
        self.call, self.models[3] = Layer(self.record), {}

    @rule(succeeded=st.booleans())
    def end_record(self, succeeded: bool) -> None:
        self.end_call(succeeded)
        if succeeded:
            self.record.merge()
            self.models[1] |= self.models[2]
        self.record, self.models[2] = Layer(self.store), {}
        self.call = Layer(self.record)

    @rule(succeeded=st.booleans())
    def end_unit(self, succeeded: bool) -> None:
        self.end_record(succeeded)
        if succeeded:
            prefix = self.store.prefix
            self.map.apply({prefix + k: v for k, v in self.store.collect().items()}, Marks())
            self.store.committed()
            self.models[0] |= self.models[1]
        else:
            self.store.drop()
        self.models[1] = {}

    @rule(start=KEYS, end=st.one_of(st.none(), KEYS), reverse=st.booleans())
    def read_range(self, start: bytes, end: bytes | None, reverse: bool) -> None:
        for level, rows in ((2, self.store), (3, self.record), (4, self.call)):
            wanted = [
                entry
                for entry in sorted(seen(*self.models[:level]).items(), reverse=reverse)
                if entry[0] >= start and (end is None or entry[0] < end)
            ]
            assert list(rows.range(start, end, reverse=reverse)) == wanted

    @invariant()
    def single_reads(self) -> None:
        wanted = seen(*self.models)
        for key in (b"", b"a", b"ab", b"\xff"):
            assert self.call.get(key) == wanted.get(key)


Layers.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLayers = Layers.TestCase


@pytest.mark.parametrize("kind", [int, list[int]], ids=["atom", "object"])
def test_values_by_key_over_commits_and_aborts(kind: object) -> None:
    """Atoms stay at hand as objects; others are bytes: both say the same."""
    codec, found = ValueCodec(kind, "s"), MemoryMap()
    store = ValueStore("f.s", 1, found, codec)

    def of(number: int) -> object:
        return codec.keep(number if kind is int else [number])

    def read(values: ValueStore | ValueLayer, key: bytes) -> object:
        kept = values.load(key)
        return None if kept is ABSENT else codec.open(kept)

    def commit() -> None:
        found.apply({store.prefix + k: v for k, v in store.collect().items()}, Marks())
        store.committed()

    one, three = codec.open(of(1)), codec.open(of(3))
    assert read(store, b"k") is None
    store.save(b"k", of(1))
    assert read(store, b"k") == one
    commit()
    assert read(store, b"k") == one
    store.save(b"k", of(2))
    store.drop()
    assert read(store, b"k") == one
    layer = ValueLayer(store)
    layer.save(b"k", ABSENT)
    assert (read(layer, b"k"), read(store, b"k")) == (None, one)
    layer.merge()
    assert read(store, b"k") is None
    commit()
    assert (read(store, b"k"), found.get(store.prefix + b"k")) == (None, None)
    store.save(b"l", of(3))
    assert [key for key, _ in store.range(b"", None)] == [b"l"]
    assert codec.decode(b"l", store.get(b"l") or b"") == three


def test_values_at_hand_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.processors.state.store.CLEAN_MAX", 3)
    found = MemoryMap()
    store = ValueStore("f.s", 1, found, ValueCodec(int, "s"))
    for number in range(20):
        store.save(b"%d" % number, number)
        if number % 2:
            found.apply({store.prefix + k: v for k, v in store.collect().items()}, Marks())
            store.committed()
        assert store.load(b"%d" % (number // 2)) == number // 2
        assert len(store._clean) <= 3


# Faces ---------------------------------------------------------------------------------------


def driven(handler: Callable[..., object]) -> TestDriver:
    app = App("faces")
    app.processor("in", to="out", on_error="skip")(handler)
    return TestDriver(app)


def test_a_handler_is_a_function_also_with_state() -> None:
    def count(value: str, seen: State[int] = State(0)) -> int:  # noqa: B008 - declares its start
        seen.value += 1
        return seen.value

    assert count("a", State(4)) == 5
    driver = driven(count)
    for key in ("x", "x", "y"):
        driver.send("in", "a", key=key)
    assert driver.values("out", int) == [1, 2, 1]
    assert driver.state("count", "seen") == {b"x": 2, b"y": 1}


@pytest.mark.parametrize("read", [lambda state: state.get(), lambda state: state.value])
def test_a_new_key_is_looked_up_once(read: Callable[[State[int]], int | None]) -> None:
    class Counting(MemoryMap):
        reads = 0

        def get(self, key: bytes) -> bytes | None:
            self.reads += 1
            return super().get(key)

    map = Counting()
    store = ValueStore("f.s", 1, map, ValueCodec(int, "s"))
    assert read(cast("State[int]", BoundState(store, b"k", b"k", 7))) == 7
    assert map.reads == 1


def test_first_value_is_not_shared_between_keys() -> None:
    def gather(value: str, all: State[list[str]] = State([])) -> int:  # noqa: B008
        got = all.value
        got.append(value)
        all.value = got
        return len(got)

    driver = driven(gather)
    for key in ("x", "x", "y"):
        driver.send("in", "a", key=key)
    assert driver.values("out", int) == [1, 2, 1]


def test_map_of_a_key() -> None:
    def handle(value: str, seen: MapState[int, str]) -> list[str]:
        number = int(value)
        if number in seen:
            del seen[number]
        else:
            seen[number] = "v" + value
        if value == "13":
            raise ValueError("after the write")
        found = [f"{key}={text}" for key, text in seen.items()]
        assert list(reversed(found)) == [f"{k}={t}" for k, t in seen.range(reverse=True)]
        assert len(seen) == len(found)
        assert [key for key, _ in seen.range(0, 7)] == [key for key in seen if 0 <= key < 7]
        return [",".join(found)]

    driver = driven(handle)
    for value in ("5", "-3", "13", "7", "5", "40"):
        driver.send("in", value, key="k")
        driver.send("in", value, key="k\x00other")
    wanted = [b"5=v5", b"-3=v-3,5=v5", b"-3=v-3,5=v5,7=v7", b"-3=v-3,7=v7", b"-3=v-3,7=v7,40=v40"]
    assert driver.values("out") == [text for text in wanted for _ in range(2)]
    entries = {-3: "v-3", 7: "v7", 40: "v40"}
    assert driver.state("handle", "seen") == {b"k": entries, b"k\x00other": entries}


def test_list_of_a_key() -> None:
    def last_three(value: str, last: ListState[str]) -> str:
        last.append(value)
        if len(last) > 3:
            last.pop_first()
        if value == "bad":
            raise ValueError("after the write")
        assert (last[0], last[-1], last[1:]) == (next(iter(last)), value, list(last)[1:])
        return "".join(last)

    driver = driven(last_three)
    for value in ("a", "b", "bad", "c", "d", "e"):
        driver.send("in", value, key="k")
    assert driver.values("out") == [b"a", b"ab", b"abc", b"bcd", b"cde"]
    assert driver.state("last_three", "last") == {b"k": ["c", "d", "e"]}


def test_clearing(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(value: str, many: MapState[str, int], all: ListState[int]) -> str:
        if value == "clear":
            many.clear()
            all.clear()
        else:
            many[value] = 1
            all.extend([1, 2])
        return f"{list(many)}{list(all)}"

    driver = driven(handle)
    for value in ("a", "clear", "b"):
        driver.send("in", value, key="k")
    assert driver.values("out") == [b"['a'][1, 2]", b"[][]", b"['b'][1, 2]"]


def face_calls(face: object) -> Iterator[object]:
    assert isinstance(face, MapState)
    face[2] = "b"
    face[1] = "a"
    yield list(face.items())
    yield list(face.range(2))
    yield list(face.range(end=2, reverse=True))
    del face[2]
    yield (face.get(2, "none"), 1 in face, len(face))
    with pytest.raises(KeyError):
        face[9]
    with pytest.raises(KeyError):
        del face[9]
    yield repr(face)


def test_faces_made_by_themselves_behave_as_bound_ones() -> None:
    bound: list[object] = []

    def handle(value: str, many: MapState[int, str], all: ListState[int]) -> None:
        bound.extend(face_calls(many))
        all.extend([1, 2, 3])
        bound.append((all.pop_first(), list(all), all[-2], list(reversed(all)), repr(all)))
        all.clear()
        with pytest.raises(IndexError):
            all.pop_first()

    driven(handle).send("in", "a", key="k")
    alone: list[object] = [*face_calls(MapState())]
    many: ListState[int] = ListState([1, 2, 3])
    alone.append((many.pop_first(), list(many), many[-2], list(reversed(many)), repr(many)))
    assert bound == alone
    assert len(bound) == 6


def test_wrong_values_are_refused_when_they_are_set() -> None:
    refused: list[str] = []

    def handle(value: str, one: State[int], many: MapState[int, str], all: ListState[int]) -> None:
        for give in (
            lambda: one.set("a"),  # type: ignore[call-overload]
            lambda: many.__setitem__("a", "b"),  # type: ignore[arg-type]
            lambda: many.__setitem__(1, 2),  # type: ignore[arg-type]
            lambda: all.append(1.5),  # type: ignore[arg-type]
        ):
            with pytest.raises(StateValueError) as caught:
                give()
            refused.append(str(caught.value)[:20])

    driver = driven(handle)
    driver.send("in", "a", key="k")
    assert len(refused) == 4
    assert driver.state("handle", "one") == {}


def test_writes_after_the_record_are_refused() -> None:
    kept: list[object] = []

    def handle(value: str, many: MapState[int, str], all: ListState[int]) -> None:
        kept.extend([many, all])

    driven(handle).send("in", "a", key="k")
    many, all_ = kept
    assert isinstance(many, MapState)
    assert isinstance(all_, ListState)
    for write in (lambda: many.__setitem__(1, "a"), many.clear, lambda: all_.append(1), all_.clear):
        with pytest.raises(OutputRefusedError, match="was written after its record was finished"):
            write()


def test_map_and_list_need_a_key() -> None:
    app = App("keyless")

    @app.processor("in")
    def handle(value: str, many: MapState[int, str]) -> None:
        many[1] = "a"

    with pytest.raises(ProcessingError, match="the record has no key"):
        TestDriver(app).send("in", "a")
