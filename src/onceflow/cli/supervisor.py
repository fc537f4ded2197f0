"""Runs several worker processes of one application, and starts those again that died.

A worker that was killed (by a signal that nobody sent through this process, such as that of a
machine out of memory) is started again under the same slot, within bounds. One that ended by an
error has followed the application's policy for errors already: the others are stopped, and the
command ends with its status.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

logger: logging.Logger = logging.getLogger("onceflow.run")

FORCED: Final = 130
"""Exit status of a worker whose shutdown was forced."""
KILLED_AFTER_S: Final = 5.0
"""How much longer than its shutdown time a worker may take to end, before it is killed."""
EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest event of a worker: a report has a line for each of its tasks."""


@dataclass
class WorkerProcess:
    """One worker process.

    Attributes:
        process: The process.
        addresses: Where it answers, by ``health`` and ``metrics``.
        report: What a bounded run did; None before its end.
    """

    process: asyncio.subprocess.Process
    addresses: Mapping[str, str] = field(default_factory=dict)
    report: Mapping[str, Any] | None = None


class Supervisor:
    """The workers of one command.

    Args:
        commands: The words that start each worker; a descriptor of its lifeline is added.
        allow: Whether a killed worker is started again; it is given what happened, and counts.
        shutdown_timeout_ms: Time that workers have for an orderly stop.
        serves: Called with the number of a worker and its addresses when it tells them.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        allow: Callable[[Exception], bool],
        shutdown_timeout_ms: int,
        serves: Callable[[int, Mapping[str, str]], None],
    ) -> None:
        self._commands = commands
        self._allow = allow
        self._serves = serves
        self._killed_after_s = shutdown_timeout_ms / 1000 + KILLED_AFTER_S
        self._stopped_by: signal.Signals | None = None
        self.workers: dict[int, WorkerProcess] = {}
        self.reports: list[Mapping[str, Any]] = []
        self.failed: bool = False

    async def run(self) -> int:
        """Run all workers until each has ended.

        Returns:
            Exit status: 0 after orderly ends, that of the first worker that failed, or 130 when a
            shutdown was forced.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop, number)
        try:
            kept = [self._keep(number) for number in range(len(self._commands))]
            statuses = await asyncio.gather(*kept)
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        errors = [status for status in statuses if status not in (0, FORCED)]
        return errors[0] if errors else max(statuses)

    def stop(self, number: signal.Signals) -> None:
        """Hand a signal on to all workers; the first one asks them for an orderly end.

        Args:
            number: SIGINT or SIGTERM.
        """
        if self._stopped_by is None:
            self._stopped_by = number
            asyncio.get_running_loop().call_later(self._killed_after_s, self._kill)
        for worker in self.workers.values():
            self._signal(worker, number)

    def _kill(self) -> None:
        for number, worker in self.workers.items():
            logger.error("worker %d has not ended in time and is killed", number)
            self._signal(worker, signal.SIGKILL)

    def _signal(self, worker: WorkerProcess, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # It has ended, and was not waited for yet.
            worker.process.send_signal(number)

    async def _keep(self, number: int) -> int:
        """Run one worker, and others in its place. Returns the exit status of the last."""
        while self._stopped_by is None:
            status = await self._run_one(number)
            if self._stopped_by is not None:
                if status == -signal.SIGKILL:
                    return FORCED
                # One that had not begun yet died of the signal itself.
                return 0 if status < 0 else status
            if status == 0:
                return 0
            if status < 0:
                died = f"worker {number} was killed by {signal.Signals(-status).name}"
                if self._allow(RuntimeError(died)):
                    continue
                logger.error("%s; the other workers are stopped", died)
            else:
                logger.error("worker %d ended with status %d; all stop", number, status)
            self.failed = True
            self.stop(signal.SIGTERM)
            return 1 if status < 0 else status
        return 0

    async def _run_one(self, number: int) -> int:
        here, there = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._commands[number],
                "--lifeline",
                str(there.fileno()),
                pass_fds=[there.fileno()],
                # Ctrl-C of a terminal reaches all processes of its group: workers get it from here.
                process_group=0,
            )
        except BaseException:
            here.close()
            raise
        finally:
            there.close()
        worker = self.workers[number] = WorkerProcess(process)
        if self._stopped_by is not None:
            self._signal(worker, self._stopped_by)
        reader, writer = await asyncio.open_connection(sock=here, limit=EVENT_BYTES_MAX)
        try:
            # A worker that a killed one left behind may hold the socket: its process decides.
            listening = asyncio.create_task(self._listen(number, worker, reader))
            status = await process.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(listening, 1.0)
        finally:
            writer.close()
            del self.workers[number]
        if worker.report is not None:
            self.reports.append(worker.report)
        return status

    async def _listen(
        self, number: int, worker: WorkerProcess, reader: asyncio.StreamReader
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                event = json.loads(line)
                if event["event"] == "serving":
                    worker.addresses = event["addresses"]
                    self._serves(number, worker.addresses)
                elif event["event"] == "ended":
                    worker.report = event
