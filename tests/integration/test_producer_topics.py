"""Goal: a producer follows its topics: one that is deleted is made again on use where brokers make
topics on first use, and those that are not written to any more are left.

Method: blocking producers on the broker in process, plain, transactional, and joined by deletions;
what the engine holds is looked at, and what arrived is read back.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from producer_cluster import values
from stock_clients import wait_until

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, Producer
from onceflow.sdk.errors import DeliveryTimeoutError, UnknownTopicOrPartitionError

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "metadata_max_age_ms": 50,
}
TOPICS = [f"topic-{number}" for number in range(30)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that makes topics on first use."""
    with Broker() as running:
        yield running


def delete(broker: Broker, topic: str) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([topic])


# deleted topics


@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False}], ids=str)
def test_a_deleted_topic_is_made_again_on_use(broker: Broker, settings: dict[str, Any]) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, **QUICK, **settings) as producer:
        for number in range(3):
            assert producer.send("t", b"old").result(20).offset == 0
            delete(broker, "t")
            for offset in range(3):
                sent = producer.send("t", b"%d.%d" % (number, offset))
                assert sent.result(20).offset == offset
            delete(broker, "t")


def test_a_transaction_writes_to_a_topic_that_was_deleted_before_it(broker: Broker) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="x", **QUICK
    ) as producer:
        for _ in range(2):
            with producer.transaction():
                producer.send("t", b"old")
            delete(broker, "t")
        with producer.transaction():
            producer.send("t", b"new")
    assert values(broker.bootstrap_servers, "t") == [b"new"]


def test_a_deleted_topic_is_not_made_again_by_looking_after_the_metadata(broker: Broker) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, **QUICK) as producer:
        producer.send("t", b"old").result(20)
        producer.send("other", b"0").result(20)
        delete(broker, "t")
        refreshed = producer._engine.pool.metadata
        wait_until(lambda: producer._engine.pool.metadata is not refreshed, "newer metadata")
        producer.send("other", b"1").result(20)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            assert admin.list_topics() == ["other"]


def test_where_topics_are_not_made_on_use_the_record_says_what_is_missing() -> None:
    with Broker(settings={"auto.create.topics.enable": False}) as broker:
        broker.create_topic("t")
        settings = {"request_timeout_ms": 1_000, "delivery_timeout_ms": 2_000, **QUICK}
        with Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
            producer.send("t", b"old").result(20)
            delete(broker, "t")
            with pytest.raises(DeliveryTimeoutError, match="UNKNOWN_TOPIC"):
                producer.send("t", b"nowhere").result(20)
            broker.create_topic("t")
            assert producer.send("t", b"new").result(20).offset == 0


# topics that are not written to any more


def held(producer: Producer) -> tuple[int, int, int]:
    """How many topics the producer keeps: to append to, to ask for, and to know."""
    engine = producer._engine
    return (
        len(engine.accumulator.topics),
        len(engine.pool._topics),
        len(engine.pool.metadata.topics),
    )


def test_topics_leave_a_producer_that_does_not_write_to_them(broker: Broker) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, metadata_max_idle_ms=100, **QUICK
    ) as producer:
        for turn in range(3):
            for topic in TOPICS:
                producer.send(topic, b"%d" % turn)
            producer.flush()
            wait_until(lambda: held(producer) == (0, 0, 0), "the topics to be left")
    for topic in TOPICS:
        assert values(broker.bootstrap_servers, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("profile", [None, "3.9"])
def test_a_transactional_producer_leaves_them_too(profile: str | None) -> None:
    """Under version 1 of the protocol it keeps its sequences, as Kafka's own producer does."""
    with Broker(settings={"onceflow.profile": profile} if profile else None) as broker:
        with Producer(
            bootstrap_servers=broker.bootstrap_servers,
            transactional_id="x",
            metadata_max_idle_ms=100,
            **QUICK,
        ) as producer:
            kept = len(TOPICS) if profile else 0
            for turn in range(3):
                with producer.transaction():
                    for topic in TOPICS:
                        producer.send(topic, b"%d" % turn)
                wait_until(lambda: held(producer)[:2] == (kept, 0), "the topics to be left")
        for topic in TOPICS:
            assert values(broker.bootstrap_servers, topic) == [b"0", b"1", b"2"]


def test_topics_that_never_were_are_not_kept() -> None:
    with (
        Broker(settings={"auto.create.topics.enable": False}) as broker,
        Producer(bootstrap_servers=broker.bootstrap_servers, **QUICK) as producer,
    ):
        for topic in TOPICS:
            find = functools.partial(producer._engine.topic, topic, 100)
            with pytest.raises(UnknownTopicOrPartitionError):
                producer._portal.call(find)
        assert held(producer) == (0, 0, 0)


def test_describing_topics_at_once_keeps_none_of_them(broker: Broker) -> None:
    """The view of a topic is its caller's; another one that forgets it takes nothing away."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1) for topic in TOPICS])

        async def all_at_once() -> None:
            calls = [admin._async.describe_topics([t, "topic-0"]) for t in TOPICS for _ in "ab"]
            found = await asyncio.gather(*calls)
            assert all(len(part) in (1, 2) for part in found)

        admin._portal.call(all_at_once)
        assert not admin._async._pool.metadata.topics
