"""Latency of produce, acks=all. One JSON line.

Without ``--rate``: one record at a time, each sent when the last one is acknowledged, linger 0, in
every client (``--client``); with it: records sent evenly at so many a second for some seconds with
a linger of 5 ms by confluent-kafka, from `produce` to the delivery report. For the latency at half
load give half of what `produce.py` reaches; to compare brokers, the same to both.

    python bench/latency.py --bootstrap 127.0.0.1:9092 --client onceflow
    python bench/latency.py --bootstrap 127.0.0.1:9092 --rate 150000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

from produce import Clock, broker, make_keys, make_topic, make_values, settings_of

Times = list[float]
"""Milliseconds of records, in the order in which they were sent."""


def at_rate(args: argparse.Namespace, topic: str) -> Times:
    """Every tenth record at a steady rate, confluent-kafka."""
    from confluent_kafka import Producer

    taken: Times = []

    def delivered(began: float, error: object, _: object) -> None:
        if error is not None:
            raise SystemExit(f"not delivered: {error}")
        taken.append((time.perf_counter() - began) * 1000)

    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic, timeout=30)
    values, keys = make_values(args.size), make_keys("some", 0)
    begin = time.perf_counter()
    sent = 0
    while (spent := time.perf_counter() - begin) < args.seconds:
        due = int(spent * args.rate)
        for number in range(sent, due):
            report = partial(delivered, time.perf_counter()) if number % 10 == 0 else None
            producer.produce(
                topic, values[number % 1000], keys[number % len(keys)], on_delivery=report
            )
        sent = max(sent, due)
        producer.poll(0.001)
    producer.flush(60)
    return taken[len(taken) // 5 :]  # the first fifth warms up


class OneByOne:
    """The moments of records that are sent one after the other, and the processor time of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        values, keys = make_values(args.size), make_keys("some", 0)
        self._total, self._warm_up = args.records + args.warm_up, args.warm_up
        self._records = [(values[n % 1000], keys[n % len(keys)]) for n in range(self._total)]
        self._clock = Clock()
        self.taken: Times = []

    @property
    def cpu_us(self) -> float:
        """Processor time of the client for each record, in microseconds."""
        return self._clock.cpu_seconds / len(self.taken) * 1e6

    def run(self, send: Callable[[bytes, bytes], object]) -> None:
        """Send all of them; ``send`` returns when the record is acknowledged."""
        for number, (value, key) in enumerate(self._records):
            if number == self._warm_up:
                self._clock.start()
            began = time.perf_counter()
            send(value, key)
            self.taken.append((time.perf_counter() - began) * 1000)
        self._clock.stop()
        del self.taken[: self._warm_up]

    async def run_async(self, send: Callable[[bytes, bytes], object]) -> None:
        """The same where ``send`` gives an awaitable."""
        for number, (value, key) in enumerate(self._records):
            if number == self._warm_up:
                self._clock.start()
            began = time.perf_counter()
            await send(value, key)  # type: ignore[misc]
            self.taken.append((time.perf_counter() - began) * 1000)
        self._clock.stop()
        del self.taken[: self._warm_up]


def one_onceflow(args: argparse.Namespace, topic: str, one: OneByOne) -> None:
    """Our blocking producer."""
    from onceflow.sdk import Producer

    settings = {"linger_ms": 0, **settings_of(args.set)}
    with Producer(bootstrap_servers=args.bootstrap, **settings) as producer:  # type: ignore[arg-type]
        one.run(lambda value, key: producer.send(topic, value, key=key).result())


def one_onceflow_async(args: argparse.Namespace, topic: str, one: OneByOne) -> None:
    """Our asyncio producer."""
    from onceflow.sdk import AsyncProducer

    async def run() -> None:
        settings = {"linger_ms": 0, **settings_of(args.set)}
        async with AsyncProducer(bootstrap_servers=args.bootstrap, **settings) as producer:  # type: ignore[arg-type]
            await one.run_async(lambda value, key: producer.send_and_wait(topic, value, key=key))

    asyncio.run(run())


def one_confluent(args: argparse.Namespace, topic: str, one: OneByOne) -> None:
    """confluent-kafka, waiting in its flush."""
    from confluent_kafka import Producer

    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "partitioner": "murmur2_random",
            "on_delivery": lambda error, _: failures.append(error) if error else None,
            **settings_of(args.set),
        }
    )
    producer.list_topics(topic, timeout=30)

    def send(value: bytes, key: bytes) -> None:
        producer.produce(topic, value, key)
        if producer.flush(60) or failures:
            raise SystemExit(f"not delivered: {failures}")

    one.run(send)


def one_aiokafka(args: argparse.Namespace, topic: str, one: OneByOne) -> None:
    """aiokafka."""
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=args.bootstrap,
            acks="all",
            enable_idempotence=True,
            **settings_of(args.set),
        )
        await producer.start()
        await one.run_async(lambda value, key: producer.send_and_wait(topic, value, key))
        await producer.stop()

    asyncio.run(run())


def one_kafka_python(args: argparse.Namespace, topic: str, one: OneByOne) -> None:
    """kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=args.bootstrap,
        acks="all",
        enable_idempotence=True,
        **settings_of(args.set),
    )
    one.run(lambda value, key: producer.send(topic, value, key).get(60))
    producer.close()


CLIENTS: dict[str, Callable[[argparse.Namespace, str, OneByOne], None]] = {
    "onceflow": one_onceflow,
    "onceflow-async": one_onceflow_async,
    "confluent": one_confluent,
    "aiokafka": one_aiokafka,
    "kafka-python": one_kafka_python,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bootstrap", help="a running broker; ours is started without it")
    parser.add_argument("--topic", default="bench-latency")
    parser.add_argument("--client", choices=list(CLIENTS), default="confluent")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--records", type=int, default=2_000, help="how many, one at a time")
    parser.add_argument("--warm-up", type=int, default=300, help="sent before those")
    parser.add_argument("--rate", type=int, help="records a second, rather than one at a time")
    parser.add_argument("--seconds", type=float, default=5.0, help="with --rate")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    if args.rate and args.client != "confluent":
        parser.error("--rate is for confluent-kafka only: it compares brokers")
    line: dict[str, object] = {"client": args.client, "size": args.size}
    with broker(args.bootstrap) as args.bootstrap:
        topic = f"{args.topic}-{time.time_ns()}"
        make_topic(args.bootstrap, topic)
        if args.rate:
            taken = at_rate(args, topic)
            line |= {"bench": "latency", "rate": args.rate}
        else:
            one = OneByOne(args)
            CLIENTS[args.client](args, topic, one)
            taken = one.taken
            per_s = 1000 / statistics.fmean(taken)
            line |= {"bench": "one-record", "records": len(taken), "per_s": round(per_s)}
            line["client_cpu_us_per_record"] = round(one.cpu_us, 1)
    cuts = statistics.quantiles(taken, n=100)
    line |= {"p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
