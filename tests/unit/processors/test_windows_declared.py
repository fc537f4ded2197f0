"""Goal: an aggregate that cannot work is refused where it is declared, with the remedy.

Method: wrong declarations, one fault each; ready aggregates over a few records; the arithmetic of
windows against a plain search.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from onceflow.processors import (
    App,
    Collect,
    Count,
    DeclarationError,
    Hopping,
    Max,
    Mean,
    Migration,
    Min,
    Output,
    ProcessingError,
    Ready,
    Reduce,
    Session,
    State,
    StateMismatchError,
    Sum,
    Tumbling,
    Window,
    days,
    hours,
    milliseconds,
    minutes,
    seconds,
)
from onceflow.processors.state.task_state import StateRules, TaskState
from onceflow.processors.stores.memory import MemoryMap
from onceflow.processors.testing import TestDriver
from onceflow.processors.windows import FixedFrames, frames_of

MINUTE = Tumbling(minutes(1))


def fold(value: int, total: int = 0) -> int:
    return value + total


def declared(function: Callable[..., object] = fold, **options: object) -> None:
    App("shop").aggregate(
        options.pop("topic", "in"),  # type: ignore[arg-type]
        **{"window": MINUTE, "to": "out", **options},  # type: ignore[arg-type]
    )(function)


def without_default(value: int, total: int) -> int:
    return value


def untyped(value: int, total=0) -> int:  # type: ignore[no-untyped-def]
    return value


def alone(value: int) -> int:
    return value


def untold(value: int):  # type: ignore[no-untyped-def]
    return value


NONE_SEEN = State[int](0)


def with_state(value: int, total: int = 0, seen: State[int] = NONE_SEEN) -> int:
    return value


def keyword_only(value: int, total: int = 0, *, key: str) -> int:
    return value


def wrong_default(value: int, total: int = "0") -> int:  # type: ignore[assignment]
    return value


def strange(value: int, total: Callable[[], None] = print) -> int:
    return value


async def waiting(value: int, total: int = 0) -> int:
    return value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tumbling(60), r"size=60: must be a timedelta, such as minutes\(1\)"),  # type: ignore[arg-type]
        (lambda: Tumbling(timedelta(0)), "size=.*at least 1 ms"),
        (lambda: Tumbling(timedelta(microseconds=1500)), "whole number of milliseconds"),
        (lambda: Tumbling(minutes(1), grace=-seconds(1)), "grace=.*not negative"),
        (lambda: Hopping(minutes(1), minutes(2)), "every=.*at most size="),
        (lambda: Hopping(minutes(1), seconds(0)), "every="),
        (lambda: Session(seconds(0)), "gap="),
        (lambda: declared(window=minutes(1)), r"fold: window=.*must be Tumbling\(...\)"),
        (lambda: declared(time="paid_at"), "time='paid_at': must be a function"),
        (lambda: declared(idle=5), "fold: idle=5: must be a timedelta"),
        (lambda: declared(emit="now"), "emit='now': choose from 'close', 'update'"),
        (lambda: declared(late="in"), "late records in the input topic 'in'"),
        (lambda: declared(late="a/b"), "late='a/b' is not a valid topic name"),
        (lambda: declared(fold=Sum), "fold=<class.*must be a ready aggregate, such as Sum"),
        (lambda: declared(fold=Sum()), "which of value, total gets the record's value"),
        (lambda: declared(merge=fold), "merge= is for Session windows"),
        (lambda: declared(window=Session(seconds(1)), merge=1), "merge=1: must be a function"),
        (lambda: declared(window=Session(seconds(1))), "give merge= a function"),
        (lambda: declared(without_default), "the accumulator 'total' needs a default"),
        (lambda: declared(untyped), "annotate the accumulator 'total'"),
        (lambda: declared(alone), r"a fold takes a value and an accumulator, .*; this takes value"),
        (lambda: declared(untold, fold=Sum()), "annotate what it returns"),
        (lambda: declared(with_state), "has no state but its accumulator"),
        (lambda: declared(keyword_only), "key: an aggregate takes no keyword-only"),
        (lambda: declared(wrong_default), "cannot hold '0'"),
        (lambda: declared(strange), "state 'windows' of strange: .*cannot decode"),
        (lambda: declared(waiting), "waiting is async"),
        (lambda: declared(topic=fold), "must be a topic, a list of topics, or a function"),
        (lambda: declared(migrations={"total": Migration(int)}), "its states are: windows"),
        (lambda: Collect(0), "values_max=0"),
        (lambda: Reduce(3), "combine=3"),  # type: ignore[arg-type]
        (lambda: Ready(abs, max, None), "merge=None: must be a function"),  # type: ignore[arg-type]
        (lambda: declared(stor="memory"), "aggregate has no such option; did you mean store"),
    ],
)
def test_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        make()


def test_results_that_go_nowhere() -> None:
    app = App("shop")
    app.aggregate("in", window=MINUTE)(fold)
    with pytest.raises(DeclarationError, match="fold returns int but has no to= topic"):
        app.topology()


def test_a_window_without_an_aggregate() -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match="only results of an aggregate have a window"):

        @app.processor("in", to="out")
        def show(value: int, window: Window) -> str:
            return ""


def test_what_follows_takes_what_a_window_gives() -> None:
    app = App("shop")
    app.aggregate("in", window=MINUTE, fold=Mean())(alone)
    with pytest.raises(DeclarationError, match="takes value: int, but alone gives float"):

        @app.processor(alone, to="out")
        def show(value: int) -> str:
            return ""


def test_functions_are_called_in_tests_like_any_other() -> None:
    declared()
    assert fold(5, 10) == 15
    assert Window(0, 60_000).end == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    assert (days(1), hours(1), minutes(1.5), milliseconds(3)) == (
        timedelta(1),
        timedelta(hours=1),
        timedelta(seconds=90),
        timedelta(milliseconds=3),
    )


@pytest.mark.parametrize(
    ("ready", "result"),
    [
        (Count(), b"3"),
        (Sum(), b"12"),
        (Mean(), b"4.0"),
        (Min(), b"2"),
        (Max(), b"7"),
        (Collect(), b"[3,7,2]"),
        (Reduce(lambda left, right: left * 10 + right), b"372"),
    ],
)
@pytest.mark.parametrize("window", [MINUTE, Session(seconds(30))], ids=["fixed", "session"])
def test_ready_aggregates(ready: Ready, result: bytes, window: Tumbling | Session) -> None:
    app = App("shop")

    @app.aggregate("in", window=window, to="out", fold=ready)
    def given(value: int) -> int | None:
        return value if value else None

    driver = TestDriver(app)
    for value in (3, 0, 7, 2):  # What gives None is no part of it.
        driver.send("in", value, key="k", timestamp_ms=1_000)
    driver.send("in", 1, key="k", timestamp_ms=10**6)
    assert driver.values("out") == [result]


def test_sessions_of_ready_aggregates_are_merged() -> None:
    app = App("shop")

    window = Session(milliseconds(10), grace=milliseconds(20))

    @app.aggregate("in", window=window, to="out", fold=Collect())
    def given(value: int) -> int:
        return value

    driver = TestDriver(app)
    for value, time_ms in ((1, 0), (2, 20), (3, 10), (4, 1_000)):
        driver.send("in", value, key="k", timestamp_ms=time_ms)
    assert driver.values("out") == [b"[1,2,3]"]


def test_a_value_that_gives_none_keeps_the_session_that_it_extends() -> None:
    app = App("shop")

    @app.aggregate("in", window=Session(milliseconds(10)), to="out", fold=Sum())
    def given(value: int) -> int | None:
        return value or None

    driver = TestDriver(app)
    for value, time_ms in ((1, 0), (0, 8), (2, 15), (4, 1_000)):
        driver.send("in", value, key="k", timestamp_ms=time_ms)
    assert driver.values("out") == [b"3"]


def test_collect_is_bounded() -> None:
    app = App("shop")

    @app.aggregate("in", window=MINUTE, to="out", fold=Collect(2))
    def given(value: int) -> int:
        return value

    driver = TestDriver(app)
    driver.send("in", 1, key="k")
    driver.send("in", 1, key="k")
    with pytest.raises(ProcessingError, match="more than 2 values in one window"):
        driver.send("in", 1, key="k")


def test_update_gives_a_result_for_each_record_and_none_at_the_end() -> None:
    app = App("shop")
    app.aggregate("in", window=MINUTE, to="out", emit="update")(fold)
    driver = TestDriver(app)
    for value, time_ms in ((1, 5), (2, 3), (9, 60_000)):
        driver.send("in", value, key="k", timestamp_ms=time_ms)
    assert [(r.value, r.timestamp_ms) for r in driver.outputs("out")] == [
        (b"1", 5),
        (b"3", 3),
        (b"9", 60_000),
    ]


def test_a_failing_record_leaves_nothing_in_a_window() -> None:
    """Neither a value nor its time."""
    app = App("shop")

    @app.aggregate("in", window=MINUTE, to="out", dead_letter="dead")
    def total(value: int, so_far: int = 0) -> int:
        if value < 0:
            raise ValueError(value)
        return so_far + value

    driver = TestDriver(app)
    for value, time_ms in ((1, 0), (-1, 10**6), (2, 0), (0, 60_000)):
        driver.send("in", value, key="k", timestamp_ms=time_ms)
    assert driver.values("out") == [b"3"]
    assert len(driver.dead_letters("dead")) == 1


def test_a_record_without_a_key() -> None:
    app = App("shop")
    app.aggregate("in", window=MINUTE, to="out")(fold)
    with pytest.raises(ProcessingError, match="keeps state 'windows' by key"):
        TestDriver(app).send("in", 1)


def test_what_follows_a_closed_window_may_fail() -> None:
    """Its dead letter has the window's result, key and time; the other windows are not held up."""
    app = App("shop")
    app.aggregate("in", window=MINUTE)(fold)

    @app.processor(fold, to="out", dead_letter="dead", retries=2)
    def show(total: int, key: str) -> Output:
        if key == "bad":
            raise ValueError(key)
        return Output(total, key=key)

    driver = TestDriver(app)
    for key in ("bad", "good"):
        driver.send("in", 4, key=key, timestamp_ms=5)
    driver.send("in", 4, key="good", timestamp_ms=60_000)
    assert [(r.key, r.value) for r in driver.outputs("out")] == [(b"good", b"4")]
    (letter,) = driver.dead_letters("dead")
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"bad", b"4", 59_999)


def test_a_result_that_cannot_be_written_is_given_up_once() -> None:
    """The window goes with its dead letter, and is not closed again and again."""
    app = App("shop")

    @app.aggregate("in", window=MINUTE, to="out", fold=Collect(), dead_letter="dead")
    def given(value: str) -> str:
        return value

    driver = TestDriver(app)
    for _ in range(3):
        driver.send("in", "x" * 400_000, key="k", timestamp_ms=5)
    driver.send("in", "y", key="k", timestamp_ms=60_000)
    driver.send("in", "y", key="k", timestamp_ms=120_000)
    assert (driver.values("out"), len(driver.dead_letters("dead"))) == ([b'["y"]'], 1)


def test_windows_that_changed_are_told_apart_from_stored_ones() -> None:
    """Totals of minutes are none of hours."""

    def specs(window: Tumbling) -> TaskState:
        app = App("shop")
        app.aggregate("in", window=window, to="out")(fold)
        return TaskState(app.topology().states, 0, StateRules("shop", 1, {}))

    stored = MemoryMap()
    specs(MINUTE).use(stored)
    specs(MINUTE).use(stored)
    with pytest.raises(StateMismatchError, match="windows of 60000 every 60000 grace 0: int"):
        specs(Tumbling(hours(1))).use(stored)


@pytest.mark.parametrize(
    "window",
    [
        Tumbling(milliseconds(7)),
        Hopping(milliseconds(10), milliseconds(3)),
        Hopping(*2 * [seconds(1)]),
    ],
)
def test_windows_of_a_time(window: Tumbling | Hopping) -> None:
    frames = frames_of(window)
    assert isinstance(frames, FixedFrames)
    for time_ms in (*range(40), 10**12):
        around = range(max(0, time_ms - 2_000), time_ms + 1)
        wanted = [
            start
            for start in around
            if start % frames.every_ms == 0 and start + frames.size_ms > time_ms
        ]
        assert list(frames.starts(time_ms)) == wanted
