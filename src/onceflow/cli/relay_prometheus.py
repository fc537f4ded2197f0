"""The metrics of a relay in Prometheus' text format; needs ``onceflow[prometheus]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as _missing:
    raise ImportError("prometheus-client is missing") from _missing

if TYPE_CHECKING:
    from onceflow.transactions.outbox import RelayFigures


class RelayCollector(Collector):
    """Tells the figures of a relay when it is scraped.

    Args:
        name: Name of the relay, the label of all metrics.
        figures: Its figures.
    """

    def __init__(self, name: str, figures: RelayFigures) -> None:
        self._name = name
        self._figures = figures

    def collect(self) -> Iterator[Any]:
        """Yield each metric with its value."""
        now = self._figures
        for make, name, text, value in (
            (CounterMetricFamily, "rows", "Rows of the outbox that were sent.", now.rows),
            (CounterMetricFamily, "batches", "Kafka transactions with rows.", now.batches),
            (CounterMetricFamily, "failures", "How often the relay began again.", now.failures),
            (GaugeMetricFamily, "working", "1 if it sends, 0 if not.", int(now.is_working)),
            (
                GaugeMetricFamily,
                "standing_by",
                "1 if another relay of its name works.",
                int(now.is_standing_by),
            ),
        ):
            family = make(f"onceflow_relay_{name}", text, labels=("relay",))
            family.add_metric((self._name,), value)
            yield family


def page(name: str, figures: RelayFigures) -> Callable[[], bytes]:
    """Return a function that makes the page.

    Args:
        name: Name of the relay.
        figures: Its figures.
    """
    registry = CollectorRegistry()
    registry.register(RelayCollector(name, figures))
    return lambda: bytes(generate_latest(registry))
