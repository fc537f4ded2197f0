"""Cost of growth of processors: over partitions, over keys with state, over open windows of a key.

A worker with an LMDB store and changelogs, exactly-once, on a bundled broker in a process of its
own. State is written first; what is measured are further records of random keys (or windows) that
have state already. One JSON line for each case, with the worker's processor time of a record, which
tells more on a busy machine; ``--draw`` writes a picture of the lines of a file.

    python bench/growth_processors.py --out lines.jsonl
    python bench/growth_processors.py --draw lines.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from scale import daemon

from onceflow.processors import App, State, Tumbling, minutes, seconds
from onceflow.sdk import Admin, NewTopic, Producer

PARTITIONS = (1, 4, 16, 64)
KEYS = (10_000, 100_000, 1_000_000)
WINDOWS = (1, 10, 100, 1_000, 10_000)
WINDOW_KEYS = 10
"""Keys of the windows' case, so that the largest has 100,000 rows."""
USUAL_PARTITIONS = 6
RECORDS = 100_000
CASES = [("partitions", n) for n in PARTITIONS] + [("keys", n) for n in KEYS]
CASES += [("windows", n) for n in WINDOWS]
PICTURE = Path(__file__).parent.parent / "docs" / "growth-processors.svg"
Line = dict[str, object]


class Case:
    """One application, and the records that it gets.

    Args:
        kind: What grows.
        size: How large it is.
        bootstrap: The broker.
        state_dir: Where the worker keeps its state.
    """

    def __init__(self, kind: str, size: int, bootstrap: str, state_dir: str) -> None:
        self.kind = kind
        self.size = size
        self.bootstrap = bootstrap
        self.keys = size if kind == "keys" else 10_000
        self.partitions = size if kind == "partitions" else USUAL_PARTITIONS
        self.state_dir = state_dir
        self.first_us: float | None = None
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic("in", self.partitions, 1)])
            admin.create_topics([NewTopic("out", self.partitions, 1)])

    def seed(self) -> None:
        """Write one record of each key, or of each window of each key."""
        if self.kind == "windows":
            places = [(k, w) for w in range(self.size) for k in range(WINDOW_KEYS)]
        else:
            places = [(k, 0) for k in range(self.keys)]
        self.write(places)

    def more(self, records: int) -> None:
        """Write records of random keys or windows."""
        chance = random.Random(7)
        if self.kind == "windows":
            self.write(
                [
                    (chance.randrange(WINDOW_KEYS), chance.randrange(self.size))
                    for _ in range(records)
                ]
            )
        else:
            self.write([(chance.randrange(self.keys), 0) for _ in range(records)])

    def write(self, places: list[tuple[int, int]]) -> None:
        """Write records, each of a key and in a second of event time."""
        base_ms = 1_700_000_000_000
        with Producer(bootstrap_servers=self.bootstrap, linger_ms=20) as producer:
            for start in range(0, len(places), 10_000):
                some = places[start : start + 10_000]
                producer.send_many(
                    "in",
                    [b"1"] * len(some),
                    [b"key-%07d" % key for key, _ in some],
                    timestamps_ms=[base_ms + second * 1000 for _, second in some],
                )
            producer.flush()

    def run(self) -> float:
        """Process what is there; return the processor time from the first record on, in us."""
        self.first_us = None
        app = App("growth", self.bootstrap, state_dir=self.state_dir)
        if self.kind == "windows":

            @app.aggregate("in", window=Tumbling(seconds(1), grace=minutes(600)), to="out")
            def total(value: int, cents: int = 0) -> int:
                self.note()
                return cents + value

        else:

            @app.processor("in", to="out")
            def count(value: int, seen: State[int]) -> int:
                self.note()
                seen.set((seen.get() or 0) + value)
                return 1

        app.run(until_end=True)
        assert self.first_us is not None
        return time.process_time() * 1e6 - self.first_us

    def note(self) -> None:
        """Note when the first record comes."""
        if self.first_us is None:
            self.first_us = time.process_time() * 1e6


def measure(kind: str, size: int, records: int) -> Line:
    """Processor time of a record."""
    with TemporaryDirectory() as data, TemporaryDirectory() as state, daemon(data) as running:
        case = Case(kind, size, f"127.0.0.1:{running.port}", state)
        case.seed()
        case.run()
        case.more(records)
        spent_us = case.run()
    return {
        "kind": kind,
        "size": size,
        "cpu_us_per_record": round(spent_us / records, 2),
        "load": round(os.getloadavg()[0], 1),
    }


def draw(lines: list[Line]) -> str:
    """Three small line charts as SVG, each point labelled; all axes begin at 0."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="1040" height="240" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="1040" height="240" fill="white"/>',
    ]
    for number, kind in enumerate(("partitions", "keys", "windows")):
        left = 40 + number * 340
        sizes = [size for name, size in CASES if name == kind]
        points = []
        for size in sizes:
            found = [
                float(str(line["cpu_us_per_record"]))
                for line in lines
                if (line["kind"], line["size"]) == (kind, size)
            ]
            if found:
                points.append((size, statistics.median(found)))
        top = max((cost for _, cost in points), default=1.0)
        step = 260 / max(1, len(points) - 1)
        what = "open windows a key" if kind == "windows" else kind
        parts.append(f'<text x="{left}" y="24">µs of CPU a record over {what}</text>')
        parts.append(f'<path d="M{left} 40V200H{left + 285}" fill="none" stroke="#888"/>')
        places = [
            (left + 10 + index * step, 200 - cost / top * 140)
            for index, (_, cost) in enumerate(points)
        ]
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#1565c0" stroke-width="2"/>')
        for (x, y), (size, cost) in zip(places, points, strict=True):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#1565c0"/>')
            parts.append(f'<text x="{x - 8:.0f}" y="{y - 8:.0f}">{cost:.1f}</text>')
            parts.append(f'<text x="{x - 8:.0f}" y="218">{size:,}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--only", choices=("partitions", "keys", "windows"))
    parser.add_argument("--out", type=argparse.FileType("a"), default=os.devnull)
    parser.add_argument("--draw", type=Path, help="draw the lines of this file and end")
    args = parser.parse_args()
    if args.draw:
        PICTURE.write_text(draw([json.loads(text) for text in args.draw.read_text().splitlines()]))
        return
    for _ in range(args.rounds):
        for kind, size in CASES:
            if args.only in (None, kind):
                line = json.dumps(measure(kind, size, args.records))
                print(line, flush=True)
                args.out.write(line + "\n")
                args.out.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
