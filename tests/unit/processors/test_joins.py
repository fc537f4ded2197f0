"""Goal: joins give what a plain model gives, over disordered input and whatever dies in between.

Method: random rows of two topics go through the test driver, and through workers over the in-memory
cluster that are killed; results, their times and late records are compared with ``window_models``.
Joins of tables are compared with two dictionaries. Wrong declarations, one fault each.
"""

import collections
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processor_fakes import Entry
from processor_worlds import World
from window_models import joined

from onceflow.processors import App, DeclarationError, ProcessingError, State, milliseconds
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition

Row = tuple[str, str, int, int]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.sampled_from("ab"),
        st.integers(0, 200),
        st.integers(0, 99),
    ),
    max_size=40,
)
KINDS = ["inner", "left", "outer"]


def make(kind: str, grace: int, store: str = "memory", **settings: object) -> App:
    app = App("shop", **settings)  # type: ignore[arg-type]

    @app.join(
        "left",
        "right",
        within=milliseconds(20),
        grace=milliseconds(grace),
        kind=kind,
        to="out",
        late="late",
        store=store,
    )
    def pair(left: int | None, right: int | None, key: str) -> str:
        return json.dumps([key, left, right])

    return app


def results(records: Sequence[tuple[object, int]]) -> collections.Counter[object]:
    found = collections.Counter[object]()
    for value, time_ms in records:
        assert isinstance(value, bytes)
        found[(*json.loads(value), time_ms)] += 1
    return found


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=120, deadline=None)
@given(rows=ROWS)
def test_joins_are_those_of_the_model(kind: str, grace: int, rows: list[Row]) -> None:
    driver = TestDriver(make(kind, grace))
    for side, key, time, value in rows:
        driver.send(side, value, key=key, timestamp_ms=time)
    wanted, late = joined(rows, 20, grace, kind)
    assert results([(r.value, r.timestamp_ms) for r in driver.outputs("out")]) == wanted
    assert [int(record.value or b"") for record in driver.outputs("late")] == late


class Killed(BaseException):
    """The process is gone."""


def die() -> None:
    raise Killed


CALLS = ["poll", "send", "flush", "send_offsets_to_transaction", "commit_transaction"]


@pytest.mark.parametrize("store", ["memory", "lmdb"])
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=ROWS,
    faults=st.lists(
        st.tuples(st.sampled_from(CALLS), st.integers(0, 15), st.booleans()), max_size=4
    ),
    unit=st.sampled_from([1, 3, 100]),
)
def test_joins_survive_kills(
    tmp_path_factory: pytest.TempPathFactory,
    kind: str,
    store: str,
    rows: list[Row],
    faults: list[tuple[str, int, bool]],
    unit: int,
) -> None:
    """Rows come in order of time on each side, so the task takes them in one order."""
    world = World(tmp_path_factory.mktemp("joins"), "left", "right")
    ordered = sorted(rows, key=lambda row: (row[2], row[0]))
    for side, key, time, value in ordered:
        entry = Entry(key.encode(), b"%d" % value, (), time)
        world.cluster.logs[TopicPartition(side, 0)].append(entry)

    def app() -> App:
        return make(kind, 0, store, commit_records=unit)

    for call, at, after in faults:
        world.cluster.forget_faults()
        for _ in range(at):
            world.cluster.do(call, lambda: None)
        world.cluster.do(call, die, after=after)
        try:
            world.run(app())
        except Killed:
            continue
    world.cluster.forget_faults()
    world.run(app())
    log = world.cluster.logs[TopicPartition("out", 0)]
    found = [(e.value, e.timestamp_ms) for e in log if e.state == "committed"]
    wanted, late = joined(ordered, 20, 0, kind)
    assert (results(found), late) == (wanted, [])


def test_results_without_a_partner_wait_for_the_end_of_grace() -> None:
    """Trap 73: neither too early nor never."""
    driver = TestDriver(make("left", 30))
    driver.send("left", 1, key="a", timestamp_ms=100)
    driver.send("left", 2, key="b", timestamp_ms=150)
    assert driver.values("out") == []
    driver.send("right", 3, key="b", timestamp_ms=151)
    assert driver.values("out") == [b'["b", 2, 3]', b'["a", 1, null]']


def test_silence_ends_the_wait() -> None:
    app = App("shop")

    @app.join("left", "right", within=milliseconds(20), kind="left", to="out", idle=milliseconds(5))
    def pair(left: int, right: int | None) -> str:
        return f"{left} {right}"

    assert pair(1, None) == "1 None"
    driver = TestDriver(app)
    driver.send("left", 1, key="a", timestamp_ms=100)
    driver.advance(25)
    assert driver.values("out") == []
    driver.advance(1)
    assert driver.values("out") == [b"1 None"]


def test_both_sides_are_taken_by_the_time_in_their_values(tmp_path: Path) -> None:
    """The timestamps would have it the other way, and the payments would be late."""
    app = App("shop")

    @app.join("left", "right", within=milliseconds(20), time=lambda v: v, kind="left", to="out")
    def pair(left: int, right: int | None) -> str:
        return f"{left} {right}"

    world = World(tmp_path, "left", "right")
    for number in range(10):
        for topic, stamp in (("left", 5), ("right", 900)):
            entry = Entry(b"k", b"%d" % (100 * number), (), stamp + number)
            world.cluster.logs[TopicPartition(topic, 0)].append(entry)
    world.cluster.logs[TopicPartition("right", 0)].append(Entry(b"k", b"no time", (), 950))
    with pytest.raises(ProcessingError, match=r"right-0@10 .* does not fit int"):
        world.run(app)
    assert world.cluster.values("out") == [b"%d %d" % (n, n) for n in range(0, 1000, 100)]


def test_a_failing_join_leaves_no_trace() -> None:
    app = App("shop")

    @app.join("left", "right", within=milliseconds(20), to="out", dead_letter="dead")
    def pair(left: int, right: int) -> int:
        if right < 0:
            raise ValueError(right)
        return left + right

    driver = TestDriver(app)
    for topic, value in (("left", 1), ("right", -1), ("left", 2), ("right", 5)):
        driver.send(topic, value, key="k", timestamp_ms=10)
    assert driver.values("out") == [b"6", b"7"]
    assert [record.value for record in driver.dead_letters("dead")] == [b"-1"]


def test_a_record_without_a_key() -> None:
    with pytest.raises(ProcessingError, match="keeps state 'buffer' by key"):
        TestDriver(make("inner", 0)).send("left", 1)


def test_results_may_be_processed_further() -> None:
    app = App("shop")

    @app.join("left", "right", within=milliseconds(20))
    def pair(left: int, right: int) -> int:
        return left + right

    @app.processor(pair, to="out")
    def add(sum_: int, key: str, total: State[int]) -> str:
        total.set(total.get(0) + sum_)
        return f"{key}{total.get()}"

    driver = TestDriver(app)
    for topic, value in (("left", 1), ("right", 2), ("right", 5)):
        driver.send(topic, value, key="k", timestamp_ms=10)
    assert driver.values("out") == [b"k3", b"k9"]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from("kl"),
        st.one_of(st.none(), st.integers(0, 9)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None)
@given(changes=CHANGES)
def test_tables_are_joined_like_dictionaries(
    kind: str, changes: list[tuple[str, str, int | None]]
) -> None:
    app = App("shop")
    a, b = app.table("a", int), app.table("b", int)

    @app.join(a, b, kind=kind, to="out")
    def pair(left: int | None, right: int | None) -> str:
        return f"{left},{right}"

    driver = TestDriver(app)
    rows: dict[str, dict[str, int]] = {"a": {}, "b": {}}

    def row(key: str) -> bytes | None:
        left, right = rows["a"].get(key), rows["b"].get(key)
        needed = {"inner": (left, right), "left": (left,), "outer": ()}[kind]
        if None in needed or (left is None and right is None):
            return None
        return f"{left},{right}".encode()

    wanted: list[tuple[bytes, bytes | None]] = []
    for topic, key, value in changes:
        before = row(key)
        driver.send(topic, value, key=key)
        if value is None:
            rows[topic].pop(key, None)
        else:
            rows[topic][key] = value
        if (before, row(key)) != (None, None):
            wanted.append((key.encode(), row(key)))
    assert [(record.key, record.value) for record in driver.outputs("out")] == wanted


@dataclass
class Order:
    number: int


def declared(function: Callable[..., object], **options: object) -> None:
    app = App("shop")
    options = {"within": milliseconds(5), "to": "out", **options}
    left, right = options.pop("left", "left"), options.pop("right", "right")
    app.join(left, right, **options)(function)  # type: ignore[arg-type]


def both(left: int, right: int) -> int:
    return left


def one(left: int) -> int:
    return left


def with_state(left: int, right: int, seen: State[int]) -> int:
    return left


async def waiting(left: int, right: int) -> int:
    return left


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (both, {"right": "left"}, "left and right are both 'left'"),
        (both, {"right": both}, "right=<function both.*must be a topic, or a function that"),
        (both, {"within": None}, "within= is missing"),
        (both, {"within": 5}, "within=5: must be a timedelta"),
        (both, {"grace": 5}, "grace=5: must be a timedelta"),
        (both, {"kind": "full"}, "kind='full': choose from 'inner', 'left', 'outer'"),
        (both, {"kind": "left"}, r"right: int: kind='left' also gives.*write int \| None"),
        (both, {"kind": "outer"}, r"left: int: kind='outer'"),
        (both, {"to": "right"}, "own input topic 'right'"),
        (both, {"late": "left"}, "late records in the input topic"),
        (one, {}, "a join takes a value of each side; this takes left"),
        (with_state, {}, "function takes the two values and key only"),
        (waiting, {}, "is async"),
    ],
)
def test_refused(function: Callable[..., object], options: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declared(function, **options)


def test_joins_of_tables_that_cannot_work() -> None:
    app = App("shop")
    a, b = app.table("a", int), app.table("b", int)
    other = App("other").table("c", int)
    with pytest.raises(DeclarationError, match="within= is for joins of two streams"):
        app.join(a, b, within=milliseconds(1), to="out")(both)
    with pytest.raises(DeclarationError, match="both table 'a'"):
        app.join(a, a, to="out")(both)
    with pytest.raises(DeclarationError, match="table 'c' belongs to another application"):
        app.join(a, other, to="out")(both)
    with pytest.raises(DeclarationError, match="give the stream as left and the table as right"):
        app.join(b, "x", to="out")(both)


def test_a_result_that_goes_nowhere() -> None:
    app = App("shop")
    app.join("left", "right", within=milliseconds(1))(both)
    with pytest.raises(DeclarationError, match="both returns int but has no to= topic"):
        app.topology()


def test_inputs_of_a_join_lie_alike(tmp_path: Path) -> None:
    world = World(tmp_path, "left", "right", partitions=2)
    both_topics = world.topics
    assert both_topics["left"].partitions == 2
    world.run(make("inner", 0))
    assert world.topics["shop-pair-buffer-changelog"].partitions == 2
