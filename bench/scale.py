"""Size of the broker at scale: many topics, many connections, much log. One JSON line each.

- ``topics``: 1,000 topics with 10 partitions: the daemon's start to its ready line, its memory.
- ``connections``: 5,000 connections that each ask for Metadata: all answered, memory for each.
- ``log``: 1 GB of log in six partitions, read by 64 connections: memory; then SIGKILL and a start:
  time to the ready line, and by how much that is longer than the start of an empty folder.

    python bench/scale.py topics connections log
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from footprint import READY, _memory_mb, ask_metadata
from produce import make_values

TOPICS, PARTITIONS = 1_000, 10
CONNECTIONS = 5_000
LOG_BYTES = 1_000_000_000
READERS = 64
Line = dict[str, object]


class Daemon:
    """A running daemon.

    Attributes:
        process: Its process.
        port: Where it listens.
        ready_ms: From the start of the process to its ready line.
    """

    def __init__(self, data: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "onceflow.cli", "broker", "--data", data, *arguments]
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = READY.match(self.process.stdout.readline())
        assert found
        self.port = int(found[1])
        self.ready_ms = (time.perf_counter() - begin) * 1000

    @property
    def memory_mb(self) -> float:
        """Resident memory."""
        return _memory_mb(self.process.pid)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and wait."""
        self.process.send_signal(number)
        self.process.communicate(timeout=120)


@contextmanager
def daemon(data: str) -> Iterator[Daemon]:
    """A daemon that is stopped at the end."""
    running = Daemon(data)
    try:
        yield running
    finally:
        running.end()


def topics() -> Line:
    """Start and memory with many topics."""
    from onceflow.broker_lite.broker import open_broker
    from onceflow.broker_lite.log import RealStorage
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

    with TemporaryDirectory() as data:
        now_ms = time.time_ns() // 1_000_000
        broker = open_broker(RealStorage(data), BrokerConfig(), random.Random(1), now_ms)
        for number in range(TOPICS):
            broker.topics.create(f"topic-{number}", PARTITIONS, {}, now_ms)
        broker.close(now_ms)
        with daemon(data) as running:
            ask_metadata("127.0.0.1", running.port)
            return {
                "partitions": TOPICS * PARTITIONS,
                "start_ms": running.ready_ms,
                "memory_mb": running.memory_mb,
            }


def connections() -> Line:
    """Memory of many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    frame = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    frame = struct.pack(">i", len(frame)) + frame
    with TemporaryDirectory() as data, daemon(data) as running:
        ask_metadata("127.0.0.1", running.port)
        before = running.memory_mb
        opened: list[socket.socket] = []
        begin = time.perf_counter()
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", running.port), timeout=60)
            connection.sendall(frame)
            opened.append(connection)
        for connection in opened:
            assert connection.recv(4)
        seconds = time.perf_counter() - begin
        after = running.memory_mb
        for connection in opened:
            connection.close()
        return {
            "connections": CONNECTIONS,
            "answered_s": seconds,
            "kb_each": (after - before) * 1000 / CONNECTIONS,
            "memory_mb": after,
        }


def log() -> Line:
    """Memory with much log and many readers, and the start after a kill."""
    from onceflow.sdk.protocol.records import encode_batch

    with TemporaryDirectory() as empty, daemon(empty) as running:
        empty_ms = running.ready_ms
    with TemporaryDirectory() as data:
        running = Daemon(data)
        values = make_values(1024)
        records = [(0, b"key-%d" % number, values[number], []) for number in range(64)]
        batch = bytes(encode_batch(records))  # type: ignore[arg-type]
        ask_metadata("127.0.0.1", running.port, b"bench-log")
        address = ("127.0.0.1", running.port)
        readers = [socket.create_connection(address, timeout=60) for _ in range(READERS)]
        written = 0
        while written < LOG_BYTES:
            for reader in readers:
                reader.sendall(_produce(batch))
                written += len(batch)
            for reader in readers:
                _answer(reader)
        full = running.memory_mb
        for number, reader in enumerate(readers):
            reader.sendall(_fetch(number * 1000))
        for reader in readers:
            _answer(reader)
        read = running.memory_mb
        time.sleep(1.5)  # the recovery points are noted once a second
        running.end(signal.SIGKILL)
        with daemon(data) as again:
            started_ms = again.ready_ms
        return {
            "log_mb": written / 1e6,
            "connections": READERS,
            "memory_written_mb": full,
            "memory_read_mb": read,
            "start_after_kill_ms": started_ms,
            "recovery_ms": started_ms - empty_ms,
        }


def _framed(api_key: int, api_version: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", api_key, api_version, 1, 1) + b"f"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _produce(batch: bytes) -> bytes:
    topic = struct.pack(">ih9si", 1, 9, b"bench-log", 1)
    body = struct.pack(">hhi", -1, -1, 30_000) + topic + struct.pack(">ii", 0, len(batch)) + batch
    return _framed(0, 3, body)


def _fetch(offset: int) -> bytes:
    head = struct.pack(">iiiib", -1, 500, 1, 10_000_000, 0)
    topic = struct.pack(">ih9si", 1, 9, b"bench-log", 1)
    return _framed(1, 4, head + topic + struct.pack(">iqi", 0, offset, 1_048_576))


def _answer(connection: socket.socket) -> bytes:
    stream = connection.makefile("rb", buffering=0)
    data = b""
    while len(data) < 4:
        data += stream.read(4 - len(data)) or b""
    left = struct.unpack(">i", data)[0]
    parts = []
    while left:
        part = stream.read(left) or b""
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


CASES = {"topics": topics, "connections": connections, "log": log}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    which = f"of {', '.join(CASES)}; all by default"
    parser.add_argument("cases", nargs="*", metavar="CASE", help=which)
    cases = parser.parse_args().cases or list(CASES)
    if unknown := [name for name in cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; give some {which}")
    for name in cases:
        figures = {
            key: round(value, 1) if isinstance(value, float) else value
            for key, value in CASES[name]().items()
        }
        load = round(os.getloadavg()[0], 2)
        print(json.dumps({"bench": "scale", "case": name, **figures, "load": load}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
