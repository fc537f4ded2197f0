"""Goal: confluent-kafka's consumers of the consumer protocol (KIP-848) share and hand over.

Method: several of them in one group, joined, left and killed (closed without a goodbye), on the
bundled broker and on Apache Kafka; every record is read, and positions survive.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer
from consumer_worlds import BROKERS, make_topic, running_broker, write

PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


def member(bootstrap: str, group: str, topic: str, **settings: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
        | settings
    )
    consumer.subscribe([topic])
    return consumer


def poll_all(until: Callable[[], bool], *consumers: Consumer) -> list[str]:
    values = []
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline, "it did not come to that"
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                values.append(message.value().decode())
    return values


def shares(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


@pytest.mark.timeout(200)
def test_members_come_and_go(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 6), f"stock-{uuid.uuid4().hex[:8]}"
    for partition in range(6):
        write(bootstrap, topic, [f"{partition}-{n}" for n in range(10)], partition)
    wanted = sorted(f"{p}-{n}" for p in range(6) for n in range(10))
    first = member(bootstrap, group, topic)
    values: list[str] = []
    values += poll_all(lambda: shares(first) == [6], first)
    second = member(bootstrap, group, topic)
    values += poll_all(lambda: shares(first, second) == [3, 3], first, second)
    third = member(bootstrap, group, topic, **{"group.remote.assignor": "range"})
    values += poll_all(lambda: shares(first, second, third) == [2, 2, 2], first, second, third)
    second.close()
    values += poll_all(lambda: shares(first, third) == [3, 3], first, third)
    third.close()
    values += poll_all(lambda: shares(first) == [6], first)
    deadline = time.monotonic() + PATIENCE_S
    while set(values) != set(wanted) and time.monotonic() < deadline:
        message = first.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    first.close()
    assert sorted(values) == wanted, "every record once, across four handovers"


@pytest.mark.timeout(200)
def test_static_member_comes_back(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), f"stock-{uuid.uuid4().hex[:8]}"
    first = member(bootstrap, group, topic, **{"group.instance.id": "i1"})
    second = member(bootstrap, group, topic, **{"group.instance.id": "i2"})
    poll_all(lambda: shares(first, second) == [2, 2], first, second)
    held = {(p.topic, p.partition) for p in first.assignment()}
    first.close()
    again = member(bootstrap, group, topic, **{"group.instance.id": "i1"})
    poll_all(lambda: shares(again) == [2], again, second)
    assert {(p.topic, p.partition) for p in again.assignment()} == held
    again.close()
    second.close()
