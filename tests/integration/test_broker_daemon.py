"""Goal: `onceflow broker` starts, says so in one line, stops on a signal, explains itself.

Method: the command in a process of its own for what needs signals, and in this one for the rest.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_requests import fetch, produce, topic_metadata
from broker_wire import Wire, batch, values_of
from click.testing import CliRunner

from onceflow.broker_lite.commands import broker

STOP_SECONDS_MAX = 20
IDLE_MEMORY_KB_MAX = 60_000


@contextmanager
def daemon(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Run the command; gives the process, its port and its ready line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.broker_lite", "--listen", "127.0.0.1:0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        found = re.match(r"onceflow broker ready on 127\.0\.0\.1:(\d+) ", line)
        assert found, line + process.stderr.read()
        yield process, int(found[1]), line
    finally:
        process.kill()
        process.communicate()


def wait(process: subprocess.Popen[str]) -> int:
    return process.wait(STOP_SECONDS_MAX)


async def write_and_read(port: int, *values: bytes) -> list[bytes | None]:
    async with Wire(("127.0.0.1", port)) as wire:
        await topic_metadata(wire, "t", create=True)
        for value in values:
            await produce(wire, "t", batch(value))
        return values_of((await fetch(wire, "t")).records)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_daemon_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    with daemon("--data", str(tmp_path), "--set", "num.partitions=2") as (process, port, line):
        assert f"data={tmp_path}" in line
        assert asyncio.run(write_and_read(port, b"a")) == [b"a"]
        process.send_signal(number)
        assert wait(process) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "t-1").is_dir()


def test_killed_daemon_starts_again_with_all_records(tmp_path: Path) -> None:
    with daemon("--data", str(tmp_path)) as (process, port, _):
        asyncio.run(write_and_read(port, b"a", b"b"))
        process.kill()
        wait(process)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    with daemon("--data", str(tmp_path)) as (_, port, _):
        assert asyncio.run(write_and_read(port)) == [b"a", b"b"]


def test_second_daemon_on_the_folder_explains_itself(tmp_path: Path) -> None:
    with daemon("--data", str(tmp_path)):
        second = subprocess.run(
            [sys.executable, "-m", "onceflow.broker_lite", "--listen", "127.0.0.1:0",
             "--data", str(tmp_path)],
            capture_output=True, text=True, timeout=STOP_SECONDS_MAX, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert "used by another broker" in second.stderr
        assert "Traceback" not in second.stderr


def test_a_daemon_that_cannot_start_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = CliRunner().invoke(broker, ["--listen", f"127.0.0.1:{port}"])
    elsewhere = CliRunner().invoke(broker, ["--listen", "192.0.2.1:0", "--allow-insecure-network"])
    folder = str(tmp_path / "file" / "data")
    unusable = CliRunner().invoke(broker, ["--listen", "127.0.0.1:0", "--data", folder])
    for result in (busy, elsewhere, unusable):
        assert result.exit_code == 1
    assert f"somebody listens on 127.0.0.1:{port} already" in busy.output
    assert "192.0.2.1:0 is no address of this machine" in elsewhere.output
    assert folder in unusable.output
    assert "give a --data folder" in unusable.output


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_idle_daemon_is_small() -> None:
    with daemon() as (process, port, _):
        asyncio.run(write_and_read(port, b"a"))
        status = Path(f"/proc/{process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        assert int(found[1]) < IDLE_MEMORY_KB_MAX


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--allow-insecure-network"),
        (["--listen", "192.0.2.1:0"], "--allow-insecure-network"),
        (["--listen", "nowhere"], "give HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "give HOST:PORT"),
        (["--set", "num.partition=3"], "did you mean num.partitions?"),
        (["--set", "num.partitions=none"], "whole number"),
        (["--set", "num.partitions"], "give KEY=VALUE"),
        (["--set", "sasl.enabled.mechanisms=GSSAPI"], "allowed are PLAIN"),
    ],
)
def test_wrong_command_line_says_what_to_do(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(broker, arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sasl.enabled.mechanisms=PLAIN"], "onceflow.sasl.plain.credentials"),
        (
            ["sasl.enabled.mechanisms=PLAIN", "onceflow.sasl.plain.credentials=alice"],
            "NAME:PASSWORD",
        ),
    ],
)
def test_security_that_cannot_work_is_refused_at_the_start(
    settings: list[str], message: str
) -> None:
    arguments = ["--listen", "127.0.0.1:0"]
    for setting in settings:
        arguments += ["--set", setting]
    result = CliRunner().invoke(broker, arguments)
    assert result.exit_code == 1
    assert message in result.output


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(broker, ["--help"])
    assert result.exit_code == 0
    assert "Example: onceflow broker" in result.output
