"""Goal: the examples do what their pages say, in as few lines as they claim.

Method: each task's application runs against an in-process broker until its input is committed; the
committed output is compared. The lines of each program are counted without imports and blanks. The
flights run as the demo does, with some thousands of them, and judge themselves.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_world
from processor_processes import committed_offsets, committed_values, fill, read_all, wait_for

from onceflow.broker_lite import Broker
from onceflow.processors import App

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = ("task1_transform", "task2_count", "task5_dead_letter")
LINES_MAX = 7


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def load(name: str, broker: Broker, state_dir: Path) -> App:
    """An example's application, for this broker."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    app = module.app
    assert isinstance(app, App)
    app.configure(bootstrap_servers=broker.bootstrap_servers, state_dir=state_dir)
    return app


def run(app: App, broker: Broker, topic: str, values: list[bytes], keys: list[bytes]) -> None:
    """Run an application until it has committed its input, and stop it in order."""
    broker.create_topic(topic)
    fill(broker.bootstrap_servers, topic, values, keys)

    def done() -> bool:
        return sum(committed_offsets(broker.bootstrap_servers, app.name, topic, 1)) >= len(values)

    worker = threading.Thread(target=app.run)
    worker.start()
    try:
        wait_for(done, f"{topic} is processed")
    finally:
        app.stop()
        worker.join()


def test_task_1_transforms_each_record(broker: Broker, tmp_path: Path) -> None:
    app = load("task1_transform", broker, tmp_path)
    run(app, broker, "orders", [b"tea", b"milk"], [b"a", b"b"])
    assert committed_values(broker.bootstrap_servers, "orders-upper") == [b"TEA", b"MILK"]


def test_task_2_counts_by_key(broker: Broker, tmp_path: Path) -> None:
    app = load("task2_count", broker, tmp_path)
    run(app, broker, "clicks", [b"x"] * 4, [b"ann", b"bob", b"ann", b"ann"])
    counts = [(r.key, r.value) for r in read_all(broker.bootstrap_servers, "clicks-per-user")]
    assert counts == [(b"ann", b"1"), (b"bob", b"1"), (b"ann", b"2"), (b"ann", b"3")]


def test_task_5_tries_again_and_then_writes_a_dead_letter(broker: Broker, tmp_path: Path) -> None:
    app = load("task5_dead_letter", broker, tmp_path)
    run(app, broker, "payments", [b'{"euros":3}', b'{"dollars":1}', b"no json"], [b"a", b"b", b"c"])
    assert committed_values(broker.bootstrap_servers, "booked") == [b'{"cents":300}']
    tried, unreadable = read_all(broker.bootstrap_servers, "payments-failed")
    assert (tried.key, tried.value) == (b"b", b'{"dollars":1}')
    assert dict(tried.headers)["onceflow.error.class"] == b"builtins.KeyError"
    assert dict(tried.headers)["onceflow.error.attempts"] == b"4"
    assert unreadable.value == b"no json"
    assert dict(unreadable.headers)["onceflow.error.attempts"] == b"1"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_flights_arrive_once_each_while_processes_are_killed(tmp_path: Path) -> None:
    if reason := spark_world.unavailable_reason():
        pytest.skip(reason)
    options = ["--rows", "3000", "--seconds", "5", "--report", str(tmp_path / "report.html")]
    done = subprocess.run(
        [sys.executable, "-m", "examples.flights", *options],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count("SIGKILL") == 3
    assert (tmp_path / "report.html").stat().st_size > 0


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_seven_lines_at_most(name: str) -> None:
    text = (EXAMPLES / name / "app.py").read_text()
    tree = ast.parse(text)
    code = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    first = min(d.lineno for node in code for d in ast.walk(node) if hasattr(d, "lineno"))
    lines = [line for line in text.splitlines()[first - 1 :] if line.strip()]
    assert 0 < len(lines) <= LINES_MAX


def test_every_example_has_its_page_and_is_listed() -> None:
    folders = sorted(path.name for path in EXAMPLES.iterdir() if (path / "app.py").exists())
    listed = (EXAMPLES / "README.md").read_text()
    assert folders == ["flights", *TASKS]
    for name in folders:
        assert (EXAMPLES / name / "README.md").exists()
        assert f"({name}/README.md)" in listed
