"""Goal: a bounded run processes what was there at its start and what follows from it, commits it,
tells what it did, and ends.

Method: real worker, ledger, session, tasks and stores over the in-memory cluster with a virtual
clock. Records are added while the run goes on, units fail, partitions belong to others, logs end in
records that no reader gets.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processor_fakes import Entry
from processor_worlds import World
from virtual_loop import rest, run_in

from onceflow.processors import App, State
from onceflow.processors.calls import InPlace
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.report import RunReport, TaskReport
from onceflow.processors.worker.run_end import RunEnd
from onceflow.sdk.errors import TransactionAbortableError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.colour import run_blocking

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)


def world_of(tmp_path: Path, *topics: str, partitions: int = 1) -> World:
    world = World(tmp_path, *(topics or ("in",)), partitions=partitions)
    world.idle_polls_max = 10**6  # Nothing but the bound ends a run.
    return world


def run(world: World, app: App) -> RunReport:
    worker = world.make(app, until_end=True)
    run_blocking(worker.run(InPlace()))
    return worker.report()


def counting(**settings: object) -> App:
    app = App("counts", **settings)  # type: ignore[arg-type]

    @app.processor("in", to="out", dead_letter="dead")
    def count(value: str, seen: State[int]) -> list[str]:
        if value == "bad":
            raise ValueError(value)
        seen.set(seen.get(0) + 1)
        return [value] * (2 if value == "twice" else 1)

    return app


def test_a_run_ends_with_a_report_of_what_it_committed(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", b"a", b"bad", b"twice", key=b"k")
    world.cluster.put("in", b"b", key=b"l", partition=1)
    report = run(world, counting(commit_records=2))
    assert report == RunReport(
        [TaskReport("in", 0, 3, 3, 1, 2), TaskReport("in", 1, 1, 1, 0, 1)], True, 0
    )
    assert (report.records, report.outputs, report.dead_letters) == (4, 4, 1)
    assert str(report) == "to the end: 4 records in, 4 out, 1 dead letters, 0 aborts"
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (3, 1)
    assert not world.cluster.open
    assert world.cluster.clients[0].left_group  # type: ignore[attr-defined]


def test_the_commit_does_not_wait_for_its_interval(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.cluster.put("in", b"a", key=b"k")
    begun_ms = world.now_ms
    run(world, counting(commit_interval_ms=9_000))
    assert world.now_ms - begun_ms < 3_000


def test_an_input_that_goes_on_behind_the_end_is_not_waited_for(tmp_path: Path) -> None:
    """Of several inputs the one that has reached its end has no more records for this run."""
    world = world_of(tmp_path, "in", "other")
    world.cluster.put("in", b"a", key=b"k")
    world.cluster.put("other", b"b", b"c", key=b"k")
    times = {("in", 0): 1, ("other", 0): 2, ("other", 1): 3}
    for (topic, offset), time_ms in times.items():
        world.cluster.logs[TopicPartition(topic, 0)][offset].timestamp_ms = time_ms
    world.cluster.do("poll", lambda: world.cluster.put("in", b"later", b"later", key=b"k"))
    app = App("both", max_poll_records=2)

    @app.processor(["in", "other"], to="out")
    def both(value: str) -> str:
        return value

    report = run(world, app)
    assert report.reached_end
    assert world.cluster.values("out") == [b"a", b"b", b"c"]
    assert (world.cluster.offset("in"), world.cluster.offset("other")) == (1, 2)


def test_records_that_come_later_are_left_to_the_next_run(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number in range(5):
        world.cluster.put("in", b"%d" % number, key=b"k")

    def more() -> None:
        world.cluster.put("in", b"late", key=b"k")

    world.cluster.do("poll", more, times=4)
    report = run(world, counting(max_poll_records=2))
    assert report.records == 5
    assert world.cluster.offset("in") == 5
    world.cluster.forget_faults()
    assert run(world, counting()).records == 4
    assert world.cluster.values("out") == [*(b"%d" % n for n in range(5)), *[b"late"] * 4]


@pytest.mark.parametrize("before", [0, 3])
def test_nothing_to_do_is_an_end_too(tmp_path: Path, before: int) -> None:
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", *[b"a"] * before, key=b"k")
    if before:
        run(world, counting())
    report = run(world, counting())
    assert report == RunReport([], True, 0)


def test_the_end_of_a_log_may_be_records_that_no_reader_gets(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", b"a", key=b"k")
    for partition in (IN0, IN1):  # Markers, and records of an aborted transaction.
        world.cluster.logs[partition] += [Entry(None, b"gone", state="aborted")] * 3
    assert run(world, counting()).records == 1
    assert run(world, counting()).records == 0
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (4, 3)


@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_other_workers_see_an_end_behind_which_the_input_goes_on(
    tmp_path: Path, guarantee: str
) -> None:
    """A poll gives the last record of the run and one behind its end, so that the position is
    behind the markers in front of the end. Other workers know only what is committed."""
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", b"a", key=b"k")
    for partition in (IN0, IN1):
        world.cluster.logs[partition] += [Entry(None, b"gone", state="aborted")] * 2

    def go_on() -> None:
        for partition in (0, 1):
            world.cluster.put("in", b"later", key=b"k", partition=partition)

    world.cluster.do("poll", go_on)
    report = run(world, counting(processing_guarantee=guarantee))
    assert (report.records, report.reached_end) == (1, True)
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (3, 2)
    assert run(world, counting(processing_guarantee=guarantee)).records == 2


@pytest.mark.parametrize("call", ["flush", "send_offsets_to_transaction", "commit_transaction"])
def test_an_abort_is_done_again_before_the_end(tmp_path: Path, call: str) -> None:
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.cluster.put("in", b"c", key=b"l", partition=1)
    world.cluster.fail(call, TransactionAbortableError(), times=2)
    report = run(world, counting())
    assert (report.records, report.outputs, report.aborts) == (3, 3, 2)
    assert sorted(world.cluster.values("out")) == [b"a", b"b", b"c"]  # type: ignore[type-var]
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (2, 1)


def test_a_partition_that_goes_and_comes_back_is_read_to_its_end(tmp_path: Path) -> None:
    for at in range(6):
        world = world_of(tmp_path / str(at), partitions=2)
        for number in range(6):
            world.cluster.put("in", b"%d" % number, key=b"k")
        world.cluster.put("in", b"x", key=b"l", partition=1)

        def go(world: World = world) -> None:
            world.cluster.rebalance([IN1], lost=True)
            world.cluster.rebalance([IN0, IN1])

        for _ in range(at):
            world.cluster.do("poll", lambda: None)
        world.cluster.do("poll", go)
        assert run(world, counting(max_poll_records=2)).reached_end
        assert world.cluster.offset("in", 0) == 6
        assert len(world.cluster.values("out")) == 7


def test_partitions_of_others_are_waited_for(tmp_path: Path) -> None:
    world = world_of(tmp_path, partitions=2)
    world.cluster.put("in", b"mine", key=b"k")
    world.cluster.put("in", b"theirs", key=b"l", partition=1)
    world.owned = [IN0]
    waited: list[int | None] = []

    def look() -> None:
        waited.append(world.cluster.offset("in", 0))

    def others_commit() -> None:
        world.cluster.committed[IN1] = OffsetAndMetadata(1)

    for _ in range(12):
        world.cluster.do("poll", look)
    world.cluster.do("poll", others_commit)
    report = run(world, counting())
    assert report == RunReport([TaskReport("in", 0, 1, 1, 0, 1)], True, 0)
    assert len(waited) == 12
    assert waited[-1] == 1


def test_what_follows_through_topics_of_the_application_belongs_to_the_run(tmp_path: Path) -> None:
    """A chain over a topic, and a repartition topic in front of the last function."""
    world = world_of(tmp_path, "in", "between")
    world.topics["again-total-repartition"] = TopicFacts(1, "id-r")
    app = App("again")

    @app.processor("in", to="between")
    def first(value: str) -> str:
        return value.upper()

    @app.processor("between", to="out", key=lambda value: value[0])
    def total(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get()}"

    world.cluster.put("in", b"ab", b"ac", b"ba", key=b"k")
    report = run(world, app)
    assert report.reached_end
    assert world.cluster.values("out") == [b"AB1", b"AC2", b"BA1"]
    assert [task.records for task in report.tasks] == [3, 3, 3]


def test_calls_that_overlap_end_before_the_run(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = App("slow")

    @app.processor("in", to="out", concurrency=4)
    async def slow(value: str) -> str:
        await rest(3 if value == "0" else 0.1)
        return value

    for number in range(9):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    worker = world.make(app, until_end=True)
    run_in(world, worker.run(InPlace()))
    assert worker.report().records == 9
    assert worker.report().reached_end
    assert world.cluster.values("out") == [b"%d" % number for number in range(9)]


def test_a_run_that_is_stopped_says_so(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = App("stopped")

    @app.processor("in", to="out")
    def step(value: str) -> str:
        if value == "1":
            app.stop()
        return value

    world.cluster.put("in", b"0", b"1", b"2", key=b"k")
    worker = app._worker = world.make(app, until_end=True)
    run_blocking(worker.run(InPlace()))
    report = worker.report()
    assert (report.records, report.reached_end) == (2, False)
    assert str(report).startswith("stopped before the end: 2 records in")


def test_records_of_own_topics_are_kept_though_they_lie_behind_the_first_end() -> None:
    """They are read before their topic's new end is taken, and are not read a second time."""
    own, foreign = TopicPartition("between", 0), TopicPartition("in", 0)
    end = RunEnd(["between"])
    end.take({own: (0, 0), foreign: (0, 1)})

    def records_of(tp: TopicPartition) -> list[ConsumerRecord]:
        return [ConsumerRecord(tp.topic, tp.partition, offset, 0) for offset in range(3)]

    assert len(end.cut(own, records_of(own))) == 3
    assert len(end.cut(foreign, records_of(foreign))) == 1
