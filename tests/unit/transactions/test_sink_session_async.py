"""Goal: the asyncio session with a sink waits without holding up its loop, and loses no row by it.

Method: a session over the in-memory cluster and an SQLite file; sinks wait until they are told to
go on, while other tasks use the session, are cancelled, or close it. Then the same over the
in-process broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from processor_fakes import FakeClients, FakeCluster, FakeConsumer

from onceflow.broker_lite import Broker
from onceflow.sdk import Producer
from onceflow.sdk.errors import IllegalStateError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import SessionConfig
from onceflow.transactions.listener import RebalanceHooks
from onceflow.transactions.sinks import (
    AsyncSinkSession,
    Batch,
    Entry,
    SinkFencedError,
    Sqlite,
)

IN0 = TopicPartition("in", 0)


class SinkFakeConsumer(FakeConsumer):
    def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        return super().position(partition)

    def commit_async(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.cluster.enter("commit_async")

    def topic_id(self, partition: TopicPartition) -> UUID:
        return UUID(int=1)


class SinkFakeClients(FakeClients):
    def consumer(self, config: SessionConfig, hooks: RebalanceHooks) -> SinkFakeConsumer:
        consumer = AwaitedConsumer(self.cluster, config, hooks)
        consumer.pending.append((set(self.partitions), False, 1))
        return consumer

    def topic_ids(self, config: SessionConfig, topics: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(topics, str(UUID(int=1)))


class AwaitedConsumer(SinkFakeConsumer):
    """Awaits the callbacks of rebalances, which wait for the sink."""

    async def poll(self, timeout_ms: int = 0, max_records: int | None = None):  # type: ignore[no-untyped-def, override]
        for hook in self.rebalances():
            await hook
        return super().poll(timeout_ms, max_records)

    async def close(self, timeout_ms: int = 0, *, leave_group: bool | None = None) -> None:  # type: ignore[override]
        result = super().close(timeout_ms, leave_group=leave_group)
        if result is not None:
            await result


class WaitingSink(Sqlite):
    """Its writes with rows wait for ``go_on``, in their thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rows")
        self.go_on, self.entered = threading.Event(), threading.Event()
        self.threads: set[int] = set()

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        self.threads.add(threading.get_ident())
        if batch.rows:
            self.entered.set()
            assert self.go_on.wait(30)
        super().write(batch, timeout_ms)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (text TEXT NOT NULL)")
    return path


@pytest.fixture
def sink(path: Path) -> Iterator[WaitingSink]:
    sink = WaitingSink(path)
    yield sink
    sink.go_on.set()


def session_of(sink: object) -> AsyncSinkSession[bytes | None, bytes | None]:
    cluster = FakeCluster()
    cluster.put("in", "a", "b")
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    return AsyncSinkSession(sink, config, clients=SinkFakeClients(cluster, [IN0]))  # type: ignore[arg-type]


def stored(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM rows ORDER BY rowid")]


async def step(session: AsyncSinkSession[bytes | None, bytes | None]) -> list[object]:
    values: list[object] = []
    for records in (await session.poll()).values():
        for record in records:
            values.append(record.value)
            session.write({"text": record.value}, of=record)
    return values


async def test_the_loop_goes_on_while_a_blocking_sink_writes(sink: WaitingSink, path: Path) -> None:
    async with session_of(sink) as session:
        assert await step(session) == ["a", "b"]
        commit = asyncio.create_task(session.commit())
        assert await asyncio.to_thread(sink.entered.wait, 30)
        assert not commit.done()
        sink.go_on.set()
        assert await commit
        assert stored(path) == ["a", "b"]
        assert len(sink.threads) == 1
        assert threading.get_ident() not in sink.threads


async def test_what_another_task_writes_within_a_commit_is_refused_and_not_lost(
    sink: WaitingSink, path: Path
) -> None:
    async with session_of(sink) as session:
        await step(session)
        commit = asyncio.create_task(session.commit())
        assert await asyncio.to_thread(sink.entered.wait, 30)
        with pytest.raises(IllegalStateError, match=r"write\(\) within a commit"):
            session.write({"text": "late"})
        with pytest.raises(IllegalStateError, match=r"abort\(\) within a commit"):
            session.abort()
        poll = asyncio.create_task(session.poll())
        sink.go_on.set()
        assert await commit
        assert await poll == {}
    assert stored(path) == ["a", "b"]


async def test_a_commit_whose_task_is_cancelled_goes_on(sink: WaitingSink, path: Path) -> None:
    async with session_of(sink) as session:
        await step(session)
        commit = asyncio.create_task(session.commit())
        assert await asyncio.to_thread(sink.entered.wait, 30)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        sink.go_on.set()
        assert await step(session) == []  # behind the commit, and nothing is read again
        assert stored(path) == ["a", "b"]


async def test_a_poll_that_is_cancelled_within_a_claim_claims_again(path: Path) -> None:
    sink = SlowClaims(path)
    async with session_of(sink) as session:
        poll = asyncio.create_task(session.poll())
        await sink.claiming.wait()
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        sink.go_on.set()
        assert await step(session) == ["a", "b"]
        assert await session.commit()
    assert stored(path) == ["a", "b"]


class SlowClaims:
    """An ``AsyncSink`` around SQLite; claims wait for ``go_on`` once they are made."""

    def __init__(self, path: Path) -> None:
        self.inner = Sqlite(path, "rows")
        self.claiming, self.go_on = asyncio.Event(), asyncio.Event()

    async def open(self, group_id: str) -> None:
        self.inner.open(group_id)

    async def claim(
        self, partitions: Sequence[TopicPartition], owner: str, topic_ids: Mapping[str, str]
    ) -> Mapping[TopicPartition, Entry]:
        claimed = self.inner.claim(partitions, owner, topic_ids)
        self.claiming.set()
        await self.go_on.wait()
        return claimed

    async def stored(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Entry]:
        return self.inner.stored(partitions)

    async def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        self.inner.write(batch, timeout_ms)

    async def close(self) -> None:
        self.inner.close()


async def test_over_a_broker(path: Path) -> None:
    with Broker() as broker:
        broker.create_topic("in", partitions=1)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for value in (b"a", b"b"):
                producer.send("in", value)
        other = Sqlite(path, "rows")
        other.open("g")
        with contextlib.closing(other):
            async with AsyncSinkSession(
                Sqlite(path, "rows"),
                topics=["in"],
                bootstrap_servers=broker.bootstrap_servers,
                group_id="g",
            ) as session:
                for fenced in (True, False):
                    taken: list[str] = []
                    while len(taken) < 2:
                        for records in (await session.poll(1000)).values():
                            for record in records:
                                taken.append((record.value or b"").decode())
                                session.write({"text": taken[-1]}, of=record)
                    assert taken == ["a", "b"]
                    if fenced:
                        other.claim([IN0], "successor")
                    assert await session.commit() is not fenced
                    assert isinstance(session.last_abort, SinkFencedError) is fenced
    assert stored(path) == ["a", "b"]
