"""Try what an installation's extras bring: each library does a little of what onceflow asks of it.

``python tools/smoke_extras.py`` runs in an environment with the extras that `EXTRAS` names, with
the oldest or the newest releases of their libraries that the project allows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

from onceflow.broker_lite import Broker
from onceflow.broker_lite.daemon import metrics
from onceflow.sdk import Producer

EXTRAS = (
    "avro",
    "console",
    "http",
    "json-schema",
    "otlp",
    "postgres",
    "prometheus",
    "protobuf",
    "security",
)
"""Those that are tried; Spark and its kind have tests of their own."""


def measured() -> metrics.Measured:
    """A broker that does nothing."""
    return metrics.Measured(0, {}, 0, 0, 0, 0, {}, {}, {}, 0, False)


def try_metrics() -> None:
    """Make the page for Prometheus, and the instruments of OpenTelemetry."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from onceflow.sdk.observe.table_opentelemetry import TableInstruments, use_otlp
    from onceflow.sdk.observe.table_prometheus import prometheus_page
    from onceflow.sdk.prometheus import ClientCollector
    from onceflow.sdk.tracing import TracingProducerInterceptor

    page = prometheus_page(metrics.PREFIX, metrics.METRICS, {}, measured)()
    assert b"onceflow_broker_connections" in page
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("onceflow")
    TableInstruments(metrics.PREFIX, metrics.METRICS, [({}, measured)], meter=meter)
    found = reader.get_metrics_data()
    assert found is not None
    names = [each.name for each in found.resource_metrics[0].scope_metrics[0].metrics]
    assert "onceflow.broker.connections" in names
    assert callable(use_otlp)
    with (
        Broker() as broker,
        Producer(
            bootstrap_servers=broker.bootstrap_servers, interceptors=[TracingProducerInterceptor()]
        ) as producer,
    ):
        producer.send("traced", b"1").result()
        assert list(ClientCollector(producer).collect())


def try_schemas() -> None:
    """Import what reads and writes with schemas, and the libraries under it."""
    from fastavro import parse_schema
    from google.protobuf.struct_pb2 import Struct
    from jsonschema import Draft202012Validator

    import onceflow.sdk.schema_registry.avro.serde
    import onceflow.sdk.schema_registry.http
    import onceflow.sdk.schema_registry.json_schema
    import onceflow.sdk.schema_registry.protobuf  # noqa: F401

    parse_schema({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
    Draft202012Validator({"type": "object"}).validate({})
    assert Struct.FromString(b"") == Struct()


def try_console() -> None:
    """Serve the console of a broker, and ask it."""
    with Broker() as broker:
        command = [sys.executable, "-m", "onceflow", "console", "--port", "0"]
        command += ["--bootstrap", broker.bootstrap_servers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().split()[2]
                with urllib.request.urlopen(f"{address}/api/overview", timeout=30) as answer:
                    assert json.loads(answer.read())["brokers"]
            finally:
                process.terminate()


def try_rest() -> None:
    """Import what needs a server that is not here."""
    import jwt
    import psycopg
    import urllib3

    from onceflow.transactions.sinks import Http, Postgres

    assert callable(Http)
    assert callable(Postgres)
    assert callable(psycopg.AsyncConnection)
    assert jwt.decode(jwt.encode({"a": 1}, "k" * 32), "k" * 32, ["HS256"]) == {"a": 1}
    assert urllib3.Retry(1).total == 1


def main() -> None:
    """Try all."""
    for attempt in (try_metrics, try_schemas, try_console, try_rest):
        attempt()
    print(f"extras work: {', '.join(EXTRAS)}")


if __name__ == "__main__":
    main()
