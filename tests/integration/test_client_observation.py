"""Goal: figures reach Prometheus and spans reach OpenTelemetry, with the context in the headers.

Method: a registry and a span exporter of the test's own (nothing global), over a broker in this
process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncConsumer, AsyncProducer, Consumer, Producer
from onceflow.sdk.errors import KafkaError, SerializationError
from onceflow.sdk.prometheus import ClientCollector
from onceflow.sdk.tracing import (
    TracingConsumerInterceptor,
    TracingProducerInterceptor,
    process_span,
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def test_prometheus_is_told_when_it_asks(broker: Broker) -> None:
    registry, collector = CollectorRegistry(), ClientCollector()
    registry.register(collector)
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, client_id="p1") as producer,
        Producer(bootstrap_servers=broker.bootstrap_servers, client_id="p2") as other,
        Consumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            client_id="c",
            auto_offset_reset="earliest",
        ) as consumer,
    ):
        collector.add(producer)
        collector.add(other)
        collector.add(consumer)
        producer.send_many("t", [b"x"] * 10)
        producer.flush()
        while not consumer.poll(timeout_ms=1_000):
            pass
        names = {client: name for name, client in collector.board.clients()}
        lines = generate_latest(registry).decode().splitlines()
        collector.remove(other)
        fewer = generate_latest(registry).decode()
        of_p1, of_p2, of_c = (
            f'client="{names[client]}",client_id="{client.config.client_id}"'
            for client in (producer, other, consumer)
        )
    for line in (
        f"onceflow_producer_record_send_total{{{of_p1}}} 10.0",
        f"onceflow_producer_record_send_total{{{of_p2}}} 0.0",
        f"onceflow_consumer_records_consumed_total{{{of_c}}} 10.0",
        f'onceflow_consumer_records_lag{{{of_c},partition="0",topic="t"}} 0.0',
        f'onceflow_consumer_last_stable_offset_lag{{{of_c},partition="0",topic="t"}} 0.0',
        f'onceflow_producer_topic_record_send_total{{{of_p1},topic="t"}} 10.0',
        f'onceflow_consumer_topic_records_consumed_total{{{of_c},topic="t"}} 10.0',
    ):
        assert line in lines
    assert any(f"onceflow_consumer_connection_count{{{of_c}}}" in line for line in lines)
    assert "# TYPE onceflow_producer_record_send_total counter" in lines
    assert "# TYPE onceflow_producer_batch_size_avg gauge" in lines
    helps = [line for line in lines if line.startswith("# HELP")]
    assert helps
    assert all(len(line.split(" ", 3)[3]) > 5 for line in helps)
    assert 'client_id="p1"' in fewer
    assert 'client_id="p2"' not in fewer


@pytest.mark.parametrize("collectors", ["one", "one for each", "one for each, made twice"])
def test_clients_of_one_name_are_told_apart_and_nothing_is_told_twice(collectors: str) -> None:
    """Prometheus refuses a page with two values of one series, or two declarations of a metric."""
    clients: list[Any] = [AsyncProducer(), AsyncProducer(), AsyncConsumer(), AsyncConsumer()]
    made = [ClientCollector(*clients)]
    if collectors != "one":
        made = [ClientCollector(client) for client in clients]
    if collectors.endswith("twice"):
        made += [ClientCollector(client) for client in clients]
    registry = CollectorRegistry(support_collectors_without_names=True)
    for collector in made:
        registry.register(collector)
    lines = generate_latest(registry).decode().splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    declared = [line for line in lines if line.startswith("# TYPE")]
    assert len(series) == len({*series})
    assert len(declared) == len({*declared})
    figure = "onceflow_consumer_records_consumed_total"
    names = [name for name, client in made[0].board.clients() if client in clients[2:]]
    for name in names:
        assert f'{figure}{{client="{name}",client_id="onceflow"}}' in series
    assert len({*names}) == 2
    restricted = generate_latest(registry.restricted_registry([figure])).decode()
    assert restricted.count(f"# TYPE {figure}") <= 1
    registry.unregister(made[-1])
    assert generate_latest(registry) == b""


def test_a_client_that_is_gone_is_forgotten_and_its_name_is_free() -> None:
    registry, collector = CollectorRegistry(), ClientCollector()
    registry.register(collector)
    kept, gone = AsyncProducer(client_id="kept"), AsyncProducer(client_id="gone")
    collector.add(kept)
    collector.add(gone)
    name = {client: name for name, client in collector.board.clients()}[gone]
    del gone
    assert 'client_id="gone"' not in generate_latest(registry).decode()
    later = AsyncProducer(client_id="later")
    collector.add(later)
    collector.add(later)
    assert (name, later) in collector.board.clients()


def by_name(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_trace_goes_from_the_sender_to_what_the_reader_sends(
    broker: Broker, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    tracer = provider.get_tracer("test")
    with Producer(
        bootstrap_servers=broker.bootstrap_servers,
        interceptors=[TracingProducerInterceptor(provider)],
    ) as producer:
        with tracer.start_as_current_span("request") as request:
            producer.send("t", b"v", key="k", headers=[("own", b"1"), ("traceparent", b"old")])
        producer.flush()
        with Consumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            interceptors=[TracingConsumerInterceptor("g", provider)],
        ) as consumer:
            record = next(consumer)
        with process_span(record, group_id="g", tracer_provider=provider):
            producer.send("out", None)
    assert [name for name, _ in record.headers] == ["own", "traceparent"]
    (sent,) = by_name(exporter, "send t")
    (received,) = by_name(exporter, "poll t")
    (processed,) = by_name(exporter, "process t")
    (answered,) = by_name(exporter, "send out")
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id
    assert sent.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "t",
        "messaging.kafka.message.key": "k",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
    }
    assert sent.kind is trace.SpanKind.PRODUCER
    assert [link.context.span_id for link in received.links] == [sent.context.span_id]
    assert received.attributes is not None
    assert received.attributes["messaging.consumer.group.name"] == "g"
    assert received.attributes["messaging.batch.message_count"] == 1
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.kind is trace.SpanKind.CONSUMER
    assert answered.parent is not None
    assert answered.parent.span_id == processed.context.span_id
    assert answered.attributes is not None
    assert answered.attributes["messaging.kafka.message.tombstone"] is True
    assert len({span.context.trace_id for span in (sent, processed, answered)}) == 1


def test_failures_are_told_by_their_spans(
    broker: Broker, exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    interceptor = TracingProducerInterceptor(provider)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, interceptors=[interceptor]
    ) as producer:
        with pytest.raises(SerializationError):
            producer.send("t", 1.5)
        with pytest.raises(KafkaError):
            producer.send("bad name", b"")
        producer.send("t", b"v").result(20)
    (refused, stored), (unknown,) = by_name(exporter, "send t"), by_name(exporter, "send bad name")
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == "SerializationError"
    assert refused.status.status_code is trace.StatusCode.ERROR
    assert unknown.status.status_code is trace.StatusCode.ERROR
    assert stored.status.status_code is trace.StatusCode.UNSET
    assert not interceptor._spans
    assert producer.metrics().interceptor_error_total == 0
    with (
        Consumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        ) as consumer,
        pytest.raises(ZeroDivisionError),
        process_span(next(consumer), tracer_provider=provider),
    ):
        raise ZeroDivisionError("work")
    (processed,) = by_name(exporter, "process t")
    assert processed.attributes is not None
    assert processed.attributes["error.type"] == "ZeroDivisionError"


def test_without_a_provider_records_pass_as_they_are(broker: Broker) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, interceptors=[TracingProducerInterceptor()]
    ) as producer:
        assert producer.send("t", b"v", headers=[("a", b"1")]).result(20).offset == 0
    assert producer.metrics().interceptor_error_total == 0


@pytest.mark.parametrize("module", ["prometheus", "tracing", "schema_registry.avro"])
def test_extras_are_loaded_by_nobody_who_does_not_ask(module: str) -> None:
    library = {"prometheus": "prometheus_client", "tracing": "opentelemetry"}.get(
        module, "fastavro"
    )
    program = (
        "import sys, onceflow.sdk.sync.producer, onceflow.sdk.sync.consumer; "
        f"assert {library!r} not in sys.modules; sys.modules[{library!r}] = None\n"
        f"try: import onceflow.sdk.{module}\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert "pip install 'onceflow[" in done.stdout
