"""Produce rate: records of one size into six partitions, acks=all, idempotent.

Prints one JSON line. The clock runs from the first send to the last acknowledgement. The clients:

- ``onceflow``, ``onceflow-async``: ``send`` one by one;
- ``onceflow-many``, ``onceflow-columns``: ``send_many`` with ``--batch`` records a call, from lists
  or from Arrow columns that exist already;
- ``confluent``, ``aiokafka``, ``kafka-python``: the published clients, tuned by ``--set``;
  ``confluent-batch``: its ``produce_batch`` with ``--batch`` records a call.

Keys are 10,000 in turn; with ``--keys once`` each is used once, as ids of events are.

The processor time is that of the client's process with all its threads, user and system.

Without ``--bootstrap`` a broker of ours is started in another process, so that the client has an
interpreter for itself. The bar: at least three times aiokafka on the same broker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PARTITIONS = 6
KEYS_COUNT = 10_000
FIRST = b"first"
"""A record before the clock runs: librdkafka waits up to half a second for its producer id."""
WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "flint",
    "grove",
    "hazel",
    "iris",
    "jade",
    "kelp",
    "larch",
    "maple",
]


def make_values(size: int) -> list[bytes]:
    """A thousand JSON-like values, the same on every machine."""
    source = random.Random(11)
    values = []
    for number in range(1_000):
        text = json.dumps(
            {
                "id": source.randrange(10**9),
                "name": f"user-{number:05d}",
                "sum": round(source.random() * 1000, 2),
                "note": " ".join(source.choices(WORDS, k=size // 5 + 2)),
            }
        )
        values.append(text.encode()[:size])
    return values


def make_keys(kind: str, records: int) -> list[bytes | None]:
    """The keys that records take in turn: some of them again and again, each once, or none."""
    if kind == "none":
        return [None]
    return [b"key-%05d" % n for n in range(records if kind == "once" else KEYS_COUNT)]


class Clock:
    """Wall time and this process's CPU time between two moments."""

    sending: float | None = None

    def start(self) -> None:
        """The first record is about to be sent."""
        self._cpu, self._wall = self._used(), time.perf_counter()

    def all_sent(self) -> None:
        """The last record was handed over."""
        self.sending = time.perf_counter() - self._wall

    def stop(self) -> None:
        """The last record is acknowledged."""
        self.seconds = time.perf_counter() - self._wall
        self.cpu_seconds = self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


def settings_of(pairs: Sequence[str]) -> dict[str, object]:
    """``NAME=VALUE`` pairs, with numbers read as numbers."""
    found: dict[str, object] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def run_onceflow(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """Our blocking producer, record by record."""
    from onceflow.sdk import Producer

    settings = {"linger_ms": 20, **settings_of(args.set)}
    with Producer(
        bootstrap_servers=args.bootstrap,
        compression_type=args.compression,
        **settings,  # type: ignore[arg-type]
    ) as producer:
        producer.send(args.topic, FIRST, key=FIRST).result()
        send, topic, keys = producer.send, args.topic, args.keys
        key_count, value_count = len(keys), len(values)
        clock.start()
        for i in range(args.records):
            send(topic, values[i % value_count], key=keys[i % key_count])
        clock.all_sent()
        producer.flush()
        clock.stop()


def run_onceflow_async(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """Our asyncio producer, record by record."""
    from onceflow.sdk import AsyncProducer

    async def run() -> None:
        settings = {"linger_ms": 20, **settings_of(args.set)}
        async with AsyncProducer(
            bootstrap_servers=args.bootstrap,
            compression_type=args.compression,
            **settings,  # type: ignore[arg-type]
        ) as producer:
            await producer.send_and_wait(args.topic, FIRST, key=FIRST)
            send, topic, keys = producer.send, args.topic, args.keys
            key_count, value_count = len(keys), len(values)
            clock.start()
            for i in range(args.records):
                await send(topic, values[i % value_count], key=keys[i % key_count])
            clock.all_sent()
            await producer.flush()
            clock.stop()

    asyncio.run(run())


def chunks(
    args: argparse.Namespace, values: list[bytes]
) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """What one call takes: values and the keys beside them."""
    every = args.keys
    for first in range(0, args.records, args.batch):
        count = min(args.batch, args.records - first)
        start = first % len(every)
        keys = every[start : start + count]
        if len(keys) < count:
            keys = [every[(start + at) % len(every)] for at in range(count)]
        yield (values * (count // len(values) + 1))[:count], keys


def run_onceflow_many(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """Our blocking producer, many records a call."""
    send_chunks(args, clock, lambda: chunks(args, values))


def run_onceflow_columns(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """The same with values and keys in Arrow columns, as one gets them from a table or a file."""
    import pyarrow

    # A table is sliced, as a program would do; the records of the bench repeat themselves.
    count = args.batch * max(1, len(args.keys) // args.batch)
    one = argparse.Namespace(records=count, batch=count, keys=args.keys)
    table_values, table_keys = (pyarrow.array(column) for column in next(chunks(one, values)))

    def columns() -> Iterator[tuple[object, ...]]:
        for first in range(0, args.records, args.batch):
            size = min(args.batch, args.records - first)
            yield table_values.slice(first % count, size), table_keys.slice(first % count, size)

    send_chunks(args, clock, columns)


def send_chunks(
    args: argparse.Namespace, clock: Clock, parts: Callable[[], Iterator[tuple[object, ...]]]
) -> None:
    """``send_many`` for each part, and wait for all acknowledgements."""
    from onceflow.sdk import Producer

    settings = {"linger_ms": 20, **settings_of(args.set)}
    with Producer(
        bootstrap_servers=args.bootstrap,
        compression_type=args.compression,
        **settings,  # type: ignore[arg-type]
    ) as producer:
        producer.send(args.topic, FIRST, key=FIRST).result()
        clock.start()
        for values, keys in parts():
            producer.send_many(args.topic, values, keys)  # type: ignore[arg-type]
        clock.all_sent()
        producer.flush()
        clock.stop()


def run_confluent(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """librdkafka by its Python binding."""
    failures: list[object] = []
    producer = confluent_producer(args, failures)
    topic, keys = args.topic, args.keys
    key_count, value_count = len(keys), len(values)
    clock.start()
    for i in range(args.records):
        while True:
            try:
                producer.produce(topic, values[i % value_count], keys[i % key_count])
                break
            except BufferError:
                producer.poll(0.002)
        if i % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(300)
    clock.stop()
    if left or failures:
        raise SystemExit(f"{left} records not acknowledged, failures {failures[:3]}")


def run_confluent_batch(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """The same by `produce_batch`, which takes a list of dictionaries."""
    failures: list[object] = []
    producer = confluent_producer(args, failures)
    clock.start()
    for part_values, keys in chunks(args, values):
        messages = [
            {"value": value, "key": key} for value, key in zip(part_values, keys, strict=True)
        ]
        while messages:
            producer.produce_batch(args.topic, messages)
            messages = [message for message in messages if message.get("_error")]
            producer.poll(0.002 if messages else 0)
    left = producer.flush(300)
    clock.stop()
    if left or failures:
        raise SystemExit(f"{left} records not acknowledged, failures {failures[:3]}")


def confluent_producer(args: argparse.Namespace, failures: list[object]) -> Any:
    """librdkafka's producer by its Python binding, connected."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": args.compression,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
            **settings_of(args.set),
        }
    )
    producer.produce(args.topic, FIRST, FIRST)
    producer.flush(30)
    return producer


def run_aiokafka(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """aiokafka, record by record, acknowledgements awaited by its flush."""
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        compression = None if args.compression == "none" else args.compression
        producer = AIOKafkaProducer(
            bootstrap_servers=args.bootstrap,
            acks="all",
            enable_idempotence=True,
            compression_type=compression,
            **{"linger_ms": 20, "max_batch_size": 262_144, **settings_of(args.set)},
        )
        await producer.start()
        await producer.send_and_wait(args.topic, FIRST, FIRST)
        topic, keys = args.topic, args.keys
        key_count, value_count = len(keys), len(values)
        clock.start()
        for i in range(args.records):
            last = await producer.send(topic, values[i % value_count], keys[i % key_count])
        await producer.flush()
        clock.stop()
        await last
        await producer.stop()

    asyncio.run(run())


def run_kafka_python(args: argparse.Namespace, values: list[bytes], clock: Clock) -> None:
    """kafka-python, record by record."""
    from kafka import KafkaProducer

    compression = None if args.compression == "none" else args.compression
    producer = KafkaProducer(
        bootstrap_servers=args.bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type=compression,
        **{"linger_ms": 20, "batch_size": 262_144, **settings_of(args.set)},
    )
    producer.send(args.topic, FIRST, FIRST).get(30)
    topic, keys = args.topic, args.keys
    clock.start()
    for i in range(args.records):
        last = producer.send(topic, values[i % len(values)], keys[i % len(keys)])
    producer.flush(timeout=300)
    clock.stop()
    last.get(timeout=1)
    producer.close()


CLIENTS: dict[str, Callable[[argparse.Namespace, list[bytes], Clock], None]] = {
    "onceflow": run_onceflow,
    "onceflow-async": run_onceflow_async,
    "onceflow-many": run_onceflow_many,
    "onceflow-columns": run_onceflow_columns,
    "confluent": run_confluent,
    "confluent-batch": run_confluent_batch,
    "aiokafka": run_aiokafka,
    "kafka-python": run_kafka_python,
}


@contextlib.contextmanager
def broker(bootstrap: str | None) -> Iterator[str]:
    """The broker to use: the one named, or one of ours in another process."""
    if bootstrap:
        yield bootstrap
        return
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "onceflow.cli", "broker", "--data", data]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                yield line.split("ready on ")[1].split()[0]
            finally:
                process.terminate()
                process.wait(20)


def make_topic(bootstrap: str, topic: str) -> None:
    """Create the topic with six partitions, by a client that all runs share."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == PARTITIONS and all(p.leader >= 0 for p in found.values()):
            return


def main() -> None:
    """Run one case and print its line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--client", choices=list(CLIENTS), default="onceflow")
    parser.add_argument("--bootstrap", help="host:port of a running broker; default: start ours")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--compression", default="none")
    parser.add_argument(
        "--keys",
        choices=("some", "once", "none"),
        default="some",
        help=f"{KEYS_COUNT} keys in turn, each key once, or no keys",
    )
    parser.add_argument("--batch", type=int, default=1_000, help="records a call, in bulk")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    kind, args.keys = args.keys, make_keys(args.keys, args.records)
    clock = Clock()
    with broker(args.bootstrap) as args.bootstrap:
        args.topic = f"bench-produce-{time.time_ns()}"
        make_topic(args.bootstrap, args.topic)
        CLIENTS[args.client](args, make_values(args.size), clock)
    rate = args.records / clock.seconds
    line = {
        "bench": "produce",
        "client": args.client,
        "records": args.records,
        "size": args.size,
        "keys": kind,
        "compression": args.compression,
        "rec_s": round(rate),
        "mb_s": round(rate * args.size / 1e6, 1),
        "client_cpu_us_per_record": round(clock.cpu_seconds / args.records * 1e6, 2),
        "seconds": round(clock.seconds, 3),
        "sending_us_per_record": round((clock.sending or clock.seconds) / args.records * 1e6, 2),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
