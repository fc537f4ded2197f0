"""Goal: `onceflow run` tells whether its worker lives and is ready, and serves metrics that add up.

Method: a worker process with state and dead letters on our broker; its ports are asked until the
condition holds. A killed worker's successor begins with an empty state directory under the slot of
an environment variable. Answers for a worker that restores, has left or stands still are looked at
without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from processor_processes import wait_for

from onceflow.broker_lite import Broker
from onceflow.cli.worker_metrics import METRICS, PREFIX, Measured
from onceflow.cli.worker_server import WorkerServer
from onceflow.processors import App
from onceflow.processors.figures import (
    COMMIT_BOUNDS_S,
    TaskPicture,
    WorkerFigures,
    WorkerPicture,
)
from onceflow.sdk import Admin, Producer, TopicPartition
from onceflow.transactions import AbortReason

PROGRAM = """
from onceflow.processors import App, State

app = App("counting")


@app.processor("numbers", to="sums", dead_letter="bad")
def add(value: int, total: State[int] = State(0)) -> int:
    total.set(total.get() + value)
    return total.get()
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": False}) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics(["numbers", "bad"])
        yield running


@contextlib.contextmanager
def worker(broker: Broker, folder: Path, *words: str, **variables: str) -> Iterator[Any]:
    """A worker process; gives it with the addresses that it told."""
    (folder / "counting.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "onceflow.cli", "run", "counting:app", "--json"]
    ports = ["--health-port", "0", "--metrics-port", "0"]
    process = subprocess.Popen(
        [*command, *ports, "--bootstrap", broker.bootstrap_servers, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate(timeout=30)


def ask(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def values(page: str) -> dict[str, float]:
    """Values by name and labels, ``app`` left out."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[re.sub(r'\{app="counting",?', "{", name).replace("{}", "")] = float(value)
    return found


def test_a_worker_becomes_ready_and_counts_what_it_does(broker: Broker, tmp_path: Path) -> None:
    with worker(broker, tmp_path) as (process, start):
        health, metrics = start["health"], start["metrics"]
        wait_for(lambda: ask(health, "/ready") == (200, "ready\n"), "it is ready")
        assert ask(health, "/live") == (200, "live\n")
        assert ask(health, "/metrics")[0] == 404
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send_many("numbers", [b"1", b"2", b"three", b"4"], [b"k"] * 4)

        def counted() -> dict[str, float]:
            return values(ask(metrics, "/metrics")[1])

        name = PREFIX + "records_committed_total"
        wait_for(lambda: counted().get(name) == 4, "all are committed")
        lag = PREFIX + 'lag_records{partition="0",topic="numbers"}'
        wait_for(lambda: counted().get(lag) == 0, "the picture and the ends are new")
        found = counted()
        assert found[PREFIX + "ready"] == 1
        assert found[PREFIX + 'tasks{status="running"}'] == 1
        assert found[PREFIX + 'records_polled_total{topic="numbers"}'] == 4
        assert found[PREFIX + 'output_records_total{topic="sums"}'] == 3
        assert found[PREFIX + "dead_letters_total"] == 1
        by_function = {
            name: found[PREFIX + f'function_{name}_total{{function="add"}}']
            for name in ("calls", "failures", "dead_letters")
        }
        assert by_function == {"calls": 3, "failures": 1, "dead_letters": 1}
        assert found[PREFIX + 'state_bytes{task="numbers-0"}'] > 0
        assert found[PREFIX + 'lag_seconds{partition="0",topic="numbers"}'] == 0
        commits = found[PREFIX + "units_committed_total"]
        assert found[PREFIX + "commit_seconds_count"] == commits >= 1
        assert found[PREFIX + 'commit_seconds_bucket{le="+Inf"}'] == commits
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_slot_of_a_variable_gives_a_new_disk_its_place(broker: Broker, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    with worker(broker, folders[0], ONCEFLOW_SLOT="pod-3") as (process, start):
        wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "the first is ready")
        process.kill()
        process.wait(30)
    began_s = time.monotonic()
    with worker(broker, folders[1], ONCEFLOW_SLOT="pod-3") as (process, start):
        wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "the second is ready")
        waited_s = time.monotonic() - began_s
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            (member,) = admin.describe_groups(["counting"])["counting"].members
        assert member.group_instance_id == "counting-pod-3"
    assert waited_s < 45, "it waited for the session timeout of its predecessor"


def test_one_port_may_serve_both(broker: Broker) -> None:
    app = cast("App", SimpleNamespace(**_application(broker, WorkerFigures())))
    first = WorkerServer(app, "127.0.0.1", 0, None)
    port = int(first.addresses["health"].rpartition(":")[2])
    first.close()
    both = WorkerServer(app, "127.0.0.1", port, port)
    try:
        assert both.addresses["health"] == both.addresses["metrics"]
        assert ask(both.addresses["health"], "/live")[0] == 200
        assert ask(both.addresses["health"], "/metrics")[0] == 200
        with pytest.raises(Exception, match=f"--health-port {port}: cannot listen"):
            WorkerServer(app, "127.0.0.1", port, None)
    finally:
        both.close()


def _application(broker: Broker, figures: WorkerFigures | None) -> Mapping[str, Any]:
    app = App("counting", broker.bootstrap_servers)

    @app.processor("in")
    def count(value: bytes) -> None:
        pass

    return {
        "name": "counting",
        "settings": app.settings,
        "figures": figures,
        "topology": app.topology,
    }


def test_answers_for_workers_that_are_not_well(broker: Broker) -> None:
    now_s = time.monotonic()
    tasks = (TaskPicture("a-0", "RUNNING", 1), TaskPicture("a-1", "RESTORING", None))
    restoring = WorkerPicture(now_s, joined=True, tasks=tasks)
    running = replace(restoring, tasks=tasks[:1])
    cases: list[tuple[WorkerPicture | None, int, int, str]] = [
        (None, 200, 503, "not in the group"),
        (restoring, 200, 503, "restoring a-1"),
        (running, 200, 200, "ready"),
        (replace(running, joined=False), 200, 503, "not in the group"),
        (replace(running, at_s=now_s - 301), 503, 503, "stood still for 30"),
    ]
    for picture, live, ready, told in cases:
        figures = WorkerFigures(picture=picture)
        server = WorkerServer(
            cast("App", SimpleNamespace(**_application(broker, figures))), "127.0.0.1", 0, None
        )
        try:
            assert ask(server.addresses["health"], "/live")[0] == live
            answer = ask(server.addresses["health"], "/ready")
            assert answer[0] == ready
            assert told in answer[1]
        finally:
            server.close()


def test_lag_and_restoring_by_their_partitions() -> None:
    place, changelog = TopicPartition("in", 1), TopicPartition("c", 0)
    picture = WorkerPicture(0.0, True, (), {place: 7}, {changelog: 12})
    figures = WorkerFigures(picture=picture, latest_ms={place: 1_000})
    figures.aborted(AbortReason.REBALANCE)
    read = {metric.name: metric.read(Measured(figures, {place: 10}, 5_000)) for metric in METRICS}
    assert read["lag_records"] == {("in", "1"): 3}
    assert read["lag_seconds"] == {("in", "1"): 4.0}
    assert read["restore_offsets_left"] == {("c", "0"): 12}
    assert read["units_aborted_total"] == {("rebalance",): 1}


def test_what_an_aborted_unit_sent_does_not_count() -> None:
    figures = WorkerFigures()
    figures.begin(["dead"], [])
    run: Any = SimpleNamespace(topic="dead", values=[b"x"])
    figures.sent([run])
    figures.aborted(AbortReason.FENCED)
    figures.sent([run, run])
    figures.committed(3)
    assert (figures.dead_letters, figures.committed_records) == (2, 3)
    figures.commit_took(COMMIT_BOUNDS_S[0])
    figures.commit_took(COMMIT_BOUNDS_S[-1] + 1)
    assert (figures.commit_classes[0], figures.commit_classes[-1]) == (1, 1)
