"""Footprint of clients: time to import, memory of an idle producer and consumer. One JSON line.

Import: a fresh interpreter that imports the package, by the clock from its start to its end, minus
one that imports nothing; ``names_import_ms`` is with `Producer` and `Consumer`, which this package
loads when they are first asked for, and ``names_import_cpu_ms`` the processor time of that.
Memory: resident memory of a process with one connected producer and one consumer that has read a
record of a topic and waits, minus that of an interpreter that does nothing. Medians:

    python bench/client_footprint.py --runs 9
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from produce import broker, make_topic

NOTHING = "pass"
REPORT = """
import os, re, sys
print(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
ONCEFLOW = """
from onceflow.sdk import Consumer, Producer, TopicPartition
bootstrap, topic = sys.argv[1:]
producer = Producer(bootstrap_servers=bootstrap)
producer.send(topic, b"value", partition=0).result()
consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
consumer.assign([TopicPartition(topic, 0)])
while not consumer.poll(1000):
    pass
consumer.poll(500)
"""
ONCEFLOW_ASYNC = """
import asyncio
from onceflow.sdk import AsyncConsumer, AsyncProducer, TopicPartition
bootstrap, topic = sys.argv[1:]
async def main():
    async with AsyncProducer(bootstrap_servers=bootstrap) as producer, AsyncConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        await producer.send_and_wait(topic, b"value", partition=0)
        consumer.assign([TopicPartition(topic, 0)])
        while not await consumer.poll(1000):
            pass
        await consumer.poll(500)
        report()
asyncio.run(main())
"""
CONFLUENT = """
from confluent_kafka import Consumer, Producer, TopicPartition
bootstrap, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
producer.produce(topic, b"value", partition=0)
producer.flush()
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
consumer.assign([TopicPartition(topic, 0, 0)])
while not consumer.consume(1, 1):
    pass
consumer.poll(0.5)
"""
AIOKAFKA = """
import asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
bootstrap, topic = sys.argv[1:]
async def main():
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    await producer.send_and_wait(topic, b"value", partition=0)
    consumer.assign([TopicPartition(topic, 0)])
    while not await consumer.getmany(timeout_ms=1000):
        pass
    await consumer.getmany(timeout_ms=500)
    report()
    await consumer.stop()
    await producer.stop()
asyncio.run(main())
"""
KAFKA_PYTHON = """
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
bootstrap, topic = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
producer.send(topic, b"value", partition=0).get(30)
consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
consumer.assign([TopicPartition(topic, 0)])
while not consumer.poll(1000):
    pass
consumer.poll(500)
"""


class Client(NamedTuple):
    """What imports a client, what imports its names, and what makes a producer and a consumer."""

    package: str
    names: str
    idle: str


CLIENTS = {
    "onceflow": Client(
        "import onceflow.sdk", "from onceflow.sdk import Consumer, Producer", ONCEFLOW
    ),
    "onceflow-async": Client(
        "import onceflow.sdk",
        "from onceflow.sdk import AsyncConsumer, AsyncProducer",
        ONCEFLOW_ASYNC,
    ),
    "confluent": Client(
        "import confluent_kafka", "from confluent_kafka import Consumer, Producer", CONFLUENT
    ),
    "aiokafka": Client(
        "import aiokafka", "from aiokafka import AIOKafkaConsumer, AIOKafkaProducer", AIOKAFKA
    ),
    "kafka-python": Client(
        "import kafka", "from kafka import KafkaConsumer, KafkaProducer", KAFKA_PYTHON
    ),
}


def wall_ms(code: str) -> float:
    """Milliseconds that a fresh interpreter takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - began) * 1000


def cpu_ms(code: str) -> float:
    """Milliseconds of processor time that it takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_ms(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def memory_mb(code: str, bootstrap: str, topic: str) -> float:
    """What a process holds when it has run the code."""
    define = "import sys\ndef report():\n" + "\n".join(
        f"    {line}" for line in REPORT.strip().splitlines()
    )
    end = "" if "report()" in code else "\nreport()\nsys.stdout.flush()\nimport os\nos._exit(0)"
    command = [sys.executable, "-c", f"{define}\n{code}{end}", bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"{code}\nfailed:\n{done.stderr}")
    return int(done.stdout.split()[-1]) / 1000


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """Median of some runs, after one that warms the page cache and writes bytecode."""
    measure()
    return statistics.median(measure() for _ in range(runs))


def figures_of(client: Client, bootstrap: str, runs: int) -> dict[str, float]:
    """All figures of a client, the interpreter's own measured beside them."""
    topic = f"bench-idle-{time.time_ns()}"
    make_topic(bootstrap, topic)
    figures: dict[str, float] = {}
    for name, measure, code in (
        ("import_ms", wall_ms, client.package),
        ("names_import_ms", wall_ms, client.names),
        ("names_import_cpu_ms", cpu_ms, client.names),
    ):
        bare = median_of(runs, partial(measure, NOTHING))
        figures[name] = round(median_of(runs, partial(measure, code)) - bare, 1)
    bare_mb = median_of(3, lambda: memory_mb(NOTHING, bootstrap, topic))
    idle_mb = median_of(3, lambda: memory_mb(client.idle, bootstrap, topic))
    return figures | {"idle_mb": round(idle_mb - bare_mb, 1), "interpreter_mb": round(bare_mb, 1)}


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bootstrap", help="host:port of a running broker; default: start ours")
    parser.add_argument("--client", choices=list(CLIENTS), default="onceflow")
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # An installed package has its bytecode.
    with broker(args.bootstrap) as bootstrap:
        figures = figures_of(CLIENTS[args.client], bootstrap, args.runs)
    line = {"bench": "client-footprint", "client": args.client, "runs": args.runs, **figures}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
