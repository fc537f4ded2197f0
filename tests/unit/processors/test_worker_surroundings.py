"""Goal: what goes wrong around a worker is a clear end or a clear wait, and costs no record.

Method: workers over the in-memory cluster: inputs that cannot be read, topics that go, come back or
grow, a store that somebody else holds, clusters that can lose data, and a loop of asyncio clients.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from processor_fakes import FakeClients, FakeConsumer, FakeProducer
from processor_worlds import TimedConsumer, World

from onceflow.processors import (
    App,
    ProcessingError,
    Retries,
    State,
    StoreKind,
    TopicSetupError,
)
from onceflow.processors.calls import Calls, InPlace
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.ledger.transaction import TransactionLedger
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.stores.lmdb import open_map
from onceflow.processors.unit import Unit
from onceflow.sdk.errors import (
    CommitFailedError,
    CoordinatorNotAvailableError,
    KafkaError,
    NoOffsetForPartitionError,
    RecordError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import AsyncTransactionSession, SessionConfig
from onceflow.transactions.colour import settle

IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "in", partitions=2)


def counting(**settings: object) -> App:
    app = App("counts", **settings)  # type: ignore[arg-type]

    @app.processor("in", to="out", retries=Retries(1, backoff_ms=1_000))
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get()}"

    return app


# Inputs that cannot be read ------------------------------------------------------------------


def damaged(partition: TopicPartition, offset: int) -> RecordError:
    error = RecordError("the batch does not match its checksum")
    error.place = (*partition, offset)
    return error


class DamagedConsumer:
    """Makes polls raise while the damaged place of a partition is the next one to be read."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, offset: int, times: int, error: KafkaError
    ) -> None:
        self.left = times
        self.read_again = 0
        whole_poll, whole_seek = TimedConsumer.poll, FakeConsumer.seek

        def poll(consumer: TimedConsumer, timeout_ms: int = 0, max_records: int | None = None):  # type: ignore[no-untyped-def]
            readable = IN0 in consumer.owned and IN0 not in consumer.paused
            if readable and self.left > 0 and consumer.positions[IN0] >= offset:
                self.left -= 1
                raise error
            log = consumer.cluster.logs[IN0]
            if self.left > 0 and len(log) > offset:  # What precedes the damage is read alone.
                kept, log[offset:] = log[offset:], []
                try:
                    return whole_poll(consumer, timeout_ms, max_records)
                finally:
                    log.extend(kept)
            return whole_poll(consumer, timeout_ms, max_records)

        def seek(consumer: FakeConsumer, partition: TopicPartition, offset: int) -> None:
            self.read_again += 1
            whole_seek(consumer, partition, offset)

        monkeypatch.setattr(TimedConsumer, "poll", poll)
        monkeypatch.setattr(FakeConsumer, "seek", seek)


def test_damaged_answer_is_fetched_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, nothing comes twice, and the other partition goes on meanwhile."""
    world.cluster.put("in", b"a", b"b", b"c", key=b"k")
    world.cluster.put("in", b"x", b"y", key=b"l", partition=1)
    trouble = DamagedConsumer(monkeypatch, 1, 3, damaged(IN0, 1))
    began = world.now_ms
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"x1", b"y2", b"b2", b"c3"]
    assert (trouble.left, trouble.read_again) == (0, 3)
    assert world.now_ms - began >= 700  # 100, 200 and 400 ms: no loop without a wait.


def test_damaged_log_stops_the_worker_with_the_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.put("in", b"a", b"b", b"c", key=b"k")
    world.cluster.put("in", b"x", b"y", key=b"l", partition=1)
    DamagedConsumer(monkeypatch, 1, 1_000, damaged(IN0, 1))
    for _ in range(2):
        with pytest.raises(ProcessingError, match="in-0 is damaged at offset 1") as caught:
            world.run(counting())
        found = caught.value
        assert (found.topic, found.partition, found.offset) == ("in", 0, 1)
    assert sorted(world.cluster.values("out")) == [b"a1", b"x1", b"y2"]
    assert (world.cluster.offset("in", 0), world.cluster.offset("in", 1)) == (1, 2)


def test_skipping_records_does_not_skip_a_damaged_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``on_error`` is about handlers; nobody said that unread records may be lost."""
    app = App("skips")

    @app.processor("in", to="out", on_error="skip")
    def same(value: bytes) -> bytes:
        return value

    world.cluster.put("in", b"a", b"b")
    DamagedConsumer(monkeypatch, 1, 1_000, damaged(IN0, 1))
    with pytest.raises(ProcessingError, match="in-0 is damaged at offset 1"):
        world.run(app)
    assert world.cluster.values("out") == [b"a"]


def test_offset_that_is_gone_is_not_fetched_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cluster.put("in", b"a", b"b", key=b"k")
    error = NoOffsetForPartitionError("offset 1 of in-0 is out of range")
    error.place = (*IN0, 1)
    trouble = DamagedConsumer(monkeypatch, 1, 1_000, error)
    with pytest.raises(NoOffsetForPartitionError):
        world.run(counting())
    assert world.cluster.values("out") == [b"a1"]
    assert trouble.left == 999


def test_offset_that_a_successor_purged_is_no_gap(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker slept through its expulsion: it begins again where the group is now."""
    world.cluster.put("in", b"a", b"b", key=b"k")
    error = NoOffsetForPartitionError("offset 1 of in-0 is out of range")
    error.place = (*IN0, 1)
    DamagedConsumer(monkeypatch, 1, 1, error)
    world.cluster.do("ensure_membership", lambda: None)  # By the commit of what precedes it.
    world.cluster.fail("ensure_membership", CommitFailedError("expelled"))
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2"]


# Topics --------------------------------------------------------------------------------------


def go(world: World, after_polls: int, change: object) -> None:
    """Change something once, some polls later; the worker stays that long and longer."""
    world.idle_polls_max = 60
    for _ in range(after_polls):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("in", "input topic in was deleted while the application runs"),
        ("out", "output topic out was deleted while the application runs; restore it, or start"),
        ("counts-count-seen-changelog", "changelog topic .* was deleted while"),
    ],
)
def test_topic_that_is_deleted_ends_the_worker(world: World, topic: str, message: str) -> None:
    world.cluster.put("in", b"a", key=b"k")
    go(world, 3, lambda: world.topics.pop(topic))
    with pytest.raises(TopicSetupError, match=message):
        world.run(counting())
    assert world.cluster.values("out") == [b"a1"]


@pytest.mark.parametrize("topic", ["in", "counts-count-seen-changelog"])
def test_topic_that_is_made_again_ends_the_worker(world: World, topic: str) -> None:
    """Trap 31: offsets and state belong to the topic of before, whatever its name is."""
    go(world, 3, lambda: world.topics.__setitem__(topic, TopicFacts(2, "another id")))
    with pytest.raises(TopicSetupError, match="was deleted and made again while"):
        world.run(counting())


def test_output_that_is_made_again_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    go(world, 3, lambda: world.topics.__setitem__("out", TopicFacts(2, "another id")))
    world.run(counting())
    assert "output topic out was deleted and made again" in caplog.text


def test_input_that_grows_ends_a_worker_with_state(world: World) -> None:
    go(world, 3, lambda: world.topics.__setitem__("in", TopicFacts(3, "id-in")))
    with pytest.raises(TopicSetupError, match="has 2 partitions but input in has 3"):
        world.run(counting())


def test_partition_that_is_new_ends_a_worker_with_state_at_once(world: World) -> None:
    """The group hands it out before the worker looks at its topics."""
    go(world, 3, lambda: world.cluster.rebalance([IN0, IN1, TopicPartition("in", 2)]))
    with pytest.raises(TopicSetupError, match="has 2 partitions but input in has 3 or more"):
        world.run(counting())


def test_input_that_grows_is_read_without_state(world: World) -> None:
    app = App("plain")

    @app.processor("in", to="out")
    def same(value: bytes) -> bytes:
        return value

    new = TopicPartition("in", 2)

    def grow() -> None:
        world.topics["in"] = TopicFacts(3, "id-in")
        world.cluster.put("in", b"new", partition=2)
        world.cluster.rebalance([IN0, IN1, new])

    go(world, 3, grow)
    world.run(app)
    assert world.cluster.values("out") == [b"new"]


@pytest.mark.parametrize(
    ("replicas", "config", "said"),
    [
        (3, {"min.insync.replicas": "2"}, None),
        (1, {"min.insync.replicas": "2"}, "topic in can lose .* 1 replicas"),
        (3, {"min.insync.replicas": "1"}, r"min\.insync\.replicas=1 \(set it to 2\)"),
        (3, {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable=true"),
    ],
)
def test_topics_that_can_lose_records_are_told(
    world: World,
    caplog: pytest.LogCaptureFixture,
    replicas: int,
    config: dict[str, str],
    said: str | None,
) -> None:
    """Trap 85; on a cluster that could do better."""
    world.topics["in"] = TopicFacts(2, "id-in", replicas)
    world.topics["out"] = TopicFacts(2, "id-out", 3)
    world.configs["in"] = config
    app = App("plain")

    @app.processor("in", to="out")
    def same(value: bytes) -> bytes:
        return value

    world.run(app)
    assert caplog.text == ""  # One broker cannot do better.
    world.brokers = 3
    world.run(app)
    lines = [record.getMessage() for record in caplog.records]
    if said is None:
        assert lines == []
    else:
        (line,) = lines
        assert re.search(said, line), line


def test_without_the_right_to_see_configurations_work_goes_on(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from processor_worlds import FakeAdmin

    def refused(admin: FakeAdmin, topics: object) -> object:
        raise TopicAuthorizationFailedError("in")

    monkeypatch.setattr(FakeAdmin, "configs", refused)
    world.cluster.put("in", b"a", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1"]
    assert "grant DESCRIBE_CONFIGS" in caplog.text


# Stores --------------------------------------------------------------------------------------


def test_store_that_somebody_else_holds_is_waited_for_with_a_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.cluster.put("in", b"a", key=b"k")
    world.cluster.put("in", b"x", key=b"l", partition=1)
    directory = world.state_dir / "counts" / "state" / "counts" / "in" / "0"
    holder = open_map(directory, world.now_ms)
    assert holder is not None
    for _ in range(20):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", holder.close)
    world.run(counting())
    assert world.cluster.values("out") == [b"x1", b"a1"]
    waits = [r for r in caplog.records if "another process holds" in r.getMessage()]
    assert len(waits) == 1
    assert str(directory) in waits[0].getMessage()


# Beside a loop -------------------------------------------------------------------------------


class AwaitedClients:
    """asyncio clients of the in-memory cluster: every call suspends once."""

    def __init__(self, world: World) -> None:
        self.inner = FakeClients(world.cluster, [IN0, IN1])
        self.world = world

    async def producer(self, config: SessionConfig) -> object:
        return _Awaited(self.inner.producer(config))

    async def consumer(self, config: SessionConfig, hooks: object) -> object:
        consumer = TimedConsumer(self.world.cluster, config, hooks)  # type: ignore[arg-type]
        consumer.world = self.world
        self.world.cluster.generation += 1
        consumer.pending.append(({IN0, IN1}, False, self.world.cluster.generation))
        return _Awaited(consumer)


class _Awaited:
    """Makes the blocking calls of a fake client awaitable."""

    PLAIN = ("assignment", "group_metadata", "identity", "lag", "pause", "resume", "wakeup")

    def __init__(self, client: FakeProducer | TimedConsumer) -> None:
        self._client = client

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> object:
        assert isinstance(self._client, TimedConsumer)
        for hook in self._client.rebalances():
            await hook
        return self._client.poll(timeout_ms, max_records)

    def __getattr__(self, name: str) -> object:
        function = getattr(self._client, name)
        if name in self.PLAIN:
            return function

        async def call(*args: object, **more: object) -> object:
            await asyncio.sleep(0)
            return await settle(function(*args, **more))

        return call


class AsyncioWorld(World):
    """A world of asyncio clients: no thread, no clock and no sleep but those of the loop."""

    def ledger(self, config: SessionConfig, owner: LedgerOwner, unit: Unit, calls: Calls) -> Ledger:
        async def make(listener):  # type: ignore[no-untyped-def]
            session = AsyncTransactionSession(
                config,
                listener=listener,
                clients=AwaitedClients(self),  # type: ignore[arg-type]
            )
            await session.start()
            return session

        return TransactionLedger(make, owner, unit.lanes, calls, config.revoke_budget_ms)

    async def sleep(self, delay_s: float) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.now_ms += int(delay_s * 1000)


@pytest.mark.parametrize("store", StoreKind)
async def test_worker_runs_over_asyncio_clients_without_threads(
    tmp_path: Path, store: StoreKind
) -> None:
    """As in the simulation: retries, state, an abort and a start in place, all awaited."""
    world = AsyncioWorld(tmp_path, "in", partitions=2)
    failures = {"b": 2}
    app = App("counts", state_dir=tmp_path, commit_records=2)

    @app.processor("in", to="out", retries=Retries(2, backoff_ms=900), store=store)
    async def count(value: str, seen: State[int]) -> str:
        await asyncio.sleep(0)
        if failures.get(value, 0):
            failures[value] -= 1
            raise ValueError(value)
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get()}"

    world.cluster.put("in", b"a", b"b", b"c", key=b"k")
    world.cluster.put("in", b"x", b"y", key=b"l", partition=1)
    world.cluster.fail("flush", TransactionAbortableError())
    world.cluster.fail("committed", CoordinatorNotAvailableError())
    await world.make(app).run(InPlace())
    assert sorted(world.cluster.values("out")) == [b"a1", b"b2", b"c3", b"x1", b"y2"]
