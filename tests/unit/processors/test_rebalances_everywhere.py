"""Goal: a partition may go and come back within every wait of a worker; each record counts once.

Method: a counting worker with a record that has to be tried again, over the in-memory cluster. At
its k-th poll, for every k, a partition goes (revoked or lost), another worker processes a part of
it for real, and it comes back: in the same poll or in the next one. The committed outputs of both
must be those of a plain loop, and no worker ends by itself.
"""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from processor_worlds import World

from onceflow.processors import App, Retries, State
from onceflow.sdk.errors import TransactionAbortableError
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
COUNT = 6
POLLS = 14


def counting(failures: dict[str, int], stop_after: int | None = None) -> App:
    """Counts by key; raises on named values as often as told; may end itself after some records."""
    app = App("counts", commit_records=4)
    done: list[str] = []

    @app.processor("in", to="out", retries=Retries(3, backoff_ms=700, backoff_max_ms=700))
    def count(value: str, seen: State[int]) -> str:
        if failures.get(value, 0) > 0:
            failures[value] -= 1
            raise ValueError(value)
        done.append(value)
        if stop_after is not None and len(done) >= stop_after:
            app.stop()
        seen.set(seen.get(0) + 1)
        return f"{value}:{seen.get()}"

    return app


def filled(tmp_path: Path) -> World:
    world = World(tmp_path / "a", "in", partitions=2)
    world.idle_polls_max = POLLS  # It must not end for want of records while in-0 is away.
    for number in range(COUNT):
        world.cluster.put("in", b"v%d" % number, key=b"v", partition=0)
        world.cluster.put("in", b"w%d" % number, key=b"w", partition=1)
    return world


def wanted() -> collections.Counter[object]:
    return collections.Counter(
        b"%s%d:%d" % (key, number, number + 1) for key in (b"v", b"w") for number in range(COUNT)
    )


def other_worker(world: World, records: int) -> None:
    """A second worker takes in-0, processes some of it, and leaves."""
    other = World(world.state_dir.with_name("b"))
    other.cluster, other.topics, other.configs = world.cluster, world.topics, world.configs
    other.now_ms, other.owned = world.now_ms, [IN0]
    app = counting({}, stop_after=records or None)
    if not records:
        other.idle_polls_max = 0
    other.make_running(app)


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("others", [None, 1, 4], ids=["nobody", "one record", "four records"])
@pytest.mark.parametrize("at", range(POLLS))
def test_partition_goes_and_comes_back(
    tmp_path: Path, at: int, others: int | None, lost: bool
) -> None:
    """Trap 36: what was polled before the partition went is neither processed nor committed."""
    world = filled(tmp_path)

    def go() -> None:
        world.cluster.rebalance([IN1], lost=lost)
        if others is None:
            world.cluster.rebalance([IN0, IN1])

    def come() -> None:
        if others is not None:
            members, world.cluster.members = world.cluster.members, []
            other_worker(world, others)
            world.cluster.members = members
            world.cluster.rebalance([IN0, IN1])

    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", go)
    world.cluster.do("poll", come)
    world.run(counting({"v2": 2, "w4": 1}))
    assert collections.Counter(world.cluster.values("out")) == wanted()
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (COUNT, COUNT)


@pytest.mark.parametrize("call", ["flush", "send_offsets_to_transaction", "commit_transaction"])
@pytest.mark.parametrize("at", range(4))
def test_partition_goes_and_comes_back_behind_an_abort(tmp_path: Path, at: int, call: str) -> None:
    """The unit is aborted within the rebalance itself, or just before it."""
    world = filled(tmp_path)

    def go() -> None:
        world.cluster.fail(call, TransactionAbortableError())
        world.cluster.rebalance([IN1])
        world.cluster.rebalance([IN0, IN1])

    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", go)
    world.run(counting({"v2": 2, "w4": 1}))
    assert collections.Counter(world.cluster.values("out")) == wanted()
