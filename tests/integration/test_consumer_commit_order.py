"""Goal: a group's offsets never go back by themselves: whatever is repeated in the background, the
latest commit of a partition counts, and after a partition was given up its next owner's.

Method: the bundled broker refuses or loses the older commit's requests, both group protocols, both
faces; the stored offset is looked at once the older commit is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_worlds import PATIENCE_S, fresh, make_topic, poll_until, write

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import (
    Admin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
)
from onceflow.sdk.aio.consume import engine
from onceflow.sdk.errors import (
    CommitFailedError,
    KafkaError,
    RebalanceInProgressError,
    RequestTimedOutError,
    RetriableError,
)
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitRequest, TxnOffsetCommitRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

FAULTS = {
    "refused": {"fault": Fault.ERROR, "error": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
    "request lost": {"fault": Fault.DROP_REQUEST},
    "answer lost": {"fault": Fault.DROP_ANSWER},
}
PROTOCOLS = ("classic", "consumer")
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "50",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=QUICK) as running:
        yield running


@pytest.fixture(autouse=True)
def without_faults(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


def settings_of(broker: Broker, group: str, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "retry_backoff_ms": 10,
        "retry_backoff_max_ms": 20,
        **settings,
    }


def stored(broker: Broker, group: str, partition: TopicPartition) -> int | None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group).get(partition)
        return None if found is None else found.offset


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline


def ended_commits(consumer: Consumer | AsyncConsumer) -> int:
    figures = consumer.metrics()
    return figures.commit_total + figures.commit_error_total


@pytest.fixture(params=PROTOCOLS)
def topic_and_group(request: pytest.FixtureRequest, broker: Broker) -> tuple[str, str, str]:
    topic = make_topic(broker.bootstrap_servers)
    write(broker.bootstrap_servers, topic, map(str, range(50)))
    return topic, fresh("group"), request.param


@pytest.mark.parametrize("how", FAULTS)
def test_a_later_commit_stays_whatever_becomes_of_an_earlier_one(
    broker: Broker, topic_and_group: tuple[str, str, str], how: str
) -> None:
    topic, group, protocol = topic_and_group
    partition = TopicPartition(topic, 0)
    with Consumer(topic, **settings_of(broker, group, group_protocol=protocol)) as consumer:
        poll_until(lambda: bool(consumer.assignment()), consumer)
        broker.faults.add(OffsetCommitRequest, **FAULTS[how])  # type: ignore[arg-type]
        consumer.commit_async({partition: 41})
        consumer.commit({partition: 45})
        assert stored(broker, group, partition) == 45
        wait_for(lambda: ended_commits(consumer) == 2)
        assert consumer.metrics().commit_error_total == 0
        assert stored(broker, group, partition) == 45


@pytest.mark.parametrize("how", FAULTS)
async def test_so_it_is_with_asyncio(
    broker: Broker, topic_and_group: tuple[str, str, str], how: str
) -> None:
    topic, group, protocol = topic_and_group
    partition = TopicPartition(topic, 0)
    consumer = AsyncConsumer(topic, **settings_of(broker, group, group_protocol=protocol))
    async with consumer:
        while not consumer.assignment():
            await consumer.poll(100)
        broker.faults.add(OffsetCommitRequest, **FAULTS[how])  # type: ignore[arg-type]
        older = asyncio.ensure_future(consumer.commit({partition: 41}))
        await asyncio.sleep(0)
        await consumer.commit({partition: OffsetAndMetadata(45, "later")})
        await older
    assert await asyncio.to_thread(stored, broker, group, partition) == 45


def test_an_earlier_commit_keeps_the_partitions_that_no_later_one_has(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), fresh("group")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Consumer(topic, **settings_of(broker, group)) as consumer:
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        broker.faults.add(OffsetCommitRequest, **FAULTS["refused"])  # type: ignore[arg-type]
        consumer.commit_async({first: 1, second: 1})
        consumer.commit({first: 2})
        wait_for(lambda: ended_commits(consumer) == 2)
    assert (stored(broker, group, first), stored(broker, group, second)) == (2, 1)


def test_an_automatic_commit_never_undoes_one_that_was_asked_for(
    broker: Broker, topic_and_group: tuple[str, str, str]
) -> None:
    topic, group, protocol = topic_and_group
    automatic = {"enable_auto_commit": True, "auto_commit_interval_ms": 1_000}
    partition = TopicPartition(topic, 0)
    settings = settings_of(broker, group, group_protocol=protocol, **automatic)
    with Consumer(topic, max_poll_records=10, **settings) as consumer:
        read: list[str] = []
        rule = broker.faults.add(
            OffsetCommitRequest,
            Fault.ERROR,
            times=None,
            error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        while not rule.hits:
            read += [r.value.decode() for rs in consumer.poll(50, 10).values() for r in rs]
        while len(read) < 50:
            read += [r.value.decode() for rs in consumer.poll(50).values() for r in rs]
        broker.faults.clear()
        consumer.commit()
        wait_for(lambda: ended_commits(consumer) >= 2)
        assert stored(broker, group, partition) == 50
    assert stored(broker, group, partition) == 50


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_commit_that_is_repeated_ends_with_the_assignment(
    broker: Broker, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition went to another member, which committed more, and came back."""
    monkeypatch.setattr(engine, "REVOKE_COMMIT_LIMIT_MS", 20)
    topic, group = make_topic(broker.bootstrap_servers), fresh("group")
    partition = TopicPartition(topic, 0)
    own = settings_of(broker, group, group_protocol=protocol)
    if protocol == "classic":
        own["heartbeat_interval_ms"] = 50
    old = Consumer(topic, **own, client_id="old")
    poll_until(lambda: bool(old.assignment()), old)
    broker.faults.add(
        OffsetCommitRequest,
        Fault.ERROR,
        times=None,
        client_id="old",
        error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    )
    old.commit_async({partition: 10})
    other = make_topic(broker.bootstrap_servers)
    old.subscribe([other])
    poll_until(lambda: old.assignment() == {TopicPartition(other, 0)}, old)
    with Consumer(topic, **own) as new:
        poll_until(lambda: partition in new.assignment(), new, old)
        new.commit({partition: 45})
    old.subscribe([topic])
    poll_until(lambda: old.assignment() == {partition}, old)
    broker.faults.clear()
    poll_until(lambda: ended_commits(old) == 1, old)
    assert old.metrics().commit_error_total == 1
    assert stored(broker, group, partition) == 45
    old.close()


def test_so_it_does_without_a_membership(broker: Broker) -> None:
    """Nothing but the client itself keeps a repetition from overwriting others' commits there."""
    topic, group = make_topic(broker.bootstrap_servers), fresh("group")
    partition = TopicPartition(topic, 0)
    own = settings_of(broker, group)
    with Consumer(**own) as old, Consumer(**own) as new:
        old.assign([partition])
        broker.faults.add(
            OffsetCommitRequest,
            Fault.ERROR,
            times=None,
            error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        old.commit_async({partition: 10})
        old.assign([])
        new.assign([partition])
        broker.faults.clear()
        new.commit({partition: 45})
        wait_for(lambda: ended_commits(old) == 1)
    assert stored(broker, group, partition) == 45


async def test_whoever_waits_for_a_commit_that_lost_its_partition_is_told(broker: Broker) -> None:
    topic = await asyncio.to_thread(make_topic, broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    async with AsyncConsumer(**settings_of(broker, fresh("group"))) as consumer:
        consumer.assign([partition])
        rule = broker.faults.add(
            OffsetCommitRequest,
            Fault.ERROR,
            times=None,
            error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        waiting = asyncio.ensure_future(consumer.commit({partition: 10}))
        while not rule.hits:
            await consumer.poll(20)
        consumer.assign([])
        with pytest.raises(CommitFailedError, match=f"{partition}.*given up"):
            await waiting


async def test_an_earlier_commit_fails_with_the_later_one_that_took_its_place(
    broker: Broker,
) -> None:
    topic = await asyncio.to_thread(make_topic, broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    async with AsyncConsumer(**settings_of(broker, fresh("group"))) as consumer:
        consumer.assign([partition])
        broker.faults.add(
            OffsetCommitRequest,
            Fault.ERROR,
            times=None,
            error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        older = asyncio.ensure_future(consumer.commit({partition: 10}))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimedOutError):
            await consumer.commit({partition: 11}, timeout_ms=300)
        with pytest.raises(RequestTimedOutError):
            await older


def test_closing_waits_for_commits_in_the_background(broker: Broker) -> None:
    topic, group = make_topic(broker.bootstrap_servers), fresh("group")
    partition = TopicPartition(topic, 0)
    for commit in (True, False):
        consumer = Consumer(**settings_of(broker, group))
        consumer.assign([partition])
        broker.faults.add(OffsetCommitRequest, **FAULTS["refused"])  # type: ignore[arg-type]
        consumer.commit_async({partition: 10 + commit})
        consumer.close(commit=commit)
        assert stored(broker, group, partition) == 10 + commit


def test_commits_while_the_group_rebalances_can_be_caught_by_class(broker: Broker) -> None:
    """The application has to poll before it commits again, so the client does not repeat it."""
    topic, group = make_topic(broker.bootstrap_servers), fresh("group")
    partition = TopicPartition(topic, 0)
    with Consumer(topic, **settings_of(broker, group)) as consumer:
        poll_until(lambda: bool(consumer.assignment()), consumer)
        rule = broker.faults.add(
            OffsetCommitRequest, Fault.ERROR, times=1, error=ErrorCode.REBALANCE_IN_PROGRESS
        )
        with pytest.raises(RetriableError) as caught:
            consumer.commit({partition: 1})
        assert isinstance(caught.value, RebalanceInProgressError)
        assert rule.hits == 1
        consumer.poll(50)
        consumer.commit({partition: 1})
    assert stored(broker, group, partition) == 1


@pytest.mark.parametrize("how", FAULTS)
async def test_of_two_calls_within_a_transaction_the_later_ones_offsets_count(
    broker: Broker, how: str
) -> None:
    topic, group = await asyncio.to_thread(make_topic, broker.bootstrap_servers), fresh("group")
    partition = TopicPartition(topic, 0)
    member = ConsumerGroupMetadata(group)
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=fresh("txn"),
        retry_backoff_ms=10,
    ) as producer:
        await producer.begin_transaction()
        broker.faults.add(TxnOffsetCommitRequest, **FAULTS[how])  # type: ignore[arg-type]
        async with asyncio.TaskGroup() as calls:
            for offset in (41, 45):
                calls.create_task(producer.send_offsets_to_transaction({partition: offset}, member))
        await producer.commit_transaction()
    with contextlib.suppress(KafkaError):
        broker.faults.clear()
    assert await asyncio.to_thread(stored, broker, group, partition) == 45
