"""Goal: rules of time, windows and repeated work that no other test names by itself.

Method: workers over the in-memory cluster and the test driver; each test is one line of
docs/processing-traps.md.
"""

from pathlib import Path

import pytest
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import App, Context, Count, Sum, Tumbling, milliseconds
from onceflow.processors.testing import TestDriver
from onceflow.sdk.errors import TransactionAbortableError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

IN0 = TopicPartition("in", 0)


def summing(grace_ms: int = 0) -> App:
    app = App("shop", commit_records=1)

    @app.aggregate(
        "in",
        window=Tumbling(milliseconds(50), grace=milliseconds(grace_ms)),
        fold=Sum(),
        to="out",
        late="late",
    )
    def value(value: int) -> int:
        return value

    return app


def put(world: World, value: int, time_ms: int, key: bytes = b"k") -> None:
    world.cluster.logs[IN0].append(Entry(key, b"%d" % value, (), time_ms))


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_stream_time_survives_a_restart(tmp_path: Path, disk: str) -> None:
    """Trap 42: a window that was closed before a restart does not open again behind it."""
    world = World(tmp_path / "a", "in")
    put(world, 1, 10)
    put(world, 2, 80)
    world.run(summing())
    assert world.cluster.values("out") == [b"1"]
    if disk == "lost":
        world.state_dir = tmp_path / "b"
    put(world, 4, 20)
    put(world, 8, 200)
    world.run(summing())
    assert world.cluster.values("out") == [b"1", b"2"]
    assert world.cluster.values("late") == [b"4"]


@pytest.mark.parametrize("years", [0, 30])
def test_windows_know_no_wall_clock(tmp_path: Path, years: int) -> None:
    """Trap 66: a replay gives what the first run gave, however much later it is."""
    world = World(tmp_path, "in")
    world.now_ms += years * 365 * 24 * 3600 * 1000
    for value, time_ms in ((1, 10), (2, 40), (4, 60), (8, 45), (16, 130)):
        put(world, value, time_ms)
    world.run(summing(grace_ms=20))
    assert world.cluster.values("out") == [b"11", b"4"]
    assert world.cluster.values("late") == []


@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_late_records_are_part_of_the_transaction(tmp_path: Path, call: str) -> None:
    """Trap 68: what comes too late is kept, once, also where its transaction is aborted."""
    world = World(tmp_path, "in")
    for value, time_ms in ((1, 10), (2, 80), (4, 20)):
        put(world, value, time_ms)
    world.cluster.fail(call, TransactionAbortableError("once"), times=3)
    world.run(summing())
    log = world.cluster.logs[TopicPartition("late", 0)]
    assert [entry.value for entry in log if entry.state == "committed"] == [b"4"]
    assert world.cluster.values("out") == [b"1"]


def test_any_record_of_a_partition_closes_the_windows_of_all_keys(tmp_path: Path) -> None:
    """Trap 70: a key that falls silent gets its result; other partitions do not close it."""
    driver = TestDriver(summing(), partitions=2)
    driver.send("in", 1, key="silent", partition=0, timestamp_ms=10)
    driver.send("in", 2, key="other", partition=1, timestamp_ms=500)
    assert driver.values("out") == []
    driver.send("in", 4, key="loud", partition=0, timestamp_ms=500)
    assert [(r.key, r.value) for r in driver.outputs("out")] == [(b"silent", b"1")]


def test_grace_covers_the_disorder_of_another_key(tmp_path: Path) -> None:
    """Trap 72: records of several partitions meet under a new key with times that go back."""
    app = App("shop")

    @app.aggregate(
        "words",
        key=lambda word: word[0],
        window=Tumbling(milliseconds(50), grace=milliseconds(100)),
        fold=Count(),
        to="counts",
        late="late",
    )
    def word(word: str) -> str:
        return word

    driver = TestDriver(app, partitions=2)
    for text, partition, time_ms in (("tea", 0, 120), ("tin", 1, 10), ("top", 1, 110)):
        driver.send("words", text, partition=partition, timestamp_ms=time_ms)
    driver.send("words", "tap", partition=0, timestamp_ms=500)
    assert driver.values("counts", int) == [1, 2]
    assert driver.values("late") == []


@pytest.mark.parametrize("call", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_handler_that_is_called_again_gets_the_same_place(tmp_path: Path, call: str) -> None:
    """Trap 82: effects outside of Kafka can be made once by topic, partition and offset."""
    world = World(tmp_path, "in", partitions=2)
    app = App("shop")
    seen: list[tuple[str, int, int]] = []

    @app.processor("in", to="out")
    def pay(value: str, record: ConsumerRecord, context: Context) -> str:
        seen.append((record.topic, record.partition, record.offset))
        return value

    for number in range(4):
        world.cluster.put("in", b"v%d" % number, partition=number % 2)
    world.cluster.fail(call, TransactionAbortableError("once"))
    world.run(app)
    places = {("in", partition, offset) for partition in (0, 1) for offset in (0, 1)}
    assert set(seen) == places
    assert len(seen) > len(places)
    committed = [*world.cluster.values("out", 0), *world.cluster.values("out", 1)]
    assert sorted(committed) == [b"v0", b"v1", b"v2", b"v3"]
