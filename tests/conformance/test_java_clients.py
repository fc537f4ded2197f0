"""Goal: Apache Kafka's own Java clients, and Kafka Streams, work on our broker as on Kafka itself.

Method: one Java program makes every call of producer, consumer and admin client that one node
can answer and prints what came back; its lines on both brokers are compared. Kafka Streams counts
words under exactly_once_v2 through a repartition topic and a changelog while it is killed twice;
every word's updates must be 1, 2, 3 ... to its number, each once.
"""

from __future__ import annotations

import random
import signal
import struct
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import java_programs
import pytest
import real_kafka
from stock_clients import wait_until
from stock_daemon import StockDaemon

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PROTOCOLS = "classic,consumer"
LINES, WORDS_A_LINE = 900, 4
WORDS = [f"word{i}" for i in range(40)]
PARTITIONS = 2
KILLS = 2


@pytest.fixture(scope="module")
def java() -> None:
    if reason := java_programs.unavailable_reason():
        pytest.skip(f"Java programs cannot run here: {reason}")


def test_java_clients_get_the_same_from_both_brokers(
    java: None, daemon: StockDaemon, apache_kafka: real_kafka.ApacheKafka
) -> None:
    java_programs.compiled("JavaClients")
    with ThreadPoolExecutor() as pool:  # Both at once: they mostly wait.
        runs = [
            pool.submit(
                java_programs.run, "JavaClients", address, f"java-{uuid4().hex[:8]}-", PROTOCOLS
            )
            for address in (apache_kafka.bootstrap_servers, daemon.bootstrap_servers)
        ]
        lines = [run.result() for run in runs]
    assert len(lines[0]) > 75
    assert lines[1] == lines[0]


class Streams:
    """Kafka Streams in a process of its own; each life has the same application and folder."""

    def __init__(self, folder: Path, bootstrap: str, name: str) -> None:
        self._args = (bootstrap, f"{name}-count", str(folder / "state"), f"{name}-in")
        self._out = f"{name}-out"
        self._log = folder / "streams.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = java_programs.command("WordCount", *self._args, self._out)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process = None

    def log(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.fixture
def quick_daemon(tmp_path: Path) -> Iterator[StockDaemon]:
    """Our broker, which looks often for transactions that a killed process left open."""
    setting = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    daemon = StockDaemon(tmp_path / "data", {setting: 200})
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture
def streams(java: None, tmp_path: Path, quick_daemon: StockDaemon, name: str) -> Iterator[Streams]:
    streams = Streams(tmp_path, quick_daemon.bootstrap_servers, name)
    try:
        yield streams
    finally:
        streams.end(signal.SIGKILL)


def read_counts(consumer: Consumer, counts: dict[str, list[int]]) -> int:
    """Take what is there; the number of updates so far."""
    for records in consumer.poll(timeout_ms=200).values():
        for record in records:
            assert record.key is not None
            assert record.value is not None
            counts[record.key.decode()].append(struct.unpack(">q", record.value)[0])
    return sum(map(len, counts.values()))


def test_kafka_streams_counts_every_word_once_while_it_is_killed(
    streams: Streams, quick_daemon: StockDaemon, name: str
) -> None:
    bootstrap, rng = quick_daemon.bootstrap_servers, random.Random(7)
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(f"{name}-{end}", PARTITIONS) for end in ("in", "out")])
    lines = [" ".join(rng.choices(WORDS, k=WORDS_A_LINE)) for _ in range(LINES)]
    expected = Counter(word for line in lines for word in line.split())
    counts: dict[str, list[int]] = defaultdict(list)
    streams.start()
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
        ) as consumer,
    ):
        consumer.assign([TopicPartition(f"{name}-out", i) for i in range(PARTITIONS)])
        part = LINES // (KILLS + 1)
        for life in range(KILLS + 1):
            wanted = sum(map(len, counts.values())) + part  # A quarter of what is sent now.
            feeder = threading.Thread(
                target=feed, args=(producer, f"{name}-in", lines[life * part : (life + 1) * part])
            )
            feeder.start()
            wait_until(lambda: read_counts(consumer, counts) >= wanted, streams.log(), 90)  # noqa: B023
            if life < KILLS:
                streams.end(signal.SIGKILL)
                streams.start()
            feeder.join()
        total = sum(expected.values())
        wait_until(lambda: read_counts(consumer, counts) >= total, "every update", 90)
        streams.end()  # An orderly end, so that anything too much would be here by now.
        read_counts(consumer, counts)
    assert {word: len(updates) for word, updates in counts.items()} == dict(expected)
    for word, updates in counts.items():
        assert updates == list(range(1, expected[word] + 1)), word
    assert changelog(bootstrap, f"{name}-count-counts-changelog") == dict(expected)


def feed(producer: Producer, topic: str, lines: list[str]) -> None:
    """Send lines in small portions, so that a kill falls between them."""
    pause = threading.Event()
    for start in range(0, len(lines), 20):
        for line in lines[start : start + 20]:
            producer.send(topic, line.encode())
        producer.flush()
        pause.wait(0.02)


def changelog(bootstrap: str, topic: str) -> dict[str, int]:
    """The state that the changelog would restore: the last committed count of every word."""
    found: dict[str, int] = {}
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)

        def all_read() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    assert record.key is not None
                    assert record.value is not None
                    # The value of a changelog of a windowless store is the plain serialised one.
                    found[record.key.decode()] = struct.unpack(">q", record.value[-8:])[0]
            return all(consumer.position(p) >= ends[p] for p in partitions)

        wait_until(all_read, "the changelog's end")
    return found
