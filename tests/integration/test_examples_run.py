"""Goal: the examples do what their pages say, in as few lines as they claim.

Method: each task's application runs against an in-process broker until its input is committed; the
committed output is compared. The lines of each program are counted without imports and blanks. The
flights run as the demo does, with some thousands of them, and judge themselves.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import notebooks
import pytest
import spark_world
from processor_processes import (
    committed_offsets,
    committed_values,
    fill,
    read_all,
    wait_for,
    wait_for_values,
)

from onceflow.broker_lite import Broker
from onceflow.processors import App

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TASKS = ("task1_transform", "task2_count", "task5_dead_letter")
PROCESSING = (
    "activity_tracking",
    "click_sessions",
    "enrichment",
    "minute_sums",
    "orders_payments",
    "silent_sensors",
    "word_count",
)
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


def run_until(
    app: App,
    broker: Broker,
    inputs: dict[str, list[tuple[str, bytes]]],
    output: str,
    wanted: list[bytes],
) -> None:
    """Run an application until it has committed as many outputs as it should, and compare them."""
    for topic, records in inputs.items():
        broker.create_topic(topic)
        keys, values = [key.encode() for key, _ in records], [value for _, value in records]
        fill(broker.bootstrap_servers, topic, values, keys)
    worker = threading.Thread(target=app.run)
    worker.start()
    try:
        wait_for_values(broker.bootstrap_servers, output, wanted)
    finally:
        app.stop()
        worker.join()


def test_word_count(broker: Broker, tmp_path: Path) -> None:
    app = load("word_count", broker, tmp_path)
    lines = [("1", b"To be or"), ("2", b"not to be")]
    wanted = [b"to 1", b"be 1", b"or 1", b"not 1", b"to 2", b"be 2"]
    run_until(app, broker, {"lines": lines}, "word-counts", wanted)


def test_minute_sums(broker: Broker, tmp_path: Path) -> None:
    app = load("minute_sums", broker, tmp_path)
    paid = (("10:00:05", 100), ("10:01:03", 7), ("10:00:59", 20), ("10:01:15", 1), ("10:00:58", 9))
    payments = [
        ("tea", b'{"cents":%d,"paid_at":"2026-01-01T%sZ"}' % (cents, time.encode()))
        for time, cents in paid
    ]
    run_until(app, broker, {"payments": payments}, "sums", [b"tea 10:00 120"])
    wait_for_values(broker.bootstrap_servers, "payments-late", [payments[-1][1]])


def test_enrichment(broker: Broker, tmp_path: Path) -> None:
    app = load("enrichment", broker, tmp_path)
    inputs = {
        "customers": [("a", b'{"name":"Ann"}')],
        "orders": [
            ("1", b'{"id":"1","customer_id":"a"}'),
            ("2", b'{"id":"2","customer_id":"b"}'),
        ],
    }
    wanted = [b'{"id":"1","name":"Ann"}', b'{"id":"2","name":"unknown"}']
    run_until(app, broker, inputs, "enriched", wanted)


def test_orders_with_payments(broker: Broker, tmp_path: Path) -> None:
    app = load("orders_payments", broker, tmp_path)
    inputs = {
        "orders": [
            ("1", b'{"item":"tea","at":0}'),
            ("2", b'{"item":"milk","at":60}'),
            ("3", b'{"item":"rice","at":4000}'),
        ],
        "payments": [("2", b'{"cents":700,"at":30}')],
    }
    run_until(app, broker, inputs, "settled", [b"2 milk 700", b"1 tea not paid"])


def test_sessions_of_clicks(broker: Broker, tmp_path: Path) -> None:
    app = load("click_sessions", broker, tmp_path)
    clicks = [
        ("ann", b'{"page":"%s","at":%d}' % (page, at))
        for page, at in ((b"/", 0), (b"/tea", 600), (b"/", 5000), (b"/buy", 9000))
    ]
    run_until(app, broker, {"clicks": clicks}, "visits", [b'["/","/tea"]', b'["/"]'])


def test_daily_report_of_visits(broker: Broker, tmp_path: Path) -> None:
    app = load("activity_tracking", broker, tmp_path)
    clicks = [
        ("ann", b'{"page":"%s","at":%d}' % (page, at))
        for page, at in (
            (b"/", 0),
            (b"/tea", 600),
            (b"/", 90_000),
            (b"/", 300_000),
            (b"/", 310_000),
        )
    ]
    wanted = [
        b'{"day":"1970-01-01","landing":"/","visits":1,"pages_per_visit":2.0,"seconds_per_visit":600.0}',
        b'{"day":"1970-01-02","landing":"/","visits":1,"pages_per_visit":1.0,"seconds_per_visit":0.0}',
    ]
    run_until(app, broker, {"clicks": clicks}, "daily-report", wanted)


def test_alarm_of_a_silent_sensor(broker: Broker, tmp_path: Path) -> None:
    app = load("silent_sensors", broker, tmp_path)
    readings = {"readings": [("attic", b"20.5"), ("attic", b"21.0")]}
    run_until(app, broker, readings, "alarms", [b"attic is silent, last reading 21.0"])


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


NOTEBOOK = EXAMPLES / "spark_flights" / "flights.ipynb"


def notebook_code() -> str:
    """The notebook's code cells, one after another."""
    cells = notebooks.code_cells(json.loads(NOTEBOOK.read_text()))
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def test_the_notebook_uses_what_the_pipeline_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: each name that it takes from the pipeline exists, and the picture is drawn."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    from examples.spark_flights import pipeline

    names = {
        node.attr
        for node in ast.walk(ast.parse(notebook_code()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "pipeline"
    }
    assert len(names) > 8
    assert [name for name in names if not hasattr(pipeline, name)] == []
    drawn = pipeline.picture([(0, 5, 1.0), (5, 7, -2.0), (10, 1, 4.0)])
    assert drawn.count("<rect") == 3
    assert drawn.endswith("</svg>\n")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["script", "notebook"])
def test_flights_are_joined_to_the_weather_on_spark(form: str, tmp_path: Path) -> None:
    if reason := spark_world.unavailable_reason():
        pytest.skip(reason)
    command = [sys.executable, "-m", "examples.spark_flights", "--rows", "2000"]
    command += ["--picture", str(tmp_path / "wind.svg")]
    if form == "notebook":
        helper = EXAMPLES.parent / "tests" / "support" / "notebooks.py"
        command = [sys.executable, str(helper), str(NOTEBOOK), "--print"]
    done = subprocess.run(
        command, cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    if form == "script":
        assert "each once; 20 came too late" in done.stdout
        assert (tmp_path / "wind.svg").read_text().startswith("<svg")
        return
    stored = [cell["outputs"] for cell in notebooks.code_cells(json.loads(NOTEBOOK.read_text()))]
    assert json.loads(done.stdout.splitlines()[-1]) == stored
    assert "image/svg+xml" in done.stdout


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_seven_lines_at_most(name: str) -> None:
    text = (EXAMPLES / name / "app.py").read_text()
    tree = ast.parse(text)
    code = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    first = min(d.lineno for node in code for d in ast.walk(node) if hasattr(d, "lineno"))
    lines = [line for line in text.splitlines()[first - 1 :] if line.strip()]
    assert 0 < len(lines) <= LINES_MAX


def test_every_example_has_its_page_and_is_listed() -> None:
    folders = sorted(path.parent.name for path in EXAMPLES.glob("*/*.py"))
    listed = (EXAMPLES / "README.md").read_text()
    assert {"flights", "spark_flights", *PROCESSING, *TASKS} <= set(folders)
    for name in folders:
        assert (EXAMPLES / name / "README.md").exists()
        assert f"({name}/README.md)" in listed
