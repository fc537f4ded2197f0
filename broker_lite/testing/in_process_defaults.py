"""Defaults of a broker in process that differ from a daemon's, so that tests need not wait."""

from __future__ import annotations

IN_PROCESS_DEFAULTS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""Values by Kafka property; the caller's settings override them."""
