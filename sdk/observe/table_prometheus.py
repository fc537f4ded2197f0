"""A table of metrics in Prometheus' text format; needs ``pip install 'onceflow[prometheus]'``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic

from onceflow.sdk.observe.tables import Distribution, M, Metric

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as _missing:
    raise ImportError(
        "prometheus-client is missing: pip install 'onceflow[prometheus]'"
    ) from _missing


class TableCollector(Collector, Generic[M]):
    """Tells the metrics of a table when it is scraped.

    Args:
        prefix: What all names begin with.
        table: The metrics.
        constant: Labels that all of them have.
        measured: Gives what they are read from.
    """

    def __init__(
        self,
        prefix: str,
        table: Sequence[Metric[M]],
        constant: Mapping[str, str],
        measured: Callable[[], M],
    ) -> None:
        self._prefix = prefix
        self._table = table
        self._constant = constant
        self._measured = measured

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its values."""
        now = self._measured()
        own = tuple(self._constant.values())
        for metric in self._table:
            name, labels = self._prefix + metric.name, (*self._constant, *metric.labels)
            if metric.spread is not None:
                family: Any = HistogramMetricFamily(name, metric.text, labels=labels)
                family.add_metric(own, *_buckets(metric.spread(now)))
            else:
                is_counter = metric.kind == "counter"
                make = CounterMetricFamily if is_counter else GaugeMetricFamily
                family = make(name, metric.text, labels=labels)
                for values, value in metric.read(now).items():
                    family.add_metric((*own, *values), value)
            yield family


def _buckets(found: Distribution) -> tuple[list[tuple[str, int]], float]:
    """How many values are at most so large, and the sum of all."""
    buckets, count = [], 0
    for bound, own in zip([*map(str, found.bounds), "+Inf"], found.classes, strict=True):
        count += own
        buckets.append((bound, count))
    return buckets, found.total


def prometheus_page(
    prefix: str,
    table: Sequence[Metric[M]],
    constant: Mapping[str, str],
    measured: Callable[[], M],
) -> Callable[[], bytes]:
    """Return a function that makes the page that Prometheus reads.

    Args:
        prefix: What all names begin with.
        table: The metrics.
        constant: Labels that all of them have.
        measured: Gives what the metrics are read from.
    """
    registry = CollectorRegistry()
    registry.register(TableCollector(prefix, table, constant, measured))
    return lambda: bytes(generate_latest(registry))
