"""Exactly-once processing with state beside Quix Streams: the same input, the same outputs.

Works: a count by key; a tumbling sum that is told when its window closes; a join of a stream with a
table; a count by another key, through a topic in between. Each side runs in a process of its own.
Prints one JSON line a run: records a second from the first record that a function sees until a
read_committed consumer has the last output. Quix Streams lives in an environment of its own:

    python -m venv /tmp/quix && /tmp/quix/bin/pip install quixstreams
    python bench/quix.py --quix /tmp/quix/bin/python --rounds 3
    python bench/quix.py --quix /tmp/quix/bin/python --work count --bootstrap 127.0.0.1:9092
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

HERE = Path(__file__).resolve().parent
PARTITIONS = 6
WINDOW_MS = 10_000
BEGAN_MS = 1_700_000_000_000
WORKS = ("count", "tumbling", "join", "rekey")


def fill(args: argparse.Namespace, work: str, topic: str) -> int:
    """Write the input, and return how many outputs there will be.

    A record is a millisecond after the one before it. The last one of each partition comes long
    after all others and closes their windows.
    """
    from onceflow.sdk import Admin, NewTopic, Producer

    keys = [b"key-%07d" % (i * 7919 % args.keys) for i in range(args.records)]
    names = [topic, f"{topic}-out"] + ([f"{topic}-table"] if work == "join" else [])
    with (
        Admin(bootstrap_servers=args.bootstrap) as admin,
        Producer(bootstrap_servers=args.bootstrap, linger_ms=20) as producer,
    ):
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        if work == "join":
            known = sorted(set(keys))
            producer.send_many(
                f"{topic}-table", [b"7"] * len(known), known, timestamps_ms=BEGAN_MS - 1
            )
            producer.flush()
        if work == "rekey":
            values = [b"%07d" % (i * 104_729 % args.keys) + b"x" * 93 for i in range(len(keys))]
        else:
            values = [b"x" * 100 if work == "count" else b"%d" % (i % 10) for i in range(len(keys))]
        for start in range(0, args.records, 10_000):
            end = min(start + 10_000, args.records)
            times = list(range(BEGAN_MS + start, BEGAN_MS + end))
            producer.send_many(topic, values[start:end], keys[start:end], timestamps_ms=times)
        producer.flush()
        if work != "tumbling":
            return args.records
        for number in range(PARTITIONS):
            far_ms = BEGAN_MS + args.records + 100 * WINDOW_MS
            producer.send(topic, b"0", key=b"end", partition=number, timestamp_ms=far_ms)
        producer.flush()
    return len({(key, (BEGAN_MS + i) // WINDOW_MS) for i, key in enumerate(keys)})


def run_onceflow(args: argparse.Namespace) -> None:
    """Our side, in this process, until it is ended."""
    from onceflow.processors import App, State, Tumbling, seconds

    topic = args.topic
    app = App(
        topic, args.bootstrap, state_dir=tempfile.mkdtemp(), commit_interval_ms=args.commit_ms
    )
    began = False

    def note() -> None:
        nonlocal began
        if not began:
            began = True
            print(time.time(), flush=True)

    if args.work == "count":

        @app.processor(topic, to=f"{topic}-out")
        def count(value: bytes, seen: State[int]) -> bytes:
            note()
            total = seen.get(0) + 1
            seen.set(total)
            return b"%d" % total

    elif args.work == "rekey":

        @app.processor(topic, to=f"{topic}-out", key=lambda value: value[:7])
        def again(value: bytes, seen: State[int]) -> bytes:
            note()
            total = seen.get(0) + 1
            seen.set(total)
            return b"%d" % total

    elif args.work == "tumbling":

        @app.aggregate(topic, window=Tumbling(seconds(WINDOW_MS // 1000)), to=f"{topic}-out")
        def total(value: int, sum: int = 0) -> int:
            note()
            return sum + value

    else:
        table = app.table(f"{topic}-table", int, key=bytes)

        @app.processor(topic, to=f"{topic}-out")
        def joined(value: int, known: Annotated[int | None, table]) -> list[int | None]:
            note()
            return [value, known]

    app.run()


@contextlib.contextmanager
def broker(args: argparse.Namespace) -> Iterator[str]:
    """The brokers that were given, or the bundled one on a temporary folder."""
    if args.bootstrap:
        yield args.bootstrap
        return
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "onceflow.cli", "broker", "--data", data]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().split("ready on ")[1].split()[0]
            finally:
                process.terminate()


def run_side(args: argparse.Namespace, side: str, work: str) -> dict[str, Any]:
    """Run one side once."""
    from onceflow.sdk import Consumer, TopicPartition

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    outputs = fill(args, work, topic)
    own = ["--bootstrap", args.bootstrap, "--work", work, "--topic", topic]
    own += ["--commit-ms", str(args.commit_ms)]
    command = [sys.executable, __file__, "--onceflow", *own]
    if side == "quix":
        command = [args.quix, str(HERE / "quix_side.py"), *own, "--window-ms", str(WINDOW_MS)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        Consumer(bootstrap_servers=args.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition(f"{topic}-out", number) for number in range(PARTITIONS)])
        late = threading.Timer(args.seconds_max, process.terminate)
        late.start()
        try:
            assert process.stdout is not None
            began_s = float(process.stdout.readline())
            left = outputs
            while left > 0:
                left -= sum(map(len, consumer.poll_columns(200).values()))
                if process.poll() is not None:
                    raise SystemExit(f"{side} ended {left} outputs before the last one")
            ended_s = time.time()
        finally:
            late.cancel()
            process.terminate()
    rate = round(args.records / (ended_s - began_s))
    return {"side": side, "work": work, "records": args.records, "records_per_second": rate}


def main() -> None:
    """Run both sides in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="brokers; by default the bundled one is started")
    parser.add_argument("--quix", help="a Python that has quixstreams")
    parser.add_argument("--work", choices=WORKS, nargs="*", default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--commit-ms", type=int, default=100)
    parser.add_argument("--seconds-max", type=int, default=300, help="longest run of one side")
    parser.add_argument("--onceflow", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.onceflow:
        args.work = args.work[0]
        run_onceflow(args)
        return
    if not args.quix:
        parser.error("--quix PYTHON: give the interpreter of an environment that has quixstreams")
    with broker(args) as args.bootstrap:
        for work in args.work:
            ratios = []
            for _ in range(args.rounds):
                found = [run_side(args, side, work) for side in ("quix", "onceflow")]
                for line in found:
                    print(json.dumps(line), flush=True)
                ratios.append(found[1]["records_per_second"] / found[0]["records_per_second"])
            print(json.dumps({"work": work, "ratio": round(statistics.median(ratios), 1)}))


if __name__ == "__main__":
    main()
