"""Figures of clients for Prometheus; needs ``pip install 'onceflow[prometheus]'``.

A collector asks its clients when it is scraped: nothing runs in between, and nothing is global.
Names are Kafka's with ``onceflow_producer_`` or ``onceflow_consumer_`` before them; ``*_total`` are
counters, everything else gauges; the client's ``client_id`` is a label. Those of
single topics have ``onceflow_producer_topic_`` or ``onceflow_consumer_topic_`` before them and a
label ``topic``.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from onceflow.sdk.observe.metrics import ClientMetrics, ConsumerMetrics, ProducerMetrics

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as _missing:
    raise ImportError(
        "prometheus-client is missing: pip install 'onceflow[prometheus]'"
    ) from _missing

__all__ = ["ClientCollector", "Measured"]


class Measured(Protocol):
    """A client that tells its figures: any producer or consumer of ``onceflow.sdk``."""

    def metrics(self) -> ProducerMetrics | ConsumerMetrics:
        """The figures."""


class ClientCollector(Collector):
    """Tells Prometheus what some clients do.

    ``registry.register(ClientCollector(producer, consumer))``; clients that are gone are forgotten.
    """

    def __init__(self, *clients: Measured) -> None:
        """Make a collector; register it where it shall be scraped.

        Args:
            *clients: Producers and consumers; more by ``add``.
        """
        self._lock = threading.Lock()
        self._clients: weakref.WeakSet[Measured] = weakref.WeakSet(clients)

    def add(self, client: Measured) -> None:
        """Tell the figures of one more client.

        Args:
            client: A producer or consumer.
        """
        with self._lock:
            self._clients.add(client)

    def remove(self, client: Measured) -> None:
        """No longer tell the figures of a client.

        Args:
            client: A producer or consumer.
        """
        with self._lock:
            self._clients.discard(client)

    def describe(self) -> list[Metric]:
        """Nothing beforehand: registering must not ask the clients."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of all clients; called by Prometheus."""
        with self._lock:
            clients = list(self._clients)
        families: _Families = {}
        for client in clients:
            _add(families, client.metrics())
        yield from families.values()


_Families = dict[str, CounterMetricFamily | GaugeMetricFamily]


def _add(families: _Families, found: ClientMetrics) -> None:
    prefix = f"onceflow_{'producer' if isinstance(found, ProducerMetrics) else 'consumer'}"
    own = {"client_id": found.client_id}
    for owner in (found, found.connections):
        _add_figures(families, prefix, owner, own)
    if isinstance(found, ProducerMetrics | ConsumerMetrics):
        for topic, figures in found.topics.items():
            _add_figures(families, f"{prefix}_topic", figures, {**own, "topic": topic})


def _add_figures(
    families: _Families, prefix: str, owner: DataclassInstance, labels: dict[str, str]
) -> None:
    texts = _texts(type(owner))
    for item in fields(owner):
        value: object = getattr(owner, item.name)
        name = f"{prefix}_{item.name}"
        if isinstance(value, Mapping) and item.name != "topics":
            names = [*labels, "topic", "partition"]
            family = _family(families, name, texts.get(item.name, item.name), names)
            for (topic, partition), figure in value.items():
                family.add_metric([*labels.values(), topic, str(partition)], figure)
        elif isinstance(value, int | float):
            family = _family(families, name, texts.get(item.name, item.name), [*labels])
            family.add_metric([*labels.values()], value)


def _family(
    families: _Families, name: str, text: str, labels: list[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    if name not in families:
        make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        families[name] = make(name, text, labels=labels)
    return families[name]


def _texts(owner: type[object]) -> dict[str, str]:
    """What the docstrings say of each figure; nothing under ``python -OO``, which drops them."""
    found: dict[str, str] = {}
    for base in owner.__mro__:
        name = ""
        for line in inspect.cleandoc(base.__doc__ or "").partition("Attributes:")[2].splitlines():
            text = line.strip()
            if line.startswith("    ") and not line.startswith("     ") and ":" in text:
                name, _, text = text.partition(": ")
                found.setdefault(name, text)
            elif name and text and line.startswith("        "):
                found[name] += f" {text}"
    return found
