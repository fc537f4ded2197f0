"""Goal: a worker ends within a bound and leaves everything tidy, whatever it is doing.

Method: worker processes on the in-process broker get signals while idle and inside of a handler
(field case 53), and lose their broker, which is killed or frozen (field case 54). Workers are
stopped while they wait for brokers that never answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
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
from onceflow.broker_lite.testing import Fault
from onceflow.processors import App
from onceflow.processors.stores.lmdb import try_lock
from onceflow.sdk import Admin
from onceflow.sdk.protocol.api.transactions import InitProducerIdRequest

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
    assert worker.output().endswith("stopped\n")
    assert "Traceback" not in worker.output()
    if number is signal.SIGINT:
        wait_for(lambda: members(broker) == 0, "the group is empty")
    else:  # Its place is kept for its next start (KIP-345).
        assert members(broker) == 1


ROLLING = """
import logging, sys
from onceflow.processors import App

logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("onceflow.processors").setLevel(logging.INFO)
app = App("ending", sys.argv[1], state_dir=sys.argv[2], leave_on_sigterm=sys.argv[3] == "leave")

@app.processor("three", to="out")
def handle(value: str) -> str:
    return value

app.run()
"""


@pytest.mark.parametrize("way", ["stay", "leave"])
def test_rolling_restart_moves_nothing(
    broker: Broker, workers: Workers, tmp_path: Path, way: str
) -> None:
    """A worker that is ended by SIGTERM and comes back finds its partitions; nobody else moved."""
    address = broker.bootstrap_servers
    broker.create_topic("three", partitions=4)
    first = workers.start(ROLLING, address, str(tmp_path / "disk-1"), way)
    wait_for(lambda: "assigned" in first.output(), "the first worker")
    second = workers.start(ROLLING, address, str(tmp_path / "disk-2"), way)
    wait_for(lambda: "assigned" in second.output(), "the second worker")
    wait_for(lambda: "revoked" in first.output(), "partitions that moved")
    before = first.output()
    assert second.stop(number=signal.SIGTERM) == 0
    if way == "leave":
        wait_for(lambda: "assigned" in first.output()[len(before) :], "the first one takes over")
    again = workers.start(ROLLING, address, str(tmp_path / "disk-2"), way)
    wait_for(lambda: "assigned" in again.output(), "the second worker again")
    fill(address, "three", [b"%d" % n for n in range(40)], [b"%d" % n for n in range(40)])
    wait_for(lambda: len(committed_values(address, "out")) == 40, "all outputs")
    moved = first.output()[len(before) :]
    assert ("assigned" in moved) == (way == "leave"), moved
    assert (first.stop(), again.stop()) == (0, 0)


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


WAITING = """
import sys
from onceflow.processors import App

app = App("waiting", sys.argv[1], state_dir=sys.argv[2], shutdown_timeout_ms=60_000,
    operation_timeout_ms=600_000, bootstrap_timeout_ms=600_000,
    socket_connection_setup_timeout_ms=600_000)

@app.processor("in", to="out")
def handle(value: str) -> str:
    return value

print("started", flush=True)
app.run()
print("stopped", flush=True)
"""


@pytest.fixture(params=["refusing", "mute"])
def nobody(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where no broker is: nothing listens, or what listens never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        if request.param == "refusing":
            listening.close()
        yield address


def waiting_app(nobody: str, tmp_path: Path) -> App:
    app = App(
        "waiting",
        nobody,
        state_dir=tmp_path,
        operation_timeout_ms=600_000,
        bootstrap_timeout_ms=600_000,
        socket_connection_setup_timeout_ms=600_000,
    )

    @app.processor("in", to="out")
    def handle(value: str) -> str:
        return value

    return app


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_brokers_are_looked_for_ends_in_order(
    nobody: str, workers: Workers, tmp_path: Path, number: signal.Signals
) -> None:
    """Not when the limits of calls are over, nor by force when that of the shutdown is."""
    worker = workers.start(WAITING, nobody, str(tmp_path / "disk"))
    wait_for(lambda: "started" in worker.output(), "the worker starts")
    threading.Event().wait(0.2)  # Anywhere between here and there is as good.
    worker.signal(number)
    assert worker.process.wait(30) == 0
    assert worker.output() == "started\nstopped\n"


def test_stop_while_the_brokers_are_looked_for_is_obeyed(nobody: str, tmp_path: Path) -> None:
    app = waiting_app(nobody, tmp_path)
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    wait_for(lambda: app._worker is not None, "it runs")
    app.stop()
    thread.join(30)
    assert not thread.is_alive()


async def test_a_task_that_looks_for_brokers_can_be_stopped_and_cancelled(
    nobody: str, tmp_path: Path
) -> None:
    app = waiting_app(nobody, tmp_path)
    running = asyncio.create_task(app.run_async())
    await asyncio.to_thread(wait_for, lambda: app._worker is not None, "it runs")
    app.stop()
    async with asyncio.timeout(30):
        await running
    cancelled = asyncio.create_task(app.run_async())
    await asyncio.to_thread(wait_for, lambda: app._worker is not None, "it runs again")
    cancelled.cancel()
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await cancelled


def test_clients_that_come_after_a_stop_are_closed(broker: Broker, tmp_path: Path) -> None:
    """The broker answers only once the application has left; nothing of it stays behind."""
    app = App("late", broker.bootstrap_servers, state_dir=tmp_path)

    @app.processor("in", to="out")
    def handle(value: str) -> str:
        return value

    rule = broker.faults.add(InitProducerIdRequest, Fault.HOLD)
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    wait_for(lambda: rule.hits > 0, "the session is being made")
    app.stop()
    thread.join(30)
    assert not thread.is_alive()
    broker.faults.release(rule)
    wait_for(lambda: is_free(tmp_path / "late" / "slot-0.lock"), "the slot is free")


def is_free(slot: Path) -> bool:
    lock = try_lock(slot)
    if lock is not None:
        lock.close()
    return lock is not None
