"""The metrics of a worker in Prometheus' text format; needs ``onceflow[prometheus]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from onceflow.cli.worker_server import METRICS, PREFIX, Measured
from onceflow.processors.figures import COMMIT_BOUNDS_S, WorkerFigures

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as _missing:
    raise ImportError("prometheus-client is missing") from _missing


class WorkerCollector(Collector):
    """Tells the metrics of the table when it is scraped.

    Args:
        app: Name of the application, the label of all metrics.
        measured: Gives what they are read from.
    """

    def __init__(self, app: str, measured: Callable[[], Measured]) -> None:
        self._app = app
        self._measured = measured

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its values."""
        now = self._measured()
        for metric in METRICS:
            name = PREFIX + metric.name
            labels = ("app", *metric.labels)
            if metric.kind == "histogram":
                family: Any = HistogramMetricFamily(name, metric.text, labels=labels)
                family.add_metric((self._app,), *_buckets(now.figures))
            else:
                is_counter = metric.kind == "counter"
                make = CounterMetricFamily if is_counter else GaugeMetricFamily
                family = make(name, metric.text, labels=labels)
                for values, value in metric.read(now).items():
                    family.add_metric((self._app, *values), value)
            yield family


def _buckets(figures: WorkerFigures) -> tuple[list[tuple[str, int]], float]:
    """Commits that took at most so long, and the time of all together."""
    bounds = [*map(str, COMMIT_BOUNDS_S), "+Inf"]
    found, count = [], 0
    for bound, own in zip(bounds, figures.commit_classes, strict=True):
        count += own
        found.append((bound, count))
    return found, figures.commit_seconds


def page(app: str, measured: Callable[[], Measured]) -> Callable[[], bytes]:
    """Return a function that makes the page.

    Args:
        app: Name of the application.
        measured: Gives what the metrics are read from.
    """
    registry = CollectorRegistry()
    registry.register(WorkerCollector(app, measured))
    return lambda: bytes(generate_latest(registry))
