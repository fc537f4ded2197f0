"""Goal: `onceflow run` runs several workers as one group, as processes or threads, starts those
again that were killed, within bounds, and starts again when the source changes.

Method: an application in a file, run as a command against our broker with four partitions. Workers
are found as children of the command and killed by their ids; outputs are compared with the inputs,
each of which must be counted once. Waiting is for conditions with a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from processor_processes import committed_values, fill, wait_for

from onceflow.broker_lite import Broker
from onceflow.cli.gathered import Gathered
from onceflow.cli.reload import is_source
from onceflow.sdk import Admin

PARTITIONS = 4
PROGRAM = """
from onceflow.processors import App, State

app = App("counting", replacements_max=2)


@app.processor("numbers", to="counts")
def count(value: str, seen: State[int]) -> str:
    if value == "bad":
        raise ValueError(value)
    seen.set(seen.get(0) + 1)
    return f"{value}:{seen.get()}"
"""


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as running:
        for topic in ("numbers", "counts"):
            running.create_topic(topic, partitions=PARTITIONS)
        yield running


@contextlib.contextmanager
def command(
    broker: Broker, folder: Path, *words: str, program: str = PROGRAM, **variables: str
) -> Iterator[Any]:
    """The command as a process; none of its workers is left behind."""
    (folder / "counting.py").write_text(program)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "onceflow", "run", "counting:app", "--json"),
            *("--bootstrap", broker.bootstrap_servers, *words),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
    )
    try:
        yield process
    finally:
        left = children(process.pid)
        process.kill()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)


def started(process: Any) -> Any:
    return json.loads(process.stdout.readline())


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ask(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def members(broker: Broker) -> dict[str, int]:
    """Partitions of each member by its instance id."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        group = admin.describe_groups(["counting"])["counting"]
    return {str(each.group_instance_id): len(each.assignment) for each in group.members}


def is_divided(broker: Broker, workers: int) -> bool:
    """Whether each worker has its share of the partitions."""
    return sorted(members(broker).values()) == [PARTITIONS // workers] * workers


def put(broker: Broker, *numbers: int) -> None:
    values = [b"%d" % number for number in numbers]
    fill(broker.bootstrap_servers, "numbers", values, values)


def counted(broker: Broker) -> list[bytes]:
    return sorted(committed_values(broker.bootstrap_servers, "counts"))


PORTS = ("--health-port", "0", "--metrics-port", "0")


def test_processes_share_the_partitions_and_one_port(broker: Broker, tmp_path: Path) -> None:
    with command(broker, tmp_path, "--workers", "2", *PORTS, "--slot", "pod") as process:
        start = started(process)
        assert start["workers"] == 2
        wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "all are ready")
        wait_for(lambda: is_divided(broker, 2), "the partitions are divided")
        assert set(members(broker)) == {"counting-pod-0", "counting-pod-1"}
        assert ask(start["health"], "/live") == (200, "worker 0: live\nworker 1: live\n")
        put(broker, *range(40))
        wanted = sorted(b"%d:1" % number for number in range(40))
        wait_for(lambda: counted(broker) == wanted, "each is counted once")

        def committed() -> dict[str, float]:
            page = ask(start["metrics"], "/metrics")[1]
            found = re.findall(r'records_committed_total\{.*worker="(\d)"\} (\S+)', page)
            return {worker: float(value) for worker, value in found}

        wait_for(lambda: sum(committed().values()) == 40, "the metrics of both are told")
        assert set(committed()) == {"0", "1"}
        page = ask(start["metrics"], "/metrics")[1]
        assert page.count("# TYPE onceflow_worker_commit_seconds histogram") == 1
        assert "onceflow_worker_records_committed_total counter" in page
        workers = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert not any(map(is_alive, workers))
        assert not members(broker)


def test_a_killed_worker_is_started_again_within_bounds(broker: Broker, tmp_path: Path) -> None:
    with command(broker, tmp_path, "--workers", "2", *PORTS) as process:
        start = started(process)
        for round in range(3):
            wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "all are ready")
            wait_for(lambda: is_divided(broker, 2), "the partitions are divided")
            put(broker, *range(20))
            wanted = sorted(b"%d:%d" % (n, 1 + r) for n in range(20) for r in range(round + 1))
            wait_for(lambda: counted(broker) == wanted, "each is counted once")  # noqa: B023
            workers = children(process.pid)
            assert len(workers) == 2
            os.kill(workers[round % 2], signal.SIGKILL)
            if round < 2:
                wait_for(lambda: len(set(children(process.pid)) - set(workers)) == 1, "another")  # noqa: B023
        assert process.wait(30) == 1, "replacements_max=2 and it was killed three times"
        assert not any(map(is_alive, workers))


@pytest.mark.parametrize("kind", [("--workers", "2"), ("--reload",)], ids=["several", "reload"])
def test_workers_stop_when_the_command_is_killed(
    broker: Broker, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    with command(broker, tmp_path, *kind, *PORTS) as process:
        start = started(process)
        wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "all are ready")
        workers = children(process.pid)
        process.kill()
        wait_for(lambda: not any(map(is_alive, workers)), "no worker is left behind")


@pytest.mark.parametrize("kind", [(), ("--threads",)], ids=["processes", "threads"])
def test_an_error_of_one_ends_all_with_its_status(
    broker: Broker, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    with command(broker, tmp_path, "--workers", "2", *kind) as process:
        started(process)
        wait_for(lambda: is_divided(broker, 2), "the partitions are divided")
        fill(broker.bootstrap_servers, "numbers", [b"bad"], [b"k"])
        told = json.loads(process.stdout.readline())
        assert told["event"] == "failed"
        assert told["error"] == "ProcessingError"
        assert process.wait(60) == 1


@pytest.mark.parametrize("kind", [(), ("--threads",)], ids=["processes", "threads"])
def test_a_bounded_run_of_several_gives_one_report(
    broker: Broker, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    put(broker, *range(40))
    with command(broker, tmp_path, "--workers", "2", "--until-end", *kind) as process:
        assert process.wait(60) == 0
        told = [json.loads(line) for line in process.stdout]
    assert [event["event"] for event in told] == ["starting", "ended"]
    assert told[1]["reached_end"] is True
    assert sum(task["records"] for task in told[1]["tasks"]) == 40
    assert counted(broker) == sorted(b"%d:1" % number for number in range(40))


def test_threads_are_workers_of_one_process(broker: Broker, tmp_path: Path) -> None:
    with command(broker, tmp_path, "--workers", "2", "--threads", *PORTS) as process:
        start = started(process)
        wait_for(lambda: ask(start["health"], "/ready")[0] == 200, "all are ready")
        wait_for(lambda: is_divided(broker, 2), "the partitions are divided")
        assert not children(process.pid)
        put(broker, *range(40))
        wanted = sorted(b"%d:1" % number for number in range(40))
        wait_for(lambda: counted(broker) == wanted, "each is counted once")
        assert 'ready{app="counting",worker="1"} 1.0' in ask(start["metrics"], "/metrics")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_source_is_run_again_after_a_change(broker: Broker, tmp_path: Path) -> None:
    with command(broker, tmp_path, "--reload") as process:
        assert started(process)["event"] == "starting"
        put(broker, 1)
        wait_for(lambda: counted(broker) == [b"1:1"], "it is counted")
        source = tmp_path / "counting.py"
        source.write_text(PROGRAM.replace("{value}:", "changed {value}:"))
        assert started(process)["event"] == "starting"
        put(broker, 1)
        wait_for(lambda: b"changed 1:2" in counted(broker), "the new source runs, on its state")
        (worker,) = children(process.pid)
        source.write_text("app = (")
        wait_for(lambda: not is_alive(worker) and not children(process.pid), "it cannot start")
        assert process.poll() is None
        source.write_text(PROGRAM.replace("{value}:", "mended {value}:"))
        assert started(process)["event"] == "starting"
        put(broker, 1)
        wait_for(lambda: b"mended 1:3" in counted(broker), "it runs again")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert counted(broker) == [b"1:1", b"changed 1:2", b"mended 1:3"]


def test_what_is_a_source(tmp_path: Path) -> None:
    assert is_source(tmp_path / "a" / "b.py", tmp_path)
    for name in ("a.txt", ".venv/lib/a.py", "__pycache__/a.py", "node_modules/a/b.py", ".a.py"):
        assert not is_source(tmp_path / name, tmp_path), name


def test_options_that_do_not_go_together_are_refused() -> None:
    line = CommandLine("127.0.0.1:1")
    told = line.error("run", "m:app", "--reload", "--workers", "2", status=2)
    assert "--reload and --workers 2: it is for one worker" in told
    assert "give --workers 2 or more" in line.error("run", "m:app", "--threads", status=2)
    assert "0 is not in the range" in line.error("run", "m:app", "--workers", "0", status=2)


def test_a_worker_that_is_started_again_lives_and_is_not_ready() -> None:
    gathered = Gathered(lambda: {0: None}, "127.0.0.1", 0, 0)
    try:
        assert ask(gathered.addresses["health"], "/live") == (200, "worker 0: starting\n")
        assert ask(gathered.addresses["health"], "/ready") == (503, "worker 0: starting\n")
        assert ask(gathered.addresses["metrics"], "/metrics") == (200, "")
    finally:
        gathered.close()


def test_a_worker_that_does_not_answer_is_not_ready() -> None:
    gone = {"health": "http://127.0.0.1:1", "metrics": "http://127.0.0.1:1"}
    gathered = Gathered(lambda: {0: gone}, "127.0.0.1", 0, 0)
    try:
        status, told = ask(gathered.addresses["health"], "/ready")
        assert status == 503
        assert "worker 0: it does not answer" in told
        assert ask(gathered.addresses["metrics"], "/metrics") == (200, "")
    finally:
        gathered.close()
