"""Starting, killing and starting again the processes of the demo.

Each child has a process group of its own, so that a kill hits the driver with its JVM and nothing
else; its output goes to a file that is shown when something goes wrong.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

RESTARTS_MAX = 40
STOP_SECONDS = 10


class ChildFailedError(Exception):
    """A child kept failing; the message shows the end of its output."""


class Child:
    """One process that is to run until the demo ends.

    Args:
        name: For messages.
        command: What to run.
        log: File that receives its output.
        env: Environment variables besides the demo's own.
        once: Whether an exit with status 0 means that it is done.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self.done = False
        self.restarts = 0
        self._command = list(command)
        self._log = log
        self._env = {**os.environ, **(env or {})}
        self._once = once
        self._process: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True
            )

    def watch(self) -> None:
        """Start the process again when it ended by itself or was killed.

        Raises:
            ChildFailedError: It ended too often.
        """
        if self.done or self._process is None or self._process.poll() is None:
            return
        if self._once and self._process.returncode == 0:
            self.done = True
            return
        if time.monotonic() < self._not_before:
            return
        self.restarts += 1
        self._not_before = time.monotonic() + 1
        if self.restarts > RESTARTS_MAX:
            raise ChildFailedError(f"{self.name} ended {self.restarts} times:\n{self.tail()}")
        self.start()

    def kill(self) -> None:
        """SIGKILL the process and what it started, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_SECONDS)
        self.kill()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def tail(self, lines: int = 30) -> str:
        """The last lines of its output."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
