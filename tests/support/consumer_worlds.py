"""What integration tests of consumers share: topics of their own, waiting for conditions, reading.

Nothing here sleeps: a wait is a poll of the consumer under a deadline.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition

PATIENCE_S = 60.0

BROKERS = ("onceflow", pytest.param("apache-kafka", marks=pytest.mark.kafka))
"""Parameters of a fixture over `running_broker`."""

_names = itertools.count()


def running_broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a running broker of the kind that the fixture's parameter names."""
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap_servers
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


def fresh(prefix: str) -> str:
    """A name that no other test has, on whatever broker."""
    return f"{prefix}-{next(_names)}-{uuid.uuid4().hex[:8]}"


def make_topic(bootstrap: str, partitions: int = 1, **configs: str) -> str:
    """Create a topic of a fresh name."""
    name = fresh("topic")
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, settings)])
    return name


def write(bootstrap: str, topic: str, values: Iterable[str], partition: int = 0) -> None:
    """Write records outside of any transaction."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send(topic, value.encode(), partition=partition)


def write_in_transaction(
    bootstrap: str, topic: str, values: Iterable[str], *, commit: bool, partition: int = 0
) -> None:
    """Write records in one transaction and end it."""
    with Producer(bootstrap_servers=bootstrap, transactional_id=fresh("txn")) as producer:
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value.encode(), partition=partition)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def poll_until(
    condition: Callable[[], bool], *consumers: Consumer, seconds: float = PATIENCE_S
) -> list[str]:
    """Poll consumers in turn until the condition holds; returns the values that were read."""
    deadline = time.monotonic() + seconds
    values: list[str] = []
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s; read {values}"
        for consumer in consumers:
            for records in consumer.poll(50).values():
                values += [_text(record.value) for record in records]
    return values


def read(consumer: Consumer, count: int, seconds: float = PATIENCE_S) -> list[str]:
    """Read until so many values came."""
    values: list[str] = []
    deadline = time.monotonic() + seconds
    while len(values) < count:
        assert time.monotonic() < deadline, f"read only {values}"
        for records in consumer.poll(50).values():
            values += [_text(record.value) for record in records]
    return values


def wait_for_end(consumer: Consumer, partition: TopicPartition, offset: int) -> None:
    """Wait for an end of a partition: brokers answer a commit before its markers are written."""
    poll_until(lambda: consumer.end_offsets([partition])[partition] == offset)


def read_to_end(consumer: Consumer, partition: TopicPartition) -> list[str]:
    """Read until the position reaches the end (not until some record: markers have none)."""
    end = consumer.end_offsets([partition])[partition]
    return poll_until(
        lambda: partition in consumer.assignment() and consumer.position(partition) >= end,
        consumer,
    )


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode()
