"""Goal: an application with a sink stores each record's rows once, whatever fails around a commit.

Method: real worker, ledger, tasks and sink (SQLite) over the in-memory cluster with a virtual
clock. Workers die at each step of a write, answers of the sink are lost, other owners claim
partitions, rows are refused, partitions go and come back.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from processor_worlds import World

from onceflow.processors import App, ProcessingError, Retries, TooManyAbortsError
from onceflow.processors.calls import InPlace
from onceflow.sdk.errors import DeliveryTimeoutError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import AbortReason
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.sinks import SinkOffsetsMovedError, SinkSharedError, Sqlite

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
STEPS = ("begin", "offsets read", "rows", "offsets", "commit")
COUNT = 10


class Died(BaseException):
    """Stands for the death of the process."""


class Rig:
    """A world, a file, and applications that write to it.

    Attributes:
        at: What happens at a moment of a transaction, such as ``before commit``; once.
        skip: Transactions before that: a first start claims, and stores where it begins.
    """

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, "in", partitions=2)
        self.path = directory / "rows.db"
        self.at: dict[str, Callable[[], None]] = {}
        self.skip = 2
        self.polluted: set[str] = set()
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            database.execute("CREATE TABLE rows (place TEXT PRIMARY KEY, CHECK (place != 'bad'))")

    def observe(self, moment: str) -> None:
        self.skip -= moment == "before begin"
        action = self.at.pop(moment, None) if self.skip < 0 else None
        if action is not None:
            action()

    def sink(self) -> Sqlite:
        return Sqlite(self.path, "rows", observer=self.observe)

    def app(self, **settings: object) -> App:
        app = App("rows", **{"commit_interval_ms": 10, **settings})  # type: ignore[arg-type]

        @app.sink("in", self.sink(), dead_letter="letters", retries=Retries(1, backoff_ms=10))
        def store(value: str) -> dict[str, object]:
            if value in self.polluted:
                raise ValueError(value)
            return {"place": value}

        return app

    def put(self, start: int = 0, count: int = COUNT) -> None:
        for number in range(start, start + count):
            self.world.cluster.put("in", b"%d" % number, partition=number % 2)

    def run(self, **settings: object) -> None:
        self.world.run(self.app(**settings))

    def rows(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            return sorted((row[0] for row in database.execute("SELECT place FROM rows")), key=int)

    def stored(self) -> dict[TopicPartition, int | None]:
        sink = Sqlite(self.path, "rows")
        sink.open("rows")
        try:
            return {tp: entry.offset for tp, entry in sink.stored([IN0, IN1]).items()}
        finally:
            sink.close()

    def claim(self) -> None:
        """Another owner comes."""
        sink = Sqlite(self.path, "rows")
        sink.open("rows")
        sink.claim([IN0], "other")
        sink.close()

    def expect(self, count: int = COUNT) -> None:
        assert self.rows() == [str(number) for number in range(count)]
        assert self.stored() == {IN0: (count + 1) // 2, IN1: count // 2}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def dies() -> None:
    raise Died


def reset() -> None:
    raise OSError("connection reset")


def test_rows_and_offsets_are_stored_and_kafka_commits_nothing(rig: Rig) -> None:
    rig.put()
    rig.run()
    rig.expect()
    calls = rig.world.cluster.calls
    assert not {"init_transactions", "begin_transaction", "plain producer"} & set(calls)
    assert rig.world.cluster.offset("in", 0) == COUNT // 2  # for the lag
    rig.put(COUNT)
    rig.run()
    rig.expect(2 * COUNT)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("skip", range(4))
def test_a_death_at_each_step_of_a_write_stores_all_or_nothing(
    rig: Rig, step: str, when: str, skip: int
) -> None:
    """Of the claim, of the first offsets, and of two commits of four records."""
    rig.put()
    rig.skip = skip
    rig.at[f"{when} {step}"] = dies
    with pytest.raises(Died):
        rig.run(commit_records=4)
    done = rig.rows()
    assert len(done) == len(set(done))
    assert sum(offset or 0 for offset in rig.stored().values()) == len(done)
    rig.at.clear()
    rig.run(commit_records=4)
    rig.expect()


@pytest.mark.parametrize("moment", ["before commit", "after commit"])
def test_a_commit_without_an_answer_is_looked_up(rig: Rig, moment: str) -> None:
    """With further records polled and not processed, which go on behind it."""
    rig.put(count=40)
    rig.at[moment] = reset
    rig.run(commit_records=4)
    rig.expect(40)


def test_an_answer_lost_before_the_commit_counts_an_abort(rig: Rig) -> None:
    rig.put()
    worker = rig.world.make(rig.app())
    rig.at["before commit"] = reset
    run_blocking(worker.run(InPlace()))
    assert worker.figures.aborted_units == {AbortReason.OUTCOME_UNKNOWN: 1}
    rig.expect()


def test_an_owner_that_was_replaced_stores_nothing_and_goes_on_behind_the_other(rig: Rig) -> None:
    rig.put()
    worker = rig.world.make(rig.app())
    rig.at["before begin"] = rig.claim
    run_blocking(worker.run(InPlace()))
    rig.expect()


def test_two_live_owners_end_the_worker(rig: Rig) -> None:
    rig.put()

    def claim() -> None:
        rig.claim()
        rig.at["before begin"] = claim

    rig.at["before begin"] = claim
    with pytest.raises(SinkSharedError, match="group_id"):
        rig.run()


def test_a_sink_that_is_away_for_a_while_costs_no_record(rig: Rig) -> None:
    rig.put()
    left = [3]

    def away() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        left[0] -= 1
        if left[0] > 0:
            rig.at["before begin"] = away
        raise error

    rig.at["before begin"] = away
    worker = rig.world.make(rig.app())
    run_blocking(worker.run(InPlace()))
    rig.expect()


def test_a_sink_that_stays_away_ends_the_worker(rig: Rig) -> None:
    rig.put()

    def away() -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        rig.at["before rows"] = away
        raise error

    rig.at["before rows"] = away
    with pytest.raises(TooManyAbortsError, match="disk I/O error"):
        rig.run(aborts_max=4)
    assert rig.rows() == []


def test_a_row_that_the_sink_refuses_becomes_a_dead_letter(rig: Rig) -> None:
    """Found by halves; every other record's row is stored."""
    rig.put(count=9)
    rig.world.cluster.put("in", b"bad", partition=1)
    rig.put(start=9)
    rig.run()
    assert rig.rows() == [str(number) for number in range(19)]
    assert rig.world.cluster.values("letters") == [b"bad"]


def test_a_row_that_the_sink_refuses_ends_the_worker_where_the_policy_says_so(rig: Rig) -> None:
    app = App("rows", commit_interval_ms=10)

    @app.sink("in", rig.sink())
    def store(value: str) -> dict[str, object]:
        return {"place": value}

    rig.put(count=3)
    rig.world.cluster.put("in", b"bad")
    with pytest.raises(ProcessingError, match=r"in-0@2.*CHECK|CHECK"):
        rig.world.run(app)
    assert {"0", "2"} <= set(rig.rows()) <= {"0", "1", "2"}


def test_dead_letters_are_acknowledged_before_the_sinks_commit(rig: Rig) -> None:
    """A death in between repeats the letter, and loses none."""
    rig.put()
    rig.polluted = {"3"}
    rig.at["before commit"] = dies
    with pytest.raises(Died):
        rig.run()
    assert rig.world.cluster.values("letters") == [b"3"]
    rig.run()
    assert rig.rows() == [str(number) for number in range(COUNT) if number != 3]
    assert rig.world.cluster.values("letters") == [b"3", b"3"]
    assert rig.world.cluster.calls.count("flush") > 0


def test_a_dead_letter_that_cannot_be_sent_stores_nothing_beside_it(rig: Rig) -> None:
    rig.put()
    rig.polluted = {"3"}
    rig.world.cluster.fail("flush", DeliveryTimeoutError("late"))
    rig.run()
    assert rig.rows() == [str(number) for number in range(COUNT) if number != 3]
    assert set(rig.world.cluster.values("letters")) == {b"3"}


def test_outputs_of_functions_in_front_of_a_sink_are_refused(rig: Rig) -> None:
    from onceflow.processors import Output

    app = App("rows", commit_interval_ms=10)

    @app.processor("in", on_error="skip")
    def first(value: str) -> object:
        return Output(value, topic="elsewhere") if value == "3" else value

    @app.sink(first, rig.sink())
    def store(value: str) -> dict[str, object]:
        return {"place": value}

    rig.put()
    rig.world.run(app)
    assert rig.rows() == [str(number) for number in range(COUNT) if number != 3]
    assert rig.world.cluster.values("elsewhere") == []


def test_stored_offsets_that_were_changed_by_hand_end_the_worker(rig: Rig) -> None:
    rig.put()

    def change() -> None:
        with contextlib.closing(sqlite3.connect(rig.path)) as database:
            database.execute("UPDATE onceflow_offsets SET next_offset = 1")
            database.commit()

    rig.at["before begin"] = change
    with pytest.raises(SinkOffsetsMovedError):
        rig.run()


@pytest.mark.parametrize("lost", [False, True])
def test_partitions_that_go_are_committed_first_and_lost_ones_are_not(rig: Rig, lost: bool) -> None:
    rig.put()
    worker = rig.world.make(rig.app(commit_interval_ms=9_000))
    cluster = rig.world.cluster
    found: list[int] = []
    calls = [lambda: None, lambda: cluster.rebalance([IN0], lost=lost), lambda: None]
    for call in calls:  # The records of the first poll are not committed at the second.
        cluster.do("poll", lambda call=call: (found.append(len(rig.rows())), call()))  # type: ignore[misc]
    run_blocking(worker.run(InPlace()))
    assert found == [0, 0, 0 if lost else COUNT]
    rig.run()
    rig.expect()


def test_a_bounded_run_ends_at_the_stored_offsets(rig: Rig) -> None:
    rig.put()
    worker = rig.world.make(rig.app(), until_end=True)
    run_blocking(worker.run(InPlace()))
    assert worker.report().reached_end
    rig.expect()


def test_the_lag_is_shown_while_nothing_comes(rig: Rig) -> None:
    """Also of a commit that came within a second of the one before."""
    rig.put()
    shown: list[int | None] = []
    cluster = rig.world.cluster
    rig.world.idle_polls_max = 6
    cluster.do("poll", lambda: shown.append(cluster.offset("in")), times=30)
    rig.run(commit_records=2)
    assert shown[-1] == COUNT // 2


@pytest.mark.parametrize("bad", ["function", "sink"])
def test_batches_store_each_record_once_and_one_at_fault_alone_is_a_dead_letter(
    rig: Rig, bad: str
) -> None:
    app = App("rows", commit_interval_ms=10)
    sizes: list[int] = []

    @app.sink("in", rig.sink(), batch=50, dead_letter="letters")
    def store(values: list[str]) -> list[dict[str, object] | None]:
        sizes.append(len(values))
        if bad == "function" and "bad" in values:
            raise ValueError("bad")
        return [None if value == "7" else {"place": value} for value in values]

    rig.put(count=20)
    rig.world.cluster.put("in", b"bad", partition=0)
    rig.put(start=20, count=20)
    rig.world.run(app)
    assert rig.rows() == [str(number) for number in range(40) if number != 7]
    assert rig.world.cluster.values("letters") == [b"bad"]
    assert max(sizes) > 10
    assert rig.stored() == {IN0: 21, IN1: 20}
