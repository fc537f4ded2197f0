"""Goal: a broker refuses connections before its process has no file handles left for the logs.

Method: a broker in a process of its own, which may have few handles; more connections than that.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from onceflow.sdk import Admin, Producer

HANDLES = 160
PROGRAM = """
import resource, sys
from onceflow.broker_lite import Broker
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
with Broker(data=sys.argv[2]) as broker:
    print(broker.port, flush=True)
    sys.stdin.read()
"""


def is_open(connection: socket.socket) -> bool:
    """Whether the broker answers ApiVersions 0 on it."""
    request = bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", ""))
    try:
        connection.sendall(request)
        return bool(connection.recv(1))
    except ConnectionError:
        return False


@pytest.mark.timeout(60)
def test_connections_are_refused_before_handles_run_out(tmp_path: Path) -> None:
    told = tmp_path / "told"
    errors = told.open("w")
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(HANDLES), str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    connections = []
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        servers = f"127.0.0.1:{port}"
        with Admin(bootstrap_servers=servers) as admin, Producer(bootstrap_servers=servers) as made:
            made.send("first", b"1").result(30)
            assert admin.list_topics()
            for _ in range(2 * HANDLES):
                connection = socket.create_connection(("127.0.0.1", port), timeout=30)
                connections.append(connection)
            answered = sum(is_open(each) for each in connections)
            assert HANDLES // 8 < answered < HANDLES // 2
            for number in range(8):
                made.send(f"later-{number}", b"1").result(30)
            assert len(admin.list_topics()) >= 9
        for each in connections:
            each.close()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as again:
            assert is_open(again)
    finally:
        for each in connections:
            each.close()
        child.communicate(timeout=30)
        errors.close()
    log = told.read_text()
    assert child.returncode == 0, log
    assert f"{HANDLES} file handles of this process (ulimit -n)" in log
    assert "Too many open files" not in log
