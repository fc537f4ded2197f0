"""Goal: a session with a sink keeps its rules where members, topics and the sink change under it.

Method: a session over an in-memory cluster (``processor_fakes``) and an SQLite file; each test
expels the member, breaks one call of the sink, or makes a topic again at one moment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from interruptions import POINTS_MAX, InterruptAt
from processor_fakes import Entry as LogEntry
from processor_fakes import FakeClients, FakeCluster, FakeConsumer

from onceflow.sdk.errors import (
    CommitFailedError,
    ConfigError,
    NoOffsetForPartitionError,
    RequestTimedOutError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import SessionConfig
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.listener import RebalanceHooks
from onceflow.transactions.sinks import (
    Batch,
    Entry,
    SinkFencedError,
    SinkOutcomeUnknownError,
    SinkSession,
    SinkSharedError,
    SinkTopicReplacedError,
    SinkUnavailableError,
    Sqlite,
)

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
OLD, NEW = UUID(int=1), UUID(int=2)


class SinkFakeConsumer(FakeConsumer):
    """A member whose positions belong to topic ids."""

    def __init__(self, cluster: FakeCluster, config: SessionConfig, hooks: RebalanceHooks) -> None:
        super().__init__(cluster, config, hooks)
        self.id = OLD
        self.shown: dict[TopicPartition, int] = {}

    def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        return super().position(partition)

    def commit_async(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.cluster.enter("commit_async")
        self.shown.update(offsets)

    def topic_id(self, partition: TopicPartition) -> UUID:
        return self.id


class SinkFakeClients(FakeClients):
    def consumer(self, config: SessionConfig, hooks: RebalanceHooks) -> SinkFakeConsumer:
        self.made = SinkFakeConsumer(self.cluster, config, hooks)
        self.made.pending.append((set(self.partitions), False, 1))
        return self.made

    def topic_ids(self, config: SessionConfig, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, str(self.made.id))


class BreakableSink(Sqlite):
    """Notes limits of writes, and fails the next ones."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rows")
        self.limits: list[int | None] = []
        self.batches: list[Batch] = []
        self.failures: list[Exception] = []
        self.after = False
        self.lost_claims: list[Exception] = []
        self.claims = 0

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = {},
    ) -> Mapping[TopicPartition, Entry]:
        self.claims += 1
        claimed = super().claim(partitions, owner, topic_ids)
        if self.lost_claims:
            raise self.lost_claims.pop(0)
        return claimed

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        self.limits.append(timeout_ms)
        self.batches.append(batch)
        if self.failures and not self.after:
            raise self.failures.pop(0)
        super().write(batch, timeout_ms)
        if self.failures:
            raise self.failures.pop(0)


class World:
    """A session, its fakes, and a second sink on the same file."""

    def __init__(self, path: Path, sink: BreakableSink | None = None) -> None:
        self.path = path
        self.polled: dict[TopicPartition, list[ConsumerRecord[bytes | None, bytes | None]]] = {}
        self.cluster = FakeCluster()
        self.cluster.put("in", "a", "b")
        self.clients = SinkFakeClients(self.cluster, [IN0])
        self.sink = sink or BreakableSink(path)
        self.other = Sqlite(path, "rows")
        self.other.open("g")
        self.session = SinkSession(
            self.sink,
            topics=["in"],
            bootstrap_servers="unused:1",
            group_id="g",
            clients=self.clients,
        )

    @property
    def consumer(self) -> SinkFakeConsumer:
        return self.clients.made

    def process(self) -> list[object]:
        values = []
        polled, self.polled = self.polled, {}
        for records in polled.values():
            for record in records:
                values.append(record.value)
                self.session.write({"text": record.value}, of=record)
        return values

    def step(self) -> list[object]:
        self.polled = self.session.poll()
        return self.process()

    def entry(self) -> Entry:
        return self.other.stored([IN0])[IN0]

    def rows(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            return [text for (text,) in connection.execute("SELECT text FROM rows ORDER BY rowid")]

    def close(self) -> None:
        self.session.close()
        self.other.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (text TEXT NOT NULL)")
    world = World(path)
    yield world
    world.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of coroutines.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("then", ["commit", "poll"])
def test_what_an_interrupted_poll_took_is_read_again(world: World, then: str) -> None:
    """A signal may come after the consumer gave records, and before they are here."""
    given = ["a", "b"]
    assert world.step() == given
    assert world.session.commit()
    for point in range(POINTS_MAX):
        given.append(f"p{point}")
        world.cluster.put("in", given[-1])
        interrupt = InterruptAt(point)
        polled = interrupt.run(world.session.poll)
        if polled is None:
            if then == "commit":
                world.session.commit()
            polled = world.session.poll()
        for records in polled.values():
            world.session.write_many([{"text": record.value} for record in records], of=records)
        assert world.session.commit()
        assert world.rows() == given, point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"
    assert point > 10


def _put_back(world: World) -> None:
    run_blocking(world.session._core.put_back([IN0]))


def _lose(world: World) -> None:
    world.consumer.pending.append((set(), True, 2))
    world.consumer.pending.append(({IN0}, False, 3))
    world.polled = world.session.poll()


def _give_up(world: World) -> None:
    world.consumer.pending.append((set(), False, 2))
    world.consumer.pending.append(({IN0}, False, 3))
    world.polled = world.session.poll()


def _commit_without_an_answer(world: World) -> None:
    world.sink.failures.append(SinkOutcomeUnknownError("lost"))
    world.sink.after = True
    world.session.commit()


INTERRUPTED = {
    "commit": lambda world: world.session.commit(),
    "unanswered commit": _commit_without_an_answer,
    "abort": lambda world: world.session.abort(),
    "put back": _put_back,
    "lose": _lose,
    "give up": _give_up,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of coroutines.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("then", ["commit", "poll"])
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_call_writes_each_row_once(world: World, name: str, then: str) -> None:
    """Rows that were written must not stay for the next commit, nor be passed over."""
    given = ["a", "b"]
    for point in range(POINTS_MAX):
        if name == "put back":
            world.session.poll()  # The caller has put back what it wrote nothing for.
        else:
            world.step()
        interrupt = InterruptAt(point)
        interrupt.run(lambda: INTERRUPTED[name](world))
        world.sink.failures.clear()
        world.process()
        if then == "commit" and name != "put back":
            world.session.commit()
        elif name == "put back" and interrupt.happened:
            world.session.abort()
        for _ in range(2):
            world.step()
            world.session.commit()
        assert world.rows() == given, point
        if not interrupt.happened:
            break
        given.append(f"p{point}")
        world.cluster.put("in", given[-1])
    assert not interrupt.happened, "every point was tried"
    assert point > 5


def test_a_fenced_member_that_was_expelled_does_not_take_partitions_back(world: World) -> None:
    assert world.step() == ["a", "b"]
    world.other.claim([IN0], "successor")
    assert world.session.commit() is False
    assert isinstance(world.session.last_abort, SinkFencedError)
    world.consumer.expelled = True
    assert world.step() == []
    assert world.entry().owner == "successor"
    world.consumer.expelled = False
    assert world.step() == ["a", "b"]
    assert world.session.commit()
    assert world.rows() == ["a", "b"]


@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_gives_an_expelled_member_no_claim(world: World, happened: bool) -> None:
    assert world.step() == ["a", "b"]
    world.sink.failures, world.sink.after = [SinkOutcomeUnknownError("no answer")], happened
    world.consumer.expelled = True
    claims = world.sink.claims
    assert world.session.commit() is False
    assert world.sink.claims == claims
    world.consumer.expelled = False
    assert world.step() == ([] if happened else ["a", "b"])
    assert world.session.commit()
    assert world.rows() == ["a", "b"]


def test_a_write_within_a_rebalance_is_bounded_and_read_again_by_the_next_owner(
    world: World,
) -> None:
    assert world.step() == ["a", "b"]
    assert world.sink.limits == [None]  # where the partition begins
    world.sink.failures = [SinkUnavailableError("locked")]
    world.cluster.rebalance([])
    assert world.step() == []
    assert world.sink.limits == [None, 5_000]
    assert isinstance(world.session.last_abort, SinkUnavailableError)
    assert world.rows() == []
    world.cluster.rebalance([IN0])
    assert world.step() == ["a", "b"]
    assert world.session.commit()
    assert world.sink.limits[-1] is None
    assert world.rows() == ["a", "b"]


def test_an_unknown_outcome_within_a_rebalance_is_left_to_the_next_claim(world: World) -> None:
    assert world.step() == ["a", "b"]
    world.sink.failures, world.sink.after = [SinkOutcomeUnknownError("no answer")], True
    claims = world.sink.claims
    world.cluster.rebalance([])
    assert world.step() == []
    assert world.sink.claims == claims
    world.cluster.rebalance([IN0])
    assert world.step() == []
    assert world.rows() == ["a", "b"]


def test_a_commit_that_finds_no_sink_is_told_and_read_again(world: World) -> None:
    assert world.step() == ["a", "b"]
    world.sink.failures = [SinkUnavailableError("locked")]
    with pytest.raises(SinkUnavailableError):
        world.session.commit()
    assert world.step() == ["a", "b"]
    assert world.session.commit()
    assert world.rows() == ["a", "b"]


def test_a_claim_whose_answer_is_lost_is_made_again(world: World) -> None:
    world.sink.lost_claims = [SinkOutcomeUnknownError("no answer")]
    with pytest.raises(SinkUnavailableError, match="claim got no answer"):
        world.step()
    assert world.step() == ["a", "b"]
    world.sink.failures, world.sink.after = [SinkOutcomeUnknownError("no answer")], True
    world.sink.lost_claims = [SinkUnavailableError("gone")]
    assert world.session.commit() is False
    assert world.step() == []
    assert world.rows() == ["a", "b"]


def test_a_partition_whose_claim_waits_for_the_group_has_no_offset_and_no_error(
    world: World,
) -> None:
    world.sink.lost_claims = [SinkUnavailableError("gone")]
    with pytest.raises(SinkUnavailableError):
        world.step()
    world.cluster.fail("ensure_membership", RequestTimedOutError("no coordinator"))
    world.cluster.fail("poll", NoOffsetForPartitionError("in-0 has no committed offset"))
    assert world.step() == []
    assert world.step() == ["a", "b"]


def test_a_start_that_somebody_else_claimed_meanwhile_is_claimed_again(world: World) -> None:
    world.sink.failures = [SinkFencedError("replaced"), SinkOutcomeUnknownError("no answer")]
    assert world.step() == []
    assert world.step() == []
    assert world.step() == ["a", "b"]
    assert world.session.commit()


def test_many_rows_are_written_in_one_call_and_checked_like_single_ones(world: World) -> None:
    ((partition, records),) = world.session.poll().items()
    rows = [{"text": record.value} for record in records]
    with pytest.raises(ConfigError, match="one record for each of 2 rows"):
        world.session.write_many(rows, of=records[:1])
    with pytest.raises(ConfigError, match="in their order"):
        world.session.write_many(rows, of=records[::-1])
    world.session.write_many(rows, of=records)
    world.session.write_many([{"text": "more"}])
    world.session.write_many([])
    assert world.session.commit()
    assert world.rows() == ["a", "b", "more"]
    world.cluster.put("in", "c", partition=partition.partition)
    (after,) = world.session.poll().values()
    with pytest.raises(CommitFailedError, match="offset 0"):
        world.session.write_many(rows, of=records)
    with pytest.raises(CommitFailedError, match="offset 1"):
        world.session.write_many(rows, of=[records[1], after[0]])
    world.session.write_many([{"text": "c"}] * 2, of=[after[0], after[0]])
    assert world.session.commit()
    assert world.rows() == ["a", "b", "more", "c", "c"]


@pytest.mark.parametrize("needed", [True, False])
def test_records_reach_the_sinks_that_need_them(world: World, needed: bool) -> None:
    world.session.close()
    world.sink.needs_records = needed  # type: ignore[attr-defined]
    again = World(world.path, world.sink)
    ((_, records),) = again.session.poll().items()
    again.session.write({"text": "a"}, of=records[0])
    again.session.write({"text": "none"})
    again.session.write_many([{"text": "b"}], of=records[1:])
    again.session.write_many([{"text": "none"}])
    assert again.session.commit()
    offsets = [record and record.offset for record in world.sink.batches[-1].records]
    assert offsets == ([0, None, 1, None] if needed else [])
    again.close()


def test_the_group_learns_of_stored_offsets_now_and_then_and_at_the_end(world: World) -> None:
    def shown() -> int:
        return world.cluster.calls.count("commit_async")

    world.step()
    assert world.session.commit()
    assert shown() == 1
    for value in "cdef":
        world.cluster.put("in", value)
        world.step()
        assert world.session.commit()
    assert shown() == 1
    world.session.close()
    assert shown() == 2


def test_the_group_learns_of_ends_that_are_read_to_and_of_no_others(world: World) -> None:
    """Workers of a bounded run wait for each other by the group's offsets."""
    core = world.session._core
    core.show_ends({IN0: 2})
    assert world.consumer.shown == {}  # Nobody has claimed it yet.
    world.cluster.logs[IN0] += [LogEntry(None, "gone", state="aborted")]
    world.step()
    world.session.commit()
    world.cluster.put("in", "later")
    world.polled = world.session.poll()
    core.show_ends({IN0: 9})
    assert world.consumer.shown.get(IN0, 0) < 9
    core.show_ends({IN0: 3})
    assert world.consumer.shown == {IN0: 3}
    assert world.entry().offset in (2, 3)  # What is stored does not depend on it.
    assert world.process() == ["later"]


def test_two_programs_that_claim_from_each_other_are_told(world: World) -> None:
    world.sink.failures = [SinkFencedError("replaced") for _ in range(3)]
    assert world.step() == []
    assert world.step() == []
    with pytest.raises(SinkSharedError, match="group_id"):
        world.step()


def test_a_topic_made_again_is_told_before_its_first_record(world: World) -> None:
    assert world.step() == ["a", "b"]
    assert world.session.commit()
    world.consumer.id = NEW
    world.cluster.put("in", "new")
    for _ in range(2):
        with pytest.raises(SinkTopicReplacedError, match=r"in-0.*made again"):
            world.step()
    assert world.entry().offset == 2
    assert world.rows() == ["a", "b"]


def test_a_position_of_a_topic_made_again_does_not_move_the_offset(world: World) -> None:
    assert world.step() == ["a", "b"]
    world.consumer.id = NEW
    world.consumer.positions[IN0] = 7
    assert world.session.commit()
    assert world.entry().offset == 2


def test_a_position_that_went_with_its_topic_is_told_apart_from_retention(world: World) -> None:
    assert world.step() == ["a", "b"]
    assert world.session.commit()
    world.cluster.fail("poll", NoOffsetForPartitionError("none"), times=2)
    with pytest.raises(NoOffsetForPartitionError):
        world.session.poll()
    world.consumer.id = NEW
    with pytest.raises(SinkTopicReplacedError, match="made again"):
        world.session.poll()
