"""Goal: `broker` and `run` tell a program what they do by lines of JSON, and log as JSON.

Method: a broker process says that it is ready; an application whose input is missing says that it
starts, fails and why; log lines are read back.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from consumer_worlds import fresh

from onceflow.broker_lite import Broker
from onceflow.cli import main
from onceflow.sdk import Admin
from onceflow.sdk.observe.json_logs import JsonFormatter


@pytest.fixture
def quiet() -> Iterator[None]:
    """The command sets up logging for its process; here that is the test's."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    name = fresh("app").replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "from onceflow.processors import App\n\n"
        f'app = App("{name}", slot="0")\n\n\n'
        '@app.processor("words", to="loud")\n'
        "def shout(word: str) -> str:\n    return word.upper()\n"
    )
    return f"{name}:app"


def test_a_broker_says_in_json_that_it_is_ready(tmp_path: Path) -> None:
    words = ["broker", "--json", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.cli", *words, "--ready-message", "go"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert process.stdout.readline() == "go\n"
        assert (ready["event"], ready["pid"]) == ("ready", process.pid)
        assert ready["data"] == str(tmp_path / "data")
        (address,) = ready["addresses"]
        with Admin(bootstrap_servers=address) as admin:
            assert admin.describe_cluster().cluster_id == ready["cluster_id"]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_topology_in_json(target: str) -> None:
    result = CliRunner().invoke(main, ["run", target, "--topology", "--json"])
    assert result.exit_code == 0
    assert {node["name"] for node in json.loads(result.stdout)["nodes"]} >= {"shout"}


@pytest.mark.usefixtures("quiet")
def test_an_application_that_fails_says_so_in_json(target: str) -> None:
    with Broker() as running:
        words = ["run", target, "--json", "--bootstrap", running.bootstrap_servers]
        result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    start, failed = (json.loads(line) for line in result.stdout.splitlines())
    assert start["event"] == "starting"
    assert (start["topics"], start["brokers"]) == (["words"], [running.bootstrap_servers])
    assert (failed["event"], failed["error"]) == ("failed", "TopicSetupError")
    assert "words" in failed["message"]


def test_a_log_record_is_one_line_of_json() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord(
            "onceflow.x", logging.WARNING, __file__, 1, "a %s\nb", ("c",), sys.exc_info()
        )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == (
        "WARNING",
        "onceflow.x",
        "a c\nb",
    )
    assert "ValueError: two" in found["error"]
    assert found["time"].endswith("Z")
