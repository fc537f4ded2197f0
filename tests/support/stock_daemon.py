"""`onceflow broker` as a process on one folder and one port, life after life, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from real_kafka import free_ports
from stock_probe import metadata_answered

STOP_S = 30.0
READY_S = 120.0


class StockDaemon:
    """The daemon; ``start`` after ``kill`` goes on with the same folder and port."""

    def __init__(self, data: Path, settings: Mapping[str, object] | None = None) -> None:
        self.data = data
        self.port = free_ports(1)[0]
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._settings = {"group.initial.rebalance.delay.ms": 0, **(settings or {})}
        self._log = data.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> None:
        """Start the process and wait for nothing."""
        command = [sys.executable, "-m", "onceflow.broker_lite", "--data", str(self.data)]
        command += ["--listen", self.bootstrap_servers]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.spawn()
        assert self.process is not None
        deadline = time.monotonic() + READY_S
        pause = threading.Event()
        while not metadata_answered(self.port):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, f"not ready within {READY_S} s\n{self.log()}"
            pause.wait(0.01)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for the orderly end."""
        if self.process is not None:
            assert self._end(signal.SIGTERM) == 0, self.log()

    def restart(self) -> None:
        """Kill and start."""
        self.kill()
        self.start()

    def log(self) -> str:
        """What the process wrote."""
        return self._log.read_text(errors="replace")

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
            raise
