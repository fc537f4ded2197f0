"""Footprint of the broker: start in process, start of the daemon, idle memory. One JSON line.

In process: from `Broker()` to the first answer to Metadata, in a fresh interpreter each time; with
the import and without it. Daemon: from the start of the process to its ready line and to the first
answer, then its resident memory with no topic and after a topic was written to. Medians:

    python bench/footprint.py --runs 5
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

IN_PROCESS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from footprint import ask_metadata
begin = time.perf_counter()
from onceflow.broker_lite import Broker
import onceflow.broker_lite.testing
imported = time.perf_counter()
with Broker(*sys.argv[2:]) as broker:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    ask_metadata(host, int(port))
    first = time.perf_counter()
begin_second = time.perf_counter()
with Broker() as broker:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    ask_metadata(host, int(port))
    third = time.perf_counter()
print(imported - begin, first - imported, third - begin_second)
"""
READY = re.compile(r"onceflow broker ready on 127\.0\.0\.1:(\d+) ")
Figures = dict[str, float]


def ask_metadata(host: str, port: int, create: bytes = b"") -> bytes:
    """Ask for metadata of no topic (version 1), or of one, which is created then."""
    topics = struct.pack(">i", 1 if create else 0)
    if create:
        topics += struct.pack(">h", len(create)) + create
    body = struct.pack(">hhih", 3, 1, 1, 1) + b"f" + topics
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)


def in_process(data: str | None) -> Figures:
    """Start in a fresh interpreter."""
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", IN_PROCESS, here, *([data] if data else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported, first, warm = (float(word) * 1000 for word in done.stdout.split())
    return {
        "import_ms": imported,
        "start_ms": first,
        "import_and_start_ms": imported + first,
        "warm_start_ms": warm,
    }


def _memory_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1000


def daemon(data: str | None) -> Figures:
    """Start as a process of its own."""
    command = [sys.executable, "-m", "onceflow.cli", "broker", "--listen", "127.0.0.1:0"]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, *(["--data", data] if data else [])], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = READY.match(process.stdout.readline())
        assert found
        ready = time.perf_counter()
        ask_metadata("127.0.0.1", int(found[1]))
        answered = time.perf_counter()
        idle = _memory_mb(process.pid)
        ask_metadata("127.0.0.1", int(found[1]), b"t")
        with_topic = _memory_mb(process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    return {
        "daemon_ready_ms": (ready - begin) * 1000,
        "daemon_answer_ms": (answered - begin) * 1000,
        "daemon_idle_mb": idle,
        "daemon_with_topic_mb": with_topic,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="keep data in memory, no folder")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # An installed package has its bytecode.
    found: dict[str, list[float]] = {}
    for _ in range(options.runs):
        with TemporaryDirectory() as folder:
            data = [None, None] if options.memory else [f"{folder}/a", f"{folder}/b"]
            figures = {**in_process(data[0]), **daemon(data[1])}
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    medians = {name: round(statistics.median(values), 1) for name, values in found.items()}
    line = {"bench": "footprint", "runs": options.runs, "python": sys.version.split()[0]}
    line |= {"cores": os.cpu_count(), "data": "memory" if options.memory else "folder", **medians}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
