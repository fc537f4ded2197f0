"""Goal: a result of a due row that the brokers refuse is that row's fault alone.

Windows, sessions, joins without a partner, timers and parked records give results that no record
causes. Such a result is found by halves, as that of a record, and follows the declared policy.

Method: real worker, ledger, session, tasks and stores over the in-memory cluster with a virtual
clock, whose brokers refuse every transaction that holds a certain output.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import (
    App,
    Collect,
    OnError,
    ProcessingError,
    Retries,
    Session,
    State,
    Timer,
    Timers,
    Tumbling,
    milliseconds,
)
from onceflow.sdk.errors import (
    InvalidRecordError,
    MessageTooLargeError,
    RecordError,
    TransactionAbortableError,
)
from onceflow.sdk.model.partitions import TopicPartition

KEYS = 30
DECLARED = {"dead_letter": "dead"}


def windows(**options: object) -> App:
    app = App("rows")

    @app.aggregate("in", window=Tumbling(milliseconds(50)), to="out", **options)  # type: ignore[arg-type]
    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    return app


def sessions(**options: object) -> App:
    app = App("rows")

    @app.aggregate(
        "in",
        window=Session(milliseconds(50)),
        to="out",
        merge=lambda a, b: a + b,
        **options,  # type: ignore[arg-type]
    )
    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    return app


def timers(**options: object) -> App:
    app = App("rows")

    @app.processor("in")
    def watch(value: int, timers: Timers, last: State[int]) -> None:
        last.set(value)
        timers.set(after=milliseconds(50))

    @app.timer(watch, to="out", **options)  # type: ignore[arg-type]
    def come(timer: Timer, last: State[int]) -> int | None:
        return last.get()

    return app


def join(**options: object) -> App:
    app = App("rows")

    @app.join("in", "other", within=milliseconds(50), kind="left", to="out", **options)  # type: ignore[arg-type]
    def both(left: int, right: int | None) -> int:
        return left

    return app


APPS: dict[str, Callable[..., App]] = {
    "windows": windows,
    "sessions": sessions,
    "timers": timers,
    "join": join,
}


def world_of(tmp_path: Path, app: str, bad: int = 13) -> World:
    """Every key has one row, and all of them are due at once; that of one key is refused."""
    world = World(tmp_path, *(("in", "other") if app == "join" else ("in",)))
    world.idle_polls_max = 60  # Nothing comes while rows are tried.
    for number in range(KEYS):
        put(world, b"k%d" % number, number, 10)
    put(world, b"last", 1_000, 1_000)
    refuse(world, b"%d" % bad, MessageTooLargeError())
    return world


def put(world: World, key: bytes, value: int, time_ms: int, topic: str = "in") -> None:
    entry = Entry(key, b"%d" % value, timestamp_ms=time_ms)
    world.cluster.logs[TopicPartition(topic, 0)].append(entry)


def refuse(world: World, value: bytes, error: RecordError, topic: str = "out") -> None:
    def look() -> None:
        log = world.cluster.logs[TopicPartition(topic, 0)]
        if any(entry.value == value and entry.state == "open" for entry in log):
            raise error

    world.cluster.do("flush", look, times=1_000)


def letters(world: World) -> list[tuple[object, object]]:
    log = world.cluster.logs[TopicPartition("dead", 0)]
    return [(entry.key, entry.value) for entry in log if entry.state == "committed"]


@pytest.mark.parametrize("bad", [0, 13, KEYS - 1])
@pytest.mark.parametrize("name", APPS)
def test_result_that_is_refused_becomes_a_dead_letter(
    tmp_path: Path, name: str, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of(tmp_path, name, bad)
    world.run(APPS[name](**DECLARED))
    wanted = [b"%d" % number for number in range(KEYS) if number != bad]
    assert sorted(world.cluster.values("out")) == sorted(wanted)  # type: ignore[type-var]
    value = b"%d" % bad if name == "join" else None  # What was read is kept whole.
    assert letters(world) == [(b"k%d" % bad, value)]
    assert world.cluster.offset("in") == KEYS + 1
    assert "cannot be delivered" in caplog.text
    world.cluster.forget_faults()
    put(world, b"k", 2_000, 2_000)
    world.run(APPS[name](**DECLARED))  # It was due once.
    assert len(world.cluster.values("out")) == KEYS
    assert len(letters(world)) == 1


@pytest.mark.parametrize("name", APPS)
def test_result_that_is_refused_stops_where_that_is_declared(tmp_path: Path, name: str) -> None:
    """It is not lost: with a topic that takes it the next start gives it."""
    world = world_of(tmp_path, name)
    with pytest.raises(ProcessingError, match="MessageTooLargeError"):
        world.run(APPS[name]())
    assert b"13" not in world.cluster.values("out")
    world.cluster.forget_faults()
    world.run(APPS[name]())
    values = world.cluster.values("out")
    assert sorted(values) == sorted(b"%d" % number for number in range(KEYS))  # type: ignore[type-var]


@pytest.mark.parametrize("name", APPS)
def test_result_that_is_refused_is_skipped_where_that_is_declared(
    tmp_path: Path, name: str
) -> None:
    world = world_of(tmp_path, name)
    world.run(APPS[name](on_error=OnError.SKIP))
    assert len(world.cluster.values("out")) == KEYS - 1


def test_value_of_a_window_is_in_its_dead_letter(tmp_path: Path) -> None:
    """Where it is not its size that is refused."""
    world = world_of(tmp_path, "windows")
    world.cluster.forget_faults()
    refuse(world, b"13", InvalidRecordError())
    world.run(windows(**DECLARED))
    assert letters(world) == [(b"k13", b"13")]


def test_window_whose_dead_letter_is_refused_too_stops(tmp_path: Path) -> None:
    world = world_of(tmp_path, "windows")
    world.cluster.forget_faults()

    def look() -> None:
        logs = (world.cluster.logs[TopicPartition(topic, 0)] for topic in ("out", "dead"))
        values = [entry.value for log in logs for entry in log if entry.state == "open"]
        if b"13" in values or None in values:
            raise MessageTooLargeError()

    world.cluster.do("flush", look, times=1_000)
    with pytest.raises(ProcessingError, match=r"neither the outputs of a row of total.* nor its"):
        world.run(windows(**DECLARED))


def test_dead_letter_of_a_window_whose_transaction_is_aborted_is_sent_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, "in")
    put(world, b"a", 1, 10)
    put(world, b"b", 2, 1_000)
    world.run(windows(**DECLARED))
    put(world, b"a", 3, 3_000)  # b's window is due behind it.
    refuse(world, b"2", MessageTooLargeError())
    whole = world.cluster.end

    aborted = []

    def end(transactional_id: str, *, commit: bool) -> None:
        log = world.cluster.logs[TopicPartition("dead", 0)]
        if commit and log and not aborted:
            aborted.append(True)
            raise TransactionAbortableError()
        whole(transactional_id, commit=commit)

    world.cluster.end = end  # type: ignore[method-assign]
    world.run(windows(**DECLARED))
    assert aborted
    assert letters(world) == [(b"b", None)]


def test_several_results_are_found_one_after_the_other(tmp_path: Path) -> None:
    world = world_of(tmp_path, "windows", 3)
    world.cluster.forget_faults()

    def look() -> None:
        bad = {b"3", b"4", b"20"}
        log = world.cluster.logs[TopicPartition("out", 0)]
        if any(entry.value in bad and entry.state == "open" for entry in log):
            raise MessageTooLargeError()

    world.cluster.do("flush", look, times=1_000)
    app = windows(**DECLARED)
    app.configure(aborts_max=6)  # What is found begins a new count.
    world.run(app)
    assert sorted(key for key, _ in letters(world)) == [b"k20", b"k3", b"k4"]  # type: ignore[type-var]
    assert len(world.cluster.values("out")) == KEYS - 3


def test_result_of_a_parked_record_that_is_refused_becomes_a_dead_letter(tmp_path: Path) -> None:
    world = World(tmp_path, "in")
    world.idle_polls_max = 40
    failed: set[str] = set()
    app = App("parks")

    @app.processor(
        "in", to="out", park=True, retries=Retries(3, only=(LookupError,)), dead_letter="dead"
    )
    def shout(value: str) -> str:
        if value not in failed:
            failed.add(value)
            raise LookupError(value)
        return value.upper()

    world.cluster.put("in", b"a", b"b", b"c", key=b"k")
    refuse(world, b"B", MessageTooLargeError())
    world.run(app)
    assert world.cluster.values("out") == [b"A", b"C"]
    assert letters(world) == [(b"k", b"b")]


def test_collected_values_that_are_too_many_are_a_dead_letter_without_a_value(
    tmp_path: Path,
) -> None:
    """Nothing is sent of a result that the producer refuses; its letter would be as large."""
    world = World(tmp_path, "in")
    app = App("rows")
    app.configure(client={"max_request_size": 2_000})

    @app.aggregate("in", window=Tumbling(milliseconds(50)), to="out", fold=Collect(), **DECLARED)  # type: ignore[arg-type]
    def all_of(value: str) -> str:
        return value

    for _ in range(3):
        world.cluster.logs[TopicPartition("in", 0)].append(Entry(b"k", b"x" * 900, timestamp_ms=1))
    put(world, b"last", 1, 1_000)
    world.run(app)
    assert letters(world) == [(b"k", None)]
