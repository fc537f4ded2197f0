"""Goal: every metric is exported to Prometheus and OpenTelemetry, as the documentation says.

Method: the tables of worker, broker and relay are compared with what both exporters give, and with
the tables of the page. Names of OpenTelemetry are turned into Prometheus' by the rules of its
collector, and must be the same. A worker and a broker as processes export by OTLP to a server of
this test, and the broker's page is read while a transaction is open.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from processor_processes import wait_for
from prometheus_client.parser import text_string_to_metric_families

from onceflow.broker_lite import Broker
from onceflow.broker_lite.daemon import metrics as broker_metrics
from onceflow.cli import relay_metrics, worker_metrics
from onceflow.processors.figures import COMMIT_BOUNDS_S, TaskPicture, WorkerFigures, WorkerPicture
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition
from onceflow.sdk.observe.table_opentelemetry import TableInstruments
from onceflow.sdk.observe.table_prometheus import prometheus_page
from onceflow.sdk.observe.tables import Metric
from onceflow.transactions import AbortReason
from onceflow.transactions.outbox import RelayFigures

ROOT = Path(__file__).parents[2]
UNITS_FOR_PROMETHEUS = {"s": "_seconds", "By": "_bytes"}
PLACE = TopicPartition("numbers", 0)


def worker_measured() -> worker_metrics.Measured:
    picture = WorkerPicture(
        0.0, True, (TaskPicture("t", "RUNNING", 5),), {PLACE: 0}, {PLACE: 1}, {"t": 2}
    )
    figures = WorkerFigures()
    figures.begin(["dead"], ["add"])
    figures.picture = picture
    figures.latest_ms[PLACE] = 1
    figures.polled["numbers"] = figures.outputs["sums"] = 1
    figures.aborted(AbortReason.FAILED)
    figures.commit_took(0.02)
    return worker_metrics.Measured(figures, {PLACE: 3}, 5_000)


def broker_measured() -> broker_metrics.Measured:
    partition = broker_metrics.PartitionMeasured(100, 0, 3, 5)
    place = ("numbers", "0")
    counts = Counter({("Stable",): 1})
    return broker_metrics.Measured(
        1, {("Fetch",): 2}, 3, 4, 5, 6, {place: partition}, counts, counts, 7_000, False
    )


TABLES: list[tuple[str, Sequence[Metric[Any]], Any, dict[str, str]]] = [
    (worker_metrics.PREFIX, worker_metrics.METRICS, worker_measured, {"app": "counting"}),
    (broker_metrics.PREFIX, broker_metrics.METRICS, broker_measured, {}),
    (relay_metrics.PREFIX, relay_metrics.METRICS, RelayFigures, {"relay": "outbox"}),
]
tables = pytest.mark.parametrize(
    ("prefix", "table", "measured", "constant"), TABLES, ids=["worker", "broker", "relay"]
)


@tables
def test_prometheus_gets_the_table(
    prefix: str, table: Sequence[Metric[Any]], measured: Any, constant: dict[str, str]
) -> None:
    page = prometheus_page(prefix, table, constant, measured)().decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    wanted = {(prefix + metric.name).removesuffix("_total"): metric for metric in table}
    assert families.keys() == wanted.keys()
    for name, metric in wanted.items():
        assert families[name].type == metric.kind
        assert families[name].documentation == metric.text
        labels = [set(sample.labels) - {"le"} for sample in families[name].samples]
        assert labels, name
        assert all(found == {*constant, *metric.labels} for found in labels), name


@tables
def test_opentelemetry_gets_the_same(
    prefix: str, table: Sequence[Metric[Any]], measured: Any, constant: dict[str, str]
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    bounds = {"commit_seconds": COMMIT_BOUNDS_S}
    made = TableInstruments(
        prefix, table, [(constant, measured)], bounds, provider.get_meter("onceflow")
    )
    for (record,) in made.record.values():
        record(0.02)
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    found = {}
    for each in scope.metrics:
        points = list(each.data.data_points)
        kind = {"Sum": "counter", "Gauge": "gauge", "Histogram": "histogram"}
        name = each.name.replace(".", "_") + UNITS_FOR_PROMETHEUS.get(each.unit, "")
        if kind[type(each.data).__name__] == "counter":
            name += "_total"
            assert each.data.is_monotonic
        found[name] = (kind[type(each.data).__name__], each.description)
        assert points, each.name
        metric = next(row for row in table if prefix + row.name == name)
        for point in points:
            assert set(point.attributes) == {*constant, *metric.labels}
    assert found == {prefix + metric.name: (metric.kind, metric.text) for metric in table}
    page = prometheus_page(prefix, table, constant, measured)().decode()
    told = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    for each in scope.metrics:
        if type(each.data).__name__ == "Histogram":
            (spread,) = each.data.data_points
            assert spread.explicit_bounds == COMMIT_BOUNDS_S
            continue
        name = each.name.replace(".", "_") + UNITS_FOR_PROMETHEUS.get(each.unit, "")
        name += "_total" if type(each.data).__name__ == "Sum" else ""
        for point in each.data.data_points:
            assert told[name, tuple(sorted(point.attributes.items()))] == point.value
    provider.shutdown()


@tables
def test_the_documentation_has_the_table(
    prefix: str, table: Sequence[Metric[Any]], measured: Any, constant: dict[str, str]
) -> None:
    text = ROOT.joinpath("docs", "observation.md").read_text()
    rows = re.findall(
        rf"^\| `{prefix}(\w+)` \| (\w+) \| ([^|]+) \| ([^|]*) \| `([^|]+)` \| ([^|]+) \|$",
        text,
        re.M,
    )
    assert rows == [
        (
            metric.name,
            metric.kind,
            metric.unit,
            ", ".join(f"`{label}`" for label in metric.labels) or "-",
            f"{metric.telemetry_name(prefix)}, {metric.telemetry_unit}",
            metric.text,
        )
        for metric in table
    ]


class Collector:
    """Takes what is exported by OTLP over HTTP.

    Attributes:
        received: By service: values of the latest export by name and attributes.
        address: Where it listens.
    """

    def __init__(self) -> None:
        self.received: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportMetricsServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def take(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            values = self.received.setdefault(about["service.name"], {})
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                points = getattr(metric, metric.WhichOneof("data")).data_points
                for point in points:
                    labels = tuple(sorted((a.key, a.value.string_value) for a in point.attributes))
                    kind = "" if hasattr(point, "count") else point.WhichOneof("value")
                    value = point.count if not kind else getattr(point, kind)
                    values[metric.name, labels] = value

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@contextlib.contextmanager
def process(collector: Collector, folder: Path, *words: str) -> Iterator[Any]:
    """A command that exports to the collector; gives the process and its first line."""
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
    }
    errors = folder / "errors"
    with errors.open("w") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "onceflow.cli", *words, "--json", "--opentelemetry"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **variables},
        )
    assert running.stdout is not None
    try:
        line = running.stdout.readline()
        assert line, errors.read_text()
        yield SimpleNamespace(process=running, start=json.loads(line), errors=errors)
    finally:
        running.kill()
        running.communicate(timeout=30)


PROGRAM = """
from onceflow.processors import App

app = App("doubling")


@app.processor("numbers", to="doubles")
def double(value: int) -> int:
    return 2 * value
"""


def test_a_worker_exports_by_otlp_and_logs_its_commits(
    collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "doubling.py").write_text(PROGRAM)
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics(["numbers"])
        words = ("run", "doubling:app", "--bootstrap", broker.bootstrap_servers)
        with process(collector, tmp_path, *words, "--log-level", "debug") as worker:
            with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
                producer.send_many("numbers", [b"1", b"2"])
            committed = ("onceflow.worker.records_committed", (("app", "doubling"),))
            calls = (
                "onceflow.worker.function_calls",
                (("app", "doubling"), ("function", "double")),
            )
            seen = collector.received.setdefault("doubling", {})
            wait_for(lambda: seen.get(committed) == 2, "both are committed and exported")
            wait_for(lambda: seen.get(calls) == 2, "calls are exported")
            commits = ("onceflow.worker.commit", (("app", "doubling"),))
            wait_for(lambda: seen.get(commits, 0) >= 1, "commits are exported")
            with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
                (member,) = admin.describe_groups(["doubling"])["doubling"].members
                ((transactional_id, listed),) = {
                    each.transactional_id: each for each in admin.list_transactions()
                }.items()
            worker.process.send_signal(signal.SIGINT)
            assert worker.process.wait(30) == 0
    lines = [json.loads(line) for line in worker.errors.read_text().splitlines()]
    found = [line for line in lines if "offsets" in line and "numbers-0" in line["offsets"]]
    assert found, lines
    (first, *_), (*_, last) = found, found
    assert first["offsets"]["numbers-0"][0] == 0
    assert last["offsets"]["numbers-0"][1] == 2
    for line in found:
        assert line["group"] == "doubling"
        assert line["member"] == member.member_id
        assert line["generation"] >= 1
        assert line["transactional_id"] == transactional_id
        assert line["producer_id"] == listed.producer_id
        assert line["producer_epoch"] >= 0


def test_a_broker_exports_both_ways(collector: Collector, tmp_path: Path) -> None:
    words = ("broker", "--listen", "127.0.0.1:0", "--metrics-port", "0")
    with process(collector, tmp_path, *words) as broker:
        (address,) = broker.start["addresses"]
        page = broker.start["metrics"] + "/metrics"

        def values() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
            with urllib.request.urlopen(page, timeout=10) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                return {
                    (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                    for family in families
                    for sample in family.samples
                }

        place = (("partition", "0"), ("topic", "orders"))
        prefix = broker_metrics.PREFIX
        with Producer(bootstrap_servers=address, transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_many("orders", [b"1", b"2", b"3"])
            producer.flush()
            found = values()
            assert found[prefix + "high_watermark", place] == 3
            assert found[prefix + "last_stable_offset_lag", place] == 3
            assert found[prefix + "transactional_ids", (("state", "Ongoing"),)] == 1
            assert found[prefix + "oldest_open_transaction_seconds", ()] >= 0
            assert found[prefix + "connections", ()] >= 1
            assert found[prefix + "requests_total", (("request", "InitProducerId"),)] >= 1
            assert found[prefix + "received_bytes_total", ()] > 100
            assert found[prefix + "answered_bytes_total", ()] > 100
            producer.commit_transaction()
        with Consumer(
            "orders", bootstrap_servers=address, group_id="readers", auto_offset_reset="earliest"
        ) as consumer:
            deadline_s = time.monotonic() + 30
            while not consumer.poll(100):
                assert time.monotonic() < deadline_s
            found = values()
            assert found[prefix + "groups", (("state", "Stable"),)] == 1
            assert found[prefix + "last_stable_offset_lag", place] == 0
            assert found[prefix + "disk_failed", ()] == 0
        told = collector.received.setdefault("onceflow-broker", {})
        wait_for(lambda: told.get(("onceflow.broker.high_watermark", place)) == 4, "it is exported")
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(30) == 0
