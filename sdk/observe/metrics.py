"""The figures that clients give of themselves, under Kafka's names.

A snapshot is a frozen value; ``as_dict`` gives Kafka's own spelling (``record-send-rate``). Totals
count from the client's start, everything else covers the last half minute, or up to two minutes
where little happens. Times are in milliseconds, sizes in bytes, rates by the second. How they are
exported is not decided here; see ``onceflow.sdk.prometheus`` and ``onceflow.sdk.tracing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from onceflow.sdk.model.partitions import TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from onceflow.sdk.observe.meters import Traffic

__all__ = [
    "ClientMetrics",
    "ConnectionMetrics",
    "ConsumerMetrics",
    "ConsumerTopicMetrics",
    "ProducerMetrics",
    "ProducerTopicMetrics",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionMetrics:
    """What a client's connections do (Kafka's group ``*-metrics``, selector).

    Attributes:
        connection_count: Open connections.
        connection_creation_total: Connections made.
        connection_close_total: Connections that are gone.
        failed_connection_total: Connections that could not be made (no Kafka name).
        incoming_byte_total: Bytes received.
        incoming_byte_rate: Bytes received by the second.
        outgoing_byte_total: Bytes sent.
        outgoing_byte_rate: Bytes sent by the second.
        request_total: Requests sent, of all kinds.
        request_rate: Requests by the second.
        metadata_age_ms: Age of what is known of the cluster (Kafka: ``metadata-age``, seconds).
    """

    connection_count: int
    connection_creation_total: int
    connection_close_total: int
    failed_connection_total: int
    incoming_byte_total: int
    incoming_byte_rate: float
    outgoing_byte_total: int
    outgoing_byte_rate: float
    request_total: int
    request_rate: float
    metadata_age_ms: int

    @classmethod
    def of(cls, traffic: Traffic, metadata_age_ms: int, now_ms: int) -> ConnectionMetrics:
        """Take the figures.

        Args:
            traffic: What the connections counted.
            metadata_age_ms: Age of the metadata.
            now_ms: The present time.
        """
        return cls(
            connection_count=traffic.opened - traffic.closed,
            connection_creation_total=traffic.opened,
            connection_close_total=traffic.closed,
            failed_connection_total=traffic.failed,
            incoming_byte_total=int(traffic.received.total),
            incoming_byte_rate=traffic.received.rate(now_ms),
            outgoing_byte_total=int(traffic.sent.total),
            outgoing_byte_rate=traffic.sent.rate(now_ms),
            request_total=traffic.sent.count,
            request_rate=traffic.sent.event_rate(now_ms),
            metadata_age_ms=metadata_age_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """What the figures of every client have in common.

    Attributes:
        client_id: The client's ``client_id``.
        connections: Figures of its connections.
        interceptor_error_total: Interceptors that raised (no Kafka name).
    """

    client_id: str
    connections: ConnectionMetrics
    interceptor_error_total: int

    def as_dict(self) -> dict[str, float]:
        """Figures by Kafka's names, those of connections among them.

        Figures of single topics and partitions carry them in brackets:
        ``record-send-total{topic}``, ``records-lag{topic-0}``.
        """
        found: dict[str, float] = {}
        for item in fields(self):
            value: object = getattr(self, item.name)
            if isinstance(value, ConnectionMetrics):
                found.update(_spelled(value))
            elif item.name == "topics" and isinstance(value, Mapping):
                for topic, figures in value.items():
                    spelled = _spelled(figures)
                    found.update((f"{name}{{{topic}}}", n) for name, n in spelled.items())
            elif isinstance(value, Mapping):
                for partition, figure in value.items():
                    found[f"{item.name.replace('_', '-')}{{{partition}}}"] = figure
            elif isinstance(value, int | float):
                found[item.name.replace("_", "-")] = value
        return found


def _spelled(figures: DataclassInstance) -> dict[str, float]:
    return {item.name.replace("_", "-"): getattr(figures, item.name) for item in fields(figures)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTopicMetrics:
    """What a producer has done with one topic (Kafka's group ``producer-topic-metrics``).

    Attributes:
        record_send_total: Records acknowledged.
        record_send_rate: Records acknowledged by the second.
        record_retry_total: Records that were sent again.
        record_retry_rate: Records sent again by the second.
        record_error_total: Records given up.
        record_error_rate: Records given up by the second.
        byte_total: Bytes of batches sent, repetitions not counted.
        byte_rate: The same by the second.
        compression_rate: Average of compressed by uncompressed size; 0 without compression.
    """

    record_send_total: int
    record_send_rate: float
    record_retry_total: int
    record_retry_rate: float
    record_error_total: int
    record_error_rate: float
    byte_total: int
    byte_rate: float
    compression_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTopicMetrics:
    """What a consumer has read of one topic (Kafka's ``consumer-fetch-manager-metrics``).

    Attributes:
        records_consumed_total: Records decoded for the application.
        records_consumed_rate: The same by the second.
        bytes_consumed_total: Bytes of batches fetched.
        bytes_consumed_rate: The same by the second.
        fetch_size_avg: Average bytes of the topic's batches in an answer that had some.
        fetch_size_max: Greatest.
    """

    records_consumed_total: int
    records_consumed_rate: float
    bytes_consumed_total: int
    bytes_consumed_rate: float
    fetch_size_avg: float
    fetch_size_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerMetrics(ClientMetrics):
    """What a producer has done, as ``producer.metrics()`` gives it.

    Attributes:
        record_send_total: Records acknowledged.
        record_send_rate: Records acknowledged by the second.
        record_retry_total: Records that were sent again.
        record_retry_rate: Records sent again by the second.
        record_error_total: Records given up.
        record_error_rate: Records given up by the second.
        byte_total: Bytes of batches sent, repetitions not counted.
        byte_rate: The same by the second.
        batch_size_avg: Average bytes of a batch as sent.
        batch_size_max: Greatest.
        batch_split_total: Batches that a broker found too large and that were sent in two.
        compression_rate_avg: Average of compressed by uncompressed size; 0 without compression.
        record_queue_time_avg: Average milliseconds from a batch's first record to its sending.
        record_queue_time_max: Greatest.
        records_per_request_avg: Average records of a Produce request.
        request_latency_avg: Average milliseconds from a Produce request to its answer.
        request_latency_max: Greatest.
        produce_request_total: Produce requests answered (no Kafka name).
        requests_in_flight: Produce requests without an answer at present.
        produce_throttle_time_avg: Average throttle time that brokers asked for.
        produce_throttle_time_max: Greatest.
        buffer_total_bytes: ``buffer_memory``.
        buffer_available_bytes: How much of it is free; below zero for a moment at most.
        buffer_exhausted_total: Times that sending waited for memory, or was refused for it.
        waiting_records: Records without an outcome (no Kafka name).
        txn_commit_total: Transactions committed (no Kafka name).
        txn_abort_total: Transactions aborted (no Kafka name).
        topics: Figures of single topics, of the first thousand that were sent to.
    """

    record_send_total: int
    record_send_rate: float
    record_retry_total: int
    record_retry_rate: float
    record_error_total: int
    record_error_rate: float
    byte_total: int
    byte_rate: float
    batch_size_avg: float
    batch_size_max: float
    batch_split_total: int
    compression_rate_avg: float
    record_queue_time_avg: float
    record_queue_time_max: float
    records_per_request_avg: float
    request_latency_avg: float
    request_latency_max: float
    produce_request_total: int
    requests_in_flight: int
    produce_throttle_time_avg: float
    produce_throttle_time_max: float
    buffer_total_bytes: int
    buffer_available_bytes: int
    buffer_exhausted_total: int
    waiting_records: int
    txn_commit_total: int
    txn_abort_total: int
    topics: Mapping[str, ProducerTopicMetrics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMetrics(ClientMetrics):
    """What a consumer has done, as ``consumer.metrics()`` gives it.

    Attributes:
        records_consumed_total: Records decoded for the application.
        records_consumed_rate: The same by the second.
        records_per_poll_avg: Average records of a poll that had any (no Kafka name).
        bytes_consumed_total: Bytes of batches fetched.
        bytes_consumed_rate: The same by the second.
        fetch_total: Fetches answered.
        fetch_rate: Fetches answered by the second.
        fetch_error_total: Fetches that got no answer (no Kafka name).
        fetch_latency_avg: Average milliseconds from a Fetch to its answer; the broker's wait for
            data is in it.
        fetch_latency_max: Greatest.
        fetch_size_avg: Average bytes of an answer's batches.
        fetch_size_max: Greatest.
        fetch_throttle_time_avg: Average throttle time that brokers asked for.
        fetch_throttle_time_max: Greatest.
        buffered_bytes: Bytes fetched and not decoded yet (no Kafka name).
        records_lag: Offsets between position and end, by partition, as of the last fetch;
            transaction markers count.
        records_lag_max: Greatest of them.
        records_lead: Offsets between the first that exists and the position, by partition: at 0
            the next records to be deleted are those not read yet.
        records_lead_min: Least of them, -1 if none is known.
        last_stable_offset_lag: Offsets between the last stable offset and the high watermark, by
            partition, as of the last fetch: what read_committed cannot show yet, because the
            transaction at the last stable offset is open (a broker's metric has this name).
        last_stable_offset_lag_max: Greatest of them.
        preferred_read_replica: Node that a partition is read from instead of its leader (KIP-392).
        topics: Figures of single topics, of the first thousand that were read.
        assigned_partitions: Partitions that belong to this consumer.
        commit_total: Commits that succeeded.
        commit_rate: The same by the second.
        commit_latency_avg: Average milliseconds of a commit.
        commit_latency_max: Greatest.
        commit_error_total: Commits that failed (no Kafka name).
        rebalance_total: Assignments received from the group.
        partitions_revoked_total: Partitions given up in order (no Kafka name).
        partitions_lost_total: Partitions lost without warning (no Kafka name).
        last_rebalance_ms_ago: Milliseconds since the last assignment, -1 if there was none (Kafka:
            ``last-rebalance-seconds-ago``).
    """

    records_consumed_total: int
    records_consumed_rate: float
    records_per_poll_avg: float
    bytes_consumed_total: int
    bytes_consumed_rate: float
    fetch_total: int
    fetch_rate: float
    fetch_error_total: int
    fetch_latency_avg: float
    fetch_latency_max: float
    fetch_size_avg: float
    fetch_size_max: float
    fetch_throttle_time_avg: float
    fetch_throttle_time_max: float
    buffered_bytes: int
    records_lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    records_lag_max: int = 0
    records_lead: Mapping[TopicPartition, int] = field(default_factory=dict)
    records_lead_min: int = -1
    last_stable_offset_lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    last_stable_offset_lag_max: int = 0
    preferred_read_replica: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Mapping[str, ConsumerTopicMetrics] = field(default_factory=dict)
    assigned_partitions: int = 0
    commit_total: int = 0
    commit_rate: float = 0.0
    commit_latency_avg: float = 0.0
    commit_latency_max: float = 0.0
    commit_error_total: int = 0
    rebalance_total: int = 0
    partitions_revoked_total: int = 0
    partitions_lost_total: int = 0
    last_rebalance_ms_ago: int = -1
