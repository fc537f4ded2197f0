"""Goal: a worker ends within a bound and leaves everything tidy, whatever it is doing.

Method: worker processes on the in-process broker get signals while idle and inside of a handler
(field case 53), and lose their broker, which is killed or frozen (field case 54).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import (
    Workers,
    committed_offsets,
    committed_values,
    ends,
    fill,
    wait_for,
    workers_in,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin

PROGRAM = """
import sys, time
from onceflow.processors import App

app = App(
    "ending", bootstrap_servers=sys.argv[1], state_dir=sys.argv[2],
    shutdown_timeout_ms=int(sys.argv[3]), commit_interval_ms=1_000, max_poll_records=10,
)

@app.processor("in", to="out")
def handle(value: str) -> str:
    print("handling", value, flush=True)
    if value.startswith("slow"):
        time.sleep(float(value.removeprefix("slow")))
    return value

print("started", flush=True)
app.run()
print("stopped", flush=True)
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("in", partitions=1)
        broker.create_topic("out", partitions=1)
        yield broker


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    with workers_in(tmp_path) as workers:
        yield workers


def members(broker: Broker) -> int:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        return len(admin.describe_groups(["ending"])["ending"].members)


def start_idle(broker: Broker, workers: Workers, tmp_path: Path, limit_ms: int = 5_000) -> object:
    worker = workers.start(PROGRAM, broker.bootstrap_servers, str(tmp_path / "disk"), str(limit_ms))
    wait_for(lambda: members(broker) == 1, "the worker joined")
    return worker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_idle_worker_ends_at_once(
    broker: Broker, workers: Workers, tmp_path: Path, number: signal.Signals
) -> None:
    """Field case 53, steps 3 and 5."""
    worker = start_idle(broker, workers, tmp_path, limit_ms=60_000)
    worker.signal(number)
    assert worker.process.wait(30) == 0
    wait_for(lambda: members(broker) == 0, "the group is empty")
    assert worker.output().endswith("stopped\n")
    assert "Traceback" not in worker.output()


def test_signal_within_a_handler_finishes_and_commits_the_record(
    broker: Broker, workers: Workers, tmp_path: Path
) -> None:
    """Field case 53, step 4."""
    worker = start_idle(broker, workers, tmp_path)
    fill(broker.bootstrap_servers, "in", [b"a", b"slow2", b"b"])
    wait_for(lambda: "slow2" in worker.output(), "the handler is at work")
    worker.signal(signal.SIGINT)
    assert worker.process.wait(30) == 0
    assert committed_values(broker.bootstrap_servers, "out") == [b"a", b"slow2"]
    assert committed_offsets(broker.bootstrap_servers, "ending", "in", 1) == [2]
    stable, high = ends(broker.bootstrap_servers, "out", 1)
    assert stable == high
    wait_for(lambda: members(broker) == 0, "the group is empty")


def test_second_signal_aborts(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    """Field case 53, step 6."""
    worker = start_idle(broker, workers, tmp_path)
    fill(broker.bootstrap_servers, "in", [b"a", b"slow60"])
    wait_for(lambda: "slow60" in worker.output(), "the handler is at work")
    worker.signal(signal.SIGINT)
    threading.Event().wait(0.5)
    worker.signal(signal.SIGINT)
    assert worker.process.wait(30) == 130
    assert "Traceback" not in worker.output()
    outputs = committed_values(broker.bootstrap_servers, "out")
    assert committed_offsets(broker.bootstrap_servers, "ending", "in", 1) == [len(outputs)]
    stable, high = ends(broker.bootstrap_servers, "out", 1)
    assert stable == high


def test_end_of_the_shutdown_time_aborts(broker: Broker, workers: Workers, tmp_path: Path) -> None:
    """Trap 49: a handler that does not return cannot keep the process."""
    worker = start_idle(broker, workers, tmp_path, limit_ms=1_000)
    fill(broker.bootstrap_servers, "in", [b"slow60"])
    wait_for(lambda: "slow60" in worker.output(), "the handler is at work")
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(30) == 130


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a transaction"])
def test_worker_without_its_broker_ends_within_the_limit(
    workers: Workers, tmp_path: Path, way: signal.Signals, busy: bool
) -> None:
    """Field case 54."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "onceflow.broker_lite", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert daemon.stdout is not None
        address = daemon.stdout.readline().split(" ready on ")[1].split()[0]
        with Admin(bootstrap_servers=address) as admin:
            admin.create_topics(["in"])
        worker = workers.start(PROGRAM, address, str(tmp_path / "disk"), "2000")
        fill(address, "in", [b"a"])
        wait_for(lambda: "handling a" in worker.output(), "work")
        if busy:
            fill(address, "in", [b"slow1"])
            wait_for(lambda: "slow1" in worker.output(), "work")
        else:
            wait_for(lambda: committed_values(address, "out") == [b"a"], "first commit")
        os.kill(daemon.pid, way)
        worker.signal(signal.SIGTERM)
        worker.process.wait(30)
        assert worker.output().count("Traceback") <= 1
    finally:
        daemon.send_signal(signal.SIGCONT)
        daemon.kill()
        daemon.wait(30)
        assert daemon.stdout is not None
        daemon.stdout.close()
