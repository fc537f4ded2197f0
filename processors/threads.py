"""Runs several workers of one application as threads of this process."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from onceflow.processors.errors import ForcedShutdown
from onceflow.processors.report import RunReport, merged
from onceflow.processors.signals import EXIT_FORCED, ShutdownSignals

if TYPE_CHECKING:
    from onceflow.processors.app import App

ASKED_AGAIN_S: Final = 0.2
"""Seconds between two requests to stop; a worker that is being made misses the first one."""


class WorkerThreads:
    """The workers of one application in this process.

    Args:
        app: The application, whose functions all threads call.
        count: How many workers.

    Attributes:
        apps: One application for each worker, with that worker's figures.
    """

    def __init__(self, app: App, count: int) -> None:
        slot = app.settings.slot
        self.apps: Sequence[App] = [
            app.twin(None if slot is None else f"{slot}-{number}") for number in range(count)
        ]
        self._shutdown_timeout_ms = app.settings.shutdown_timeout_ms
        self._stopped_by: signal.Signals | None = None
        self._until_s: float | None = None
        self._outcomes: queue.SimpleQueue[RunReport | BaseException | None] = queue.SimpleQueue()

    def run(self, *, until_end: bool = False) -> RunReport:
        """Run all workers until each has ended; the error of one stops the others.

        Args:
            until_end: As for ``App.run``.

        Returns:
            The report of all workers together.

        Raises:
            KafkaError: The error of the first worker that failed.
            SystemExit: The shutdown was forced: open transactions are left to the successors.
        """
        reports: list[RunReport] = []
        errors: list[BaseException] = []
        try:
            with ShutdownSignals(self._stop, self._shutdown_timeout_ms):
                for number, app in enumerate(self.apps):
                    threading.Thread(
                        target=self._run_one,
                        args=(app, until_end),
                        name=f"onceflow-worker-{number}",
                        daemon=True,
                    ).start()
                while len(reports) + len(errors) < len(self.apps):
                    outcome = self._next()
                    if isinstance(outcome, RunReport):
                        reports.append(outcome)
                    elif outcome is not None:
                        errors.append(outcome)
                        self._until_s = time.monotonic() + self._shutdown_timeout_ms / 1000
                        self._stop(signal.SIGTERM)
                    if self._stopped_by is not None:
                        self._ask(self._stopped_by)
                    if self._until_s is not None and time.monotonic() > self._until_s:
                        break  # A handler that does not return must not hide the error.
        except ForcedShutdown:
            raise SystemExit(EXIT_FORCED) from None
        if errors:
            raise errors[0]
        reached = all(report.reached_end for report in reports)
        return replace(merged(reports), reached_end=reached)

    def _next(self) -> RunReport | BaseException | None:
        try:
            wait_s = None if self._stopped_by is None else ASKED_AGAIN_S
            return self._outcomes.get(timeout=wait_s)
        except queue.Empty:
            return None

    def _stop(self, number: signal.Signals) -> None:
        """Ask all workers to stop; also called by signal handlers."""
        self._stopped_by = self._stopped_by or number
        self._ask(number)
        self._outcomes.put(None)

    def _ask(self, number: signal.Signals) -> None:
        for app in self.apps:
            app.stop_by(number)

    def _run_one(self, app: App, until_end: bool) -> None:
        try:
            if self._stopped_by is None:
                self._outcomes.put(app.run(until_end=until_end))
            else:
                self._outcomes.put(RunReport())
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._outcomes.put(error)
