"""Two producers and two sessions that share a transactional id, before and after it has expired.

The same story for our broker, whose clock a test can move, and for Apache Kafka, where it waits.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stock_clients import wait_until

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition
from onceflow.sdk.errors import (
    FatalError,
    InvalidProducerIdMappingError,
    TransactionalIdNotFoundError,
)
from onceflow.transactions import SessionConfig, TransactionSession


def make_lasting_topic(bootstrap: str, topic: str) -> None:
    """A topic whose records outlive the transactional id."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, configs={"retention.ms": "-1"})])


def committed_values(bootstrap: str, topic: str) -> list[bytes | None]:
    """Every committed value of partition 0."""
    partition = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            for records in consumer.poll(200).values():
                found.extend(r.value for r in records)  # type: ignore[misc]
    return found


def wait_until_forgotten(bootstrap: str, transactional_id: str) -> None:
    """Wait until the coordinator does not know the id."""

    def is_forgotten() -> bool:
        try:
            admin.describe_transactions([transactional_id])
        except TransactionalIdNotFoundError:
            return True
        return False

    with Admin(bootstrap_servers=bootstrap) as admin:
        wait_until(is_forgotten, "the transactional id to expire")


def commit(producer: Producer, topic: str, value: bytes) -> None:
    """One transaction with one record."""
    with producer.transaction():
        producer.send(topic, value)


def neither_comes_back_after_the_id_expired(
    bootstrap: str, topic: str, expire: Callable[[], None]
) -> None:
    """The coordinator forgot both producers: none may go on, as it cannot know of the other."""
    make_lasting_topic(bootstrap, topic)
    older = Producer(bootstrap_servers=bootstrap, transactional_id=topic)
    commit(older, topic, b"1")
    newer = Producer(bootstrap_servers=bootstrap, transactional_id=topic)
    commit(newer, topic, b"2")
    expire()
    wait_until_forgotten(bootstrap, topic)
    for producer in (older, newer):
        with pytest.raises(InvalidProducerIdMappingError):
            commit(producer, topic, b"zombie")
        for call in (producer.begin_transaction, producer.init_transactions):
            with pytest.raises(FatalError):
                call()
    third = Producer(bootstrap_servers=bootstrap, transactional_id=topic)
    for producer in (older, newer):
        with pytest.raises(FatalError):
            commit(producer, topic, b"zombie")
        producer.close()
    commit(third, topic, b"3")
    third.close()
    assert committed_values(bootstrap, topic) == [b"1", b"2", b"3"]


def a_session_goes_on_after_its_id_expired(
    bootstrap: str, topic: str, expire: Callable[[], None]
) -> None:
    """By a new producer: its records are passed on once."""
    source = f"{topic}-in"
    for name in (source, topic):
        make_lasting_topic(bootstrap, name)
    config = SessionConfig(
        topics=[source],
        bootstrap_servers=bootstrap,
        group_id=topic,
        max_poll_interval_ms=2_147_483_647,  # Time goes by without a poll.
    )
    with TransactionSession(config) as session, Producer(bootstrap_servers=bootstrap) as producer:
        for value in (b"1", b"2"):
            producer.send(source, value).result()
            wait_until(lambda: pass_on(session, topic), "a committed record")
            if value == b"1":
                expire()
                wait_until_forgotten(bootstrap, config.own_transactional_id)
    assert committed_values(bootstrap, topic) == [b"1", b"2"]


def pass_on(session: TransactionSession, topic: str) -> bool:
    """Whether something was read and committed."""
    read = session.poll(200)
    for records in read.values():
        for record in records:
            session.send(topic, record.value)
    return bool(read) and session.commit()
