"""Goal: what a session commits is what the application was given: no record lost, none twice.

Method: seeded applications that commit, abort, leave and begin loops over single records at any
place, and polls that a signal interrupts at each point in turn at which CPython lets handlers run.
What readers of committed records see must be the input, once and in order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from interruptions import InterruptAt

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition
from onceflow.transactions import AsyncTransactionSession, SessionConfig, TransactionSession

PARTITIONS = 3
COUNT = 240
POINTS = 90
"""More than a call of a session has; a call that waits for records has more."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": "0"}) as running:
        running.create_topic("in", partitions=PARTITIONS)
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            for number in range(COUNT):
                producer.send("in", b"%d" % number, partition=number % PARTITIONS)
            producer.flush()
        yield running


def settings(broker: Broker, name: str, max_poll_records: int = 25) -> SessionConfig:
    broker.create_topic(name, partitions=PARTITIONS)
    return SessionConfig(
        topics=["in"],
        bootstrap_servers=broker.bootstrap_servers,
        group_id=name,
        commit_interval_ms=9_000,
        max_poll_records=max_poll_records,
        consumer_settings={"fetch_max_wait_ms": 10},
    )


def committed(broker: Broker, topic: str) -> dict[int, list[bytes | None]]:
    """What a reader of committed records sees, by partition."""
    found: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for partition, run in consumer.poll(1_000).items():
                found[partition.partition] += [record.value for record in run]
    return found


EXPECTED = {
    number: [b"%d" % each for each in range(number, COUNT, PARTITIONS)]
    for number in range(PARTITIONS)
}


@pytest.mark.parametrize("seed", range(6))
def test_loops_over_single_records_commit_what_they_were_given(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"blocking-{seed}"
    done = 0
    with TransactionSession(settings(broker, topic)) as session:
        while done < COUNT:
            since = 0
            for record in session.records(5_000):
                session.send(topic, record.value, partition=record.partition)
                since += 1
                act = chance.random()
                if act < 0.10 or done + since == COUNT:
                    assert session.commit()
                    done, since = done + since, 0
                    if done == COUNT:
                        break
                elif act < 0.14:
                    session.abort()
                    since = 0
                elif act < 0.20:
                    break
            if since and chance.random() < 0.5:
                assert session.commit()
                done += since
            elif since:
                session.abort()
            if done < COUNT and chance.random() < 0.5:
                polled = session.poll(5_000, 5)
                for partition, run in polled.items():
                    for record in run:
                        session.send(topic, record.value, partition=partition.partition)
                assert session.commit()
                done += sum(map(len, polled.values()))
    assert committed(broker, topic) == EXPECTED


@pytest.mark.parametrize("seed", range(4))
async def test_asynchronous_loops_do_so_too(broker: Broker, seed: int) -> None:
    chance = random.Random(seed)
    topic = f"asyncio-{seed}"
    done = 0
    async with AsyncTransactionSession(settings(broker, topic)) as session:
        while done < COUNT:
            since = 0
            async for record in session.records(5_000):
                await session.send(topic, record.value, partition=record.partition)
                since += 1
                act = chance.random()
                if act < 0.10 or done + since == COUNT:
                    assert await session.commit()
                    done, since = done + since, 0
                    if done == COUNT:
                        break
                elif act < 0.14:
                    await session.abort()
                    since = 0
                elif act < 0.20:
                    break
            if since:
                assert await session.commit()
                done += since
    assert committed(broker, topic) == EXPECTED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of coroutines.
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("form", ["poll", "records"])
@pytest.mark.parametrize("then", ["commit", "poll"])
def test_what_an_interrupted_poll_took_is_not_committed(
    broker: Broker, form: str, then: str
) -> None:
    """Each round reads a few records, is interrupted in the next call, and goes on."""
    topic = f"interrupted-{form}-{then}"
    points = itertools.count(random.randrange(POINTS))
    given: dict[int, list[bytes | None]] = {number: [] for number in range(PARTITIONS)}
    happened = 0
    with TransactionSession(settings(broker, topic, 3)) as session:

        def take() -> None:
            if form == "poll":
                records = [r for run in session.poll(5_000, 3).values() for r in run]
            else:
                records = [next(loop)]
            for record in records:
                given[record.partition].append(record.value)

        def missing() -> int:
            return COUNT - sum(map(len, given.values()))

        loop = session.records(5_000)
        while missing():
            take()
            if missing() > 3:
                # It may come after the call took records and before they are here.
                loop = session.records(5_000) if happened % 2 else loop
                interrupt = InterruptAt(next(points) % (POINTS if happened % 2 else 5))
                interrupt.run(take)
                happened += interrupt.happened
                loop = session.records(5_000)
            if then == "commit" or missing() < 3:
                assert session.commit()
    assert happened > 10
    assert given == EXPECTED
