"""Figures of clients for Prometheus; needs ``pip install 'onceflow[prometheus]'``.

A collector asks its clients when it is scraped: nothing runs in between. Names are Kafka's with
``onceflow_producer_`` or ``onceflow_consumer_`` before them; ``*_total`` are counters, everything
else gauges. Labels are ``client``, which tells the clients of a process apart (``consumer-1``),
and ``client_id``. Figures of single topics have ``onceflow_producer_topic_`` or
``onceflow_consumer_topic_`` before them and a label ``topic``.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, ClassVar, Protocol

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


class _Board:
    """The clients that the collectors of this process tell of, and what each is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: weakref.WeakKeyDictionary[Measured, str] = weakref.WeakKeyDictionary()

    def add(self, client: Measured) -> None:
        """Tell of a client, under the lowest number that no other one of its kind has."""
        kind = _kind_of(client.metrics())
        with self._lock:
            if client in self._names:
                return
            taken = set(self._names.values())
            numbers = (f"{kind}-{number}" for number in itertools.count(1))
            self._names[client] = next(name for name in numbers if name not in taken)

    def remove(self, client: Measured) -> None:
        """No longer tell of a client."""
        with self._lock:
            self._names.pop(client, None)

    def clients(self) -> list[tuple[str, Measured]]:
        """The clients with their names, in the order of the names."""
        with self._lock:
            return sorted(((name, client) for client, name in self._names.items()), key=_first)


def _first(pair: tuple[str, Measured]) -> str:
    return pair[0]


class ClientCollector(Collector):
    """Tells Prometheus what some clients do.

    ``registry.register(ClientCollector(producer, consumer))``; clients that are gone are forgotten.
    All collectors of a process are one: each tells of every client that was given to any of them,
    and a registry keeps one of them. So parts of a program that do not know each other may each
    register a collector for their clients.

    Attributes:
        board: The clients of all collectors.
    """

    board: ClassVar[_Board] = _Board()

    def __init__(self, *clients: Measured) -> None:
        """Make a collector; register it where it shall be scraped.

        Args:
            *clients: Producers and consumers; more by ``add``.
        """
        for client in clients:
            self.board.add(client)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientCollector)

    def __hash__(self) -> int:
        return hash(ClientCollector)

    def add(self, client: Measured) -> None:
        """Tell the figures of one more client.

        Args:
            client: A producer or consumer.
        """
        self.board.add(client)

    def remove(self, client: Measured) -> None:
        """No longer tell the figures of a client.

        Args:
            client: A producer or consumer.
        """
        self.board.remove(client)

    def describe(self) -> list[Metric]:
        """Nothing beforehand: registering must not ask the clients."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures of all clients; called by Prometheus."""
        families: _Families = {}
        for name, client in self.board.clients():
            _add(families, name, client.metrics())
        yield from families.values()


_Families = dict[str, CounterMetricFamily | GaugeMetricFamily]


def _kind_of(found: ClientMetrics) -> str:
    return "producer" if isinstance(found, ProducerMetrics) else "consumer"


def _add(families: _Families, name: str, found: ClientMetrics) -> None:
    prefix = f"onceflow_{_kind_of(found)}"
    own = {"client": name, "client_id": found.client_id}
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
