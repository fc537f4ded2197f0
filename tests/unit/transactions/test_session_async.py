"""Goal: cancelling a task of an asyncio session leaves no transaction half ended.

Method: a session over the in-memory cluster, whose producer waits at its ends until it is told to
go on; tasks are cancelled and the session is closed meanwhile.
"""

from __future__ import annotations

import asyncio

import pytest
from processor_fakes import FakeClients, FakeCluster, FakeProducer

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import AsyncTransactionSession, SessionConfig, TransactionSession

IN0 = TopicPartition("in", 0)


class SlowProducer(FakeProducer):
    """Its ends wait for ``go_on``."""

    go_on: asyncio.Event
    waiting: asyncio.Event

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:  # type: ignore[override]
        self.waiting.set()
        await self.go_on.wait()
        super().commit_transaction(timeout_ms)


class SlowClients(FakeClients):
    """Makes one."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster, [IN0])
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()

    def producer(self, config: SessionConfig) -> FakeProducer:
        producer = SlowProducer(self.cluster, config.own_transactional_id)
        producer.go_on, producer.waiting = self.go_on, self.waiting
        return producer


async def commit_that_is_cancelled(
    cluster: FakeCluster,
) -> tuple[AsyncTransactionSession, SlowClients]:
    cluster.put("in", "a")
    clients = SlowClients(cluster)
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    session = AsyncTransactionSession(config, clients=clients)
    await session.start()
    assert await session.poll()
    await session.send("out", "A")
    task = asyncio.create_task(session.commit())
    await clients.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return session, clients


async def test_closing_waits_for_a_commit_whose_caller_was_cancelled() -> None:
    cluster = FakeCluster()
    session, clients = await commit_that_is_cancelled(cluster)
    closing = asyncio.create_task(session.close())
    await asyncio.sleep(0)
    clients.go_on.set()
    await closing
    assert cluster.values("out") == ["A"]
    assert cluster.offset("in") == 1
    assert "abort_transaction" not in cluster.calls


async def test_closing_waits_for_a_commit_no_longer_than_its_limit() -> None:
    cluster = FakeCluster()
    session, clients = await commit_that_is_cancelled(cluster)
    await session.close(timeout_ms=50)
    assert cluster.values("out") == []
    assert not cluster.members
    clients.go_on.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)


async def test_closing_lets_a_poll_of_another_task_return() -> None:
    cluster = FakeCluster()
    clients = FakeClients(cluster, [IN0])
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    session = AsyncTransactionSession(config, clients=clients)
    await session.start()
    await session.close()
    assert "wakeup" in cluster.calls
    await session.close()


async def test_a_unit_that_raises_is_aborted_on_both_faces() -> None:
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    cluster = FakeCluster()
    session = AsyncTransactionSession(config, clients=FakeClients(cluster, [IN0]))
    await session.start()

    async def fail() -> None:
        async with session.unit():
            await session.send("out", "A")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not session.in_transaction
    assert cluster.calls.count("abort_transaction") == 1
    with TransactionSession(config, clients=FakeClients(cluster, [IN0])) as blocking:

        def fail_blocking() -> None:
            with blocking.unit():
                blocking.send("out", "A")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_blocking()
        assert not blocking.in_transaction
    assert cluster.calls.count("abort_transaction") == 2


def test_records_of_the_blocking_face_commit_what_is_due() -> None:
    cluster = FakeCluster()
    cluster.put("in", "a")
    cluster.put("in", "b")
    config = SessionConfig(
        topics=["in"],
        bootstrap_servers="unused:1",
        group_id="g",
        commit_interval_ms=1,
        max_poll_records=1,
    )
    with TransactionSession(config, clients=FakeClients(cluster, [IN0])) as session:
        for record in session.records():
            session.send("out", record.value)
            while not session.commit_due:
                pass
            if record.value == "b":
                break
    assert cluster.values("out") == ["a"]
    assert cluster.offset("in") == 1


class SlowlyBeginning(FakeProducer):
    """Its transactions begin after some turns of the loop."""

    async def begin_transaction(self) -> None:  # type: ignore[override]
        for _ in range(5):
            await asyncio.sleep(0)
        super().begin_transaction()


class SlowlyBeginningClients(FakeClients):
    def producer(self, config: SessionConfig) -> FakeProducer:
        return SlowlyBeginning(self.cluster, config.own_transactional_id)


async def test_tasks_that_send_at_once_begin_one_transaction() -> None:
    cluster = FakeCluster()
    cluster.put("in", "a")
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    clients = SlowlyBeginningClients(cluster, [IN0])
    async with AsyncTransactionSession(config, clients=clients) as session:
        assert await session.poll()
        await asyncio.gather(*(session.send("out", value) for value in "ABC"))
        assert await session.commit()
    assert cluster.values("out") == ["A", "B", "C"]
    assert cluster.calls.count("begin_transaction") == 1
