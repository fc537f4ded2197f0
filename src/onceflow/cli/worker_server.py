"""Health and metrics of the worker that ``onceflow run`` runs.

``/live`` fails when the worker's loop stands still, ``/ready`` until it is in its group and its
state is restored, ``/status`` is for the console, ``/metrics`` for Prometheus. With OpenTelemetry
the same metrics are exported without a port.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onceflow.cli.base import Failure
from onceflow.cli.gathered import LABEL
from onceflow.cli.served import Served
from onceflow.cli.worker_metrics import METRICS, PREFIX, Measured, WorkerMetrics
from onceflow.cli.worker_status import WorkerStatus
from onceflow.processors.figures import COMMIT_BOUNDS_S
from onceflow.sdk.observe.answers import Answer, Routes

if TYPE_CHECKING:
    from onceflow.processors.app import App

logger: logging.Logger = logging.getLogger("onceflow.run")


class WorkerServer:
    """Answers for one application.

    Args:
        app: The application.
        host: Address to listen on.
        health_port: Port for ``/live`` and ``/ready``; 0 takes a free one, None none.
        metrics_port: Port for ``/metrics``, likewise; may be the same.

    Raises:
        Failure: A port cannot be had, or Prometheus' library is not installed.
    """

    def __init__(
        self, app: App, host: str, health_port: int | None, metrics_port: int | None
    ) -> None:
        self._app = app
        self._live_s = app.settings.session_config("app", ["check"], "0").consumer
        self._metrics = WorkerMetrics(app)
        metrics: Routes = {}
        if metrics_port is not None:
            page = _page(self._metrics)
            metrics = {"/metrics": lambda: (200, page())}
        status = WorkerStatus(app, self._metrics)
        health: Routes = {
            "/live": self._answer_live,
            "/ready": self._answer_ready,
            "/status": lambda: (200, status.body()),
        }
        try:
            self._served = Served(host, health_port, health, metrics_port, metrics)
        except Failure:
            self._metrics.close()
            raise

    @property
    def addresses(self) -> dict[str, str]:
        """Where it answers, by ``health`` and ``metrics``."""
        return self._served.addresses

    def close(self) -> None:
        """Answer no more."""
        self._served.close()
        self._metrics.close()

    # --- answers

    def _answer_live(self) -> Answer:
        """Whether the worker's loop goes round; while it starts, it may take its time."""
        figures = self._app.figures
        picture = None if figures is None else figures.picture
        if picture is None:
            return 200, b"starting\n"
        age_s = time.monotonic() - picture.at_s
        if age_s * 1000 > self._live_s.max_poll_interval_ms:
            return 503, f"the worker's loop has stood still for {age_s:.0f} s\n".encode()
        return 200, b"live\n"

    def _answer_ready(self) -> Answer:
        """Whether the worker is in its group and its state is restored."""
        figures = self._app.figures
        picture = None if figures is None else figures.picture
        if picture is None or not picture.joined:
            return 503, b"not in the group yet\n"
        if not picture.is_ready:
            waiting = [task.name for task in picture.tasks if task.status != "RUNNING"]
            return 503, f"restoring {', '.join(waiting)}\n".encode()
        return self._answer_live() if self._answer_live()[0] != 200 else (200, b"ready\n")


def _page(metrics: WorkerMetrics) -> Callable[[], bytes]:
    """What makes the page for Prometheus.

    Raises:
        Failure: Prometheus' library is not installed.
    """
    try:
        from onceflow.sdk.observe.table_prometheus import prometheus_page
    except ImportError as error:
        raise Failure(f"--metrics-port: {error}", 2) from error
    return prometheus_page(PREFIX, METRICS, metrics.constant, metrics.measured)


def export_telemetry(apps: Sequence[App]) -> Callable[[], None]:
    """Export the metrics of an application's workers through OpenTelemetry.

    Args:
        apps: The application, once for each worker of this process.

    Returns:
        What exports for the last time and ends it.

    Raises:
        Failure: OpenTelemetry's libraries are not installed.
    """
    try:
        from onceflow.sdk.observe.table_opentelemetry import TableInstruments, use_otlp

        end = use_otlp(apps[0].name)
    except ImportError as error:
        raise Failure(f"--opentelemetry: {error}", 2) from error
    all_metrics = [WorkerMetrics(app) for app in apps]
    numbers = [{LABEL: str(n)} for n in range(len(apps))] if len(apps) > 1 else [{}]
    made: TableInstruments[Measured] = TableInstruments(
        PREFIX,
        METRICS,
        [
            (metrics.constant | number, metrics.measured)
            for metrics, number in zip(all_metrics, numbers, strict=True)
        ],
        {"commit_seconds": COMMIT_BOUNDS_S},
    )
    for app, record in zip(apps, made.record["commit_seconds"], strict=True):
        app.all_figures.commit_takers.append(record)

    def close() -> None:
        if end is not None:
            end()
        for metrics in all_metrics:
            metrics.close()

    return close
