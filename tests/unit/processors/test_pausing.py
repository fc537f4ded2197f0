"""Goal: a paused application takes no records, keeps its partitions, and goes on where it was.

Method: real worker, ledger, session, tasks and stores over the in-memory cluster with a virtual
clock. Handlers and polls pause and resume the application, also while partitions move.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processor_worlds import World
from virtual_loop import rest, run_async

from onceflow.processors import App, State
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)


def world_of(tmp_path: Path, partitions: int = 1) -> World:
    world = World(tmp_path, "in", partitions=partitions)
    for partition in range(partitions):
        for number in range(8):
            world.cluster.put("in", b"%d" % number, key=b"k%d" % partition, partition=partition)
    return world


def counting(pause_at: str) -> App:
    app = App("counts")

    @app.processor("in", to="out")
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        if value == pause_at:
            app.pause()
        return f"{value}:{seen.get()}"

    return app


def numbers(count: int = 8) -> list[bytes]:
    return [b"%d:%d" % (number, number + 1) for number in range(count)]


def test_a_paused_application_waits_and_goes_on(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = counting("none")
    seen: list[tuple[int | None, set[TopicPartition]]] = []

    def look() -> None:
        seen.append((world.cluster.offset("in"), set(world.cluster.members[0].paused)))
        world.cluster.put("in", b"more", key=b"k0")

    world.cluster.do("poll", app.pause)
    for _ in range(5):
        world.cluster.do("poll", look)
    world.cluster.do("poll", app.resume)
    world.make_running(app)
    assert seen[-1] == (None, {IN0})  # Records of the first poll wait, too.
    assert world.cluster.values("out")[:8] == numbers()
    assert world.cluster.offset("in") == 13


def test_what_is_processed_is_committed_at_once(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = counting("7")
    app.configure(commit_interval_ms=9_000)
    found: list[tuple[int, int | None]] = []
    world.cluster.do("poll", lambda: None, times=5)
    world.cluster.do("poll", lambda: found.append((world.now_ms, world.cluster.offset("in"))))
    world.cluster.do("poll", app.resume)
    world.make_running(app)
    assert found[0][0] - 1_000_000 < 9_000
    assert found[0][1] == 8
    assert world.cluster.values("out") == numbers()


@pytest.mark.parametrize("commit_records", [1, 1_000])
def test_the_record_in_hand_is_the_last_one(tmp_path: Path, commit_records: int) -> None:
    """Not the last one that was polled: with slow handlers that would be far away."""
    world = world_of(tmp_path)
    app = counting("3")
    app.configure(commit_records=commit_records)
    world.idle_polls_max = 20
    found: list[object] = []

    def look() -> None:
        if world.cluster.values("out")[3:]:
            found.append((world.cluster.offset("in"), world.cluster.values("out")))
        if len(found) == 3:
            app.resume()

    world.cluster.do("poll", look, times=10)
    world.make_running(app)
    assert found[:3] == [(4, numbers(4))] * 3
    assert world.cluster.values("out") == numbers()


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
def test_partitions_that_come_while_it_is_paused_wait(tmp_path: Path, lost: bool) -> None:
    world = world_of(tmp_path, partitions=2)
    world.owned = [IN0]
    app = counting("none")
    outputs: list[int] = []

    def look() -> None:
        outputs.append(len(world.cluster.values("out")))

    world.cluster.do("poll", app.pause)
    world.cluster.do("poll", lambda: world.cluster.rebalance([IN0, IN1]))
    world.cluster.do("poll", lambda: world.cluster.rebalance([IN1], lost=lost))
    world.cluster.do("poll", lambda: world.cluster.rebalance([IN0, IN1]))
    for _ in range(4):
        world.cluster.do("poll", look)
    world.cluster.do("poll", app.resume)
    world.make_running(app)
    assert outputs == [0, 0, 0, 0]
    assert sorted(world.cluster.values("out")) == sorted(numbers() * 2)  # type: ignore[type-var]


def test_calls_that_overlap_end_and_are_committed(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.cluster.logs[IN0].clear()
    for number in range(8):
        world.cluster.put("in", b"%d" % number, key=b"%d" % number)
    world.idle_polls_max = 900
    app = App("slow")
    begun: list[str] = []
    seen: list[tuple[int, int | None]] = []

    @app.processor("in", to="out", concurrency=3)
    async def slow(value: str) -> str:
        begun.append(value)
        if value == "2":
            app.pause()
        await rest(0.2)
        return value

    def look() -> None:
        seen.append((len(begun), world.cluster.offset("in")))

    world.cluster.do("poll", lambda: None, times=60)
    world.cluster.do("poll", look)
    world.cluster.do("poll", app.resume)
    run_async(world, app)
    assert seen == [(3, 3)]
    assert world.cluster.values("out") == [b"%d" % number for number in range(8)]


def test_a_paused_application_can_be_stopped(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = counting("none")
    world.cluster.do("poll", app.pause)
    world.cluster.do("poll", lambda: None, times=3)
    world.cluster.do("poll", app.stop)
    world.make_running(app)
    assert world.cluster.offset("in") is None
