"""How fast state comes back from its changelog: a fresh disk, and one that is only behind.

Writes a changelog with the producer, as a worker would, and lets a worker without input records
restore it. Prints one JSON line with MB of keys and values a second.

    python bench/restoring.py --bootstrap 127.0.0.1:9092
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import tempfile
import threading
import time
import uuid

from onceflow.processors import App, State
from onceflow.processors.state.codec import ValueCodec
from onceflow.sdk import Admin, NewTopic, Producer


def write(args: argparse.Namespace, topic: str, first: int, count: int) -> None:
    """Changes of state, each key once, in no order."""
    codec = ValueCodec(bytes, "restoring")
    value = b"x" * (args.bytes - 7)
    numbers = list(range(first, first + count))
    random.Random(7).shuffle(numbers)
    with Producer(bootstrap_servers=args.bootstrap, linger_ms=20) as producer:
        for start in range(0, count, 10_000):
            keys = [b"key-%09d" % number for number in numbers[start : start + 10_000]]
            producer.send_many(topic, [codec.encode(key, value) for key in keys], keys)
        producer.flush()


class Watch(logging.Handler):
    """Counts tasks whose state is complete."""

    def __init__(self, partitions: int) -> None:
        super().__init__(logging.INFO)
        self.left = partitions
        self.began = 0.0
        self.done = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("assigned") and not self.began:
            self.began = time.perf_counter()
        if text.endswith("is complete"):
            self.left -= 1
            if self.left == 0:
                self.done.set()


def restore(args: argparse.Namespace, name: str, state_dir: str) -> tuple[float, float]:
    """Run a worker until everything is restored; wall and processor seconds."""
    watch = Watch(args.partitions)
    logger = logging.getLogger("onceflow.processors")
    logger.setLevel(logging.INFO)
    logger.addHandler(watch)
    app = App(name, args.bootstrap, state_dir=state_dir, on_state_gap="continue")

    @app.processor(f"{name}-in", store=args.store)
    def keep(value: bytes, last: State[bytes]) -> None:
        last.set(value)

    def stop() -> None:
        watch.done.wait()
        app.stop()

    threading.Thread(target=stop).start()
    cpu = time.process_time()
    app.run()
    ended = time.perf_counter()
    logger.removeHandler(watch)
    return ended - watch.began, time.process_time() - cpu


def main() -> None:
    """Restore twice: all, and one part in ten."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--store", default="lmdb")
    args = parser.parse_args()
    name = f"restore-{uuid.uuid4().hex[:8]}"
    changelog = f"{name}-keep-last-changelog"
    with Admin(bootstrap_servers=args.bootstrap) as admin:
        admin.create_topics(
            [
                NewTopic(f"{name}-in", args.partitions, 1),
                NewTopic(changelog, args.partitions, 1, {"cleanup.policy": "compact"}),
            ]
        )
    write(args, changelog, 0, args.records)
    state_dir = tempfile.mkdtemp()
    size_mb = args.records * (args.bytes + 13) / 1e6
    wall, cpu = restore(args, name, state_dir)
    write(args, changelog, 0, args.records // 10)
    again, _ = restore(args, name, state_dir)
    print(
        json.dumps(
            {
                "store": args.store,
                "mb": round(size_mb),
                "mb_per_second": round(size_mb / wall, 1),
                "cpu_us_per_record": round(1e6 * cpu / args.records, 2),
                "tenth_seconds": round(again, 2),
                "seconds": round(wall, 2),
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
