"""Goal: a call that is cancelled at any of its awaits costs nothing that was promised.

Method: asyncio clients against the in-process broker; each call is cancelled after a number of
steps of the event loop that a seeded generator chooses. What the clients said is compared with
what readers of committed data see.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine
from typing import TypeVar

import pytest

from onceflow.broker_lite.testing import Broker, Fault
from onceflow.sdk import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic, TopicPartition
from onceflow.sdk.errors import (
    IllegalStateError,
    KafkaError,
    ProducerFencedError,
    RequestTimedOutError,
)
from onceflow.sdk.protocol.api.transactions import InitProducerIdRequest

T = TypeVar("T")
COUNT = 300
TRANSACTIONS = 20


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic("t", 1)])
        yield broker


async def cancelled_after(steps: int, call: Coroutine[object, object, T]) -> T | None:
    """What the call returns, or None when it was cancelled before."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def committed_values(broker: Broker) -> list[str]:
    found = []
    partition = TopicPartition("t", 0)
    async with AsyncConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            for records in (await consumer.poll(1_000)).values():
                found += [str(record.value, "ascii") for record in records]
    return found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", ["poll", "iteration"])
async def test_cancelled_reads_lose_and_repeat_nothing(broker: Broker, way: str, seed: int) -> None:
    servers, chance = broker.bootstrap_servers, random.Random(seed)
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        await producer.send_many("t", [b"%d" % n for n in range(COUNT)])
    found: list[int] = []
    async with (
        AsyncConsumer(
            "t",
            bootstrap_servers=servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=7,
        ) as consumer,
        asyncio.timeout(20),
    ):
        while len(found) < COUNT:
            steps = chance.randrange(1, 12)
            if way == "poll":
                polled = await cancelled_after(steps, consumer.poll(50)) or {}
                found += [int(r.value) for records in polled.values() for r in records]
            else:
                record = await cancelled_after(steps, consumer.__anext__())
                found += [] if record is None else [int(record.value)]
            if chance.random() < 0.1:
                await cancelled_after(chance.randrange(10), consumer.commit())
    assert found == list(range(COUNT))


@pytest.mark.parametrize("seed", range(4))
async def test_cancelled_transactions_are_whole_and_the_producer_goes_on(
    broker: Broker, seed: int
) -> None:
    chance = random.Random(seed)
    committed = set()
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="t", linger_ms=0
    ) as producer:
        for number in range(TRANSACTIONS):
            try:
                await cancelled_after(chance.randrange(1, 20), producer.begin_transaction())
                for part in range(3):
                    await cancelled_after(
                        chance.randrange(1, 30), producer.send("t", f"{number}-{part}")
                    )
                commit = asyncio.ensure_future(producer.commit_transaction())
                await cancelled_after(chance.randrange(1, 60), _as_call(commit))
            except ProducerFencedError:
                raise  # Nobody else has the id.
            except KafkaError:
                with contextlib.suppress(IllegalStateError):  # It was not begun.
                    await producer.abort_transaction()
                continue
            if not commit.cancelled() or not await _aborted(producer, chance):
                committed.add(number)
        async with producer.transaction():
            await producer.send("t", "last-0")
    values = await committed_values(broker)
    assert len(values) == len(set(values))
    assert values[-1] == "last-0"
    assert {int(value.partition("-")[0]) for value in values[:-1]} <= committed


async def _aborted(producer: AsyncProducer, chance: random.Random) -> bool:
    """After an interrupted commit: abort where that is allowed still, or commit again."""
    if chance.random() < 0.5:
        with contextlib.suppress(IllegalStateError):
            await producer.abort_transaction()
            return True
    await producer.commit_transaction()
    return False


async def _as_call(future: asyncio.Future[T]) -> T:
    return await future


@pytest.mark.parametrize("answers_lost", [1, 3])
async def test_lost_answers_to_its_own_takeover_do_not_fence_a_producer(
    broker: Broker, answers_lost: int
) -> None:
    """A repeated InitProducerId is known by the epoch that it names; the new one is ours."""
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="t", request_timeout_ms=100
    ) as producer:
        async with producer.transaction():
            await producer.send("t", "first")
        for _ in range(answers_lost):
            rule = broker.faults.add(InitProducerIdRequest, Fault.DROP_ANSWER, times=None)
            with pytest.raises(RequestTimedOutError):
                await producer.init_transactions(timeout_ms=300)
            rule.left = 0
        async with producer.transaction():
            await producer.send("t", "good")
    assert await committed_values(broker) == ["first", "good"]
