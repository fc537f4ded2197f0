"""Goal: `onceflow broker` starts, says so in one line, stops on a signal, explains itself.

Method: the command in a process of its own for what needs signals, and in this one for the rest.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from broker_requests import fetch, produce, topic_metadata
from broker_wire import Wire, batch, values_of
from click.testing import CliRunner
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.broker_lite.daemon import health
from onceflow.broker_lite.daemon.commands import broker
from onceflow.broker_lite.log.storage import RealStorage

STOP_SECONDS_MAX = 20
IDLE_MEMORY_KB_MAX = 60_000


def daemon(
    *arguments: str, variables: Mapping[str, str] | None = None
) -> AbstractContextManager[tuple[subprocess.Popen[str], int, str]]:
    """Run the command on any free port."""
    return run("--listen", "127.0.0.1:0", *arguments, variables=variables)


@contextmanager
def run(
    *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Run the command; gives the process, its port and its ready line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.broker_lite", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(variables or {})},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        found = re.match(r"onceflow broker ready on 127\.0\.0\.1:(\d+)[ ,]", line)
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


BEFORE_IT_STARTS = """
import os, signal, sys
from onceflow.broker_lite.daemon import early_stop
early_stop.watch()
os.kill(os.getpid(), signal.SIGTERM)
from onceflow.cli import main
from onceflow.broker_lite.log.storage import RealStorage
main(["broker", "--listen", "127.0.0.1:0", *sys.argv[1:]])
"""
WHILE_IT_OPENS = """
import os, signal, sys
from onceflow.broker_lite.daemon import early_stop
from onceflow.broker_lite.net import serving
early_stop.watch()
from onceflow.cli import main
from onceflow.broker_lite.log.storage import RealStorage
open_broker = serving.open_broker
def slowly(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return open_broker(*arguments, **options)
serving.open_broker = slowly
main(["broker", "--listen", "127.0.0.1:0", *sys.argv[1:]])
"""


@pytest.mark.parametrize("options", [(), ("--control", "0")])
def test_a_signal_before_the_daemon_has_started_stops_it_in_order(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    for program in (BEFORE_IT_STARTS, WHILE_IT_OPENS):
        done = subprocess.run(
            [sys.executable, "-c", program, "--data", str(tmp_path / "data"), *options],
            capture_output=True, text=True, timeout=STOP_SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if program is BEFORE_IT_STARTS:
            assert "stopped before it had started" in done.stdout
            assert not (tmp_path / "data").exists()
        else:
            assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_second_signal_does_not_wait() -> None:
    again = "os.kill(os.getpid(), signal.SIGTERM)\n"
    program = BEFORE_IT_STARTS.partition("from onceflow.cli")[0] + again
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=STOP_SECONDS_MAX)
    assert done.returncode == -signal.SIGTERM


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
    assert f"another process listens on 127.0.0.1:{port}" in busy.output
    assert "192.0.2.1:0 is not an address of this machine" in elsewhere.output
    assert folder in unusable.output
    assert "give a --data folder" in unusable.output


@pytest.mark.parametrize(
    "name", ["meta.properties", "topic-configs.json", "recovery-point-offset-checkpoint", ".lock"]
)
def test_a_folder_where_a_file_should_be_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    result = CliRunner().invoke(broker, ["--listen", "127.0.0.1:0", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert f"{tmp_path / name}; a folder stands where the broker keeps a file" in result.output


def test_a_full_disk_at_the_start_says_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RealStorage, "replace", full)
    result = CliRunner().invoke(broker, ["--listen", "127.0.0.1:0", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "No space left on device; make room on the disk" in result.output


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
        (["--set", "sasl.enabled.mechanisms=GSSAPI"], "must be a list out of 'PLAIN'"),
        (["--profile", "1.1"], "must be one of '', '2.1', '2.2'"),
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


def test_settings_come_from_a_file_and_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\ncontroller.listener.names=CONTROLLER\nnode.id=4\n"
        f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\nlog.dirs={tmp_path}/data\n"
        "num.partitions=2\n"
    )
    command = ["--config", str(file), "--set", "num.partitions=3"]
    with run(*command) as (process, port, line):
        assert f"data={tmp_path}/data" in line
        asyncio.run(write_and_read(port, b"a"))
        process.send_signal(signal.SIGTERM)
        assert wait(process) == 0
    assert (tmp_path / "data" / "t-2").is_dir()
    assert "node.id=4" in (tmp_path / "data" / "meta.properties").read_text()


def test_settings_come_from_variables_when_asked_for() -> None:
    variables = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_PROCESS_ROLES": "broker"}
    for options, count in (((), 1), (("--env",), 3)):
        with daemon(*options, variables=variables) as (_, port, _):
            assert asyncio.run(partition_count(port)) == count


async def partition_count(port: int) -> int:
    async with Wire(("127.0.0.1", port)) as wire:
        return len((await topic_metadata(wire, "t", create=True)).partitions)


def test_the_variables_of_usual_compose_files_work(tmp_path: Path) -> None:
    """As of the images of Apache Kafka and Confluent, with one node of KRaft."""
    variables = {
        "CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qk",
        "KAFKA_KRAFT_MODE": "true",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:29093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_JMX_PORT": "9101",
        "KAFKA_JMX_HOSTNAME": "localhost",
        "KAFKA_LOG_DIRS": str(tmp_path),
    }
    with run("--env", variables=variables) as (process, _, line):
        assert "cluster=MkU3OEVBNTcwNTJENDM2Qk " in line
        process.terminate()
        assert wait(process) == 0
    assert "cluster.id=MkU3OEVBNTcwNTJENDM2Qk" in (tmp_path / "meta.properties").read_text()
    for variable, value, text in (
        ("CLUSTER_ID", "5L6g3nShT-eMCtK--X86sw", "belongs to cluster MkU3OEVBNTcwNTJENDM2Qk"),
        ("KAFKA_KRAFT_MODE", "false", "KAFKA_KRAFT_MODE='false'"),
        ("KAFKA_NUM_PARTITIONS", "many", "KAFKA_NUM_PARTITIONS='many'"),
        ("KAFKA_NO_SUCH_THING", "1", "KAFKA_NO_SUCH_THING="),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "onceflow.broker_lite", "--env"],
            env={**os.environ, **variables, variable: value},
            capture_output=True, text=True, timeout=STOP_SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode in (1, 2)
        assert text in done.stderr


def test_what_holds_secrets_is_the_owners_alone(tmp_path: Path) -> None:
    """Keys of SCRAM users are in the cluster's metadata, passwords may be in a capture."""
    data, capture = tmp_path / "data", tmp_path / "wire.pcap"
    metadata = data / "cluster-metadata.json"
    capture.touch(0o644)
    options = ("--data", str(data), "--journal-file", str(capture))
    with daemon(*options, "--set", "onceflow.sasl.scram.credentials=alice:secret"):
        assert mode_of(metadata) == mode_of(capture) == 0o600
    # As a broker left it that did not care.
    metadata.chmod(0o644)
    with daemon("--data", str(data)) as (_, port, _):
        assert mode_of(metadata) == 0o600
        asyncio.run(write_and_read(port, b"a"))
        assert {mode_of(path) for path in data.glob("*.json")} == {0o600}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_daemon_for_tests_has_nodes_a_control_endpoint_and_a_capture(tmp_path: Path) -> None:
    capture = tmp_path / "wire.pcap"
    options = ["--nodes", "2", "--control", "0", "--journal-file", str(capture), "--ready-message",
               "here we are", "--profile", "4.0"]  # fmt: skip
    with daemon(*options) as (process, port, line):
        assert line.count("127.0.0.1:") == 2
        assert process.stdout is not None
        assert process.stdout.readline() == "here we are\n"
        found = re.fullmatch(
            r"onceflow control ready on http://127\.0\.0\.1:(\d+)\n", process.stdout.readline()
        )
        assert found
        with socket.create_connection(("127.0.0.1", int(found[1]))) as control:
            control.sendall(b"POST /broker/restart HTTP/1.1\r\nHost: localhost\r\n"
                            b'Content-Length: 14\r\n\r\n{"kill": true}')  # fmt: skip
            answer = control.makefile().read()
        assert '"running":true' in answer
        asyncio.run(partition_count(port))
        process.send_signal(signal.SIGTERM)
        assert wait(process) == 0
    assert capture.stat().st_size > 200


def test_the_ready_line_names_every_listener() -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
    protocols = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT"
    for options in ((), ("--control", "0")):
        process = subprocess.Popen(
            [sys.executable, "-m", "onceflow.broker_lite", "--set", listeners, "--set", protocols,
             *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert re.search(r"on PLAINTEXT://127\.0\.0\.1:\d+,SSL://127\.0\.0\.1:\d+ ", line), line
        finally:
            process.kill()
            process.communicate()


def test_health_is_an_answer_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon() as (_, port, _):
        monkeypatch.setenv("KAFKA_LISTENERS", f"PLAINTEXT://0.0.0.0:{port},OTHER://:1")
        monkeypatch.setattr(sys, "argv", ["health"])
        assert health.main() == 0
    assert health.main() == 1
    monkeypatch.setattr(sys, "argv", ["health", "nowhere"])
    assert health.main() == 2
    assert "HOST:PORT" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(health, "TIMEOUT_SECONDS", 0.05)
        assert not health.is_healthy("127.0.0.1", silent.getsockname()[1])


def test_health_asks_the_listener_that_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["health"])
    monkeypatch.setenv("KAFKA_CONTROLLER_LISTENER_NAMES", "Other,CONTROLLER")
    with daemon() as (_, port, _):
        monkeypatch.setenv("KAFKA_LISTENERS", f"controller://:1, PLAINTEXT://localhost:{port}")
        assert health.main() == 0
        monkeypatch.delenv("KAFKA_CONTROLLER_LISTENER_NAMES")
        assert health.main() == 1


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_asks_for_a_certificate_is_healthy(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TlsWorld(tmp_path)
    settings = {
        "ssl.keystore.location": str(world.issue("broker").both),
        "ssl.truststore.location": str(world.authority),
        "ssl.client.auth": "required",
        "ssl.enabled.protocols": protocol,
    }
    monkeypatch.setattr(sys, "argv", ["health"])
    with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as asks:
        monkeypatch.setenv("KAFKA_LISTENERS", f"clients://127.0.0.1:{asks.port}")
        monkeypatch.setenv("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "Clients:ssl")
        assert health.main() == 0
    assert health.main() == 1


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["", "::"])
def test_everywhere_is_by_ipv4_and_ipv6(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"onceflow.allow.insecure.network": True}
    with Broker(listeners=f"PLAINTEXT://[{host}]:0", settings=settings) as everywhere:
        assert health.is_healthy("127.0.0.1", everywhere.port)
        assert health.is_healthy("::1", everywhere.port)
        monkeypatch.setattr(sys, "argv", ["health", f"[{host}]:{everywhere.port}"])
        assert health.main() == 0


def test_the_console_lives_and_dies_with_the_daemon() -> None:
    for end in (signal.SIGTERM, signal.SIGKILL):
        with daemon("--console", "0") as (process, _, _):
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"console at (http://127\.0\.0\.1:\d+)", line)
            assert found, line
            with urllib.request.urlopen(f"{found[1]}/api/overview", timeout=60) as answer:
                assert len(json.load(answer)["brokers"]) == 1
            process.send_signal(end)
            wait(process)
            rest = process.stdout.read()  # Ends when the console has closed it too.
            assert "Traceback" not in rest


def test_a_console_needs_a_listener_that_it_can_use(tmp_path: Path) -> None:
    settings = ("listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=PLAIN")
    given = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(broker, ["--console", "0", *given])
    assert result.exit_code == 2
    assert "onceflow console --config" in result.output


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(broker, ["--help"])
    assert result.exit_code == 0
    assert "Example: onceflow broker" in result.output
