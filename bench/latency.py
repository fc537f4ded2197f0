"""Latency of produce at a steady rate: from `produce` to the delivery report, confluent-kafka.

Records are sent at ``--rate`` for some seconds, spread evenly, with a linger of 5 ms; a JSON line.
For the latency at half load give half of what `produce.py` reaches; to compare brokers, the same to
both.

    python bench/latency.py --bootstrap 127.0.0.1:9092 --rate 150000
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial

from produce import KEYS, broker, make_topic, make_values


def measure(bootstrap: str, topic: str, size: int, rate: int, seconds: float) -> list[float]:
    """Milliseconds of every tenth record."""
    from confluent_kafka import Producer

    taken: list[float] = []

    def delivered(began: float, error: object, _: object) -> None:
        if error is not None:
            raise SystemExit(f"not delivered: {error}")
        taken.append((time.perf_counter() - began) * 1000)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.list_topics(topic, timeout=30)
    values = make_values(size)
    begin = time.perf_counter()
    sent = 0
    while (spent := time.perf_counter() - begin) < seconds:
        due = int(spent * rate)
        for number in range(sent, due):
            report = partial(delivered, time.perf_counter()) if number % 10 == 0 else None
            producer.produce(
                topic, values[number % 1000], KEYS[number % len(KEYS)], on_delivery=report
            )
        sent = max(sent, due)
        producer.poll(0.001)
    producer.flush(60)
    return taken[len(taken) // 5 :]  # the first fifth warms up


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bootstrap", help="a running broker; ours is started without it")
    parser.add_argument("--topic", default="bench-latency")
    parser.add_argument("--client", choices=["confluent"], default="confluent")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rate", type=int, default=100_000, help="records a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    with broker(args.bootstrap) as bootstrap:
        topic = f"{args.topic}-{time.time_ns()}"
        make_topic(bootstrap, topic)
        taken = measure(bootstrap, topic, args.size, args.rate, args.seconds)
    cuts = statistics.quantiles(taken, n=100)
    line = {"bench": "latency", "client": args.client, "size": args.size, "rate": args.rate}
    line |= {"p50_ms": round(cuts[49], 3), "p99_ms": round(cuts[98], 3)}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    main()
