"""Goal: ``onceflow run --until-end`` processes what is there, reports, and exits with status 0.

Method: an application in a file, run as a process against our broker and Apache Kafka.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, running_broker
from processor_processes import committed_offsets, committed_values, fill

PROGRAM = """
from onceflow.processors import App, State

app = App({group!r}, {address!r}, state_dir={directory!r})

@app.processor({topic!r}, to={topic!r} + "-out", dead_letter={topic!r} + "-dead")
def count(value: str, seen: State[int]) -> str:
    if value == "bad":
        raise ValueError(value)
    seen.set(seen.get(0) + 1)
    return f"{{value}}:{{seen.get()}}"
"""


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


def test_a_bounded_run_reports_and_exits(address: str, tmp_path: Path) -> None:
    topic, group = make_topic(address, 2), fresh("bounded")
    program = PROGRAM.format(
        group=group, address=address, topic=topic, directory=str(tmp_path / "state")
    )
    (tmp_path / "bounded.py").write_text(program)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onceflow.cli", "run", "bounded:app", "--until-end"]
        return subprocess.run(
            [*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    values = [b"%d" % number for number in range(40)]
    fill(address, topic, [*values, b"bad"], [*values, b"bad"])
    first = run("--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout.splitlines()[-1])
    assert report["event"] == "ended"
    assert report["reached_end"] is True
    assert report["aborts"] == 0
    assert sum(task["records"] for task in report["tasks"]) == 41
    assert sum(task["outputs"] for task in report["tasks"]) == 40
    assert sum(task["dead_letters"] for task in report["tasks"]) == 1
    assert [task["name"] for task in report["tasks"]] == [topic, topic]
    wanted = sorted(value + b":1" for value in values)
    assert sorted(committed_values(address, f"{topic}-out")) == wanted
    fill(address, topic, [b"more"], [b"1"])
    second = run()
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[0].split() == [
        *("NAME", "PARTITION", "RECORDS", "OUTPUTS", "DEAD", "LETTERS", "COMMITS")
    ]
    assert "to the end: 1 records in, 1 out, 0 dead letters, 0 aborts" in second.stderr
    assert committed_values(address, f"{topic}-out").count(b"more:2") == 1
    third = run()  # Nothing to do, behind markers of transactions.
    assert third.returncode == 0, third.stderr
    assert "to the end: 0 records in" in third.stderr
    # Every record is committed; Apache Kafka's offsets may stand behind markers.
    assert sum(committed_offsets(address, group, topic, 2)) >= 42
