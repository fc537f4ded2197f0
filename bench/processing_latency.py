"""Time from a record to its committed output: an application, exactly-once, at a steady rate.

A producer sends so many records a second, each with the time in its value; a read_committed
consumer notes how old the outputs are when it gets them. The application runs in a process of its
own. One JSON line.

    python bench/processing_latency.py --bootstrap 127.0.0.1:9092
    python bench/processing_latency.py --bootstrap 127.0.0.1:9092 --rate 5000 --commit-ms 50
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from onceflow.processors import App
from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition

PARTITIONS = 6


def run_app(args: argparse.Namespace) -> None:
    """Copy records until the process is ended."""
    app = App(
        args.topic, args.bootstrap, state_dir=tempfile.mkdtemp(), commit_interval_ms=args.commit_ms
    )

    @app.processor(args.topic, to=f"{args.topic}-out")
    def same(value: bytes) -> bytes:
        return value

    app.run()


def send(args: argparse.Namespace, topic: str, ended: threading.Event) -> None:
    """Send records evenly."""
    began_s = time.perf_counter()
    with Producer(bootstrap_servers=args.bootstrap, linger_ms=0) as producer:
        sent = 0
        while not ended.wait(0.002):
            due = int((time.perf_counter() - began_s) * args.rate)
            for number in range(sent, due):
                value = b"%.6f" % time.time() + b"x" * 80
                producer.send(topic, value, key=b"key-%04d" % (number % 1_000))
            sent = due


def measure(args: argparse.Namespace, topic: str, sender: threading.Thread) -> list[float]:
    """Read outputs, and return their ages in milliseconds.

    The sender begins when the application has answered a first record; what comes of the first
    second does not count.
    """
    ages: list[float] = []
    skipped = args.rate
    with (
        Consumer(bootstrap_servers=args.bootstrap, auto_offset_reset="earliest") as consumer,
        Producer(bootstrap_servers=args.bootstrap) as producer,
    ):
        consumer.assign([TopicPartition(f"{topic}-out", number) for number in range(PARTITIONS)])
        producer.send(topic, b"0").result()
        while not consumer.poll_columns(1_000):
            pass
        sender.start()
        while len(ages) < args.rate * args.seconds + skipped:
            for columns in consumer.poll_columns(200).values():
                now_s = time.time()
                ages += [1_000 * (now_s - float(value.rstrip(b"x"))) for value in columns.values]
    return sorted(ages[skipped:])


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rate", type=int, default=1_000, help="records a second")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--commit-ms", type=int, default=100)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.topic:
        run_app(args)
        return
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=args.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (topic, f"{topic}-out")])
    ended = threading.Event()
    sender = threading.Thread(target=send, args=(args, topic, ended), daemon=True)
    own = ["--bootstrap", args.bootstrap, "--commit-ms", str(args.commit_ms), "--topic", topic]
    with subprocess.Popen([sys.executable, __file__, *own]) as process:
        try:
            ages = measure(args, topic, sender)
        finally:
            ended.set()
            process.terminate()
    p50, p99 = (round(ages[int(len(ages) * share)], 1) for share in (0.5, 0.99))
    print(
        json.dumps(
            {
                "commit_ms": args.commit_ms,
                "rate": args.rate,
                "records": len(ages),
                "p50_ms": p50,
                "p99_ms": p99,
            }
        )
    )


if __name__ == "__main__":
    main()
