"""Three nodes of Apache Kafka, each broker and controller, of which single ones can be killed.

Topics made here are to have three replicas, of which two must be in sync, so that any one node may
go at any moment without the loss of what was acknowledged.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import real_kafka
from real_kafka import HOST, START_SECONDS_MAX, ApacheKafka

from onceflow.sdk import Admin

NODES = 3
NEAREST = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
HEAP = ("-Xms512M", "-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Node(ApacheKafka):
    """One of the nodes; it is ready when it answers, whether or not the others are there."""

    def __init__(self, data: Path, number: int, cluster_id: str, ports: list[int]) -> None:
        voters = ",".join(f"{i + 1}@{HOST}:{port}" for i, port in enumerate(ports[NODES:]))
        port, controller = ports[number - 1], ports[NODES + number - 1]
        super().__init__(
            data,
            port=port,
            settings={
                "node.id": str(number),
                "broker.rack": f"rack-{number}",
                "replica.selector.class": NEAREST,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
                "default.replication.factor": str(NODES),
                "min.insync.replicas": "2",
                "offsets.topic.replication.factor": str(NODES),
                "transaction.state.log.replication.factor": str(NODES),
                "transaction.state.log.min.isr": "2",
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "500",
                "controller.quorum.election.timeout.ms": "500",
                "controller.quorum.fetch.timeout.ms": "1000",
            },
        )
        self.number = number
        self._cluster_id = cluster_id

    def format(self) -> None:
        """Make the folder ready, with the cluster's id."""
        self.data.mkdir(parents=True, exist_ok=True)
        config = self.data / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        real_kafka.tool("kafka-storage", "format", "-t", self._cluster_id, "-c", str(config))

    def spawn(self) -> None:
        """Start the process and wait for nothing."""
        config = str(self.data / "server.properties")
        command = real_kafka.java_command("kafka.Kafka", config, jvm=HEAP)
        with (self.data / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)


class ApacheKafkaCluster:
    """All nodes; a context manager."""

    def __init__(self, data: Path) -> None:
        ports = real_kafka.free_ports(2 * NODES)
        cluster_id = real_kafka.new_cluster_id()
        self.nodes = [Node(data / f"node-{i}", i, cluster_id, ports) for i in range(1, NODES + 1)]
        self.bootstrap_servers = ",".join(f"{HOST}:{port}" for port in ports[:NODES])

    def __enter__(self) -> ApacheKafkaCluster:
        try:
            for node in self.nodes:
                node.format()
                node.spawn()
            self.wait_complete()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.stop(kill=True)

    def brokers(self) -> set[int]:
        """Numbers of the brokers that the cluster names; none while nobody answers."""
        try:
            settings = {"bootstrap_servers": self.bootstrap_servers, "request_timeout_ms": 3000}
            with Admin(**settings) as admin:
                return {node.node_id for node in admin.describe_cluster().nodes}
        except Exception:  # noqa: BLE001 - no answer yet, for whatever reason
            return set()

    def wait_complete(self) -> None:
        """Wait until every node is named."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while len(self.brokers()) < NODES:
            assert time.monotonic() < deadline, "the cluster is not complete"
            for node in self.nodes:
                assert node.process is None or node.process.poll() is None, node.data
            time.sleep(0.2)

    def leader(self, topic: str, partition: int) -> int:
        """Number of the node that leads a partition."""
        with Admin(bootstrap_servers=self.bootstrap_servers) as admin:
            return admin.describe_topics([topic])[topic].partitions[partition].leader
