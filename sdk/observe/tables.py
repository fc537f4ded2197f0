"""Tables of metrics: each with its kind, unit and labels, and where its values come from.

A worker and a broker each have one such table. What exports them, to Prometheus or through
OpenTelemetry, reads the same table, so that neither can lack a metric. OpenTelemetry's names are
derived: an OpenTelemetry collector that writes them for Prometheus gives the names of the table
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

M = TypeVar("M")

Labels: TypeAlias = tuple[str, ...]
"""Values of the labels of a metric, in the order of its table."""
Values: TypeAlias = Mapping[Labels, float]

UNITS: Final = {"seconds": "s", "bytes": "By", "0 or 1": "{state}"}
"""Units by UCUM, as OpenTelemetry asks for; things that are counted are annotations."""
COUNTER_ENDING: Final = "_total"
UNIT_ENDINGS: Final = ("_seconds", "_bytes")
"""What Prometheus' names end with and OpenTelemetry keeps apart as the unit."""


class Distribution(NamedTuple):
    """Values in classes.

    Attributes:
        bounds: Upper bounds of the classes but the last, ascending.
        classes: How many values are in each; one more than there are bounds.
        total: Sum of all values.
    """

    bounds: Sequence[float]
    classes: Sequence[int]
    total: float


@dataclass(frozen=True, slots=True)
class Metric(Generic[M]):
    """One metric.

    Attributes:
        name: Its name for Prometheus, after the prefix of its table.
        kind: counter, gauge or histogram.
        unit: What it counts, in plural; "0 or 1" for a truth.
        labels: Names of its labels, beside those that the whole table has.
        text: What it tells.
        read: Its values by labels; for a histogram nothing.
        spread: The values of a histogram so far; None for other kinds.
    """

    name: str
    kind: str
    unit: str
    labels: Labels
    text: str
    read: Callable[[M], Values]
    spread: Callable[[M], Distribution] | None = None

    def telemetry_name(self, prefix: str) -> str:
        """Its name in OpenTelemetry.

        Args:
            prefix: Of the table, as ``onceflow_worker_``.
        """
        name = self.name.removesuffix(COUNTER_ENDING)
        for ending in UNIT_ENDINGS:
            name = name.removesuffix(ending)
        return prefix.replace("_", ".") + name

    @property
    def telemetry_unit(self) -> str:
        """Its unit in OpenTelemetry."""
        return UNITS.get(self.unit) or f"{{{self.unit.removesuffix('s')}}}"


def alone(value: float) -> Values:
    """The value of a metric without labels; of a truth, 0 or 1: OTLP cannot carry booleans."""
    return {(): int(value) if isinstance(value, bool) else value}
