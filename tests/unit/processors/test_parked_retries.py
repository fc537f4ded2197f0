"""Goal: with ``park=`` a record that fails waits with what follows it of its key, other keys go on,
and everything is exactly-once and in order by key, through aborts, deaths and rebalances.

Method: real worker, ledger, session, tasks and LMDB stores over the in-memory cluster with a
virtual clock. A counting function fails on named values as often as told. The committed outputs of
each key are those of a plain loop over its records.
"""

from __future__ import annotations

import collections
from pathlib import Path

import pytest
from processor_worlds import World
from virtual_loop import rest, run_async

from onceflow.processors import (
    App,
    Context,
    DeclarationError,
    Parking,
    ProcessingError,
    Retries,
    State,
    Timers,
)
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import ConfigError, TransactionAbortableError
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
RETRIES = Retries(3, backoff_ms=5_000, backoff_max_ms=5_000, only=(LookupError,))
KEYS = 4


def world_of(tmp_path: Path, partitions: int = 1) -> World:
    world = World(tmp_path, "in", partitions=partitions)
    world.idle_polls_max = 40  # Nothing comes while parked records wait.
    return world


def fill(world: World, count: int = 24, partition: int = 0) -> list[tuple[bytes, bytes]]:
    found = []
    for number in range(count):
        key, value = b"k%d-%d" % (partition, number % KEYS), b"v%d-%d" % (partition, number)
        world.cluster.put("in", value, key=key, partition=partition)
        found.append((key, value))
    return found


def counting(failures: dict[str, int] | None = None, **options: object) -> App:
    """Counts by key; raises after it has counted, on named values as often as told."""
    app = App("counts", commit_records=5)
    left = failures if failures is not None else {}

    declared = {"park": True, "retries": RETRIES, "dead_letter": "dead", **options}

    @app.processor("in", to="out", **declared)  # type: ignore[arg-type]
    def count(value: str, key: str, seen: State[int], context: Context) -> str:
        seen.set(seen.get(0) + 1)
        if left.get(value, 0) > 0:
            left[value] -= 1
            raise LookupError(value)
        assert context.record_id.startswith("in-")
        return f"{key}:{value}:{seen.get()}"

    return app


def test_a_parked_record_goes_on_while_others_wait_behind_a_marker(tmp_path: Path) -> None:
    """Its unit names the committed offset again, and the first record that waits lies behind it."""
    world = world_of(tmp_path)
    for value in (b"a", b"no record", b"b", b"c"):
        world.cluster.put("in", value, key=b"k")
    world.cluster.logs[IN0][1].state = "aborted"
    app = counting({"a": 1}, park=Parking(records_max=1))
    app.configure(commit_records=1)
    world.run(app)
    assert world.cluster.values("out") == [b"k:a:1", b"k:b:2", b"k:c:3"]
    assert world.cluster.offset("in") == 4


@pytest.mark.parametrize("state_first", [False, True])
def test_function_of_value_and_state_alone(tmp_path: Path, state_first: bool) -> None:
    """It takes whole slices, and has a second state, of what is parked."""
    world = world_of(tmp_path)
    for number in range(4):
        world.cluster.put("in", b"%d" % number, key=b"k%d" % (number % 2))
    failed: set[str] = set()
    app = App("counts")

    def count(value: str, seen: State[int]) -> str:
        if value == "0" and value not in failed:
            failed.add(value)
            raise LookupError(value)
        seen.set(seen.get(0) + 1)
        return f"{value}:{seen.get()}"

    def count_first(seen: State[int], value: str) -> str:
        return count(value, seen)

    declare = app.processor("in", to="out", name="count", park=True, retries=RETRIES)
    declare(count_first if state_first else count)
    world.run(app)
    assert world.cluster.values("out") == [b"1:1", b"3:2", b"0:1", b"2:2"]


def model(records: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for key, value in records:
        of_key = found.setdefault(key, [])
        of_key.append(b"%s:%s:%d" % (key, value, len(of_key) + 1))
    return found


def by_key(world: World, topic: str = "out") -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for value in world.cluster.values(topic):
        assert isinstance(value, bytes)
        found.setdefault(value.split(b":")[0], []).append(value)
    return found


def test_other_keys_go_on_and_the_key_keeps_its_order(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    seen: list[tuple[int | None, list[object]]] = []

    def look() -> None:
        seen.append((world.cluster.offset("in"), world.cluster.values("out")))

    world.cluster.do("poll", look, times=30)
    world.run(counting({"v0-0": 2, "v0-5": 1}))
    before = next(out for offset, out in seen if offset == 24)
    # All other keys are done and committed before the first retry.
    assert {value.split(b":")[0] for value in before} == {b"k0-2", b"k0-3", b"k0-1"}  # type: ignore[attr-defined]
    assert by_key(world) == model(records)
    assert world.cluster.offset("in") == 24
    assert not world.cluster.open


def test_a_record_that_fails_for_good_frees_its_key(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    world.run(counting({"v0-4": 99}))
    assert world.cluster.values("dead") == [b"v0-4"]
    assert by_key(world) == model([pair for pair in records if pair[1] != b"v0-4"])
    (letter,) = world.cluster.logs[TopicPartition("dead", 0)]
    headers = dict(letter.headers)  # type: ignore[call-overload]
    assert letter.key == b"k0-0"
    assert headers["onceflow.error.attempts"] == b"4"
    assert headers["onceflow.error.offset"] == b"4"
    assert headers["onceflow.error.topic"] == b"in"


def test_a_stop_comes_again_after_a_restart(tmp_path: Path) -> None:
    """The record is in the state, with its attempts; its offset is committed."""
    world = world_of(tmp_path)
    records = fill(world)
    options: dict[str, object] = {"dead_letter": None}
    with pytest.raises(ProcessingError, match=r"count failed at in-0@4 after 4 attempts"):
        world.run(counting({"v0-4": 99}, **options))
    with pytest.raises(ProcessingError, match=r"count failed at in-0@4 after 4 attempts"):
        world.run(counting({"v0-4": 99}, **options))
    world.run(counting(**options))
    assert by_key(world) == model(records)


def test_parked_records_survive_a_restart_with_an_empty_disk(tmp_path: Path) -> None:
    world = world_of(tmp_path / "a")
    records = fill(world)
    app = counting({"v0-1": 99})
    world.cluster.do("poll", lambda: None, times=12)
    world.cluster.do("poll", app.stop)
    world.make_running(app)
    assert world.cluster.offset("in") == 24
    assert b"k0-1" not in by_key(world)
    world.state_dir = tmp_path / "b"
    world.run(counting())
    assert by_key(world) == model(records)


@pytest.mark.parametrize("call", ["flush", "send_offsets_to_transaction", "commit_transaction"])
@pytest.mark.parametrize("at", range(0, 16, 3))
def test_a_unit_fails(tmp_path: Path, at: int, call: str) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.fail(call, TransactionAbortableError()))
    world.run(counting({"v0-0": 2, "v0-5": 1, "v0-9": 1}))
    assert by_key(world) == model(records)
    assert world.cluster.offset("in") == 24


@pytest.mark.parametrize("lost", [False, True], ids=["revoked", "lost"])
@pytest.mark.parametrize("other", [False, True], ids=["nobody", "another worker"])
@pytest.mark.parametrize("at", range(0, 20, 2))
def test_a_partition_goes_and_comes_back(tmp_path: Path, at: int, other: bool, lost: bool) -> None:
    world = world_of(tmp_path / "a", partitions=2)
    records = [*fill(world, 12, 0), *fill(world, 12, 1)]

    def go() -> None:
        world.cluster.rebalance([IN1], lost=lost)
        if not other:
            world.cluster.rebalance([IN0, IN1])

    def come() -> None:
        if other:
            members, world.cluster.members = world.cluster.members, []
            peer = World(world.state_dir.with_name("b"))
            peer.cluster, peer.topics, peer.configs = world.cluster, world.topics, world.configs
            peer.now_ms, peer.owned, peer.idle_polls_max = world.now_ms, [IN0], 40
            peer.make_running(counting({"v0-5": 1}))
            world.cluster.members = members
            world.cluster.rebalance([IN0, IN1])

    for _ in range(at):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", go)
    world.cluster.do("poll", come)
    world.run(counting({"v0-0": 2, "v1-2": 1, "v0-6": 1}))
    assert by_key(world) == model(records)
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (12, 12)


def test_too_many_of_a_key_hold_up_the_partition_and_nothing_is_lost(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world, 40)
    offsets: list[int | None] = []
    world.cluster.do("poll", lambda: offsets.append(world.cluster.offset("in")), times=40)
    world.run(counting({"v0-0": 3}, park=Parking(records_max=3)))
    assert by_key(world) == model(records)
    assert world.cluster.offset("in") == 40
    # Records 0, 4 and 8 are parked; 12 waits for them, and what follows it for that one.
    assert 12 in offsets


def test_a_record_that_is_parked_for_too_long_is_given_up(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    records = fill(world)
    retries = Retries(1_000, backoff_ms=5_000, backoff_max_ms=5_000)
    world.idle_polls_max = 400
    world.run(counting({"v0-4": 999}, park=Parking(age_max_ms=60_000), retries=retries))
    assert world.cluster.values("dead") == [b"v0-4"]
    assert by_key(world) == model([pair for pair in records if pair[1] != b"v0-4"])
    (letter,) = world.cluster.logs[TopicPartition("dead", 0)]
    attempts = int(dict(letter.headers)["onceflow.error.attempts"])  # type: ignore[call-overload]
    assert 10 <= attempts <= 14


def test_a_record_without_a_key_waits_in_its_place(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = App("keyless")
    failures = {"1": 2}

    @app.processor("in", to="out", park=True, retries=RETRIES)
    def same(value: str) -> str:
        if failures.get(value, 0):
            failures[value] -= 1
            raise LookupError(value)
        return value

    world.cluster.put("in", b"0", b"1", b"2")
    world.run(app)
    assert world.cluster.values("out") == [b"0", b"1", b"2"]


def test_async_functions_chains_and_headers(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    app = App("chain")
    failures = collections.Counter({"1": 2})
    given: list[object] = []

    @app.processor("in", park=True, retries=RETRIES)
    async def first(value: str, headers: tuple[tuple[str, bytes], ...], context: Context) -> str:
        await rest(0.001)
        given.append((value, list(headers), context.attempt))
        if failures[value]:
            failures[value] -= 1
            raise LookupError(value)
        return value

    @app.processor(first, to="out")
    def second(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}:{seen.get()}"

    for number in range(4):
        world.cluster.put("in", b"%d" % number, key=b"%d" % (number % 2))
        world.cluster.logs[IN0][-1].headers = (("h", b"%d" % number),)
    run_async(world, app)
    assert world.cluster.values("out") == [b"0:1", b"2:2", b"1:1", b"3:2"]
    assert [entry for entry in given if entry[0] == "1"] == [  # type: ignore[index]
        ("1", [("h", b"1")], attempt) for attempt in (1, 2, 3)
    ]


def test_declarations() -> None:
    def step(value: str) -> str:
        return value

    async def waiting(value: str) -> str:
        return value

    def named(value: str, parked: State[int]) -> str:
        return value

    def timing(value: str, timers: Timers) -> str:
        return value

    def declare(function: object, **options: object) -> App:
        app = App("a")
        app.processor("in", to="out", **options)(function)  # type: ignore[arg-type, type-var]
        return app

    with pytest.raises(DeclarationError, match="give retries="):
        declare(step, park=True)
    with pytest.raises(DeclarationError, match=r"must be True, or Parking\(...\)"):
        declare(step, park=5, retries=1)
    with pytest.raises(DeclarationError, match="park= makes a state named 'parked'"):
        declare(named, park=True, retries=1)
    with pytest.raises(DeclarationError, match="concurrency= and park= cannot be combined"):
        declare(waiting, park=True, retries=1, concurrency=4)
    with pytest.raises(DeclarationError, match="park= and batch= cannot be combined"):
        declare(step, park=True, retries=1, batch=10)
    app = declare(step)
    with pytest.raises(DeclarationError, match="takes results of another processor"):
        app.processor(step, to="more", name="behind", park=True, retries=1)(step)
    with pytest.raises(ConfigError, match="records_max"):
        Parking(0)
    topology = declare(timing, park=Parking(10), retries=1).topology()
    assert [state.changelog for state in topology.states] == [
        "a-timing-timers-changelog",
        "a-timing-parked-changelog",
    ]


def test_the_test_driver_runs_the_same_code() -> None:
    driver = TestDriver(counting({"v0-0": 2}))
    driver.send("in", "v0-0", key="a")
    driver.send("in", "x", key="b")
    driver.send("in", "y", key="a")
    assert driver.values("out") == [b"b:x:1"]
    driver.advance(5_000)
    assert driver.values("out") == [b"b:x:1"]
    driver.advance(5_000)
    assert driver.values("out") == [b"b:x:1", b"a:v0-0:1", b"a:y:2"]
