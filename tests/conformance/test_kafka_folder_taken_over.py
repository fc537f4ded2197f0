"""Goal: a folder that Apache Kafka wrote is served with what its topics were told, and Kafka can go
on with it afterwards.

Method: Apache Kafka makes topics with settings and is killed; our broker starts on its folder, and
Kafka after it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import real_kafka

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, ConfigResource, NewTopic, Producer, ResourceType

UNAVAILABLE = real_kafka.unavailable_reason()

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE)),
]

TOLD = {"cleanup.policy": "compact", "max.message.bytes": "70000"}


def test_our_broker_and_then_kafka_again_go_on_with_kafkas_folder(tmp_path: Path) -> None:
    kafka = real_kafka.ApacheKafka(tmp_path)
    with kafka, Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("t", 2, 1, configs=TOLD)])
        with Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            producer.send("t", b"1", key=b"k", partition=0).result(60)
        kafka.stop(kill=True)
    settings = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
    with (
        Broker(tmp_path / "log", settings=settings) as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
    ):
        assert "__cluster_metadata" not in admin.list_topics()
        resource = ConfigResource(ResourceType.TOPIC, "t")
        described = admin.describe_configs([resource])[resource]
        assert {name: described[name].value for name in TOLD} == TOLD
        assert producer.send("t", b"2", key=b"k", partition=0).result(60).offset == 1
    with (
        real_kafka.ApacheKafka(tmp_path) as kafka,
        Producer(bootstrap_servers=kafka.bootstrap_servers) as producer,
    ):
        assert producer.send("t", b"3", key=b"k", partition=0).result(60).offset == 2
