"""Goal: queries of committed state and copies of state work over Apache Kafka as over our broker.

Method: two workers by command, each with its own disk and query port, count records by key and in
windows on a cluster of Apache Kafka. Both are asked; then the first is killed, and the second one
goes on from its copies.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import fresh, make_topic
from processor_processes import fill, wait_for
from real_kafka import ApacheKafka

from onceflow.processors import StateClient

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

KEYS = [f"k{number}" for number in range(40)]
PROGRAM = """
from onceflow.processors import App, Count, State, Tumbling, hours

app = App(
    GROUP, state_dir="disk", num_standby_replicas=1, session_timeout_ms=6_000,
    heartbeat_interval_ms=200, transaction_timeout_ms=5_000, commit_interval_ms=50,
)


@app.processor(TOPIC, to=TOPIC + "-out")
def count(value: str, seen: State[int]) -> None:
    seen.set(seen.get(0) + 1)


@app.aggregate(TOPIC, window=Tumbling(hours(1), grace=hours(1)), fold=Count(), to=TOPIC + "-out")
def hourly(value: str) -> int:
    return 1
"""


@contextlib.contextmanager
def worker(
    address: str, folder: Path, group: str, topic: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running worker, and where it answers queries."""
    folder.mkdir()
    program = PROGRAM.replace("GROUP", repr(group)).replace("TOPIC", repr(topic))
    (folder / "counting.py").write_text(program)
    command = [sys.executable, "-m", "onceflow", "run", "counting:app", "--json"]
    command += ["-v", "--bootstrap", address, "--query-port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        yield process, told["queries"].removeprefix("http://")
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_queries_and_copies(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    address, group = apache_kafka.bootstrap_servers, fresh("state")
    topic = make_topic(address, 4)

    def add() -> None:
        fill(address, topic, [b"x"] * len(KEYS), [key.encode() for key in KEYS])

    def counts(client: StateClient) -> set[tuple[int | None, int]]:
        return {
            (
                client.get("count.seen", key, int),
                sum(each.value for each in client.windows("hourly.windows", key, int)),
            )
            for key in KEYS
        }

    add()
    with worker(address, tmp_path / "one", group, topic) as (first, server):
        client = StateClient([server], timeout_ms=60_000)
        wait_for(lambda: counts(client) == {(1, 1)}, "the first one has counted")
        with worker(address, tmp_path / "two", group, topic) as (_, second):
            log = tmp_path / "two" / "log"
            wait_for(lambda: "following" in log.read_text(), "the second one makes copies")
            both = StateClient([second], timeout_ms=60_000)
            add()
            wait_for(lambda: counts(both) == {(2, 2)}, "whoever has a key answers")
            before = len(log.read_text())
            first.kill()
            add()
            wait_for(lambda: counts(both) == {(3, 3)}, "the second one goes on")
            restored = re.findall(r"restoring (\S+): offsets (\d+) to", log.read_text()[before:])
            # Without its copies it would read each changelog from the start.
            assert all(int(begin) > 0 for _, begin in restored), restored
