"""Goal: requests about groups get the answers of Apache Kafka 4.4, code by code and word by word.

Method: conversations (`group_conversations`) whose transcript on Apache Kafka is kept as a vector
run against the bundled broker, and where asked for against Apache Kafka itself, so that the vector
stays true. Traps 37, 52, 54, 55 and 58 are among what is talked about.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import BROKERS, make_topic, running_broker
from group_conversations import group_names, transcript

from onceflow.sdk import Admin
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.admin import ConfigResource, ResourceType

VECTOR = Path(__file__).parents[1] / "vectors" / "kafka_group_conversations.txt"


SETTINGS = {
    "consumer.assignment.interval.ms": "1000",
    "consumer.heartbeat.interval.ms": "5000",
}
"""What the vector's Kafka had for its groups: its own defaults. Brokers of tests are quicker."""


@pytest.fixture(params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


def make_groups(bootstrap: str) -> list[str]:
    """Names of groups that have the vector's settings and a coordinator that knows them."""
    groups = group_names()
    with Admin(bootstrap_servers=bootstrap) as admin:
        resources = [ConfigResource(ResourceType.GROUP, group) for group in groups]
        admin.alter_configs(dict.fromkeys(resources, SETTINGS))
        for group in groups:
            admin.list_group_offsets(group)
        # Other tests on this Kafka may have committed without a group's name.
        with contextlib.suppress(KafkaError):
            admin.delete_groups([""])
    return groups


async def test_answers_are_those_of_apache_kafka(bootstrap: str) -> None:
    topic = make_topic(bootstrap, 3)
    host, _, port = bootstrap.rpartition(":")
    lines = await transcript((host, int(port)), topic, make_groups(bootstrap))
    assert lines == VECTOR.read_text().splitlines()
