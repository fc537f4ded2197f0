"""Goal: requests about groups get the answers of Apache Kafka 4.4, code by code and word by word.

Method: conversations (`group_conversations`) whose transcript on Apache Kafka is kept as a vector
run against the bundled broker, and where asked for against Apache Kafka itself, so that the vector
stays true. Traps 37, 52, 54, 55 and 58 are among what is talked about.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import BROKERS, make_topic
from group_conversations import transcript

from onceflow.broker_lite import Broker

VECTOR = Path(__file__).parents[1] / "vectors" / "kafka_group_conversations.txt"


# The vector was taken from a warm Kafka that assigns once a second. The one that make conformance
# shares assigns at once, and a fresh one still moves its coordinators: there it stays by hand.
VECTOR_BROKERS = [BROKERS[0], pytest.param("apache-kafka", marks=pytest.mark.chaos)]


@pytest.fixture(params=VECTOR_BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap_servers
        return
    with Broker(settings={"group.consumer.assignment.interval.ms": 1_000}) as broker:
        yield broker.bootstrap_servers


async def test_answers_are_those_of_apache_kafka(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    host, _, port = bootstrap.rpartition(":")
    lines = await transcript((host, int(port)), topic)
    assert lines == VECTOR.read_text().splitlines()
