"""Applications for chaos runs: the program of a worker, what is fed, and what has to come out.

A feeder writes records with event times that go up by 10 ms each, in some disorder, and remembers
what plain dictionaries make of them. Records far in the future close all windows and joins at the
end. Grace is long, so that nothing is late whatever is killed.
"""

from __future__ import annotations

import collections
import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from processor_processes import read_all

from onceflow.sdk import NewTopic, Producer

PARTITIONS, KEYS = 6, 40
STEP_MS, DISORDER_MS = 10, 200
WINDOW_MS, GAP_MS, WITHIN_MS = 500, 300, 400
BEGIN_MS = 1_700_000_000_000
END_MS = BEGIN_MS + 1_000_000_000  # Far enough, and not in the future, which closes nothing.
IN, OTHER, OUT = "in", "other", "out"

HEAD = """
import asyncio, logging, random, sys
from typing import Annotated
from onceflow.processors import (
    App, Count, Parking, Retries, Session, State, Tumbling, milliseconds, minutes,
)

bootstrap, directory, protocol = sys.argv[1:4]
logging.basicConfig(level=logging.INFO)
app = App(
    "counter",
    bootstrap,
    state_dir=directory,
    commit_interval_ms=100,
    aborts_max=1_000,
    bootstrap_timeout_ms=120_000,  # A broker that starts on a busy machine takes its time.
    consumer_settings={"group_protocol": protocol} if protocol == "consumer" else {},
)
failed = set()
retries = Retries(3, backoff_ms=200, only=(LookupError,))

def trouble(value):
    if random.random() < 0.01 and value not in failed:
        failed.add(value)
        raise LookupError("for a while")
"""
TAIL = """
app.run()
"""

COUNT = """
def count(value: bytes, seen: State[int]) -> bytes:
    seen.set(seen.get(0) + 1)
    trouble(value)
    return b"%d" % seen.get()
"""
PROGRAMS = {
    "count": COUNT
    + """
app.processor("in", to="out", retries=retries)(count)
""",
    "parked": COUNT
    + """
app.processor("in", to="out", retries=Retries(100, backoff_ms=200), park=Parking(50))(count)
""",
    "concurrent": """
@app.processor("in", to="out", retries=retries, concurrency=16)
async def count(value: bytes, seen: State[int]) -> bytes:
    seen.set(seen.get(0) + 1)
    await asyncio.sleep(random.choice((0.0, 0.002, 0.01)))
    trouble(value)
    return b"%d" % seen.get()
""",
    "tumbling": """
@app.aggregate(
    "in", window=Tumbling(milliseconds(500), grace=minutes(600)), to="out", late="late",
    retries=retries,
)
def collect(value: bytes, count: int = 0) -> int:
    trouble(value)
    return count + 1
""",
    "session": """
@app.aggregate(
    "in", window=Session(milliseconds(300), grace=minutes(600)), to="out", late="late",
    merge=lambda left, right: left + right, retries=retries,
)
def collect(value: bytes, count: int = 0) -> int:
    trouble(value)
    return count + 1
""",
    "table": """
rows = app.table("other", bytes, name="rows")

@app.processor("in", to="out", retries=retries)
def look_up(value: bytes, row: Annotated[bytes | None, rows]) -> bytes:
    trouble(value)
    return b"%s|%s" % (value, row or b"-")
""",
    "join": """
@app.join(
    "in", "other", within=milliseconds(400), grace=minutes(600), kind="left", to="out",
    late="late", retries=Retries(50, backoff_ms=20, only=(LookupError,)),
)
def pair(left: bytes, right: bytes | None) -> bytes:
    trouble(left)
    return b"%s|%s" % (left, right or b"-")
""",
    "sink": """
from onceflow.transactions.sinks import Sqlite

@app.sink("in", Sqlite(sys.argv[4], "found"), retries=retries)
def store(value: bytes) -> dict[str, object]:
    trouble(value)
    return {"value": value.decode()}
""",
}
KINDS = tuple(PROGRAMS)

Result = tuple[bytes | None, int | None, bytes | None]
"""Key, event time where it matters, and value of an output."""


def topics(replicas: int) -> list[NewTopic]:
    """The topics of every kind; nothing expires, although event times are long ago."""
    kept = {"retention.ms": "-1"}
    return [NewTopic(name, PARTITIONS, replicas, kept) for name in (IN, OTHER, OUT, "late")]


@dataclass
class Fed:
    """What was written, by key: event times of the input, and those of its partners."""

    times: dict[bytes, list[int]] = field(default_factory=lambda: collections.defaultdict(list))
    values: list[tuple[bytes, bytes]] = field(default_factory=list)
    partners: set[bytes] = field(default_factory=set)


class Feeder(threading.Thread):
    """Writes until it is stopped.

    Args:
        kind: One of ``KINDS``.
        bootstrap: Where.
    """

    def __init__(self, kind: str, bootstrap: str) -> None:
        super().__init__()
        self.kind = kind
        self.bootstrap = bootstrap
        self.stopping = threading.Event()
        self.fed = Fed()
        self._count = 0

    def run(self) -> None:
        chance = random.Random(1)
        settings = {"bootstrap_servers": self.bootstrap, "delivery_timeout_ms": 300_000}
        with Producer(**settings) as producer:
            while not self.stopping.wait(0.02):
                for _ in range(chance.randrange(1, 40)):
                    self._send(producer, chance)
            producer.flush(300_000)
            for number in range(PARTITIONS if self.kind in CLOSED else 0):
                for topic in (IN, OTHER):
                    end = {"partition": number, "timestamp_ms": END_MS}
                    producer.send(topic, b"end", key=b"end", **end)
            producer.flush(300_000)

    def _send(self, producer: Producer, chance: random.Random) -> None:
        self._count += 1
        time_ms = BEGIN_MS + self._count * STEP_MS - chance.randrange(DISORDER_MS)
        key, value = b"k%d" % chance.randrange(KEYS), b"v%d" % self._count
        if self.kind == "join":
            key = value  # Each has one partner, or none.
            if chance.random() < 0.7:
                self.fed.partners.add(value)
                partner_ms = time_ms + chance.randrange(-WITHIN_MS, WITHIN_MS)
                producer.send(OTHER, b"r" + value, key=key, timestamp_ms=partner_ms)
        self.fed.times[key].append(time_ms)
        self.fed.values.append((key, value))
        producer.send(IN, value, key=key, timestamp_ms=time_ms)


def prepare(kind: str, bootstrap: str, database: Path) -> None:
    """What is there before the first worker."""
    if kind == "sink":
        with contextlib.closing(sqlite3.connect(database)) as rows:
            rows.execute("create table found (value text)")
            rows.commit()
    if kind == "table":
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(KEYS):
                producer.send(OTHER, b"row%d" % number, key=b"k%d" % number)
            producer.flush()


# Models --------------------------------------------------------------------------------------


def _counted(fed: Fed) -> list[Result]:
    return [
        (key, None, b"%d" % (n + 1)) for key, times in fed.times.items() for n in range(len(times))
    ]


def _tumbled(fed: Fed) -> list[Result]:
    found: collections.Counter[tuple[bytes, int]] = collections.Counter()
    for key, times in fed.times.items():
        found.update((key, time_ms // WINDOW_MS * WINDOW_MS) for time_ms in times)
    return [(key, start + WINDOW_MS - 1, b"%d" % n) for (key, start), n in found.items()]


def _sessions(fed: Fed) -> list[Result]:
    found: list[Result] = []
    for key, times in fed.times.items():
        last_ms, count = None, 0
        for time_ms in sorted(times):
            if last_ms is not None and time_ms - last_ms > GAP_MS:
                found.append((key, last_ms, b"%d" % count))
                count = 0
            last_ms, count = time_ms, count + 1
        found.append((key, last_ms, b"%d" % count))
    return found


def _looked_up(fed: Fed) -> list[Result]:
    return [(key, None, b"%s|row%s" % (value, key[1:])) for key, value in fed.values]


def _joined(fed: Fed) -> list[Result]:
    return [
        (key, None, b"%s|%s" % (value, b"r" + value if value in fed.partners else b"-"))
        for key, value in fed.values
    ]


def _stored(fed: Fed) -> list[Result]:
    return [(None, None, value) for _, value in fed.values]


CLOSED = ("tumbling", "session", "join")
"""Kinds whose last results need a later record."""

MODELS: dict[str, Callable[[Fed], list[Result]]] = {
    "count": _counted,
    "parked": _counted,
    "concurrent": _counted,
    "tumbling": _tumbled,
    "session": _sessions,
    "table": _looked_up,
    "join": _joined,
    "sink": _stored,
}
TIMED = ("tumbling", "session")


def results(kind: str, bootstrap: str, database: Path) -> list[Result]:
    """What the application gave, as a reader of committed data sees it."""
    if kind == "sink":
        with contextlib.closing(sqlite3.connect(database, timeout=60)) as rows:
            found = rows.execute("select value from found").fetchall()
        return [(None, None, value.encode()) for (value,) in found]
    records = read_all(bootstrap, OUT)
    return [(r.key, r.timestamp_ms if kind in TIMED else None, r.value) for r in records]
