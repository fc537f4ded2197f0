"""How long output stands still when a worker is killed and its pod starts with a new disk.

A worker with state counts by key under a slot from ``ONCEFLOW_SLOT``, as in a StatefulSet, and a
producer goes on writing. The worker gets SIGKILL; a new process begins with an empty state folder
under the same slot. Measured is the time from the signal to the first record that a reader of
committed records gets from the new process, and how long its parts took. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition

PROGRAM = """
from onceflow.processors import App, State

app = App("counting")


@app.processor("in", to="out")
def count(value: bytes, seen: State[int]) -> bytes:
    seen.set(seen.get(0) + 1)
    return b"%d" % seen.get()
"""
LIMIT_S = 120.0


def start(folder: Path, bootstrap: str, log: Path) -> tuple[subprocess.Popen[str], str]:
    """A worker whose disk is new; gives the process and where its health is."""
    folder.mkdir()
    (folder / "counting.py").write_text(PROGRAM)
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "onceflow", "run", "counting:app", "--json", "-v"),
                *("--health-port", "0", "--state-dir", "state", "--bootstrap", bootstrap),
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "ONCEFLOW_SLOT": "counting-0"},
        )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["health"]


def until_ready(health: str) -> None:
    """Wait until the worker is in its group and its state is restored."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        try:
            urllib.request.urlopen(health + "/ready", timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            error.close()
            time.sleep(0.02)
    raise SystemExit("the worker did not become ready")


class Feeder(threading.Thread):
    """Writes a record every few milliseconds until it is stopped."""

    def __init__(self, bootstrap: str, keys: int) -> None:
        super().__init__()
        self._brokers, self._keys = bootstrap, keys
        self.stopping = threading.Event()

    def run(self) -> None:
        """Write."""
        with Producer(bootstrap_servers=self._brokers) as producer:
            number = 0
            while not self.stopping.wait(0.005):
                number += 1
                producer.send("in", b"x", key=b"%d" % (number % self._keys))
            producer.flush()


def one_kill(bootstrap: str, folder: Path, number: int) -> dict[str, Any]:
    """Kill the running worker of this folder and follow its successor."""
    first, health = start(folder / f"{number}-first", bootstrap, folder / f"{number}-first.log")
    second = None
    try:
        until_ready(health)
        settings = {"bootstrap_servers": bootstrap, "isolation_level": "read_committed"}
        with Consumer(auto_offset_reset="latest", **settings) as reader:
            numbers = reader.partitions_for_topic("out") or {0}
            reader.assign([TopicPartition("out", number) for number in numbers])
            began_s = time.monotonic()
            while not reader.poll(100):
                assert time.monotonic() - began_s < LIMIT_S, "no output before the kill"
            first.kill()
            killed_s = time.monotonic()
            first.wait()
            # What the first one committed before its end is read away.
            quiet_s = time.monotonic() + 0.3
            while time.monotonic() < quiet_s:
                reader.poll(50)
            lost_s = time.monotonic() - killed_s
            log = folder / f"{number}-second.log"
            begun_s = time.monotonic()
            second, health = start(folder / f"{number}-second", bootstrap, log)
            told_s = time.monotonic()
            while not reader.poll(20):
                assert time.monotonic() - killed_s < LIMIT_S, log.read_text()
            done_s = time.monotonic()
        return {
            "kill_to_output_s": round(done_s - killed_s - lost_s, 2),
            "process_started_s": round(told_s - begun_s, 2),
            "started_to_output_s": round(done_s - told_s, 2),
            "log": log.read_text(),
        }
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()


def measure(bootstrap: str, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Kill workers one after the other, while records come in."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        existing = admin.list_topics()
        new = [topic for topic in ("in", "out") if topic not in existing]
        admin.create_topics([NewTopic(topic, arguments.partitions) for topic in new])
    feeder = Feeder(bootstrap, arguments.keys)
    feeder.start()
    try:
        return [one_kill(bootstrap, folder, number) for number in range(arguments.kills)]
    finally:
        feeder.stopping.set()
        feeder.join()


def main() -> None:
    """Measure some kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--bootstrap", help="a cluster; by default a broker of its own")
    parser.add_argument("--logs", action="store_true", help="print the successor's log")
    arguments = parser.parse_args()
    broker = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bootstrap = arguments.bootstrap
        if bootstrap is None:
            words = ["broker", "--data", str(folder / "data"), "--listen", "127.0.0.1:0", "--json"]
            broker = subprocess.Popen(
                [sys.executable, "-m", "onceflow", *words], stdout=subprocess.PIPE, text=True
            )
            assert broker.stdout is not None
            (bootstrap,) = json.loads(broker.stdout.readline())["addresses"]
        try:
            found = measure(bootstrap, folder, arguments)
        finally:
            if broker is not None:
                broker.terminate()
                broker.wait()
    for kill in found:
        log = kill.pop("log")
        if arguments.logs:
            print(log, file=sys.stderr)
    print(json.dumps({"what": "worker killed, new disk, same slot", "kills": found}))


if __name__ == "__main__":
    main()
