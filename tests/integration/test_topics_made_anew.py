"""Goal: a topic that is deleted and made anew under its name is another topic to every client.

Method: consumers that read the old topic to its end and producers that wrote to it go on with the
new one, on the bundled broker. Nothing of the new topic may be skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from consumer_worlds import fresh, poll_until, read, write

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import NoOffsetForPartitionError, UnknownTopicIdError

BACKOFF = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 5}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def make_anew(broker: Broker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics(["t"])
    broker.create_topic("t")


def consumer_of(
    broker: Broker, how: str, reset: str = "earliest", automatic: bool = False
) -> Consumer:
    consumer = Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id=None if how == "assign" else fresh("group"),
        group_protocol="consumer" if how == "KIP-848" else "classic",
        auto_offset_reset=reset,
        enable_auto_commit=automatic,
        metadata_max_age_ms=100,
        **BACKOFF,
    )
    if how == "assign":
        consumer.assign([TopicPartition("t", 0)])
    elif how == "pattern":
        consumer.subscribe(pattern="t.*")
    else:
        consumer.subscribe(["t"])
    return consumer


@pytest.mark.parametrize(
    ("how", "automatic"),
    [
        ("classic", False),
        ("classic", True),
        ("KIP-848", False),
        ("KIP-848", True),
        ("assign", False),
        ("pattern", False),
    ],
)
def test_the_new_topic_is_read_from_its_beginning_trap_32(
    broker: Broker, how: str, automatic: bool
) -> None:
    write(broker.bootstrap_servers, "t", ["old 0", "old 1"])
    with consumer_of(broker, how, automatic=automatic) as consumer:
        assert read(consumer, 2) == ["old 0", "old 1"]
        if how != "assign" and not automatic:
            consumer.commit()
        make_anew(broker)
        write(broker.bootstrap_servers, "t", ["new 0", "new 1", "new 2"])
        assert read(consumer, 3) == ["new 0", "new 1", "new 2"]


def test_without_a_policy_the_poll_raises_and_a_seek_goes_on(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "onceflow.sdk.consumer")
    write(broker.bootstrap_servers, "t", ["old"])
    with consumer_of(broker, "assign", "none") as consumer:
        consumer.seek(TopicPartition("t", 0), 0)
        assert read(consumer, 1) == ["old"]
        make_anew(broker)
        write(broker.bootstrap_servers, "t", ["new 0", "new 1"])
        with pytest.raises(NoOffsetForPartitionError, match="seek"):
            poll_until(lambda: False, consumer)
        consumer.seek(TopicPartition("t", 0), 1)
        assert read(consumer, 1) == ["new 1"]
    assert sum("deleted and created again" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_a_later_transaction_is_not_blamed_for_the_deletion(broker: Broker, commit: bool) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=fresh("id"), **BACKOFF
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"old")
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        make_anew(broker)
        producer.begin_transaction()
        producer.send("t", b"new")
        producer.commit_transaction()
    with consumer_of(broker, "assign") as consumer:
        assert read(consumer, 1) == ["new"]


def test_a_transaction_that_lost_a_part_cannot_be_committed(broker: Broker) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=fresh("id"), **BACKOFF
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"gone")
        producer.flush()
        make_anew(broker)
        producer.send("t", b"of the same transaction")
        with pytest.raises(UnknownTopicIdError, match="during the transaction"):
            producer.commit_transaction()
        producer.abort_transaction()
