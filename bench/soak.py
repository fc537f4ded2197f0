"""Hours at load with restarts: does memory, do threads, tasks or sockets grow?

Our broker runs as a daemon on a folder; producers (idempotent and transactional) and a group of
readers work in this process. The broker is killed and started, and clients are closed and made
anew, again and again. Every few seconds the memory, threads, open files and sockets of both
processes and the asyncio tasks of this one are noted. The JSON line at the end has, for each, the
medians of the first and of the last third after the warm-up, and its growth an hour; ``--svg``
draws them.

    python bench/soak.py                               # one hour
    python bench/soak.py --minutes 10 --svg soak.svg
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from stock_daemon import StockDaemon

from onceflow.sdk import Admin, Consumer, NewTopic, Producer
from onceflow.sdk.errors import KafkaError

PARTITIONS = 4
SAMPLE_S = 5.0
WARM_UP = 0.2
"""Part of the run before which nothing is compared: caches fill up."""
SERIES = ("rss_mb", "threads", "files", "sockets", "tasks")
RETENTION_BYTES = 20_000_000
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")
PATIENT = {"delivery_timeout_ms": 60_000, "request_timeout_ms": 5_000}


@dataclass(slots=True)
class Soak:
    """What happens during the run, and what was seen of it."""

    bootstrap: str
    rate: int
    stop: threading.Event = field(default_factory=threading.Event)
    counts: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def failed(self, error: BaseException) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    # --- clients, each made anew every few seconds

    def produce(self, life_s: float) -> None:
        """One life of an idempotent producer at the wanted rate."""
        end, portion = time.monotonic() + life_s, max(self.rate // 20, 1)
        with Producer(bootstrap_servers=self.bootstrap, **PATIENT) as producer:
            while time.monotonic() < end and not self.stop.is_set():
                for number in range(portion):
                    producer.send("soak", b"x" * 100, key=b"%d" % number)
                self.count("sent", portion)
                self.stop.wait(0.05)
            producer.flush()
            self.count("acknowledged_lives")

    def transact(self, life_s: float) -> None:
        """One life of a transactional producer."""
        end = time.monotonic() + life_s
        with Producer(
            bootstrap_servers=self.bootstrap, transactional_id="soak", **PATIENT
        ) as producer:
            while time.monotonic() < end and not self.stop.is_set():
                with producer.transaction():
                    for partition in range(PARTITIONS):
                        producer.send("soak", b"t" * 100, partition=partition)
                self.count("transactions")
                self.stop.wait(0.01)

    def read(self, life_s: float) -> None:
        """One life of a member of the readers' group."""
        end = time.monotonic() + life_s
        with Consumer(
            "soak",
            bootstrap_servers=self.bootstrap,
            group_id="soak",
            auto_offset_reset="latest",
            request_timeout_ms=5_000,
        ) as consumer:
            while time.monotonic() < end and not self.stop.is_set():
                for records in consumer.poll(timeout_ms=200).values():
                    self.count("read", len(records))

    def lives(self, life: Callable[[float], None], seed: int) -> None:
        """Life after life until the end; an error ends one life only."""
        chance = random.Random(seed)
        while not self.stop.is_set():
            try:
                life(chance.uniform(5, 25))
            except KafkaError as error:
                self.failed(error)
            self.count("client_lives")

    # --- figures

    def sample(self, broker_pid: int) -> None:
        """Note the figures of both processes."""
        gc.collect()
        tasks = sum(isinstance(one, asyncio.Task) for one in gc.get_objects())
        found: dict[str, float] = {"at_s": time.monotonic(), "client_tasks": tasks}
        for name, pid in (("broker", broker_pid), ("client", os.getpid())):
            with contextlib.suppress(OSError):
                found |= {f"{name}_{key}": value for key, value in process_figures(pid).items()}
        if "broker_rss_mb" in found:
            self.samples.append(found)


def process_figures(pid: int) -> dict[str, float]:
    """Memory, threads, open files and sockets of a process."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(link))
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "files": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
    }


def growth(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """For each figure: the medians of the first and the last third, and the growth an hour."""
    after = samples[int(len(samples) * WARM_UP) :]
    third = max(len(after) // 3, 1)
    hours = (after[-1]["at_s"] - after[0]["at_s"]) / 3600 * 2 / 3 if len(after) > 1 else 0
    shown = {}
    for name in sorted({key for sample in after for key in sample} - {"at_s"}):
        first, last = (
            statistics.median(sample[name] for sample in part if name in sample)
            for part in (after[:third], after[-third:])
        )
        shown[name] = {
            "first": round(first, 1),
            "last": round(last, 1),
            "an_hour": round((last - first) / hours, 1) if hours else 0.0,
        }
    return shown


def drawing(samples: list[dict[str, float]]) -> str:
    """The figures over time as an SVG picture, one row for each kind."""
    width, height, left = 700, 110, 60
    begin, end = samples[0]["at_s"], samples[-1]["at_s"]
    rows = []
    for row, kind in enumerate(SERIES):
        names = [name for name in samples[-1] if name.endswith(kind)]
        top = max((sample.get(name, 0) for sample in samples for name in names), default=0) or 1
        base = (row + 1) * (height + 20)
        rows.append(f'<text x="4" y="{base - height + 10}">{kind}</text>')
        rows.append(f'<text x="4" y="{base - height + 26}">{top:.0f}</text>')
        rows.append(f'<line x1="{left}" x2="{width}" y1="{base}" y2="{base}" stroke="#999"/>')
        for colour, name in zip(COLOURS, names, strict=False):
            points = " ".join(
                f"{left + (s['at_s'] - begin) / max(end - begin, 1) * (width - left):.1f},"
                f"{base - s[name] / top * (height - 10):.1f}"
                for s in samples
                if name in s
            )
            rows.append(f'<polyline fill="none" stroke="{colour}" points="{points}"/>')
            where = base - 4 - 14 * names.index(name)
            rows.append(f'<text x="{width + 6}" y="{where}" fill="{colour}">{name}</text>')
    size = f'width="{width + 140}" height="{len(SERIES) * (height + 20) + 30}"'
    below, minutes_long = len(SERIES) * (height + 20) + 22, (end - begin) / 60
    minutes = f'<text x="{left}" y="{below}">0 to {minutes_long:.0f} minutes</text>'
    style = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="12"'
    return f"<svg {style} {size}>{''.join(rows)}{minutes}</svg>\n"


def run(args: argparse.Namespace, daemon: StockDaemon) -> tuple[Soak, int]:
    """Everything until the time is over; gives the figures and the number of broker restarts."""
    soak = Soak(daemon.bootstrap_servers, args.rate)
    with Admin(bootstrap_servers=soak.bootstrap) as admin:
        configs = {"retention.bytes": str(RETENTION_BYTES), "segment.bytes": "4194304"}
        admin.create_topics([NewTopic("soak", PARTITIONS, configs=configs)])
    works = [soak.produce, soak.transact, soak.read, soak.read]
    threads = [
        threading.Thread(target=soak.lives, args=(work, args.seed + number), daemon=True)
        for number, work in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    chance, restarts = random.Random(args.seed), 0
    end = time.monotonic() + args.minutes * 60
    restart_at = time.monotonic() + args.restart_s
    while time.monotonic() < end:
        soak.stop.wait(SAMPLE_S)
        assert daemon.process is not None
        soak.sample(daemon.process.pid)
        if time.monotonic() > restart_at:
            daemon.kill()
            daemon.start()
            restarts += 1
            restart_at = time.monotonic() + args.restart_s * chance.uniform(0.5, 1.5)
    soak.stop.set()
    for thread in threads:
        thread.join(90)
    soak.count("threads_left", sum(thread.is_alive() for thread in threads))
    return soak, restarts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run")
    parser.add_argument("--rate", type=int, default=2_000, help="records a second")
    parser.add_argument("--restart-s", type=float, default=60.0, help="mean time between kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path, help="where to draw the figures")
    args = parser.parse_args()
    settings = {"log.retention.check.interval.ms": 5_000}
    with tempfile.TemporaryDirectory(prefix="soak.") as folder:
        daemon = StockDaemon(Path(folder) / "data", settings)
        daemon.start()
        try:
            soak, restarts = run(args, daemon)
        finally:
            daemon.stop()
    if args.svg:
        args.svg.write_text(drawing(soak.samples))
    report = {
        "minutes": args.minutes,
        "broker_kills": restarts,
        **soak.counts,
        "errors": soak.errors,
        "load": os.getloadavg()[0],
        "figures": growth(soak.samples),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
