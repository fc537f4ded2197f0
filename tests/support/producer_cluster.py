"""A broker for the producer's integration tests, and a foreign reader to see what is stored.

Normally the broker is ours, in this process. With ONCEFLOW_TEST_BOOTSTRAP set the same tests run
against the Kafka cluster at that address.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceflow.broker_lite import Broker

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as a foreign client reads it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


@contextlib.contextmanager
def running_cluster() -> Iterator[str]:
    """The address of a broker."""
    address = os.environ.get("ONCEFLOW_TEST_BOOTSTRAP")
    if address:
        yield address
        return
    with Broker() as broker:
        yield broker.bootstrap_servers


def is_foreign_cluster() -> bool:
    """Whether the tests run against somebody else's broker."""
    return "ONCEFLOW_TEST_BOOTSTRAP" in os.environ


def fresh_name(prefix: str) -> str:
    """A name that no other test uses, also on a cluster that lives on."""
    return f"{prefix}-{os.getpid()}-{time.time_ns()}-{next(_numbers)}"


def make_topic(bootstrap: str, partitions: int = 1, **config: str) -> str:
    """Create a topic and wait until it can be used."""
    name = fresh_name("topic")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = admin.list_topics(name, timeout=10).topics[name].partitions
        if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
            return name
    raise AssertionError(f"{name} has no leaders")


def read_all(bootstrap: str, topic: str, *, committed: bool = True) -> list[Stored]:
    """Everything in a topic, partition by partition, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Stored] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 60
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, "the end was not reached"
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.name() != "_PARTITION_EOF":
                    raise KafkaException(error)
                ended.add(message.partition())
                continue
            found.append(
                Stored(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    list(message.headers() or []),
                    message.timestamp()[1],
                )
            )
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(bootstrap: str, topic: str, *, committed: bool = True) -> list[bytes | None]:
    """The values in a topic in order."""
    return [record.value for record in read_all(bootstrap, topic, committed=committed)]


def committed_offset(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """A group's committed offset, -1001 for none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()
