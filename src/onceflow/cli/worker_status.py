"""What a worker tells the console: its processors, its tasks, and what it has done so far."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onceflow.cli.worker_metrics import LAG, WorkerMetrics
from onceflow.sdk.serde import to_json

if TYPE_CHECKING:
    from onceflow.processors.app import App


class WorkerStatus:
    """The status of one application's worker.

    Args:
        app: The application.
        metrics: Reads its metrics.
    """

    def __init__(self, app: App, metrics: WorkerMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._graph = json.loads(app.topology().to_json())

    def body(self) -> bytes:
        """The status as JSON, in a list, because several workers may have one address."""
        measured = self._metrics.measured()
        figures = measured.figures
        picture = figures.picture
        tasks = () if picture is None else picture.tasks
        restoring = {} if picture is None else picture.restoring
        status = {
            "app": self._app.name,
            "group": self._app.settings.group_of(self._app.name),
            "graph": {name: self._graph[name] for name in ("nodes", "edges")},
            "ready": picture is not None and picture.is_ready,
            "tasks": [
                {"task": task.name, "status": task.status, "state_bytes": task.state_bytes}
                for task in tasks
            ],
            "restoring": [
                {"topic": place.topic, "partition": place.partition, "offsets_left": left}
                for place, left in restoring.items()
            ],
            "lag": sum(LAG.read(measured).values()),
            "records_committed": figures.committed_records,
            "units_committed": figures.committed_units,
            "units_aborted": sum(list(figures.aborted_units.values())),
            "dead_letters": figures.dead_letters,
            "commit_us": int(figures.commit_seconds * 1_000_000),
            "functions": {
                name: {
                    "processed": counts.processed,
                    "failed": counts.failed,
                    "dead_letters": counts.dead_letters,
                }
                for name, counts in figures.functions.items()
            },
        }
        return to_json([status])
