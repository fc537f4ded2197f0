"""Produce rate of stock clients with small batches: our broker and Apache Kafka in one run.

One producer of confluent-kafka or of Kafka's Java client (by Kafka's own ``ProducerPerformance``)
writes records of one size to a topic with one partition, acks=all, many requests in flight, with
``--batches`` records in a batch. Batch 1 makes every record a request, so that it measures what a
request costs the broker. The brokers take turns within a round, so that a slow minute hits both.

Prints one JSON line a run, and at the end one line for each case with the medians, our broker's
rate divided by Apache Kafka's, the loads and the rate that a paper gives. Each producer sends some
records before the clock runs; afterwards the topic must hold them all. The broker's processor time,
unlike the rates, hardly depends on what else the machine does: one thread of ours is up against
dozens of Apache Kafka's for the processors, and gets less of them where others want them too.

    python bench/small_batches.py --rounds 5
    python bench/small_batches.py --clients confluent --batches 1 --brokers onceflow
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

RECORDS = {
    ("confluent", 1): 60_000,
    ("java", 1): 60_000,
    ("confluent", 50): 1_000_000,
    ("java", 50): 1_000_000,
}
"""Records of a run, so that each takes one to five seconds; other batch sizes take the mean."""

WARM_UP_PARTS = 4
"""The clock runs after one record in so many was acknowledged."""

STATISTICS_MS = 200
"""How often librdkafka tells how many requests it sent."""

RECORD_OVERHEAD_BYTES = 10
"""What a record of a few hundred bytes takes besides its value, for Java's ``batch.size``."""

BATCH_HEADER_BYTES = 61

PAPER_REC_S = {1: 50_000, 50: 400_000}
"""Kreps, Narkhede and Rao, "Kafka: a Distributed Messaging System for Log Processing" (NetDB 2011),
figure 4: messages a second of 200 bytes from one producer, by the size of a batch."""

PERFORMANCE_CLASS = "org.apache.kafka.tools.ProducerPerformance"


class Case(NamedTuple):
    """One producer.

    Attributes:
        client: ``confluent`` or ``java``.
        batch: Records in a batch.
        records: Records of the run, after those that warm it up.
        size: Bytes of a record's value.
    """

    client: str
    batch: int
    records: int
    size: int


def run_confluent(case: Case, bootstrap: str, topic: str) -> tuple[float, float]:
    """librdkafka by its Python binding; gives seconds and processor seconds of the client."""
    from confluent_kafka import Producer

    failures: list[object] = []
    requests = 0

    def note(statistics_json: str) -> None:
        nonlocal requests
        brokers = json.loads(statistics_json)["brokers"].values()
        requests = sum(broker["req"].get("Produce", 0) for broker in brokers)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "batch.num.messages": case.batch,
            "linger.ms": 0 if case.batch == 1 else 5,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
            "statistics.interval.ms": STATISTICS_MS,
            "stats_cb": note,
        }
    )
    value = os.urandom(case.size)

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.002)
            if number % 10_000 == 0:
                producer.poll(0)
        left = producer.flush(300)
        if left or failures:
            raise SystemExit(f"{left} records not acknowledged, failures {failures[:3]}")

    send(case.records // WARM_UP_PARTS)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    send(case.records)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    deadline = time.monotonic() + 30
    sent = case.records + case.records // WARM_UP_PARTS
    while not sent / case.batch <= requests < 2 * sent / case.batch:
        if time.monotonic() > deadline:
            raise SystemExit(f"{sent} records in {requests} requests: not {case.batch} in each")
        producer.poll(0.1)
    return seconds, spent


def run_java(case: Case, bootstrap: str, topic: str) -> tuple[float, float]:
    """Kafka's own producer; gives seconds and processor seconds of its process with its start."""
    import real_kafka

    warm_up = case.records // WARM_UP_PARTS
    batch_bytes = BATCH_HEADER_BYTES + case.batch * (case.size + RECORD_OVERHEAD_BYTES)
    properties = [
        f"bootstrap.servers={bootstrap}",
        "acks=all",
        # A batch size of 0 switches batching off.
        f"batch.size={0 if case.batch == 1 else batch_bytes}",
        f"linger.ms={0 if case.batch == 1 else 5}",
    ]
    arguments = ["--topic", topic, "--num-records", str(case.records + warm_up)]
    arguments += ["--warmup-records", str(warm_up)]
    arguments += ["--record-size", str(case.size), "--throughput", "-1"]
    command = real_kafka.java_command(
        PERFORMANCE_CLASS, *arguments, "--command-property", *properties, jvm=("-Xmx512M",)
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    found = re.search(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec", last)
    if done.returncode or found is None:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return case.records / float(found[2]), spent


CLIENTS: dict[str, Callable[[Case, str, str], tuple[float, float]]] = {
    "confluent": run_confluent,
    "java": run_java,
}


class Broker(NamedTuple):
    """A broker that runs.

    Attributes:
        address: ``HOST:PORT`` for clients.
        pid: Its process.
    """

    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of its process so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def our_broker() -> Iterator[Broker]:
    """The daemon on a temporary folder."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "onceflow.cli", "broker", "--data", data]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                yield Broker(ready.split("ready on ")[1].split()[0], process.pid)
            finally:
                process.terminate()
                process.wait(30)


@contextlib.contextmanager
def apache_kafka() -> Iterator[Broker]:
    """Apache Kafka on a temporary folder."""
    import real_kafka

    with (
        tempfile.TemporaryDirectory() as data,
        real_kafka.ApacheKafka(Path(data), jvm=real_kafka.LONG_LIFE) as kafka,
    ):
        assert kafka.process is not None
        yield Broker(kafka.bootstrap_servers, kafka.process.pid)


BROKERS = {"onceflow": our_broker, "kafka": apache_kafka}


def make_topic(bootstrap: str, topic: str) -> None:
    """Create the topic with one partition and wait until it is led."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == 1 and found[0].leader >= 0:
            return


def check_count(bootstrap: str, topic: str, expected: int) -> None:
    """End the program unless the topic holds that many records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-small-batches"})
    start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.close()
    if (start, end) != (0, expected):
        raise SystemExit(f"{topic} holds the offsets {start} to {end}, not 0 to {expected}")


def measure(case: Case, broker: Broker) -> dict[str, object]:
    """Run one case on a new topic and give its line."""
    topic = f"bench-small-batches-{time.time_ns()}"
    make_topic(broker.address, topic)
    before = broker.cpu_seconds()
    seconds, spent = CLIENTS[case.client](case, broker.address, topic)
    records = case.records + case.records // WARM_UP_PARTS
    used = broker.cpu_seconds() - before
    check_count(broker.address, topic, records)
    return {
        "bench": "small-batches",
        **case._asdict(),
        "rec_s": round(case.records / seconds),
        "client_cpu_seconds": round(spent, 2),
        "broker_cpu_us_per_record": round(used / records * 1e6, 2),
        "seconds": round(seconds, 3),
    }


def report(lines: list[dict[str, object]]) -> None:
    """Print the medians of each case, and the ratio of both brokers."""
    cases: dict[tuple[object, object], dict[str, list[dict[str, object]]]] = {}
    for line in lines:
        by_broker = cases.setdefault((line["client"], line["batch"]), {})
        by_broker.setdefault(str(line["broker"]), []).append(line)

    def median(found: list[dict[str, object]], what: str) -> float:
        return statistics.median(float(str(line[what])) for line in found)

    for (client, batch), by_broker in cases.items():
        total: dict[str, object] = {"bench": "small-batches", "client": client, "batch": batch}
        for name, found in by_broker.items():
            total[f"{name}_rec_s"] = round(median(found, "rec_s"))
            total[f"{name}_cpu_us"] = median(found, "broker_cpu_us_per_record")
        if len(by_broker) == 2:
            ratios = [
                float(str(ours["rec_s"])) / float(str(theirs["rec_s"]))
                for ours, theirs in zip(*(by_broker[name] for name in BROKERS), strict=True)
            ]
            total["ratio"] = round(statistics.median(ratios), 2)
        loads = [float(str(line["load"])) for found in by_broker.values() for line in found]
        total["load"] = f"{min(loads)}-{max(loads)}"
        if batch in PAPER_REC_S:
            total["paper_rec_s"] = PAPER_REC_S[int(str(batch))]
        print(json.dumps(total), flush=True)


def main() -> None:
    """Measure every case on every broker, a round after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 50])
    parser.add_argument("--brokers", nargs="+", choices=list(BROKERS), default=list(BROKERS))
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--records", type=int, help="of each run; by default one to five seconds")
    args = parser.parse_args()
    cases = [
        Case(client, batch, args.records or RECORDS.get((client, batch), 300_000), args.size)
        for batch in args.batches
        for client in args.clients
    ]
    lines: list[dict[str, object]] = []
    with contextlib.ExitStack() as stack:
        brokers = {name: stack.enter_context(BROKERS[name]()) for name in args.brokers}
        for number in range(args.rounds):
            for case in cases:
                for name, broker in brokers.items():
                    load = round(os.getloadavg()[0], 2)
                    line = measure(case, broker)
                    line |= {"broker": name, "round": number, "load": load}
                    lines.append(line)
                    print(json.dumps(line), flush=True)
    report(lines)


if __name__ == "__main__":
    sys.exit(main())
