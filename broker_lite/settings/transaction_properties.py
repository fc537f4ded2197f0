"""Settings of transactions, under Kafka's property names.

They are settings of ``BrokerConfig``; ``coordinators.transactions`` uses them.
"""

from __future__ import annotations

from onceflow.broker_lite.log.log_config import PARTITIONS_MAX
from onceflow.sdk.settings.declare import Settings, switch, whole


class TransactionProperties(Settings, dotted=True, kind="broker"):
    """See each setting's declaration for property, bounds and meaning."""

    transaction_max_timeout_ms: int = whole(
        900_000, "Longest transaction a producer may ask for.", 1
    )
    transaction_state_log_num_partitions: int = whole(
        50, "Partitions of __transaction_state.", 1, PARTITIONS_MAX
    )
    transaction_state_log_segment_bytes: int = whole(
        104_857_600, "Segment size of __transaction_state.", 1_048_576
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = whole(
        10_000, "Time between two looks for timed-out transactions.", 1
    )
    transactional_id_expiration_ms: int = whole(
        604_800_000, "How long an idle transactional id is remembered.", 1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = whole(
        3_600_000, "Time between two looks for expired transactional ids.", 1
    )
    transaction_partition_verification_enable: bool = switch(
        True, "Refuse transactional records for partitions outside the transaction (KIP-890)."
    )
    onceflow_end_txn_early_answer: bool = switch(
        False, "Answer EndTxn before the markers are written, as Apache Kafka does (trap 43)."
    )
    onceflow_end_txn_marker_delay_ms: int = whole(
        0, "How long markers lag behind an early answer to EndTxn; for tests of clients."
    )
    onceflow_transaction_version: int = whole(
        2, "Level of the feature transaction.version: 0 classic, 2 an epoch per transaction.", 0, 2
    )
