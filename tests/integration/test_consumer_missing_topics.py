"""Goal: a consumer that waits for what is not there says so, once, and goes on when it is there.

Method: consumers of missing topics and partitions on the bundled broker, with short back-offs; what
the logger `onceflow.sdk.consumer` got is read after a deadline-bound poll, never after a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from consumer_worlds import fresh, poll_until, read

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition

BACKOFF = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(journal=True) as running:
        yield running


def asked_again(broker: Broker, times: int = 20) -> Callable[[], bool]:
    """Whether the cluster was asked for its topics so often from now on."""
    wanted = len(broker.journal.select("Metadata")) + times
    return lambda: len(broker.journal.select("Metadata")) >= wanted


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "onceflow.sdk.consumer")
    return caplog


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_missing_topic_is_told_once_and_read_when_it_comes(
    broker: Broker, warnings: pytest.LogCaptureFixture, protocol: str
) -> None:
    with Consumer(
        "oders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id=fresh("group"),
        group_protocol=protocol,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        metadata_max_age_ms=50,
        **BACKOFF,
    ) as consumer:
        poll_until(lambda: bool(warnings.messages), consumer)
        poll_until(asked_again(broker), consumer)
        (said,) = warnings.messages
        assert "'oders'" in said
        assert "create it" in said
        broker.create_topic("oders")
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("oders", b"1").result(timeout=20)
        assert read(consumer, 1) == ["1"]
    assert len(warnings.messages) == 1


def test_a_missing_partition_is_told_with_those_that_are_there(
    broker: Broker, warnings: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("orders", partitions=2)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, **BACKOFF) as consumer:
        consumer.assign([TopicPartition("orders", 1), TopicPartition("orders", 2)])
        poll_until(lambda: bool(warnings.messages), consumer)
        assert "orders-2" in warnings.messages[0]
        assert "0 to 1" in warnings.messages[0]


def test_a_pattern_without_a_match_is_no_news(
    broker: Broker, warnings: pytest.LogCaptureFixture
) -> None:
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=fresh("group"),
        metadata_max_age_ms=5,
        **BACKOFF,
    ) as consumer:
        consumer.subscribe(pattern="nothing-.*")
        poll_until(asked_again(broker), consumer)
    assert warnings.messages == []
