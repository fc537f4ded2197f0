"""Consume throughput: all partitions of a topic from the start, read_committed, each key and value touched.

Partitions are assigned, so that no group join is in the measured time; the clock runs from the
assignment to the last record. Our clients read record objects (``onceflow``), a list per field
(``onceflow-columns``) or values alone (``onceflow-values``), each blocking and with ``-async``. ``--fill`` writes the topic first, with confluent-kafka (6 partitions,
10,000 keys, values like JSON). One JSON line per run:

    python bench/consume.py --bootstrap 127.0.0.1:9092 --client onceflow --topic t --fill 1000000
    python bench/consume.py --bootstrap 127.0.0.1:9092 --client confluent --topic t --set fetch.queue.backoff.ms=5
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

PARTITIONS = 6
PATIENCE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
]

Settings = dict[str, object]


class Found(NamedTuple):
    """What a client read: how many records and bytes, and when the clock ran."""

    package: str
    records: int
    size_bytes: int
    clock: Clock


class Clock:
    """Wall time and CPU of this process and, if asked for, of the broker's."""

    def __init__(self, broker_pid: int | None) -> None:
        self._broker_pid = broker_pid
        self._begin: tuple[float, float, float] | None = None
        self.seconds = self.client_cpu_s = self.broker_cpu_s = 0.0

    def start(self) -> None:
        """Begin."""
        self._begin = self._read()

    def stop(self) -> None:
        """End."""
        assert self._begin is not None
        self.seconds, self.client_cpu_s, self.broker_cpu_s = (
            after - before for after, before in zip(self._read(), self._begin, strict=True)
        )

    def _read(self) -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        broker = 0.0
        if self._broker_pid is not None:
            stat = Path(f"/proc/{self._broker_pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            broker = (int(fields[11]) + int(fields[12])) / TICKS
        return time.perf_counter(), usage.ru_utime + usage.ru_stime, broker


def touch_records(polled: Mapping[object, Any]) -> tuple[int, int]:
    """Count records and bytes, key and value of each record touched."""
    seen = size = 0
    for records in polled.values():
        for record in records:
            size += len(record.value) + len(record.key or b"")
        seen += len(records)
    return seen, size


def touch_columns(polled: Mapping[object, Any]) -> tuple[int, int]:
    """The same by whole columns, as one who asks for columns works; there may be no keys."""
    seen = size = 0
    for columns in polled.values():
        size += sum(map(len, columns.values)) + sum(map(len, columns.keys))
        seen += len(columns)
    return seen, size


FORMS: dict[str, tuple[str, dict[str, bool], Callable[[Mapping[object, Any]], tuple[int, int]]]] = {
    "records": ("poll", {}, touch_records),
    "columns": ("poll_columns", {}, touch_columns),
    "values": ("poll_columns", {"values_only": True}, touch_columns),
}
"""By form: the consumer's method, its arguments, and how the result is touched."""


def read_onceflow(options: argparse.Namespace, settings: Settings, form: str = "records") -> Found:
    """The blocking consumer of this package."""
    from onceflow.sdk import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap_servers=options.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **settings,
    )
    method, arguments, touch = FORMS[form]
    poll = getattr(consumer, method)
    partitions = consumer.partitions_for_topic(options.topic) or ()
    seen = size = 0
    last = time.monotonic()
    clock = Clock(options.broker_pid)
    clock.start()
    consumer.assign([TopicPartition(options.topic, p) for p in partitions])
    while seen < options.records and time.monotonic() < last + PATIENCE_S:
        polled = poll(500, options.batch, **arguments)
        if polled:
            last = time.monotonic()
            more, more_bytes = touch(polled)
            seen, size = seen + more, size + more_bytes
    clock.stop()
    consumer.close()
    return Found("onceflow", seen, size, clock)


def read_onceflow_async(
    options: argparse.Namespace, settings: Settings, form: str = "records"
) -> Found:
    """The asyncio consumer of this package."""
    from onceflow.sdk import AsyncConsumer, TopicPartition

    async def run() -> Found:
        seen = size = 0
        clock = Clock(options.broker_pid)
        async with AsyncConsumer(
            bootstrap_servers=options.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings,
        ) as consumer:
            method, arguments, touch = FORMS[form]
            poll = getattr(consumer, method)
            partitions = await consumer.partitions_for_topic(options.topic) or ()
            last = time.monotonic()
            clock.start()
            consumer.assign([TopicPartition(options.topic, p) for p in partitions])
            while seen < options.records and time.monotonic() < last + PATIENCE_S:
                polled = await poll(500, options.batch, **arguments)
                if polled:
                    last = time.monotonic()
                    more, more_bytes = touch(polled)
                    seen, size = seen + more, size + more_bytes
            clock.stop()
        return Found("onceflow", seen, size, clock)

    return asyncio.run(run())


def read_confluent(options: argparse.Namespace, settings: Settings) -> Found:
    """confluent-kafka, over librdkafka."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": f"bench-{os.getpid()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **settings,
        }
    )
    partitions = consumer.list_topics(options.topic, timeout=30).topics[options.topic].partitions
    seen = size = 0
    last = time.monotonic()
    clock = Clock(options.broker_pid)
    clock.start()
    consumer.assign([TopicPartition(options.topic, p, 0) for p in partitions])
    while seen < options.records and time.monotonic() < last + PATIENCE_S:
        messages = consumer.consume(options.batch, 0.5)
        if messages:
            last = time.monotonic()
        for message in messages:
            if message.error():
                raise RuntimeError(message.error())
            size += len(message.value()) + len(message.key() or b"")
        seen += len(messages)
    clock.stop()
    consumer.close()
    return Found("confluent-kafka", seen, size, clock)


def read_aiokafka(options: argparse.Namespace, settings: Settings) -> Found:
    """aiokafka."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def run() -> Found:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            **settings,
        )
        await consumer.start()
        seen = size = 0
        last = time.monotonic()
        clock = Clock(options.broker_pid)
        clock.start()
        consumer.assign([TopicPartition(options.topic, p) for p in range(options.partitions)])
        await consumer.seek_to_beginning()
        while seen < options.records and time.monotonic() < last + PATIENCE_S:
            polled = await consumer.getmany(timeout_ms=500, max_records=options.batch)
            for messages in polled.values():
                last = time.monotonic()
                for message in messages:
                    size += len(message.value) + len(message.key or b"")
                seen += len(messages)
        clock.stop()
        await consumer.stop()
        return Found("aiokafka", seen, size, clock)

    return asyncio.run(run())


def read_kafka_python(options: argparse.Namespace, settings: Settings) -> Found:
    """kafka-python."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=options.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **settings,
    )
    seen = size = 0
    last = time.monotonic()
    clock = Clock(options.broker_pid)
    clock.start()
    consumer.assign([TopicPartition(options.topic, p) for p in range(options.partitions)])
    consumer.seek_to_beginning()
    while seen < options.records and time.monotonic() < last + PATIENCE_S:
        for messages in consumer.poll(timeout_ms=500, max_records=options.batch).values():
            last = time.monotonic()
            for message in messages:
                size += len(message.value) + len(message.key or b"")
            seen += len(messages)
    clock.stop()
    consumer.close()
    return Found("kafka-python", seen, size, clock)


CLIENTS: dict[str, Callable[[argparse.Namespace, Settings], Found]] = {
    "onceflow": read_onceflow,
    "onceflow-columns": partial(read_onceflow, form="columns"),
    "onceflow-values": partial(read_onceflow, form="values"),
    "onceflow-async": read_onceflow_async,
    "onceflow-columns-async": partial(read_onceflow_async, form="columns"),
    "onceflow-values-async": partial(read_onceflow_async, form="values"),
    "confluent": read_confluent,
    "aiokafka": read_aiokafka,
    "kafka-python": read_kafka_python,
}


def fill(options: argparse.Namespace, count: int) -> None:
    """Create the topic if need be and write records to it."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": options.bootstrap})
    future = admin.create_topics([NewTopic(options.topic, options.partitions, 1)])[options.topic]
    try:
        future.result(30)
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
    source = random.Random(7)
    keys = [b"key-%05d" % i for i in range(10_000)]
    values = []
    for _ in range(1_000):
        text = json.dumps(
            {
                "id": source.randrange(10**9),
                "user": f"user-{source.randrange(10**5):05d}",
                "amount": round(source.random() * 1000, 2),
                "note": " ".join(source.choices(WORDS, k=options.size // 5 + 2)),
            }
        )
        values.append(text.encode()[: options.size])
    producer = Producer(
        {"bootstrap.servers": options.bootstrap, "compression.type": options.compression}
    )
    for i in range(count):
        while True:
            try:
                producer.produce(options.topic, values[i % 1_000], keys[i * 7_919 % 10_000])
                break
            except BufferError:
                producer.poll(0.1)
        if i % 1_000 == 0:
            producer.poll(0)
    producer.flush(120)


def read_settings(given: list[str]) -> Settings:
    """Client settings given as KEY=VALUE; values are JSON where they can be."""
    settings: Settings = {}
    for item in given:
        key, _, text = item.partition("=")
        try:
            settings[key] = json.loads(text)
        except json.JSONDecodeError:
            settings[key] = text
    return settings


def main() -> None:
    """Run one client once and print one JSON line."""
    parser = argparse.ArgumentParser(description="Measure a consumer.")
    parser.add_argument("--bootstrap", required=True, help="host:port of the broker")
    parser.add_argument("--client", choices=list(CLIENTS), required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=1_000_000, help="how many to read")
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--batch", type=int, default=10_000, help="most records per call")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value")
    parser.add_argument("--compression", default="none", help="how --fill writes")
    parser.add_argument("--fill", type=int, default=0, help="write so many records first")
    parser.add_argument("--broker-pid", type=int, help="measure this process's CPU too")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--label", default="default", help="name of the tuning; only printed")
    options = parser.parse_args()
    if options.fill:
        fill(options, options.fill)
    settings = read_settings(options.set)
    found = CLIENTS[options.client](options, settings)
    if found.records < options.records:
        sys.exit(f"{options.client} read {found.records} of {options.records} records")
    clock = found.clock
    rate = found.records / clock.seconds
    line = {
        "bench": "consume",
        "client": options.client,
        "version": version(found.package),
        "label": options.label,
        "set": settings,
        "topic": options.topic,
        "size": options.size,
        "compression": options.compression,
        "batch": options.batch,
        "records": found.records,
        "bytes": found.size_bytes,
        "rec_s": round(rate),
        "mb_s": round(rate * options.size / 1e6, 2),
        "seconds": round(clock.seconds, 4),
        "client_cpu_s": round(clock.client_cpu_s, 2),
        "client_cpu_us_per_record": round(clock.client_cpu_s / found.records * 1e6, 2),
    }
    if options.broker_pid:
        line["broker_cpu_s"] = round(clock.broker_cpu_s, 2)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
