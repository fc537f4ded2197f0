"""A published client's transactions across the loss of a coordinator's node, as a process.

``python stock_node_loss.py KIT BOOTSTRAP TOPIC GROUP TRANSACTIONAL_ID`` commits one transaction,
says "ready", waits for a line, and does it again. A client that hangs is ended with its process.
"""

from __future__ import annotations

import sys
import time
import warnings

import confluent_kafka
from stock_clients import DEADLINE_S, wait_until
from stock_confluent import settings_for

PARTITIONS = 3


class Confluent:
    """Offsets are committed in the transaction."""

    def __init__(self, bootstrap: str, topic: str, group: str, transactional_id: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            settings_for(bootstrap, transactional_id=transactional_id)
        )
        self._consumer = confluent_kafka.Consumer(
            settings_for(bootstrap, group_id=group, auto_offset_reset="earliest")
        )
        self._producer.init_transactions(DEADLINE_S)
        self._consumer.subscribe([topic])

        def assigned() -> bool:
            self._consumer.poll(0.1)
            return bool(self._consumer.assignment())

        wait_until(assigned, "an assignment")

    def begin(self) -> None:
        self._producer.begin_transaction()
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"1", partition=partition)
        self._producer.flush(DEADLINE_S)

    def learn(self, gone: int) -> None:
        """Ask for the cluster until it is without the node."""
        wait_until(lambda: gone not in self._producer.list_topics(timeout=5).brokers, "metadata")

    def end(self) -> None:
        positions = [confluent_kafka.TopicPartition(self._topic, 0, 1)]
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(positions, group, DEADLINE_S)
        self._producer.commit_transaction(DEADLINE_S)


class KafkaPython:
    """Records alone."""

    def __init__(self, bootstrap: str, topic: str, group: str, transactional_id: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import kafka

        self._topic = topic
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        """Its transaction begins when its first record is sent, which is at the end."""

    def learn(self, gone: int) -> None:
        """It asks by itself."""

    def end(self) -> None:
        self._producer.begin_transaction()
        self._producer.send(self._topic, b"1", partition=0)
        self._producer.flush(DEADLINE_S)
        self._producer.commit_transaction()


def main() -> None:
    kit, bootstrap, topic, group, transactional_id = sys.argv[1:]
    client = {"confluent-kafka": Confluent, "kafka-python": KafkaPython}[kit](
        bootstrap, topic, group, transactional_id
    )
    client.begin()
    client.end()
    client.begin()
    print("ready", flush=True)
    client.learn(int(sys.stdin.readline()))
    start = time.monotonic()
    client.end()
    print(f"committed after {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
