"""Settings of the two coordinators, by Kafka's property names and with Kafka's defaults.

``build`` reads the values from a broker's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of the transaction coordinator.

    Attributes:
        max_timeout_ms: ``transaction.max.timeout.ms``, the longest timeout a producer may ask for.
        id_expiration_ms: ``transactional.id.expiration.ms``, after which an idle id is forgotten.
        abort_timed_out_interval_ms:
            ``transaction.abort.timed.out.transaction.cleanup.interval.ms``, the scan for open
            transactions past their timeout.
        remove_expired_interval_ms:
            ``transaction.remove.expired.transaction.cleanup.interval.ms``, the scan for idle ids.
        log_partitions: ``transaction.state.log.num.partitions``.
        transaction_version: Feature ``transaction.version``: 0 classic, 1 flexible log records,
            2 epoch bump per transaction (KIP-890).
        end_txn_early_answer: ``onceflow.end.txn.early.answer``. False: answer EndTxn after the
            markers are written. True: as in Kafka, answer when the decision is durable; then
            clients may get CONCURRENT_TRANSACTIONS until the markers are written (trap 43).
        end_txn_marker_delay_ms: ``onceflow.end.txn.marker.delay.ms``, the time of the markers after
            an early answer.
        marker_retry_ms: Pause before markers are tried again after a storage failure.
    """

    max_timeout_ms: int = 15 * 60 * 1000
    id_expiration_ms: int = 7 * _DAY_MS
    abort_timed_out_interval_ms: int = 10_000
    remove_expired_interval_ms: int = 60 * 60 * 1000
    log_partitions: int = 50
    transaction_version: int = 2
    end_txn_early_answer: bool = False
    end_txn_marker_delay_ms: int = 0
    marker_retry_ms: int = 100


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of the group coordinator.

    Attributes:
        min_session_timeout_ms: ``group.min.session.timeout.ms``.
        max_session_timeout_ms: ``group.max.session.timeout.ms``.
        initial_rebalance_delay_ms: ``group.initial.rebalance.delay.ms``, how long the first
            rebalance of an empty group waits for more members (trap 56).
        max_size: ``group.max.size``, members per group.
        new_member_join_timeout_ms: How long a member that never completed a join may be parked.
        offset_metadata_max_bytes: ``offset.metadata.max.bytes``.
        offsets_retention_ms: ``offsets.retention.minutes`` in milliseconds.
        offsets_retention_check_interval_ms: ``offsets.retention.check.interval.ms``.
        log_partitions: ``offsets.topic.num.partitions``.
        serves_consumer_protocol: ``consumer`` is in ``group.coordinator.rebalance.protocols``.
        consumer_session_timeout_ms: ``group.consumer.session.timeout.ms``.
        consumer_heartbeat_interval_ms: ``group.consumer.heartbeat.interval.ms``.
        consumer_assignment_interval_ms: ``group.consumer.assignment.interval.ms``, the shortest
            time between two assignments of a group's partitions (KIP-1263).
        consumer_max_size: ``group.consumer.max.size``.
        consumer_assignors: ``group.consumer.assignors``; the first is the default.
        consumer_migration_policy: ``group.consumer.migration.policy``: disabled, upgrade,
            downgrade or bidirectional.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * 60 * 1000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 5 * 60 * 1000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * _DAY_MS
    offsets_retention_check_interval_ms: int = 10 * 60 * 1000
    log_partitions: int = 50
    serves_consumer_protocol: bool = True
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
