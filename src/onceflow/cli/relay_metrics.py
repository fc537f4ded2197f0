"""The metrics of a relay, as a table that the shared exporters read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceflow.sdk.observe.tables import Metric, alone

if TYPE_CHECKING:
    from onceflow.transactions.outbox import RelayFigures

PREFIX: Final = "onceflow_relay_"

METRICS: Final[tuple[Metric[RelayFigures], ...]] = (
    Metric(
        "rows_total",
        "counter",
        "rows",
        (),
        "Rows of the outbox that were sent.",
        lambda figures: alone(figures.rows),
    ),
    Metric(
        "batches_total",
        "counter",
        "batches",
        (),
        "Kafka transactions with rows that were committed.",
        lambda figures: alone(figures.batches),
    ),
    Metric(
        "failures_total",
        "counter",
        "failures",
        (),
        "How often the relay began again.",
        lambda figures: alone(figures.failures),
    ),
    Metric(
        "working",
        "gauge",
        "0 or 1",
        (),
        "Whether this relay sends.",
        lambda figures: alone(figures.is_working),
    ),
    Metric(
        "standing_by",
        "gauge",
        "0 or 1",
        (),
        "Whether another relay of its name works.",
        lambda figures: alone(figures.is_standing_by),
    ),
)
