"""Goal: with ``processing_guarantee="at_least_once"`` nothing is lost and no transaction is opened;
and neither guarantee asks anything of the brokers while there is nothing to do.

Method: real worker, ledger, session, tasks and stores over the in-memory cluster with a virtual
clock. Its plain producer keeps whatever is sent. Units fail at each step of their ends, workers die
behind the acknowledgement and in front of the commit, partitions go and come back.
"""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from processor_worlds import World
from virtual_loop import rest, run_async

from onceflow.processors import App, ProcessingError, Retries, State
from onceflow.sdk.errors import (
    CommitFailedError,
    ConfigError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    RebalanceInProgressError,
    RequestTimedOutError,
)
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
COUNT = 8
ALO = "at_least_once"
EOS = "exactly_once_v2"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "in")


def counting(failures: dict[str, int] | None = None, **settings: object) -> App:
    app = App("counts", **{"processing_guarantee": ALO, **settings})  # type: ignore[arg-type]
    left = failures if failures is not None else {}

    @app.processor("in", to="out", retries=Retries(3, backoff_ms=700, backoff_max_ms=700))
    def count(value: str, seen: State[int]) -> str:
        if left.get(value, 0) > 0:
            left[value] -= 1
            raise ValueError(value)
        seen.set(seen.get(0) + 1)
        return f"{value}:{seen.get()}"

    return app


def put(world: World, start: int = 0, count: int = COUNT) -> None:
    for number in range(start, start + count):
        world.cluster.put("in", b"v%d" % number, key=b"k")


def values(world: World) -> list[bytes]:
    return [b"v%d:%d" % (number, number + 1) for number in range(COUNT)]


def test_offsets_are_committed_behind_the_acknowledgement_and_without_a_transaction(
    world: World,
) -> None:
    put(world)
    world.run(counting())
    calls = world.cluster.calls
    assert world.cluster.values("out") == values(world)
    assert world.cluster.offset("in") == COUNT
    assert not {"init_transactions", "begin_transaction", "commit_transaction"} & set(calls)
    commit = calls.index("commit")
    assert "send" in calls[:commit]
    assert calls[commit - 1] == "ensure_membership"
    last_send = max(n for n, call in enumerate(calls[:commit]) if call == "send")
    assert "flush" in calls[last_send:commit]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("flush", DeliveryTimeoutError()),
        ("ensure_membership", CommitFailedError("expelled")),
        ("commit", RebalanceInProgressError()),
        ("commit", RequestTimedOutError()),
    ],
)
def test_a_unit_that_fails_is_done_again(world: World, call: str, error: Exception) -> None:
    """Its outputs are there twice; counts are right, because state was not committed."""
    put(world)
    world.cluster.fail(call, error)
    world.run(counting())
    assert world.cluster.values("out") == [*values(world), *values(world)]
    assert world.cluster.offset("in") == COUNT


def test_what_fails_of_an_aborted_unit_is_not_blamed_on_the_next(world: World) -> None:
    """Nothing takes back what is on its way: the abort waits until the rest of it has failed."""
    put(world, count=1)
    world.cluster.fail("flush", MessageTooLargeError(), times=2)
    app = App("counts", processing_guarantee=ALO)

    @app.processor("in", to="out", dead_letter="dead")
    def echo(value: bytes) -> bytes:
        return value

    world.run(app)
    assert world.cluster.values("dead") == [b"v0"]
    assert world.cluster.offset("in") == 1


def test_records_that_stay_on_their_way_get_a_new_producer(world: World) -> None:
    put(world)
    world.cluster.fail("flush", MessageTooLargeError())
    world.cluster.fail("flush", RequestTimedOutError())
    world.run(counting())
    assert world.cluster.calls.count("plain producer") == 2
    assert world.cluster.values("out")[-COUNT:] == values(world)


def test_a_commit_without_an_answer_is_looked_up(world: World) -> None:
    put(world)
    world.cluster.fail("commit", RequestTimedOutError(), after=True, times=2)
    world.run(counting())
    assert world.cluster.values("out") == values(world)  # Not done again.
    assert world.cluster.offset("in") == COUNT


def test_a_worker_that_dies_in_front_of_its_first_commit_is_followed_by_another(
    world: World,
) -> None:
    """The changelog is ahead of the offsets then, which exactly-once refuses as a gap."""
    put(world)
    world.cluster.fail("commit", KeyboardInterrupt())  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        world.run(counting())
    assert world.cluster.offset("in") is None
    assert world.cluster.values("counts-count-seen-changelog")
    world.run(counting())
    found = world.cluster.values("out")
    assert found[:COUNT] == values(world)
    assert [value.split(b":")[0] for value in found[COUNT:]] == [  # type: ignore[attr-defined]
        b"v%d" % number for number in range(COUNT)
    ]
    assert world.cluster.offset("in") == COUNT


@pytest.mark.parametrize("first", [ALO, EOS])
def test_the_guarantee_may_change_at_a_restart(world: World, first: str) -> None:
    put(world, 0, 4)
    world.run(counting(processing_guarantee=first))
    put(world, 4, 4)
    world.run(counting(processing_guarantee=EOS if first == ALO else ALO))
    assert world.cluster.values("out") == values(world)


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("at", range(10))
def test_a_partition_goes_and_comes_back_and_nothing_is_lost(
    tmp_path: Path, at: int, lost: bool
) -> None:
    world = World(tmp_path, "in", partitions=2)
    world.idle_polls_max = 14
    put(world)
    for number in range(COUNT):
        world.cluster.put("in", b"w%d" % number, key=b"w", partition=1)

    def go() -> None:
        world.cluster.rebalance([IN1], lost=lost)
        world.cluster.rebalance([IN0, IN1])

    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", go)
    world.run(counting({"v2": 2, "w4": 1}, commit_records=4))
    wanted = {*values(world), *(b"w%d:%d" % (n, n + 1) for n in range(COUNT))}
    assert set(world.cluster.values("out")) == wanted
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (COUNT, COUNT)


@pytest.mark.parametrize("guarantee", [ALO, EOS])
def test_failure_stops_before_the_record_and_keeps_what_precedes(
    world: World, guarantee: str
) -> None:
    put(world)
    app = counting({"v3": 99}, processing_guarantee=guarantee)
    with pytest.raises(ProcessingError, match=r"count failed at in-0@3 after 4 attempts"):
        world.run(app)
    assert world.cluster.offset("in") == 3
    assert world.cluster.values("out") == values(world)[:3]


def test_a_refused_output_holds_the_offset_back(world: World) -> None:
    app = App("refused", processing_guarantee=ALO)

    @app.processor("in", to="out")
    def same(value: str) -> str:
        return value

    put(world)
    world.cluster.fail("send out", MessageTooLargeError(), times=60)
    with pytest.raises(ProcessingError, match="in-0@0"):
        world.run(app)
    assert not world.cluster.offset("in")


def test_calls_that_overlap_lose_nothing(world: World) -> None:
    world.idle_polls_max = 900
    app = App("overlapping", processing_guarantee=ALO, commit_interval_ms=10)

    @app.processor("in", to="out", concurrency=4)
    async def step(value: str, seen: State[int]) -> str:
        before = seen.get(0)
        await rest(0.02 if value in ("v1", "v5") else 0.001)
        seen.set(before + 1)
        return f"{value}:{before + 1}"

    for number in range(COUNT):
        world.cluster.put("in", b"v%d" % number, key=b"k%d" % (number % 3))
    world.cluster.fail("flush", DeliveryTimeoutError())
    run_async(world, app)
    wanted = {b"v%d:%d" % (number, number // 3 + 1) for number in range(COUNT)}
    assert set(world.cluster.values("out")) == wanted
    assert world.cluster.offset("in") == COUNT


@pytest.mark.parametrize("guarantee", [ALO, EOS])
@pytest.mark.parametrize("before", [0, COUNT], ids=["nothing ever", "nothing more"])
def test_an_idle_application_opens_and_commits_nothing(
    world: World, guarantee: str, before: int
) -> None:
    put(world, 0, before)
    world.idle_polls_max = 5_000  # More than an hour of the clock.
    begun_ms = world.now_ms
    world.run(counting(processing_guarantee=guarantee))
    assert world.now_ms - begun_ms > 3_600_000
    ends = {"begin_transaction", "send_offsets_to_transaction", "commit_transaction", "commit"}
    seen = collections.Counter(call for call in world.cluster.calls if call in ends)
    wanted = {ALO: {"commit"}, EOS: ends - {"commit"}}[guarantee] if before else set()
    assert seen == collections.Counter(wanted)  # The one unit of the records, and no other.


@pytest.mark.parametrize("given", ["exactly_once", "at-least-once", "", None, 1])
def test_guarantees_that_there_are(given: object) -> None:
    with pytest.raises(ConfigError, match="processing_guarantee"):
        App("a", processing_guarantee=given)  # type: ignore[arg-type]


def test_at_least_once_needs_acknowledgements() -> None:
    with pytest.raises(ConfigError, match=r"acks=0: .*acknowledges nothing: use 'all', or 1"):
        App("a", processing_guarantee=ALO, acks=0, enable_idempotence=False)
