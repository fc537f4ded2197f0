"""Goal: a published client meets the loss of a coordinator's node on our three nodes as on three
nodes of Apache Kafka; where it hangs, it hangs on both.

Method: a process commits one transaction; the node that coordinates the group (confluent-kafka,
which commits offsets) or the transactions (kafka-python) stops as a broker does that is shut down;
the process goes on with the next. Both clusters must show the same: committed, or not within the
time. What each client does is in tests/conformance/FINDINGS.md.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import real_kafka
import stock_node_loss
from differential_world import Connection
from real_kafka_cluster import NODES, ApacheKafkaCluster
from stock_clients import wait_until

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic
from onceflow.sdk.protocol.api import API

FIND_COORDINATOR = 10
GROUP, TRANSACTION = 0, 1
HANGS_S = 15.0
START_S = 60.0


class Cluster(Protocol):
    """Three nodes of which one can be stopped."""

    bootstrap_servers: str

    def stop(self, node_id: int) -> None: ...


class Ours:
    def __init__(self, broker: Broker) -> None:
        self.bootstrap_servers = broker.bootstrap_servers
        self.stop = broker.stop_node


class Theirs:
    def __init__(self, cluster: ApacheKafkaCluster) -> None:
        self.bootstrap_servers = cluster.bootstrap_servers
        self._cluster = cluster

    def stop(self, node_id: int) -> None:
        self._cluster.nodes[node_id - 1].stop()


@contextlib.contextmanager
def clusters(folder: Path) -> Iterator[list[Cluster]]:
    with Broker(nodes=NODES) as broker, ApacheKafkaCluster(folder / "cluster") as apache:
        yield [Ours(broker), Theirs(apache)]


def coordinator(bootstrap: str, key: str, key_type: int) -> int:
    """The node that coordinates a group or a transactional id, as soon as there is one."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    found: list[int] = []
    request = API[FIND_COORDINATOR].request_type(key_type=key_type, coordinator_keys=[key])

    def known() -> bool:
        connection = Connection((host, int(port)))
        connection.send(request, 4)
        answer = connection.receive(FIND_COORDINATOR, 4, 10)
        connection.socket.close()
        (told,) = answer.coordinators  # type: ignore[union-attr]
        found[:] = [told.node_id]
        return told.error_code == 0

    wait_until(known, f"a coordinator of {key}")
    return found[0]


def apart(cluster: Cluster, kind: int) -> tuple[str, str, int]:
    """A group and a transactional id on different nodes; the node of the asked kind is not the
    first one, which the test asks.
    """
    for number in range(200):
        names = (f"g{number}", f"x{number}")
        nodes = [coordinator(cluster.bootstrap_servers, names[k], k) for k in (0, 1)]
        if nodes[0] != nodes[1] and nodes[kind] != 1:
            return *names, nodes[kind]
    raise AssertionError("all names are together")


def outcome(kit: str, cluster: Cluster, kind: int) -> str:
    topic = kit
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, stock_node_loss.PARTITIONS, NODES)])
    group, transactional_id, node = apart(cluster, kind)
    process = subprocess.Popen(
        [sys.executable, stock_node_loss.__file__, kit, cluster.bootstrap_servers, topic, group,
         transactional_id],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[str] = []
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
        try:
            assert process.stdout.readline() == "ready\n"
            reader.start()
            cluster.stop(node)
            wait_until(
                lambda: (
                    coordinator(cluster.bootstrap_servers, (group, transactional_id)[kind], kind)
                    != node
                ),
                "another coordinator",
                START_S,
            )
            process.stdin.write(f"{node}\n")
            process.stdin.flush()
            reader.join(HANGS_S)
        finally:
            process.kill()
    return lines[0].split(" after")[0].strip() if lines else "hangs"


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kit", "kind"), [("confluent-kafka", GROUP), ("kafka-python", TRANSACTION)]
)
def test_a_coordinators_node_goes(
    kit: str, kind: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := real_kafka.unavailable_reason():
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    with clusters(tmp_path) as both:
        ours, theirs = (outcome(kit, cluster, kind) for cluster in both)
    with capsys.disabled():
        print(f"\n{kit}: ours {ours}, Apache Kafka {theirs}", flush=True)
    assert ours == theirs
