"""Goal: a consumer that says where it stands reads from the replica beside it (KIP-392).

Method: Apache Kafka as three nodes in three racks; a consumer in the rack of a follower reads while
records come in, the follower is killed, and comes back. What it reads is compared with what was
sent, and whom it reads from is asked of its metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import real_kafka
from real_kafka_cluster import NODES, ApacheKafkaCluster
from stock_clients import wait_until

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition

PARTITION = TopicPartition("racks", 0)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_consumer_reads_from_its_rack_while_there_is_a_replica(tmp_path: Path) -> None:
    if reason := real_kafka.unavailable_reason():
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    with ApacheKafkaCluster(tmp_path / "cluster") as cluster:
        servers = cluster.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic(PARTITION.topic, 1, NODES)])
        leader = cluster.leader(PARTITION.topic, 0)
        near = next(node for node in cluster.nodes if node.number != leader)
        found: list[bytes | None] = []
        with (
            Producer(bootstrap_servers=servers) as producer,
            Consumer(
                bootstrap_servers=servers,
                client_rack=f"rack-{near.number}",
                auto_offset_reset="earliest",
                metadata_max_age_ms=2_000,
            ) as consumer,
        ):
            consumer.assign([PARTITION])

            def poll() -> None:
                for records in consumer.poll(200).values():
                    found.extend(record.value for record in records)

            def reads(values: int, condition: Callable[[], bool]) -> bool:
                sent.append(b"%d" % len(sent))
                producer.send(PARTITION.topic, sent[-1], partition=0).result()
                poll()
                return len(found) >= values and condition()

            def reads_from() -> int | None:
                return consumer.metrics().preferred_read_replica.get(PARTITION)

            sent: list[bytes] = []
            wait_until(lambda: reads(10, lambda: reads_from() == near.number), "near", 60)
            near.stop(kill=True)
            before = len(found)
            wait_until(lambda: reads(before + 10, lambda: reads_from() is None), "leader", 60)
            near.spawn()
            cluster.wait_complete()
            wait_until(lambda: reads(before + 20, lambda: reads_from() == near.number), "back", 90)
            while len(found) < len(sent):
                poll()
        assert found == sent
