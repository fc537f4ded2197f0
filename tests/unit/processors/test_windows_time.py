"""Goal: event time, stream time and silence close windows when they should, and at no other time.

Method: the test driver with a clock of its own; workers over the in-memory cluster, whose clock
goes on with each empty poll; the committed offsets and calls of the cluster are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import App, EventTimeError, ProcessingError, Tumbling, milliseconds
from onceflow.processors.calls import InPlace
from onceflow.processors.clock import Timing
from onceflow.processors.notes import decode_note
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import IllegalGenerationError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.offset_notes import note_of

IN0 = TopicPartition("in", 0)


@dataclass
class Payment:
    cents: int
    paid_at: datetime


def summing(idle_ms: int | None = None, **settings: object) -> App:
    app = App("sums", **settings)  # type: ignore[arg-type]
    idle = None if idle_ms is None else milliseconds(idle_ms)

    @app.aggregate("in", window=Tumbling(milliseconds(50)), to="out", late="late", idle=idle)
    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    return app


def test_event_time_of_the_payload() -> None:
    app = App("shop")

    @app.aggregate(
        "payments", window=Tumbling(milliseconds(50)), time=lambda p: p.paid_at, to="sums"
    )
    def total(payment: Payment, cents: int = 0) -> int:
        return cents + payment.cents

    assert total(Payment(5, datetime.now(UTC)), 10) == 15
    driver = TestDriver(app)
    for time_ms in (10, 20, 70):
        paid_at = datetime.fromtimestamp(time_ms / 1000, UTC)
        driver.send("payments", Payment(1, paid_at), key="k", timestamp_ms=9_999)
    assert [(r.value, r.timestamp_ms) for r in driver.outputs("sums")] == [(b"2", 49)]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (datetime(2024, 1, 1), r"replace\(tzinfo=UTC\)"),
        (1.5, "must be a datetime"),
        (True, "must be a datetime"),
        (-1, "from 1970 on"),
        (datetime(1960, 1, 1, tzinfo=UTC), "from 1970 on"),
        (None, "must be a datetime"),
    ],
)
def test_times_that_nobody_can_understand_are_errors_of_their_record(
    given: object, hint: str
) -> None:
    with pytest.raises(EventTimeError, match=hint):
        Timing(lambda value: given).event_time_ms("f", None, 5)
    app = App("shop")

    @app.aggregate(
        "in", window=Tumbling(milliseconds(50)), time=lambda v: given, to="out", dead_letter="dead"
    )
    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    driver = TestDriver(app)
    driver.send("in", 1, key="k")
    assert [record.value for record in driver.dead_letters("dead")] == [b"1"]


def test_record_without_a_timestamp() -> None:
    assert Timing().event_time_ms("f", None, 7) == 7
    with pytest.raises(EventTimeError, match="declare time="):
        Timing().event_time_ms("f", None, -1)


def test_one_wrong_clock_closes_nothing(tmp_path: Path) -> None:
    """Trap 67: the record is refused, and those behind it are not late."""
    world = World(tmp_path, "in")
    log = world.cluster.logs[IN0]
    limit = world.now_ms + 1_000
    times = [limit - 10, limit + 10**6, limit - 9]
    log += [Entry(b"k", b"%d" % n, (), time) for n, time in enumerate(times)]
    app = App("sums", max_future_ms=1_000)

    @app.aggregate(
        "in", window=Tumbling(milliseconds(50)), to="out", late="late", dead_letter="dead"
    )
    def total(value: int, sum_: int = 0) -> int:
        return sum_ + value

    world.run(app)
    assert world.cluster.values("dead") == [b"1"]
    assert world.cluster.values("late") == []


def test_without_a_policy_a_wrong_clock_stops(tmp_path: Path) -> None:
    world = World(tmp_path, "in")
    world.cluster.logs[IN0].append(Entry(b"k", b"1", (), world.now_ms + 10**9))
    with pytest.raises(ProcessingError, match=r"raise max_future_ms \(3600000\)"):
        world.run(summing())


def test_silence_closes_windows() -> None:
    """Trap 69: as long after the last record as later records would have done it."""
    driver = TestDriver(summing(idle_ms=100))
    driver.send("in", 5, key="k", timestamp_ms=20)
    for step_ms, results in ((100, []), (29, []), (1, [b"5"])):
        driver.advance(step_ms)
        assert driver.values("out") == results
    driver.send("in", 6, key="k", timestamp_ms=49)  # Closed is closed.
    driver.send("in", 7, key="k", timestamp_ms=50)
    assert (driver.values("out"), driver.values("late")) == ([b"5"], [b"6"])


def test_without_the_bound_silence_closes_nothing() -> None:
    driver = TestDriver(summing())
    driver.send("in", 5, key="k", timestamp_ms=20)
    driver.advance(10**9)
    assert driver.values("out") == []


def silent(tmp_path: Path) -> World:
    """A world whose only record is long processed when its window closes."""
    world = World(tmp_path, "in")
    world.idle_polls_max = 40
    world.cluster.logs[IN0].append(Entry(b"k", b"5", (), 20))
    return world


def test_silence_is_committed_like_records(tmp_path: Path) -> None:
    """The offsets are committed again, so that a member that was replaced is refused, with a note
    of the changelog's new end."""
    world = silent(tmp_path)
    world.run(summing(idle_ms=1_000, commit_interval_ms=10))
    assert world.cluster.values("out") == [b"5"]
    calls = [
        c for c in world.cluster.calls if c in ("send_offsets_to_transaction", "commit_transaction")
    ]
    assert calls == ["send_offsets_to_transaction", "commit_transaction"] * 2
    committed = world.cluster.committed[IN0]
    note = decode_note(note_of(committed.metadata))
    assert committed.offset == 1
    assert note is not None
    assert (note.n, note.t) == (2, 50)
    log = world.cluster.logs[TopicPartition("sums-total-windows-changelog", 0)]
    assert note.s["total.windows"].end == len(log)


def test_silence_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The window closes by silence alone, in a worker that has processed nothing."""
    world = silent(tmp_path)
    world.idle_polls_max = 3
    world.run(summing(idle_ms=60_000, commit_interval_ms=10))
    assert world.cluster.values("out") == []
    world.idle_polls_max = 100
    world.run(summing(idle_ms=60_000, commit_interval_ms=10))
    assert world.cluster.values("out") == [b"5"]
    assert world.cluster.offset("in") == 1


def test_silence_in_a_replaced_member_writes_nothing(tmp_path: Path) -> None:
    world = silent(tmp_path)
    world.cluster.do("send_offsets_to_transaction", lambda: None)
    world.cluster.fail("send_offsets_to_transaction", IllegalGenerationError())
    world.run(summing(idle_ms=1_000, commit_interval_ms=10))
    assert world.cluster.values("out") == [b"5"]  # Once: the first attempt was aborted.
    states = [entry.state for entry in world.cluster.logs[TopicPartition("out", 0)]]
    assert states == ["aborted", "committed"]


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("early", [True, False], ids=["sent early", "held back"])
def test_partition_goes_while_a_result_of_silence_is_not_committed(
    tmp_path: Path, lost: bool, early: bool
) -> None:
    """The result is committed once: by the owner that gives the partition up, or by the next."""
    world = silent(tmp_path)
    worker = world.make(summing(idle_ms=5_000, commit_interval_ms=2_000))
    if not early:
        worker._unit.suspect({TopicPartition("other", 0): 10**9}, 10)  # Nothing is sent early.
    steps = [[], [IN0]]

    def go() -> None:
        if len(steps) == 1 or (steps and world.cluster.offset("in") == 1 and worker._unit.count):
            world.cluster.rebalance(steps.pop(0), lost=lost)

    world.cluster.do("poll", go, times=60)
    run_blocking(worker.run(InPlace()))
    assert steps == []
    assert world.cluster.values("out") == [b"5"]


def test_one_record_may_close_more_windows_than_a_unit_holds(tmp_path: Path) -> None:
    """Units of due rows alone; a record that comes in between is late all the same."""
    world = World(tmp_path, "in")
    log = world.cluster.logs[IN0]
    log += [Entry(b"k%02d" % n, b"1", (), 20) for n in range(30)]
    log += [Entry(b"z", b"1", (), 60), Entry(b"k00", b"1", (), 20)]
    world.run(summing(commit_records=4))
    assert world.cluster.values("out") == [b"1"] * 30
    assert world.cluster.values("late") == [b"1"]
    pairs = [
        c for c in world.cluster.calls if c in ("send_offsets_to_transaction", "commit_transaction")
    ]
    assert pairs == ["send_offsets_to_transaction", "commit_transaction"] * (len(pairs) // 2)
