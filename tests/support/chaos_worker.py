"""A client under chaos, as a program: it goes on through losses of its broker and keeps a journal.

    python chaos_worker.py ROLE CLIENT BOOTSTRAP TOPIC NAME JOURNAL SEED

Roles: ``produce`` (idempotent), ``transact`` (commits and aborts), ``read`` (read_committed, all
partitions assigned) and ``group`` (read_committed, a member that commits). Clients: ``onceflow``
and ``confluent-kafka``. SIGTERM means: finish what is under way, write ``done`` and end. A journal
line is written when the client's own word is there, not before.
"""

from __future__ import annotations

import random
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

PARTITIONS = 4
DELIVERY_TIMEOUT_MS = 120_000
COMMIT_TIMEOUT_S = 60.0
IN_FLIGHT_MAX = 1_000
PAUSE_EVERY = 40
RECORDS_MAX = 20

stopping = False


def stop(*_: object) -> None:
    """Ask all loops to end."""
    global stopping
    stopping = True


class Worker:
    """What all roles share."""

    def __init__(self, bootstrap: str, topic: str, name: str, journal: TextIO, seed: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.name = name
        self.journal = journal
        self.random = random.Random(f"{name}-{seed}")

    def note(self, *words: object) -> None:
        """A line of the journal."""
        self.journal.write(" ".join(map(str, words)) + "\n")
        self.journal.flush()

    def confluent_settings(self, **settings: object) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }


class ProduceOnceflow(Worker):
    """Our producer: journal ``ack SEQUENCE``."""

    def run(self) -> None:
        from onceflow.sdk import Producer

        with Producer(
            bootstrap_servers=self.bootstrap, delivery_timeout_ms=DELIVERY_TIMEOUT_MS, linger_ms=2
        ) as producer:
            sequence, under_way = 0, []
            while not stopping:
                for _ in range(PAUSE_EVERY):
                    value = f"{self.name}:{sequence}".encode()
                    delivery = producer.send(self.topic, value, partition=sequence % PARTITIONS)
                    under_way.append((sequence, delivery))
                    sequence += 1
                wait_ms(10)
                while under_way and (len(under_way) > IN_FLIGHT_MAX or under_way[0][1].done()):
                    number, delivery = under_way.pop(0)
                    delivery.result(DELIVERY_TIMEOUT_MS / 1000)
                    self.note("ack", number)
            for number, delivery in under_way:
                delivery.result(DELIVERY_TIMEOUT_MS / 1000)
                self.note("ack", number)
        self.note("done", sequence)


class ProduceConfluent(Worker):
    """confluent-kafka's producer: journal ``ack SEQUENCE``, or ``failed SEQUENCE``."""

    def run(self) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            self.confluent_settings(
                enable_idempotence=True, linger_ms=2, delivery_timeout_ms=DELIVERY_TIMEOUT_MS
            )
        )
        sequence = 0
        while not stopping:
            for _ in range(PAUSE_EVERY):
                number = sequence

                def report(error: object, _: object, number: int = number) -> None:
                    self.note("ack" if error is None else f"failed {error}", number)

                value = f"{self.name}:{sequence}".encode()
                producer.produce(
                    self.topic, value, partition=sequence % PARTITIONS, on_delivery=report
                )
                sequence += 1
            producer.poll(0.01)
            while len(producer) > IN_FLIGHT_MAX and not stopping:
                producer.poll(0.05)
        assert producer.flush(DELIVERY_TIMEOUT_MS / 1000) == 0
        self.note("done", sequence)


class Transact(Worker):
    """Transactions of a few records: journal ``commit|abort|unknown NUMBER SIZE``."""

    def run(self) -> None:
        number = 0
        producer = self.open()
        while not stopping:
            number += 1
            size = self.random.randint(1, RECORDS_MAX)
            wanted = "abort" if self.random.random() < 0.2 else "commit"
            try:
                outcome = self.transact(producer, number, size, wanted)
            except ReopenError as error:
                self.note("reopened", error)
                outcome = "unknown"
                producer = self.open()
            self.note(outcome, number, size)
        self.close(producer)
        self.note("done", number)

    def values(self, number: int, size: int) -> list[tuple[int, bytes]]:
        """Partition and value of each record of a transaction."""
        return [
            ((number + index) % PARTITIONS, f"{self.name}:{number}:{index}".encode())
            for index in range(size)
        ]

    def open(self) -> Any:
        raise NotImplementedError

    def transact(self, producer: Any, number: int, size: int, wanted: str) -> str:
        raise NotImplementedError

    def close(self, producer: Any) -> None:
        raise NotImplementedError


class ReopenError(Exception):
    """The producer cannot go on, and the outcome of its transaction is not known."""


class TransactOnceflow(Transact):
    """Our transactional producer."""

    def open(self) -> Any:
        from onceflow.sdk import Producer

        return Producer(bootstrap_servers=self.bootstrap, transactional_id=self.name, linger_ms=2)

    def transact(self, producer: Any, number: int, size: int, wanted: str) -> str:
        from onceflow.sdk.errors import AbortableError, KafkaError

        try:
            producer.begin_transaction()
            for partition, value in self.values(number, size):
                producer.send(self.topic, value, partition=partition)
            if wanted == "commit":
                producer.commit_transaction()
                return "commit"
        except AbortableError as error:
            self.note("abortable", number, repr(error))
        except KafkaError as error:
            producer.close()
            raise ReopenError(repr(error)) from error
        try:
            producer.abort_transaction()
        except KafkaError as error:
            producer.close()
            raise ReopenError(repr(error)) from error
        return "abort"

    def close(self, producer: Any) -> None:
        producer.close()


class TransactConfluent(Transact):
    """confluent-kafka's transactional producer."""

    def open(self) -> Any:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            self.confluent_settings(transactional_id=self.name, linger_ms=2)
        )
        producer.init_transactions(COMMIT_TIMEOUT_S)
        return producer

    def transact(self, producer: Any, number: int, size: int, wanted: str) -> str:
        import confluent_kafka

        producer.begin_transaction()
        for partition, value in self.values(number, size):
            producer.produce(self.topic, value, partition=partition)
        while True:
            try:
                if wanted == "commit":
                    producer.commit_transaction(COMMIT_TIMEOUT_S)
                else:
                    producer.abort_transaction(COMMIT_TIMEOUT_S)
                return wanted
            except confluent_kafka.KafkaException as exception:
                error = exception.args[0]
                if error.txn_requires_abort():
                    self.note("abortable", number, error)
                    wanted = "abort"
                elif not error.retriable():
                    raise ReopenError(str(error)) from exception

    def close(self, producer: Any) -> None:
        assert producer.flush(COMMIT_TIMEOUT_S) == 0


class ReadOnceflow(Worker):
    """Our consumer: journal ``at PARTITION OFFSET VALUE``."""

    group = False

    def run(self) -> None:
        from onceflow.sdk import Consumer, TopicPartition

        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        with Consumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.name,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            auto_commit_interval_ms=200,
            enable_auto_commit=self.group,
        ) as consumer:
            if self.group:
                consumer.subscribe([self.topic])
            else:
                consumer.assign(partitions)
            ends = None
            while ends is None or any(
                consumer.position(partition) < ends[partition]
                for partition in consumer.assignment() or partitions
            ):
                for records in consumer.poll(100).values():
                    self.journal.writelines(
                        f"at {r.partition} {r.offset} {r.value.decode()}\n"  # type: ignore[attr-defined]
                        for r in records
                    )
                if stopping and ends is None:
                    ends = consumer.end_offsets(partitions)
        self.note("done")


class GroupOnceflow(ReadOnceflow):
    """The same as a member of a group."""

    group = True


class ReadConfluent(Worker):
    """confluent-kafka's consumer: journal ``at PARTITION OFFSET VALUE``."""

    group = False

    def run(self) -> None:
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            self.confluent_settings(
                group_id=self.name,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_partition_eof=True,
                session_timeout_ms=10_000,
                auto_commit_interval_ms=200,
                enable_auto_commit=self.group,
            )
        )
        partitions = [
            confluent_kafka.TopicPartition(self.topic, number, confluent_kafka.OFFSET_BEGINNING)
            for number in range(PARTITIONS)
        ]
        if self.group:
            consumer.subscribe([self.topic])
        else:
            consumer.assign(partitions)
        ended: set[int] = set()
        while not (stopping and len(ended) == PARTITIONS):
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    ended.discard(message.partition())
                    value = message.value().decode()
                    self.journal.write(f"at {message.partition()} {message.offset()} {value}\n")
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        consumer.close()
        self.note("done")


class GroupConfluent(ReadConfluent):
    """The same as a member of a group."""

    group = True


ROLES: dict[tuple[str, str], Any] = {
    ("produce", "onceflow"): ProduceOnceflow,
    ("produce", "confluent-kafka"): ProduceConfluent,
    ("transact", "onceflow"): TransactOnceflow,
    ("transact", "confluent-kafka"): TransactConfluent,
    ("read", "onceflow"): ReadOnceflow,
    ("read", "confluent-kafka"): ReadConfluent,
    ("group", "onceflow"): GroupOnceflow,
    ("group", "confluent-kafka"): GroupConfluent,
}


def wait_ms(duration_ms: int) -> None:
    """A pause that a signal ends."""
    signal.sigtimedwait([], duration_ms / 1000)


def main() -> None:
    """Run the role that the command line names."""
    role, client, bootstrap, topic, name, journal, seed = sys.argv[1:]
    signal.signal(signal.SIGTERM, stop)
    with Path(journal).open("w") as out:
        ROLES[role, client](bootstrap, topic, name, out, int(seed)).run()


if __name__ == "__main__":
    main()
