"""Exactly-once processing: a stateless function, of single records or of many (a list, an Arrow
array), a count by key with state and changelog, or an async function that waits for something.

Prints one JSON line: records a second from the first to the last committed offset. The published
client does the same work in a loop by hand: poll, produce, a dictionary and a changelog for the
count, offsets in the transaction, commit.

    python bench/processing.py --bootstrap 127.0.0.1:9092 --client onceflow --work count
    python bench/processing.py --bootstrap 127.0.0.1:9092 --work wait --concurrency 64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import threading
import time
import uuid

import pyarrow as pa

from onceflow.processors import App, Retries, State

PARTITIONS = 6


def fill(args: argparse.Namespace, topic: str) -> None:
    """Write the input: keys are drawn evenly."""
    from onceflow.sdk import Admin, NewTopic, Producer

    with Admin(bootstrap_servers=args.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        admin.create_topics([NewTopic(f"{topic}-out", PARTITIONS, 1)])
    value = b"x" * args.bytes
    with Producer(bootstrap_servers=args.bootstrap, linger_ms=20) as producer:
        for start in range(0, args.records, 10_000):
            count = min(10_000, args.records - start)
            keys = [b"key-%07d" % ((start + i) * 7919 % args.keys) for i in range(count)]
            producer.send_many(topic, [value] * count, keys)
        producer.flush()


def wait_until_committed(args: argparse.Namespace, group: str, topic: str) -> float:
    """Wait for the group's offsets to reach the end; gives the time of it."""
    from onceflow.sdk import Admin

    with Admin(bootstrap_servers=args.bootstrap) as admin:
        while True:
            found = admin.list_group_offsets(group)
            done = sum(entry.offset for tp, entry in found.items() if tp.topic == topic)
            if done >= args.records:
                return time.perf_counter()
            time.sleep(0.05)


def run_onceflow(args: argparse.Namespace, topic: str) -> tuple[float, float]:
    """Our library."""
    first: list[float] = []
    app = App(
        topic,
        args.bootstrap,
        state_dir=tempfile.mkdtemp(),
        commit_interval_ms=args.commit_ms,
        commit_records=args.commit_records,
        processing_guarantee=args.guarantee,
        transaction_timeout_ms=30_000,
    )

    if args.work == "count":

        @app.processor(topic, to=f"{topic}-out")
        def count(value: bytes, seen: State[int]) -> bytes:
            if not first:
                first.append(time.perf_counter())
            total = (seen.get() or 0) + 1
            seen.set(total)
            return b"%d" % total

    elif args.work == "park":
        retries = Retries(1_000, backoff_ms=60_000, backoff_max_ms=60_000)

        @app.processor(topic, to=f"{topic}-out", retries=retries, park=True)
        def parked(value: bytes, key: bytes) -> bytes:
            if not first:
                first.append(time.perf_counter())
            if args.failing and int(key[4:]) % args.failing == 0:
                raise LookupError("the service does not answer")
            return value

    elif args.work == "wait":

        @app.processor(topic, to=f"{topic}-out", concurrency=args.concurrency)
        async def wait(value: bytes) -> bytes:
            if not first:
                first.append(time.perf_counter())
            await asyncio.sleep(args.wait_ms / 1000)
            return value

    elif args.work == "batch":

        @app.processor(topic, to=f"{topic}-out", batch=10_000)
        def all_of(values: list[bytes]) -> list[bytes]:
            if not first:
                first.append(time.perf_counter())
            return values

    elif args.work == "arrow":

        @app.processor(topic, to=f"{topic}-out", batch=10_000)
        def columns(values: pa.Array) -> pa.Array:
            if not first:
                first.append(time.perf_counter())
            return values

    else:

        @app.processor(topic, to=f"{topic}-out")
        def same(value: bytes) -> bytes:
            if not first:
                first.append(time.perf_counter())
            return value

    ended: list[float] = []

    def watch() -> None:
        ended.append(wait_until_committed(args, topic, topic))
        app.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    app.run()
    watcher.join()
    return first[0], ended[0]


def run_confluent(args: argparse.Namespace, topic: str) -> tuple[float, float]:
    """librdkafka by its Python binding, in a loop."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": args.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": args.bootstrap,
            "transactional.id": topic,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 5,
        }
    )
    producer.init_transactions(30)
    consumer.subscribe([topic])
    counts: dict[bytes, int] = {}
    done, began, out, changelog = 0, 0.0, f"{topic}-out", f"{topic}-changelog"
    while done < args.records:
        messages = consumer.consume(1_000, 1.0)
        if not messages:
            continue
        if not began:
            began = time.perf_counter()
        producer.begin_transaction()
        deadline, taken = time.perf_counter() + args.commit_ms / 1000, 0
        offsets: dict[int, int] = {}
        changed: dict[bytes, int] = {}
        while True:
            for message in messages:
                key = message.key()
                if args.work == "count":
                    counts[key] = total = counts.get(key, 0) + 1
                    changed[key] = total
                    producer.produce(out, b"%d" % total, key)
                else:
                    producer.produce(out, message.value(), key)
                offsets[message.partition()] = message.offset() + 1
            taken += len(messages)
            producer.poll(0)
            if time.perf_counter() >= deadline or taken >= args.commit_records:
                break
            messages = consumer.consume(1_000, 0.01)
            if done + taken >= args.records:
                break
        for key, total in changed.items():
            producer.produce(changelog, b"%d" % total, key)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, p, offset) for p, offset in offsets.items()],
            consumer.consumer_group_metadata(),
            30,
        )
        producer.commit_transaction(30)
        done += taken
    ended = time.perf_counter()
    consumer.close()
    return began, ended


RUNS = {"onceflow": run_onceflow, "confluent": run_confluent}


def main() -> None:
    """Run one client once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--client", choices=RUNS, default="onceflow")
    parser.add_argument(
        "--work",
        choices=("stateless", "count", "batch", "arrow", "wait", "park"),
        default="stateless",
    )
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--failing", type=int, default=0, help="every so manyth key fails")
    parser.add_argument("--wait-ms", type=int, default=10)
    parser.add_argument("--guarantee", default="exactly_once_v2")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--commit-ms", type=int, default=100)
    parser.add_argument("--commit-records", type=int, default=1_000_000)
    args = parser.parse_args()
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    fill(args, topic)
    cpu = time.process_time()
    began, ended = RUNS[args.client](args, topic)
    cpu = time.process_time() - cpu
    print(
        json.dumps(
            {
                "client": args.client,
                "work": args.work,
                "records_per_second": round(args.records / (ended - began)),
                "cpu_us_per_record": round(1e6 * cpu / args.records, 2),
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
