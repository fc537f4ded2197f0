"""Goal: our clients lose nothing and repeat nothing while a leader among three nodes is killed.

Method: Apache Kafka as three nodes; an idempotent and a transactional producer, a reader and group
members of ours, each a process, keep going while the leader of a partition gets SIGKILL, is waited
for, and comes back, one after the other. At the end their journals are compared with the topic.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import real_kafka
from chaos_broker import Reckoning, Worker, report
from chaos_worker import PARTITIONS
from real_kafka_cluster import NODES, ApacheKafkaCluster
from stock_clients import wait_until

from onceflow.sdk import Admin, NewTopic

TOPIC = "nodes"
KILLS = 3
ROLES = ("produce", "transact", "read", "group")
SEED = 11


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_leaders_are_killed_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if reason := real_kafka.unavailable_reason():
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    chance, pause, killed = random.Random(SEED), threading.Event(), []
    with ApacheKafkaCluster(tmp_path / "cluster") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])
        workers = [
            Worker(role, "onceflow", cluster.bootstrap_servers, TOPIC, tmp_path, SEED)
            for role in ROLES
        ]
        try:
            wait_until(
                lambda: all(w.busy() for w in workers if w.role != "read"), "all at work", 90
            )
            for _ in range(KILLS):
                pause.wait(chance.uniform(0.5, 2.0))
                leader = cluster.leader(TOPIC, chance.randrange(PARTITIONS))
                node = next(node for node in cluster.nodes if node.number == leader)
                node.stop(kill=True)
                killed.append(leader)
                moved = lambda: cluster.leader(TOPIC, 0) not in (-1, leader)  # noqa: B023, E731
                wait_until(moved, "another leader", 60)
                pause.wait(chance.uniform(0.5, 2.0))
                node.spawn()
                cluster.wait_complete()
            finish(workers)
            reckoning = Reckoning(cluster.bootstrap_servers, TOPIC, workers)
            reckoning.check()
        finally:
            for worker in workers:
                worker.kill()
    with capsys.disabled():
        print(
            "\n" + report("kafka-nodes", SEED, {"killed": killed, **reckoning.figures}), flush=True
        )


def finish(workers: list[Worker]) -> None:
    """Let writers end first, so that readers see everything."""
    for writers in (True, False):
        those = [w for w in workers if (w.role in ("produce", "transact")) is writers]
        for worker in those:
            worker.ask_to_finish()
        for worker in those:
            worker.finish()
