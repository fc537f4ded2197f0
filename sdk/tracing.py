"""Spans of OpenTelemetry; needs opentelemetry-api (``pip install 'onceflow[opentelemetry]'``)."""

from onceflow.sdk.observe.tracing import (
    TracingConsumerInterceptor,
    TracingProducerInterceptor,
    process_span,
)

__all__ = ["TracingConsumerInterceptor", "TracingProducerInterceptor", "process_span"]
