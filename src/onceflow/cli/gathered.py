"""Health and metrics of several workers behind one port: each worker is asked, and one answer made.

``/live`` and ``/ready`` hold when they hold for each worker. ``/metrics`` has the metrics of all,
with the number of the worker as a further label.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from onceflow.cli.base import Failure
from onceflow.cli.served import Served
from onceflow.sdk.observe.answers import Routes
from onceflow.sdk.serde import to_json

ASKED_S: Final = 5.0
"""Longest wait for the answer of a worker."""
LABEL: Final = "worker"

Workers = Callable[[], Mapping[int, Mapping[str, str] | None]]
"""Gives the addresses of each worker by its number; None for one that has none yet."""


class Gathered:
    """One face of several workers.

    Args:
        workers: Where they answer.
        host: Address to listen on.
        health_port: Port of ``/live`` and ``/ready``; None serves none.
        metrics_port: Port of ``/metrics``, likewise; may be the same.

    Raises:
        Failure: A port cannot be had, or Prometheus' library is not installed.
    """

    def __init__(
        self, workers: Workers, host: str, health_port: int | None, metrics_port: int | None
    ) -> None:
        self._workers = workers
        health: Routes = {
            "/live": lambda: self._all("/live"),
            "/ready": lambda: self._all("/ready"),
            "/status": lambda: (200, self._statuses()),
        }
        metrics: Routes = {}
        if metrics_port is not None:
            merged = _merger()
            metrics = {"/metrics": lambda: (200, merged(self._pages()))}
        self._served = Served(host, health_port, health, metrics_port, metrics)

    @property
    def addresses(self) -> dict[str, str]:
        """Where it answers, by ``health`` and ``metrics``."""
        return self._served.addresses

    def close(self) -> None:
        """Answer no more."""
        self._served.close()

    def _all(self, path: str) -> tuple[int, bytes]:
        status, told = 200, []
        for number, addresses in sorted(self._workers().items()):
            if addresses is None:
                # One that is started again is no reason to end the others.
                found, text = (200 if path == "/live" else 503), "starting\n"
            else:
                found, text = _ask(addresses["health"] + path)
            status = max(status, found)
            told.append(f"worker {number}: {text}")
        return status, "".join(told).encode()

    def _statuses(self) -> bytes:
        found: list[object] = []
        for _, addresses in sorted(self._workers().items()):
            if addresses is not None:
                status, body = _ask(addresses["health"] + "/status")
                found += json.loads(body) if status == 200 else []
        return to_json(found)

    def _pages(self) -> dict[int, str]:
        pages = {}
        for number, addresses in sorted(self._workers().items()):
            if addresses is not None:
                status, page = _ask(addresses["metrics"] + "/metrics")
                if status == 200:
                    pages[number] = page
        return pages


def _ask(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=ASKED_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, ValueError) as error:
        return 503, f"it does not answer: {error}\n"


def _merger() -> Callable[[Mapping[int, str]], bytes]:
    """What makes one page of several.

    Raises:
        Failure: Prometheus' library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.parser import text_string_to_metric_families
        from prometheus_client.registry import Collector
    except ImportError as error:
        step = "pip install 'onceflow[prometheus]'"
        raise Failure(f"--metrics-port: {error}\nNext: {step}", 2) from error

    class Merged(Collector):
        def __init__(self, pages: Mapping[int, str]) -> None:
            self._pages = pages

        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            for number, page in self._pages.items():
                for family in text_string_to_metric_families(page):
                    merged = families.setdefault(family.name, family)
                    samples = [
                        sample._replace(labels={**sample.labels, LABEL: str(number)})
                        for sample in family.samples
                    ]
                    merged.samples = samples if merged is family else merged.samples + samples
            yield from families.values()

    def page(pages: Mapping[int, str]) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Merged(pages))
        return bytes(generate_latest(registry))

    return page
