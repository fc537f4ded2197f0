"""Goal: Kafka's own tools administer our broker, and Kafka's answers stay those that we go by.

Method: the tools that change something and show it, one after the other against one broker, with
their output read as a user reads it; and the conversation of `admin_answers` with Apache Kafka.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import real_kafka
from admin_answers import FILE, converse_with

from onceflow.broker_lite import Broker

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def broker(kafka_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(data=tmp_path_factory.mktemp("data")) as running:
        running.create_topic("t", partitions=2)
        yield running


def tool(broker: Broker, name: str, *arguments: str) -> str:
    return real_kafka.tool(name, "--bootstrap-server", broker.bootstrap_servers, *arguments)


def test_kafka_configs_changes_and_shows_settings_and_quotas(broker: Broker) -> None:
    tool(broker, "kafka-configs", "--alter", "--broker", "1", "--add-config", "log.retention.ms=7")
    shown = tool(broker, "kafka-configs", "--describe", "--broker", "1")
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=7" in shown
    tool(
        broker,
        "kafka-configs", "--alter", "--user", "alice", "--client", "c",
        "--add-config", "producer_byte_rate=1000",
    )  # fmt: skip
    shown = tool(broker, "kafka-configs", "--describe", "--user", "alice", "--client", "c")
    assert "producer_byte_rate=1000" in shown
    tool(
        broker,
        "kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", "g",
        "--add-config", "consumer.session.timeout.ms=50000",
    )  # fmt: skip
    assert broker.state.dynamic_config.group_value("g", "consumer.session.timeout.ms") == 50_000


def test_kafka_log_dirs_features_and_quorum(broker: Broker) -> None:
    folders = tool(broker, "kafka-log-dirs", "--describe", "--topic-list", "t")
    assert '"partition":"t-1"' in folders
    assert "transaction.version" in tool(broker, "kafka-features", "describe")
    quorum = tool(broker, "kafka-metadata-quorum", "describe", "--status")
    assert "LeaderId:               1" in quorum


def test_kafka_reassign_partitions_goes_through_with_its_throttle(
    broker: Broker, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    partition = {"topic": "t", "partition": 0, "replicas": [1]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    name = "kafka-reassign-partitions"
    given = ("--reassignment-json-file", str(plan))
    started = tool(broker, name, *given, "--execute", "--throttle", "1000")
    assert "Successfully started" in started
    assert "1000" in broker.state.dynamic_config.broker("1").values()
    verified = tool(broker, name, *given, "--verify")
    assert "t-0 is completed" in verified
    assert "1000" not in broker.state.dynamic_config.broker("1").values()


def test_apache_kafka_answers_as_it_did(apache_kafka: real_kafka.ApacheKafka) -> None:
    host, _, port = apache_kafka.bootstrap_servers.rpartition(":")
    answers = asyncio.run(converse_with((host, int(port)), settle_seconds=0.3))
    kept = json.loads(FILE.read_text())
    wrong = {label for label in kept if answers.get(label) != kept[label]}
    for label in sorted(wrong):
        print(f"{label}\n  now:  {answers.get(label)}\n  kept: {kept[label]}")
    assert not wrong
