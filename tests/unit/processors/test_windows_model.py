"""Goal: windows over disordered input give what a plain model gives, whatever dies in between.

Method: random rows go through the test driver, and through workers over the in-memory cluster that
are killed within every kind of call, that lose partitions, and whose units are small. Committed
results, late records and open windows are compared with those of ``window_models``.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processor_fakes import Entry
from processor_worlds import World
from window_models import Expected, Row, fixed, sessions

from onceflow.processors import App, Hopping, Session, Tumbling, Window, milliseconds
from onceflow.processors.nodes import window as work
from onceflow.processors.state.timed import split_window_row
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition

ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.integers(1, 9)), max_size=40
)
AnyWindow = Tumbling | Hopping | Session


def ms(count: int) -> timedelta:
    return milliseconds(count)


CASES: list[tuple[AnyWindow, Callable[[Sequence[Row]], Expected]]] = [
    (Tumbling(ms(50)), lambda rows: fixed(rows, 50, 50, 0)),
    (Tumbling(ms(50), grace=ms(35)), lambda rows: fixed(rows, 50, 50, 35)),
    (Hopping(ms(60), ms(25), grace=ms(10)), lambda rows: fixed(rows, 60, 25, 10)),
    (Session(ms(20)), lambda rows: sessions(rows, 20, 0)),
    (Session(ms(20), grace=ms(40)), lambda rows: sessions(rows, 20, 40)),
]
NAMES = ["tumbling", "tumbling with grace", "hopping", "sessions", "sessions with grace"]


def make(window: AnyWindow, store: str = "memory", commit_records: int = 10_000) -> App:
    """Collects the values of each window, and says which window it was."""
    app = App("shop", commit_records=commit_records)

    @app.aggregate("in", window=window, to="raw", late="late", store=store, merge=merging(window))
    def values(value: int, found: list[int] = []) -> list[int]:  # noqa: B006 - each window has its own
        found.append(value)  # Also what is changed in place counts.
        return found

    @app.processor(values, to="out", store=store)
    def show(found: list[int], key: str, window: Window) -> list[object]:
        return [json.dumps([key, window.start_ms, window.end_ms, sorted(found)])]

    return app


def merging(window: AnyWindow) -> Callable[[list[int], list[int]], list[int]] | None:
    return (lambda left, right: left + right) if isinstance(window, Session) else None


def results(values: Sequence[object]) -> collections.Counter[tuple[str, int, int, tuple[int, ...]]]:
    found = collections.Counter[tuple[str, int, int, tuple[int, ...]]]()
    for value in values:
        assert isinstance(value, bytes)
        key, start, end, parts = json.loads(value)
        found[(key, start, end, tuple(parts))] += 1
    return found


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(max_examples=120, deadline=None)
@given(rows=ROWS)
def test_windows_are_those_of_the_model(
    case: tuple[AnyWindow, Callable[[Sequence[Row]], Expected]], rows: list[Row]
) -> None:
    window, model = case
    driver = TestDriver(make(window))
    for key, time, value in rows:
        driver.send("in", value, key=key, timestamp_ms=time)
    wanted = model(rows)
    assert results(driver.values("out")) == wanted.closed
    late = [(r.key, r.timestamp_ms, int(r.value or b"")) for r in driver.outputs("late")]
    assert late == [(key.encode(), time, value) for key, time, value in wanted.late]


def test_results_have_the_last_millisecond_of_their_window() -> None:
    """Trap 71: a result has a time of its own, which no clock gives."""
    for window, stamp in ((Tumbling(ms(50)), 49), (Session(ms(20)), 7)):
        driver = TestDriver(make(window))
        driver.send("in", 1, key="a", timestamp_ms=7)
        driver.send("in", 1, key="a", timestamp_ms=500)
        assert [record.timestamp_ms for record in driver.outputs("raw")] == [stamp]
        assert [record.timestamp_ms for record in driver.outputs("out")] == [stamp]


def alone(
    window: AnyWindow, store: str = "memory", commit_records: int = 10_000, emit: str = "close"
) -> App:
    """Nothing takes its results, so records are folded in slices."""
    app = App("shop", commit_records=commit_records)

    @app.aggregate(
        "in",
        window=window,
        to="out",
        late="late",
        store=store,
        dead_letter="dead",
        merge=merging(window),
        emit=emit,
    )
    def values(value: int, found: list[int] = []) -> list[int]:  # noqa: B006 - one for each window
        if value == 9:
            raise ValueError(value)
        found.append(value)
        return sorted(found)

    return app


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, unit=st.sampled_from([1, 3, 100]), call=st.integers(0, 8))
def test_slices_are_folded_like_single_records(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[AnyWindow, Callable[[Sequence[Row]], Expected]],
    rows: list[Row],
    unit: int,
    call: int,
) -> None:
    """With records that fail, which move no time, with small units and a kill."""
    window, model = case
    world = World(tmp_path_factory.mktemp("slices"), "in")
    log = world.cluster.logs[TopicPartition("in", 0)]
    log += [Entry(k.encode(), b"%d" % v, (), t) for k, t, v in rows]
    faults = [("send_offsets_to_transaction", call, True)]
    run_with_kills(world, lambda: alone(window, "lmdb", unit), faults)
    wanted = model([row for row in rows if row[2] != 9])
    behind = 0 if isinstance(window, Session) else 1  # A session ends with its last record.
    found = collections.Counter(
        (entry.key, entry.timestamp_ms + behind, tuple(json.loads(entry.value)))
        for entry in world.cluster.logs[TopicPartition("out", 0)]
        if entry.state == "committed" and isinstance(entry.value, bytes)
    )
    assert found == collections.Counter(
        {(key.encode(), end, parts): n for (key, _, end, parts), n in wanted.closed.items()}
    )
    late = world.cluster.values("late")  # Also records that would fail, but meet no open window.
    assert [v for v in late if v != b"9"] == [b"%d" % row[2] for row in wanted.late]
    nines = late.count(b"9") + len(world.cluster.values("dead"))
    assert nines == sum(row[2] == 9 for row in rows)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, unit=st.sampled_from([1, 3, 100]))
def test_updates_of_slices_are_those_of_single_records(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[AnyWindow, Callable[[Sequence[Row]], Expected]],
    rows: list[Row],
    unit: int,
) -> None:
    world = World(tmp_path_factory.mktemp("updates"), "in")
    driver = TestDriver(alone(case[0], emit="update"))
    for key, time, value in rows:
        world.cluster.logs[TopicPartition("in", 0)].append(
            Entry(key.encode(), b"%d" % value, (), time)
        )
        driver.send("in", value, key=key, timestamp_ms=time)
    world.run(alone(case[0], "lmdb", unit, "update"))
    for topic in ("out", "late", "dead"):
        assert world.cluster.values(topic) == driver.values(topic)


class Killed(BaseException):
    """The process is gone."""


CALLS = ["poll", "send", "flush", "send_offsets_to_transaction", "commit_transaction"]
FAULTS = st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 12), st.booleans()), max_size=4)


def run_with_kills(world: World, app: Callable[[], App], faults: object) -> None:
    """Run workers until one comes to the end of the input; each is killed as the faults say."""

    def die() -> None:
        raise Killed

    for call, at, after in faults:  # type: ignore[attr-defined]
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


@pytest.mark.parametrize("store", ["memory", "lmdb"])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, faults=FAULTS, unit=st.sampled_from([1, 3, 100]))
def test_windows_survive_kills(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[AnyWindow, Callable[[Sequence[Row]], Expected]],
    store: str,
    rows: list[Row],
    faults: list[tuple[str, int, bool]],
    unit: int,
) -> None:
    window, model = case
    world = World(tmp_path_factory.mktemp("kills"), "in", partitions=2)
    for number in range(2):
        log = world.cluster.logs[TopicPartition("in", number)]
        log += [Entry(k.encode(), b"%d" % v, (), t) for k, t, v in rows[number::2]]
    run_with_kills(world, lambda: make(window, store, unit), faults)
    one, two = model(rows[0::2]), model(rows[1::2])
    assert results(world.cluster.values("out")) == one.closed + two.closed
    late = collections.Counter(world.cluster.values("late"))
    assert late == collections.Counter(b"%d" % row[2] for row in one.late + two.late)


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("at", range(12))
def test_windows_survive_rebalances(tmp_path: Path, at: int, lost: bool) -> None:
    """A partition goes at the k-th poll and comes back with the next one."""
    rows: list[Row] = [("a", 40 * n + (n % 3) * 35, n) for n in range(24)]
    world = World(tmp_path, "in", partitions=2)
    world.idle_polls_max = 14
    for number in range(2):
        log = world.cluster.logs[TopicPartition("in", number)]
        log += [Entry(k.encode(), b"%d" % v, (), t) for k, t, v in rows]
    both = [TopicPartition("in", 0), TopicPartition("in", 1)]
    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance(both[1:], lost=lost))
    world.cluster.do("poll", lambda: world.cluster.rebalance(both))
    world.run(make(Hopping(ms(60), ms(25), grace=ms(10)), commit_records=2))
    wanted = fixed(rows, 60, 25, 10)
    assert results(world.cluster.values("out")) == wanted.closed + wanted.closed


def test_a_record_looks_at_the_sessions_around_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a key with many open sessions, as with a long grace, it does not read them all."""
    driver = TestDriver(make(Session(ms(20), grace=ms(1_000_000))))
    for number in range(300):
        driver.send("in", 1, key="k", timestamp_ms=number * 100)
    looked: list[bytes] = []

    def split(row: bytes) -> tuple[bytes, int, int]:
        looked.append(row)
        return split_window_row(row)

    monkeypatch.setattr(work, "split_window_row", split)
    for time_ms in (29_900, 15_010, 15_050, 0):
        driver.send("in", 1, key="k", timestamp_ms=time_ms)
    assert len(looked) <= 4 * 2
