"""Goal: a timer calls its function once, when it is due, with the state as it is then.

Method: random programs of setting and cancelling against a dictionary, in the test driver and in
workers over the in-memory cluster that are killed; the driver's wall clock; wrong declarations.
"""

import collections
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import (
    App,
    Context,
    DeclarationError,
    EventTimeError,
    OutputRefusedError,
    ProcessingError,
    State,
    Timer,
    Timers,
    milliseconds,
    minutes,
)
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(-1, 60)), max_size=40
)


def make(store: str = "memory", **settings: object) -> App:
    """A value sets the timer so many milliseconds ahead; a negative one cancels it."""
    app = App("shop", **settings)  # type: ignore[arg-type]

    @app.processor("in", store=store)
    def watch(value: int, timers: Timers, seen: State[int]) -> None:
        seen.set(seen.get(0) + 1)
        if value < 0:
            timers.cancel()
        else:
            timers.set(after=milliseconds(value))

    @app.timer(watch, to="out")
    def come(key: str, timer: Timer, seen: State[int]) -> str:
        return f"{key} {timer.due_ms} {seen.get()}"

    return app


def model(steps: list[Step]) -> list[bytes]:
    found, due, seen, now = [], dict[str, int](), collections.Counter[str](), -1
    for key, time, value in steps:
        now = max(now, time)
        seen[key] += 1
        due.pop(key, None)
        if value >= 0:
            due[key] = time + value
        for when, ready in sorted((when, key) for key, when in due.items() if when <= now):
            found.append(f"{ready} {when} {seen[ready]}".encode())
            del due[ready]
    return found


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_timers_are_those_of_the_model(steps: list[Step]) -> None:
    driver = TestDriver(make())
    for key, time, value in steps:
        driver.send("in", value, key=key, timestamp_ms=time)
    assert driver.values("out") == model(steps)
    for record in driver.outputs("out"):
        assert str(record.timestamp_ms).encode() == (record.value or b"").split()[1]


class Killed(BaseException):
    """The process is gone."""


def die() -> None:
    raise Killed


@pytest.mark.parametrize("store", ["memory", "lmdb"])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=STEPS,
    call=st.sampled_from(["send", "flush", "send_offsets_to_transaction", "commit_transaction"]),
    at=st.integers(0, 20),
    after=st.booleans(),
    unit=st.sampled_from([1, 2, 100]),
)
def test_timers_survive_kills(
    tmp_path_factory: pytest.TempPathFactory,
    store: str,
    steps: list[Step],
    call: str,
    at: int,
    after: bool,
    unit: int,
) -> None:
    world = World(tmp_path_factory.mktemp("timers"), "in")
    for key, time, value in steps:
        entry = Entry(key.encode(), b"%d" % value, (), time)
        world.cluster.logs[TopicPartition("in", 0)].append(entry)
    for _ in range(at):
        world.cluster.do(call, lambda: None)
    world.cluster.do(call, die, after=after)
    try:
        world.run(make(store, commit_records=unit))
    except Killed:
        world.cluster.forget_faults()
        world.run(make(store, commit_records=unit))
    assert world.cluster.values("out") == model(steps)


def by_wall(ahead_ms: int, **settings: object) -> App:
    app = App("shop", **settings)  # type: ignore[arg-type]

    @app.processor("in", dead_letter="dead")
    def watch(value: str, timers: Timers) -> None:
        timers.set(value, after=milliseconds(ahead_ms), by_wall=True)
        if value == "bad":
            raise ValueError(value)

    @app.timer(watch, to="out")
    def come(key: str, timer: Timer, timers: Timers) -> str:
        if timer.name == "again":
            timers.set("last", after=milliseconds(5), by_wall=True)
        return f"{key} {timer.name} {timer.by_wall} {timers.get('one')}"

    return app


def test_timers_by_the_wall_clock_need_no_records() -> None:
    driver = TestDriver(by_wall(50), start_ms=1_000)
    for name in ("one", "again", "bad"):
        driver.send("in", name, key="k", timestamp_ms=7)
        driver.advance(10)
    driver.advance(19)
    assert driver.values("out") == []
    driver.advance(1)
    assert driver.values("out") == [b"k one True None"]
    driver.advance(20)
    assert driver.values("out")[1:] == [b"k again True None", b"k last True None"]


def test_timers_by_the_wall_clock_go_on_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, "in")
    world.idle_polls_max = 2
    world.cluster.logs[TopicPartition("in", 0)].append(Entry(b"k", b"one", (), 5))
    world.run(by_wall(60_000))
    assert world.cluster.values("out") == []
    world.idle_polls_max = 100
    world.run(by_wall(60_000))
    assert world.cluster.values("out") == [b"k one True None"]


def test_a_timer_function_that_fails_is_tried_again_and_then_follows_its_policy() -> None:
    app, calls = App("shop"), list[int]()

    @app.processor("in")
    def watch(value: str, timers: Timers) -> None:
        timers.set(after=milliseconds(10))

    @app.timer(watch, to="out", retries=2, dead_letter="dead")
    def come(key: str, context: Context) -> str:
        calls.append(context.attempt)
        if key == "bad":
            raise ValueError(key)
        return key

    driver = TestDriver(app)
    for key in ("bad", "good"):
        driver.send("in", "v", key=key, timestamp_ms=1)
    driver.send("in", "v", key="x", timestamp_ms=50)
    assert calls == [1, 2, 3, 1]
    assert driver.values("out") == [b"good"]
    assert [(r.key, r.timestamp_ms) for r in driver.dead_letters("dead")] == [(b"bad", 11)]


def test_timers_of_a_test() -> None:
    timers = Timers()
    assert timers.set(after=minutes(5)) == Timer("", 300_000)
    assert timers.set("x", at=datetime(1970, 1, 2, tzinfo=UTC), by_wall=True).by_wall
    assert timers.get("x") == Timer("x", 86_400_000, by_wall=True)
    assert Timer("", 60_000).due == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    timers.cancel("x")
    assert timers.get("x") is None
    for wrong in ({}, {"at": datetime(2024, 1, 1), "after": minutes(1)}):
        with pytest.raises(EventTimeError, match="give either at= or after="):
            timers.set(**wrong)  # type: ignore[arg-type]
    with pytest.raises(EventTimeError, match="has no zone"):
        timers.set(at=datetime(2024, 1, 1))
    timers._finish(True)
    for late in (lambda: timers.set(after=minutes(1)), timers.cancel):
        with pytest.raises(OutputRefusedError, match="after its record was finished"):
            late()


def test_a_record_without_a_key() -> None:
    with pytest.raises(ProcessingError, match="keeps state 'timers' by key"):
        TestDriver(make()).send("in", 1)


def test_declarations_that_cannot_work() -> None:
    app = App("shop")

    @app.processor("in")
    def watch(value: int, timers: Timers, seen: State[int]) -> None: ...

    @app.processor("in")
    def plain(value: int) -> None: ...

    def wrong_state(seen: State[str]) -> None: ...

    def other_state(others: State[int]) -> None: ...

    def with_value(value: int) -> None: ...

    def come(key: str) -> None: ...

    cases: list[tuple[object, Callable[..., object], str]] = [
        (plain, come, "sets no timers in this application"),
        (come, come, "sets no timers in this application"),
        (watch, wrong_state, "has the states of watch: seen, timers"),
        (watch, other_state, "has the states of watch"),
        (watch, with_value, "a timer has no record"),
    ]
    for owner, function, message in cases:
        with pytest.raises(DeclarationError, match=message):
            app.timer(owner)(function)  # type: ignore[arg-type]
    app.timer(watch)(come)
    with pytest.raises(DeclarationError, match="timers of watch call come already"):
        app.timer(watch, name="two")(come)

    def comes(value: int, timer: Timer) -> None: ...

    def several(value: int, one: Timers, two: Timers) -> None: ...

    for function, message in (
        (comes, "only functions of @app.timer"),
        (several, "several parameters annotated Timers"),
    ):
        with pytest.raises(DeclarationError, match=message):
            app.processor("in")(function)
