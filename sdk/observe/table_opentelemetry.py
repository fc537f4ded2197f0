"""A table of metrics through OpenTelemetry; needs ``pip install 'onceflow[opentelemetry]'``.

The provider of meters is the one that the program has set up, by its own code or by
``opentelemetry-instrument``. Without one, ``use_otlp`` sets up the export by OTLP, as the variables
``OTEL_EXPORTER_OTLP_*`` and ``OTEL_METRIC_EXPORT_INTERVAL`` say.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Generic

from onceflow.sdk.observe.tables import M, Metric

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
except ImportError as _missing:
    raise ImportError(
        "opentelemetry-api is missing: pip install 'onceflow[opentelemetry]'"
    ) from _missing

METER_NAME: Final = "onceflow"
MEASURED_KEPT_S: Final = 0.5
"""How long one measurement serves: a collection asks for each metric by itself."""


class TableInstruments(Generic[M]):
    """The instruments of a table; each tells its values when they are collected.

    Args:
        prefix: What all names of the table begin with.
        table: The metrics.
        sources: Those that are measured: each with the attributes that all its values have, and
            what gives a measurement.
        bounds: Upper bounds of the classes of histograms, by name of the metric.
        meter: Makes the instruments; by default one of the provider that the program has.

    Attributes:
        record: Takes a value of a histogram, by name of the metric and number of the source.
    """

    def __init__(
        self,
        prefix: str,
        table: Sequence[Metric[M]],
        sources: Sequence[tuple[Mapping[str, str], Callable[[], M]]],
        bounds: Mapping[str, Sequence[float]] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._sources = [(dict(constant), _Recent(measured)) for constant, measured in sources]
        self.record: dict[str, list[Callable[[float], None]]] = {}
        meter = meter or metrics.get_meter(METER_NAME)
        for metric in table:
            name, unit = metric.telemetry_name(prefix), metric.telemetry_unit
            if metric.spread is not None:
                classes = (bounds or {}).get(metric.name)
                made = meter.create_histogram(
                    name, unit, metric.text, explicit_bucket_boundaries_advisory=classes
                )
                self.record[metric.name] = [
                    partial(made.record, attributes=constant) for constant, _ in self._sources
                ]
                continue
            callbacks = [self._teller(metric)]
            if metric.kind == "counter":
                meter.create_observable_counter(name, callbacks, unit, metric.text)
            else:
                meter.create_observable_gauge(name, callbacks, unit, metric.text)

    def _teller(self, metric: Metric[M]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def tell(options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(value, constant | dict(zip(metric.labels, labels, strict=True)))
                for constant, recent in self._sources
                for labels, value in metric.read(recent.take()).items()
            ]

        return tell


class _Recent(Generic[M]):
    """A measurement that serves all metrics of a collection."""

    def __init__(self, measured: Callable[[], M]) -> None:
        self._measured = measured
        self._lock = threading.Lock()
        self._kept: tuple[float, M] | None = None

    def take(self) -> M:
        with self._lock:
            now_s = time.monotonic()
            if self._kept is None or now_s - self._kept[0] > MEASURED_KEPT_S:
                self._kept = now_s, self._measured()
            return self._kept[1]


def use_otlp(service: str) -> Callable[[], None] | None:
    """Export metrics by OTLP over HTTP, unless the program has set up a provider already.

    Args:
        service: Name of the service, where ``OTEL_SERVICE_NAME`` gives none.

    Returns:
        What exports for the last time and ends it; None when the program's own provider serves.

    Raises:
        ImportError: OpenTelemetry's SDK or its OTLP exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as missing:
        raise ImportError("the OTLP exporter is missing: pip install 'onceflow[otlp]'") from missing
    if isinstance(metrics.get_meter_provider(), MeterProvider):
        return None
    # Instance ids distinguish the processes of a service.
    own = {"service.name": service, "service.instance.id": str(uuid.uuid4())}
    given = Resource.create().attributes
    if not str(given["service.name"]).startswith("unknown_service"):
        del own["service.name"]
    if "service.instance.id" in given:
        del own["service.instance.id"]
    resource = Resource.create(own)
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
    metrics.set_meter_provider(provider)
    return provider.shutdown
