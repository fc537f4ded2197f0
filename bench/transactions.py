"""Transactions one after the other: begin, a record to each of two partitions, a group's offset, commit.

Prints one JSON line: transactions a second and the time of each, begin to the end of commit. The
published clients run with their default settings unless ``--set`` says otherwise, since waiting is
what they do by default when a broker answers CONCURRENT_TRANSACTIONS.

    python bench/transactions.py --bootstrap 127.0.0.1:9092 --client onceflow
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable

from produce import make_topic, settings_of

WARM_UP = 20
Times = list[float]


def run_onceflow(args: argparse.Namespace) -> Times:
    """Our blocking producer."""
    from onceflow.sdk import ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition

    times: Times = []
    group = ConsumerGroupMetadata(f"{args.topic}-group")
    source = TopicPartition(args.topic, 5)
    with Producer(
        bootstrap_servers=args.bootstrap,
        transactional_id=args.topic,
        linger_ms=0,
        **settings_of(args.set),  # type: ignore[arg-type]
    ) as producer:
        for number in range(args.transactions + WARM_UP):
            began = time.perf_counter()
            with producer.transaction():
                producer.send(args.topic, b"left", partition=0)
                producer.send(args.topic, b"right", partition=1)
                producer.send_offsets_to_transaction({source: OffsetAndMetadata(number)}, group)
            times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def run_confluent(args: argparse.Namespace) -> Times:
    """librdkafka by its Python binding."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    settings = {"bootstrap.servers": args.bootstrap}
    consumer = Consumer({**settings, "group.id": f"{args.topic}-group"})
    producer = Producer(
        {**settings, "transactional.id": args.topic, "linger.ms": 0, **settings_of(args.set)}
    )
    producer.init_transactions(30)
    metadata = consumer.consumer_group_metadata()
    times: Times = []
    for number in range(args.transactions + WARM_UP):
        began = time.perf_counter()
        producer.begin_transaction()
        producer.produce(args.topic, b"left", partition=0)
        producer.produce(args.topic, b"right", partition=1)
        offsets = [TopicPartition(args.topic, 5, number)]
        producer.send_offsets_to_transaction(offsets, metadata, 30)
        producer.commit_transaction(30)
        times.append(time.perf_counter() - began)
    consumer.close()
    return times[WARM_UP:]


def run_aiokafka(args: argparse.Namespace) -> Times:
    """aiokafka."""
    from aiokafka import AIOKafkaProducer, TopicPartition

    async def run() -> Times:
        times: Times = []
        producer = AIOKafkaProducer(
            bootstrap_servers=args.bootstrap,
            transactional_id=args.topic,
            **settings_of(args.set),
        )
        await producer.start()
        source, group = TopicPartition(args.topic, 5), f"{args.topic}-group"
        for number in range(args.transactions + WARM_UP):
            began = time.perf_counter()
            async with producer.transaction():
                first = await producer.send(args.topic, b"left", partition=0)
                second = await producer.send(args.topic, b"right", partition=1)
                await asyncio.gather(first, second)
                await producer.send_offsets_to_transaction({source: number}, group)
            times.append(time.perf_counter() - began)
        await producer.stop()
        return times[WARM_UP:]

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[argparse.Namespace], Times]] = {
    "onceflow": run_onceflow,
    "confluent": run_confluent,
    "aiokafka": run_aiokafka,
}


def main() -> None:
    """Run one client and print its line."""
    parser = argparse.ArgumentParser(description="Measure transactions.")
    parser.add_argument("--bootstrap", required=True, help="host:port of the broker")
    parser.add_argument("--client", choices=list(CLIENTS), required=True)
    parser.add_argument("--transactions", type=int, default=300)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    args.topic = f"bench-transactions-{time.time_ns()}"
    make_topic(args.bootstrap, args.topic)
    times = sorted(CLIENTS[args.client](args))
    line = {
        "bench": "transactions",
        "client": args.client,
        "transactions": len(times),
        "per_s": round(len(times) / sum(times), 1),
        "p50_ms": round(times[len(times) // 2] * 1e3, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1e3, 3),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
