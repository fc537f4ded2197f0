"""Spans of OpenTelemetry; needs opentelemetry-api (``pip install 'onceflow[opentelemetry]'``).

Names and attributes follow the semantic conventions for messaging. The context travels in the
records' headers, by the propagator that the application has set (W3C's ``traceparent`` unless it
chose another). Nothing is traced before an interceptor of this module is given to a client.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import RecordMetadata, TopicPartition
from onceflow.sdk.model.record_checks import to_headers
from onceflow.sdk.observe.interceptors import (
    ConsumerInterceptor,
    ProducerInterceptor,
    ProducerRecord,
)

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError as _missing:
    raise ImportError(
        "opentelemetry-api is missing: pip install 'onceflow[opentelemetry]'"
    ) from _missing

__all__ = ["TracingConsumerInterceptor", "TracingProducerInterceptor", "process_span"]

SCOPE: Final = "onceflow"
OPEN_SPANS_MAX: Final = 100_000
"""Records on their way that are traced at once; beyond it they are sent without a span."""

LINKS_MAX: Final = 128
"""Records of a poll that its span links to."""

_Pairs = list[tuple[str, bytes | None]]


class _HeaderGetter(Getter[Sequence[tuple[str, bytes | None]]]):
    """Reads a context from headers; the last one of a name counts."""

    def get(self, carrier: Sequence[tuple[str, bytes | None]], key: str) -> list[str] | None:
        """Values of a header."""
        found = [data for name, data in carrier if name.lower() == key.lower()]
        texts = [data.decode("utf-8", "replace") for data in found[-1:] if data is not None]
        return texts or None

    def keys(self, carrier: Sequence[tuple[str, bytes | None]]) -> list[str]:
        """Names of the headers."""
        return [name for name, _ in carrier]


class _HeaderSetter(Setter[_Pairs]):
    """Writes a context into headers, in place of one that is there."""

    def set(self, carrier: _Pairs, key: str, value: str) -> None:
        """Set a header."""
        carrier[:] = [pair for pair in carrier if pair[0].lower() != key.lower()]
        carrier.append((key, value.encode()))


_GETTER, _SETTER = _HeaderGetter(), _HeaderSetter()


class TracingProducerInterceptor(ProducerInterceptor):
    """A span ``send <topic>`` for every record, from its ``send`` to its outcome.

    ``Producer(interceptors=[TracingProducerInterceptor()])``. The span is a child of the span that
    is current where ``send`` is called.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Make an interceptor for one producer.

        Args:
            tracer_provider: Where spans go; None is the application's own provider.
        """
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._lock = threading.Lock()
        self._spans: dict[int, Span] = {}

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Begin the span and put its context into the headers.

        Args:
            record: What was sent.
        """
        if len(self._spans) >= OPEN_SPANS_MAX:
            return record
        attributes = _attributes("send", "send", record.topic, record.key)
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        span = self._tracer.start_span(
            f"send {record.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        pairs = list(to_headers(record.headers))
        propagate.inject(pairs, context=trace.set_span_in_context(span), setter=_SETTER)
        context = span.get_span_context()
        if context.is_valid:
            with self._lock:
                self._spans[context.span_id] = span
        return dataclasses.replace(record, headers=pairs)

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        """End the span of a record that was stored.

        Args:
            record: What was stored.
            metadata: Where.
        """
        span = self._take(record)
        if span is not None:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
            if metadata.offset >= 0:
                span.set_attribute("messaging.kafka.offset", metadata.offset)
            span.end()

    def on_error(self, record: ProducerRecord, error: KafkaError) -> None:
        """End the span of a record that was given up.

        Args:
            record: What was given up.
            error: Why.
        """
        span = self._take(record)
        if span is not None:
            _fail(span, error)
            span.end()

    def _take(self, record: ProducerRecord) -> Span | None:
        """The span that the record's headers name."""
        written = trace.get_current_span(_context_of(list(to_headers(record.headers))))
        with self._lock:
            return self._spans.pop(written.get_span_context().span_id, None)

    def close(self) -> None:
        """End what is open; nothing more is heard of it."""
        with self._lock:
            spans, self._spans = list(self._spans.values()), {}
        for span in spans:
            span.end()


class TracingConsumerInterceptor(ConsumerInterceptor):
    """A span ``poll <topic>`` for the records of each partition that a poll returns.

    ``Consumer(interceptors=[TracingConsumerInterceptor()])``. It links to the spans that sent the
    records; what is done with a record is traced by `process_span`.
    """

    def __init__(
        self, group_id: str | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        """Make an interceptor for one consumer.

        Args:
            group_id: Name of the group, for the spans.
            tracer_provider: Where spans go; None is the application's own provider.
        """
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._group_id = group_id

    def on_records(self, records: Mapping[TopicPartition, Sequence[AnyRecord]]) -> None:
        """Trace what was received.

        Args:
            records: Records by partition.
        """
        for (topic, partition), run in records.items():
            attributes = _attributes("poll", "receive", topic)
            attributes["messaging.destination.partition.id"] = str(partition)
            attributes["messaging.batch.message_count"] = len(run)
            if self._group_id is not None:
                attributes["messaging.consumer.group.name"] = self._group_id
            links = [link for record in run[:LINKS_MAX] for link in _links(record)]
            self._tracer.start_span(
                f"poll {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links
            ).end()


@contextlib.contextmanager
def process_span(
    record: AnyRecord,
    *,
    group_id: str | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """A current span ``process <topic>`` around the work on one record.

    It is a child of the span that sent the record, so that the trace goes on; what the work sends
    by a traced producer becomes its child in turn.

    Args:
        record: The record.
        group_id: Name of the group, for the span.
        tracer_provider: Where the span goes; None is the application's own provider.

    Yields:
        The span.
    """
    attributes = _attributes("process", "process", record.topic, record.key)
    attributes["messaging.destination.partition.id"] = str(record.partition)
    attributes["messaging.kafka.offset"] = record.offset
    if group_id is not None:
        attributes["messaging.consumer.group.name"] = group_id
    tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
    with tracer.start_as_current_span(
        f"process {record.topic}",
        context=_context_of(record.headers),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=_links(record),
        set_status_on_exception=False,
        record_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            _fail(span, error)
            raise


def _attributes(
    name: str, kind: str, topic: str, key: object = None
) -> dict[str, str | bool | int]:
    found: dict[str, str | bool | int] = {
        "messaging.system": "kafka",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if isinstance(key, str):
        found["messaging.kafka.message.key"] = key
    elif isinstance(key, bytes):
        found["messaging.kafka.message.key"] = key.decode("utf-8", "replace")
    return found


def _context_of(headers: Sequence[tuple[str, bytes | None]]) -> Context:
    return propagate.extract(headers, context=Context(), getter=_GETTER)


def _links(record: AnyRecord) -> list[Link]:
    context = trace.get_current_span(_context_of(record.headers)).get_span_context()
    return [Link(context)] if context.is_valid else []


def _fail(span: Span, error: BaseException) -> None:
    span.set_status(Status(StatusCode.ERROR, str(error)))
    span.set_attribute("error.type", type(error).__name__)
