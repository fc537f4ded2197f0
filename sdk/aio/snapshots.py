"""Reads the metrics of a client at one moment; may be called from any thread."""

from __future__ import annotations

from onceflow.sdk.aio.consume.engine import ConsumerEngine
from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.core.produce.batch import DeliveryHandle
from onceflow.sdk.observe.meters import TopicRead, TopicSent
from onceflow.sdk.observe.metrics import (
    ConsumerMetrics,
    ConsumerTopicMetrics,
    ProducerMetrics,
    ProducerTopicMetrics,
)


def producer_metrics(engine: ProducerEngine[DeliveryHandle]) -> ProducerMetrics:
    """Return the metrics of a producer."""
    counters, accumulator = engine.sender.counters, engine.accumulator
    now_ms = engine.pool.clock_ms()
    return ProducerMetrics(
        client_id=engine.config.client_id,
        connections=engine.pool.connection_metrics(),
        interceptor_error_total=counters.interceptor_errors,
        record_send_total=int(counters.records.total),
        record_send_rate=counters.records.rate(now_ms),
        record_retry_total=int(counters.retries.total),
        record_retry_rate=counters.retries.rate(now_ms),
        record_error_total=int(counters.errors.total),
        record_error_rate=counters.errors.rate(now_ms),
        byte_total=int(counters.batch_bytes.total),
        byte_rate=counters.batch_bytes.rate(now_ms),
        batch_size_avg=counters.batch_bytes.average(now_ms),
        batch_size_max=counters.batch_bytes.greatest(now_ms),
        batch_split_total=counters.splits,
        compression_rate_avg=counters.compression.average(now_ms),
        record_queue_time_avg=counters.queue_ms.average(now_ms),
        record_queue_time_max=counters.queue_ms.greatest(now_ms),
        records_per_request_avg=counters.request_records.average(now_ms),
        request_latency_avg=counters.latency_ms.average(now_ms),
        request_latency_max=counters.latency_ms.greatest(now_ms),
        produce_request_total=counters.latency_ms.count,
        requests_in_flight=sum(list(engine.sender.in_flight_count.values())),
        produce_throttle_time_avg=counters.throttle_ms.average(now_ms),
        produce_throttle_time_max=counters.throttle_ms.greatest(now_ms),
        buffer_total_bytes=accumulator.buffer_memory,
        buffer_available_bytes=accumulator.buffer_memory - accumulator.memory_used,
        buffer_exhausted_total=counters.buffer_waits,
        waiting_records=sum(b.count for b in list(accumulator.incomplete) if not b.done),
        txn_commit_total=counters.transactions_committed,
        txn_abort_total=counters.transactions_aborted,
        topics={
            topic: _sent_to(counted, now_ms)
            for topic, counted in counters.topics.found.copy().items()
        },
    )


def _sent_to(counted: TopicSent, now_ms: int) -> ProducerTopicMetrics:
    return ProducerTopicMetrics(
        record_send_total=int(counted.records.total),
        record_send_rate=counted.records.rate(now_ms),
        record_retry_total=int(counted.retries.total),
        record_retry_rate=counted.retries.rate(now_ms),
        record_error_total=int(counted.errors.total),
        record_error_rate=counted.errors.rate(now_ms),
        byte_total=int(counted.batch_bytes.total),
        byte_rate=counted.batch_bytes.rate(now_ms),
        compression_rate=counted.compression.average(now_ms),
    )


def _read_of(counted: TopicRead, now_ms: int) -> ConsumerTopicMetrics:
    return ConsumerTopicMetrics(
        records_consumed_total=int(counted.records.total),
        records_consumed_rate=counted.records.rate(now_ms),
        bytes_consumed_total=int(counted.fetch_bytes.total),
        bytes_consumed_rate=counted.fetch_bytes.rate(now_ms),
        fetch_size_avg=counted.fetch_bytes.average(now_ms),
        fetch_size_max=counted.fetch_bytes.greatest(now_ms),
    )


def consumer_metrics(engine: ConsumerEngine) -> ConsumerMetrics:
    """Return the metrics of a consumer."""
    counters, isolation = engine.counters, engine.config.isolation
    now_ms = engine.pool.clock_ms()
    states = list(engine.subscription)
    lags = {state.topic_partition: state.lag(isolation) for state in states}
    known = {partition: lag for partition, lag in lags.items() if lag is not None}
    leads = {state.topic_partition: state.lead for state in states}
    lead = {partition: offsets for partition, offsets in leads.items() if offsets is not None}
    hidden = {
        state.topic_partition: offsets
        for state in states
        if (offsets := state.last_stable_offset_lag) is not None
    }
    rebalanced_ms = counters.rebalanced_ms
    return ConsumerMetrics(
        client_id=engine.config.client_id,
        connections=engine.pool.connection_metrics(),
        interceptor_error_total=counters.interceptor_errors,
        records_consumed_total=int(counters.records.total),
        records_consumed_rate=counters.records.rate(now_ms),
        records_per_poll_avg=counters.records.average(now_ms),
        bytes_consumed_total=int(counters.fetch_bytes.total),
        bytes_consumed_rate=counters.fetch_bytes.rate(now_ms),
        fetch_total=counters.fetch_bytes.count,
        fetch_rate=counters.fetch_bytes.event_rate(now_ms),
        fetch_error_total=counters.fetch_errors,
        fetch_latency_avg=counters.latency_ms.average(now_ms),
        fetch_latency_max=counters.latency_ms.greatest(now_ms),
        fetch_size_avg=counters.fetch_bytes.average(now_ms),
        fetch_size_max=counters.fetch_bytes.greatest(now_ms),
        fetch_throttle_time_avg=counters.throttle_ms.average(now_ms),
        fetch_throttle_time_max=counters.throttle_ms.greatest(now_ms),
        buffered_bytes=engine.fetching.fetcher.buffered_bytes,
        records_lag=known,
        records_lag_max=max(known.values(), default=0),
        records_lead=lead,
        records_lead_min=min(lead.values(), default=-1),
        last_stable_offset_lag=hidden,
        last_stable_offset_lag_max=max(hidden.values(), default=0),
        preferred_read_replica={
            state.topic_partition: state.preferred_replica
            for state in states
            if state.preferred_replica is not None
        },
        topics={
            topic: _read_of(counted, now_ms)
            for topic, counted in counters.topics.found.copy().items()
        },
        assigned_partitions=len(states),
        commit_total=counters.commit_ms.count,
        commit_rate=counters.commit_ms.event_rate(now_ms),
        commit_latency_avg=counters.commit_ms.average(now_ms),
        commit_latency_max=counters.commit_ms.greatest(now_ms),
        commit_error_total=counters.commit_errors,
        rebalance_total=counters.rebalances,
        partitions_revoked_total=counters.partitions_revoked,
        partitions_lost_total=counters.partitions_lost,
        last_rebalance_ms_ago=now_ms - rebalanced_ms if rebalanced_ms else -1,
    )
