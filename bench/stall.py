"""How long the broker answers nobody while it works on large files. One JSON line each.

A client asks for ApiVersions every 5 ms. Beside it, the broker writes, compacts, drops by
retention, or removes what was deleted, of a topic with so many megabytes on the disk. The same is
asked of an idle process at the same time: what it takes there is the machine's own delay, which no
broker can go below.

    python bench/stall.py --mb 500 2000 --what write compact retention delete --durability kafka
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scale import Daemon

from onceflow.sdk import Admin, NewTopic, Producer

PING = struct.pack(">i", 11) + struct.pack(">hhih", 18, 0, 1, 1) + b"x"
PAUSE_S = 0.005
VALUE_BYTES = 1_000
RECORDS = 1_000
"""Records in one call of the producer."""

TOPICS: dict[str, dict[str, str]] = {
    "write": {"segment.bytes": str(256 << 20)},
    "delete": {"segment.bytes": str(1 << 30)},
    "retention": {"segment.bytes": str(512 << 20)},
    "small": {"segment.bytes": str(1 << 20)},
    "compact": {"segment.bytes": str(256 << 20), "min.cleanable.dirty.ratio": "0.01"},
}
CHANGES = {
    "retention": {"retention.bytes": "1048576"},
    "small": {"retention.bytes": "1048576"},
    "compact": {"cleanup.policy": "compact"},
}
"""What is set once the topic is full, so that the work begins then."""

SETTINGS = (
    "log.cleaner.backoff.ms=500",
    "log.retention.check.interval.ms=1000",
    "log.segment.delete.delay.ms=500",
)


class Pinger:
    """Asks one address again and again, and keeps how long each answer took."""

    def __init__(self, port: int, length: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._length = length
        self._stopping = threading.Event()
        self._taken_ms: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            begin = time.perf_counter()
            self._socket.sendall(PING)
            received = 0
            while received < self._length:
                received += len(self._socket.recv(65536))
            self._taken_ms.append((time.perf_counter() - begin) * 1000)

    def restart(self) -> None:
        """Forget what was measured."""
        self._taken_ms.clear()

    def stop(self) -> list[float]:
        """Return the times in order, least first."""
        self._stopping.set()
        self._thread.join()
        self._socket.close()
        return sorted(self._taken_ms)


def _echo(port: Any) -> None:
    """Answer each ping with itself, in a process that does nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port.send(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)


def _answer_length(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(PING)
        return 4 + int(struct.unpack(">i", connection.recv(65536)[:4])[0])


def _work(what: str, mb: int, servers: str) -> Callable[[], None]:
    """Fill a topic; returns what is to be done while it is measured."""
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("t", 1, 1, configs=TOPICS[what])])
    values = [os.urandom(VALUE_BYTES) for _ in range(RECORDS)]
    keys = [b"%d" % number for number in range(RECORDS)]

    def fill() -> None:
        with Producer(bootstrap_servers=servers) as producer:
            for _ in range(max(1, mb * 1_000_000 // (RECORDS * VALUE_BYTES))):
                producer.send_many("t", values, keys=keys)
            producer.flush()

    def change() -> None:
        with Admin(bootstrap_servers=servers) as admin:
            if what == "delete":
                admin.delete_topics(["t"])
            else:
                admin.alter_configs({"t": CHANGES[what]})
        time.sleep(6 + (mb / 30 if what == "compact" else 0))

    if what == "write":
        return fill
    fill()
    return change


def measure(what: str, mb: int, durability: str) -> dict[str, object]:
    """One line."""
    mine, theirs = multiprocessing.Pipe()
    control = multiprocessing.Process(target=_echo, args=(theirs,), daemon=True)
    control.start()
    folder = tempfile.mkdtemp()
    daemon = Daemon(folder, "--set", f"onceflow.durability={durability}", *_settings())
    try:
        work = _work(what, mb, f"127.0.0.1:{daemon.port}")
        pingers = [
            Pinger(daemon.port, _answer_length(daemon.port)),
            Pinger(mine.recv(), len(PING)),
        ]
        work()
        broker_ms, control_ms = (pinger.stop() for pinger in pingers)
        left = sum(file.stat().st_size for file in Path(folder).glob("t-0*/*"))
        return {
            "bench": "stall",
            "what": what,
            "mb": mb,
            "durability": durability,
            "asked": len(broker_ms),
            "p99_ms": round(broker_ms[int(len(broker_ms) * 0.99)], 1),
            "worst_ms": [round(ms) for ms in broker_ms[-3:]],
            "idle_process_worst_ms": [round(ms) for ms in control_ms[-3:]],
            "left_mb": left // 1_000_000,
        }
    finally:
        daemon.process.terminate()
        daemon.process.wait(60)
        control.terminate()
        shutil.rmtree(folder)


def _settings() -> list[str]:
    return [part for setting in SETTINGS for part in ("--set", setting)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", nargs="+", default=list(TOPICS), choices=list(TOPICS))
    parser.add_argument("--mb", nargs="+", type=int, default=[500, 2000])
    parser.add_argument("--durability", nargs="+", default=["kafka"])
    options = parser.parse_args()
    for durability in options.durability:
        for what in options.what:
            for mb in options.mb:
                print(json.dumps(measure(what, mb, durability)), flush=True)


if __name__ == "__main__":
    main()
