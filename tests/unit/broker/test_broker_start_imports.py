"""Goal: starting the broker loads only what a plain broker needs, so that it starts at once.

Method: the daemon's own function runs in a fresh interpreter until a client got metadata;
then the loaded modules are looked through.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVE = """
import asyncio, os, signal, socket, struct, sys
from pathlib import Path
from onceflow.broker_lite.daemon import commands
from onceflow.broker_lite.daemon import daemon
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import read_listeners

def ask_metadata(port):
    body = struct.pack(">hhih", 3, 1, 1, 1) + b"f" + struct.pack(">i", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        assert len(connection.recv(4)) == 4
    os.kill(os.getpid(), signal.SIGTERM)

def told(text, **_):
    port = int(text.partition("127.0.0.1:")[2].split()[0])
    asyncio.get_running_loop().run_in_executor(None, ask_metadata, port)

daemon.click.echo = told
options = daemon.DaemonOptions(data=Path(sys.argv[1]))
config = BrokerConfig()
listeners = read_listeners(config, "127.0.0.1", 0)
asyncio.run(daemon.serve(options, listeners, config))
print(*sys.modules)
"""

ONLY_SOME_NEED = {
    "aiokafka",
    "crc32c",
    "cramjam",
    "cryptography",
    "email",
    "http",
    "importlib.metadata",
    "jwt",
    "lmdb",
    "msgspec",
    "tenacity",
    "urllib.request",
    "zipfile",
}
"""Libraries for batches, tokens, keystores, codecs and clients: each takes its own time to load."""

LATER_PARTS_OF_THE_BROKER = {
    "onceflow.broker_lite.coordinators.classic.coordinator",
    "onceflow.broker_lite.coordinators.transactions.coordinator",
    "onceflow.broker_lite.fetch_sessions",
    "onceflow.broker_lite.log.compaction",
    "onceflow.broker_lite.security.authorizer",
    "onceflow.broker_lite.security.jwks",
    "onceflow.broker_lite.security.scram_users",
    "onceflow.broker_lite.security.tokens",
    "onceflow.sdk.protocol.api.fetch",
}
"""What is loaded when it is first asked for."""


def test_a_plain_daemon_loads_nothing_that_only_some_need(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "onceflow.broker_lite.net.server" in loaded
    assert not (ONLY_SOME_NEED | LATER_PARTS_OF_THE_BROKER) & loaded
    assert not [name for name in loaded if name.startswith("onceflow.broker_lite.testing")]
