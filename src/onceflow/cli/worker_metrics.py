"""The metrics of a worker: the table of all, and what they are read from.

A reading takes what the worker wrote last and asks the brokers only for the ends of its inputs; it
never waits for the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from onceflow.processors.figures import COMMIT_BOUNDS_S, WorkerFigures
from onceflow.sdk import Admin, AdminConfig
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.observe.tables import Distribution, Labels, Metric, Values, alone

if TYPE_CHECKING:
    from onceflow.processors.app import App

logger: logging.Logger = logging.getLogger("onceflow.run")

PREFIX: Final = "onceflow_worker_"
ENDS_KEPT_S: Final = 5.0
"""How long the ends of inputs are believed, so that scrapes cost the brokers little."""
ENDS_LIMIT_MS: Final = 3_000


class Measured(NamedTuple):
    """What the metrics are read from.

    Attributes:
        figures: The worker's; empty ones before it is made.
        ends: Last stable offset by partition of its inputs, as far as it is known.
        wall_ms: Wall clock.
    """

    figures: WorkerFigures
    ends: dict[TopicPartition, int]
    wall_ms: int


def _by_topic(counts: dict[str, int]) -> Values:
    return {(topic,): count for topic, count in list(counts.items())}


def _by_function(measured: Measured, name: str) -> Values:
    functions = measured.figures.functions
    return {(function,): getattr(found, name) for function, found in functions.items()}


def _tasks(measured: Measured) -> Values:
    picture = measured.figures.picture
    found: dict[Labels, float] = dict.fromkeys([("opening",), ("restoring",), ("running",)], 0)
    for task in picture.tasks if picture is not None else ():
        found[(task.status.lower(),)] += 1
    return found


def _state(measured: Measured) -> Values:
    picture = measured.figures.picture
    tasks = picture.tasks if picture is not None else ()
    return {(task.name,): task.state_bytes for task in tasks if task.state_bytes is not None}


def _restoring(measured: Measured) -> Values:
    picture = measured.figures.picture
    left = picture.restoring if picture is not None else {}
    return {(place.topic, str(place.partition)): offsets for place, offsets in left.items()}


def _copies(measured: Measured) -> Values:
    picture = measured.figures.picture
    copies = picture.copies if picture is not None else {}
    return {(task,): lag for task, lag in copies.items()}


def _lag(measured: Measured) -> Values:
    picture = measured.figures.picture
    places = picture.places if picture is not None else {}
    return {
        (place.topic, str(place.partition)): max(0, measured.ends[place] - committed)
        for place, committed in places.items()
        if place in measured.ends
    }


def _lag_time(measured: Measured) -> Values:
    latest_ms: dict[Labels, int] = {
        (place.topic, str(place.partition)): at_ms
        for place, at_ms in list(measured.figures.latest_ms.items())
    }
    return {
        labels: 0 if not lag else max(0, measured.wall_ms - latest_ms[labels]) / 1000
        for labels, lag in _lag(measured).items()
        if not lag or labels in latest_ms
    }


def _aborted(measured: Measured) -> Values:
    counts = measured.figures.aborted_units
    return {(reason.name.lower(),): count for reason, count in list(counts.items())}


def _ready(measured: Measured) -> Values:
    picture = measured.figures.picture
    return alone(picture is not None and picture.is_ready)


METRICS: Final[tuple[Metric[Measured], ...]] = (
    Metric("ready", "gauge", "0 or 1", (), "In its group, with all state restored.", _ready),
    Metric("tasks", "gauge", "tasks", ("status",), "Tasks by status.", _tasks),
    Metric(
        "records_polled_total",
        "counter",
        "records",
        ("topic",),
        "Records taken from the input; those that come again after an abort count again.",
        lambda measured: _by_topic(measured.figures.polled),
    ),
    Metric(
        "records_committed_total",
        "counter",
        "records",
        (),
        "Records whose unit was committed.",
        lambda measured: alone(measured.figures.committed_records),
    ),
    Metric(
        "output_records_total",
        "counter",
        "records",
        ("topic",),
        "Records written by committed units, changelogs and dead letters included.",
        lambda measured: _by_topic(measured.figures.outputs),
    ),
    Metric(
        "dead_letters_total",
        "counter",
        "records",
        (),
        "Dead letters of committed units.",
        lambda measured: alone(measured.figures.dead_letters),
    ),
    Metric(
        "function_calls_total",
        "counter",
        "calls",
        ("function",),
        "Calls of a function that succeeded, of records and of rows that fell due; those of "
        "aborted units count too.",
        lambda measured: _by_function(measured, "processed"),
    ),
    Metric(
        "function_failures_total",
        "counter",
        "calls",
        ("function",),
        "Calls of a function that failed, each attempt.",
        lambda measured: _by_function(measured, "failed"),
    ),
    Metric(
        "function_dead_letters_total",
        "counter",
        "records",
        ("function",),
        "Dead letters of a function; those of aborted units count too.",
        lambda measured: _by_function(measured, "dead_letters"),
    ),
    Metric(
        "units_committed_total",
        "counter",
        "units",
        (),
        "Transactions that were committed.",
        lambda measured: alone(measured.figures.committed_units),
    ),
    Metric(
        "units_aborted_total",
        "counter",
        "units",
        ("reason",),
        "Transactions that were aborted, by reason.",
        _aborted,
    ),
    Metric(
        "commit_seconds",
        "histogram",
        "seconds",
        (),
        "Time of a commit: outputs sent and acknowledged, transaction ended.",
        lambda measured: {},
        lambda measured: Distribution(
            COMMIT_BOUNDS_S, measured.figures.commit_classes, measured.figures.commit_seconds
        ),
    ),
    Metric(
        "restore_offsets_left",
        "gauge",
        "offsets",
        ("topic", "partition"),
        "Offsets of a changelog that are left to replay.",
        _restoring,
    ),
    Metric(
        "copy_lag_offsets",
        "gauge",
        "offsets",
        ("task",),
        "Offsets by which the copy of another worker's task is behind.",
        _copies,
    ),
    Metric(
        "state_bytes", "gauge", "bytes", ("task",), "Committed state of a task on disk.", _state
    ),
    Metric(
        "lag_records",
        "gauge",
        "records",
        ("topic", "partition"),
        "Offsets between the last commit and the last stable offset.",
        _lag,
    ),
    Metric(
        "lag_seconds",
        "gauge",
        "seconds",
        ("topic", "partition"),
        "Age of the latest record that was taken; 0 where nothing is left.",
        _lag_time,
    ),
)
"""All metrics of a worker."""
LAG: Final = next(metric for metric in METRICS if metric.name == "lag_records")


class Ends:
    """The ends of a worker's inputs, requested at each scrape.

    Args:
        config: How to reach the brokers.
        clock: Monotonic seconds.
    """

    def __init__(self, config: AdminConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._admin: Admin | None = None
        self._found: dict[TopicPartition, int] = {}
        self._asked_s = -ENDS_KEPT_S

    def of(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return last stable offsets; those that cannot be asked for are left out.

        Args:
            places: Partitions.
        """
        with self._lock:
            known = self._clock() - self._asked_s < ENDS_KEPT_S
            if places and not (known and self._found.keys() >= set(places)):
                self._asked_s = self._clock()
                try:
                    if self._admin is None:
                        self._admin = Admin(config=self._config)
                    found = self._admin.list_offsets(
                        dict.fromkeys(places, "latest"),
                        isolation_level=IsolationLevel.READ_COMMITTED,
                        timeout_ms=ENDS_LIMIT_MS,
                    )
                    self._found = {place: end.offset for place, end in found.items()}
                except KafkaError as error:
                    logger.warning("the lag is not known: %s", error)
                    self._found = {}
            return dict(self._found)

    def close(self) -> None:
        """Release the connections."""
        with self._lock:
            if self._admin is not None:
                self._admin.close()


class WorkerMetrics:
    """Reads the metrics of one application's worker.

    Args:
        app: The application.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._ends = Ends(app.settings.admin_config())

    @property
    def constant(self) -> dict[str, str]:
        """Labels that all of its metrics have."""
        return {"app": self._app.name}

    def measured(self) -> Measured:
        """What the metrics are read from now."""
        figures = self._app.figures or WorkerFigures()
        places = list(figures.picture.places) if figures.picture is not None else []
        return Measured(figures, self._ends.of(places), int(time.time() * 1000))

    def close(self) -> None:
        """Release the connections."""
        self._ends.close()
