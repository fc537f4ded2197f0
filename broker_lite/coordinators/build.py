"""Makes the two coordinators of a broker from its settings, topics and timers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from onceflow.broker_lite.coordinators.classic.coordinator import GroupCoordinator
from onceflow.broker_lite.coordinators.internal_topic import FileBlockStore, InternalTopicLog
from onceflow.broker_lite.coordinators.settings import GroupSettings, TransactionSettings
from onceflow.broker_lite.coordinators.transactions.coordinator import TransactionCoordinator
from onceflow.broker_lite.coordinators.transactions.markers import TransactionMarkers
from onceflow.broker_lite.coordinators.transactions.producer_ids import ProducerIds
from onceflow.broker_lite.log import DataFolderError
from onceflow.broker_lite.topics import OFFSETS_TOPIC, PRODUCER_ID_BLOCK_FILE, TRANSACTION_TOPIC
from onceflow.sdk.model.special_values import TRANSACTION_VERSION

if TYPE_CHECKING:
    from random import Random

    from onceflow.broker_lite.features import Features
    from onceflow.broker_lite.log import LogManager
    from onceflow.broker_lite.purgatory import Timers
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.dynamic_config import DynamicConfig
    from onceflow.broker_lite.topics import Topic, TopicRegistry

_MINUTE_MS = 60_000

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators")


class Parts(Protocol):
    """The parts of a broker that its coordinators need."""

    @property
    def config(self) -> BrokerConfig:
        """Settings in force."""
        ...

    @property
    def dynamic_config(self) -> DynamicConfig:
        """Settings that can change at run time."""
        ...

    @property
    def features(self) -> Features:
        """Levels of the cluster's features."""
        ...

    @property
    def topics(self) -> TopicRegistry:
        """Topics by name and by id."""
        ...

    @property
    def log_manager(self) -> LogManager:
        """The logs on storage."""
        ...

    @property
    def timers(self) -> Timers:
        """Timers of the broker."""
        ...

    @property
    def random(self) -> Random:
        """Source of member ids."""
        ...


class LoadedParts(Parts, Protocol):
    """The parts of a broker, with its coordinators."""

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator."""
        ...

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator."""
        ...


def group_settings(config: BrokerConfig) -> GroupSettings:
    """Return the settings of the group coordinator, from the broker's."""
    return GroupSettings(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        log_partitions=config.offsets_topic_num_partitions,
        serves_consumer_protocol="consumer" in config.group_coordinator_rebalance_protocols,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignors=config.group_consumer_assignors,
        consumer_migration_policy=config.group_consumer_migration_policy.lower(),
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """Return the settings of the transaction coordinator, from the broker's."""
    return TransactionSettings(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        abort_timed_out_interval_ms=(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ),
        remove_expired_interval_ms=(
            config.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        log_partitions=config.transaction_state_log_num_partitions,
        transaction_version=config.onceflow_transaction_version,
        end_txn_early_answer=config.onceflow_end_txn_early_answer,
        end_txn_marker_delay_ms=config.onceflow_end_txn_marker_delay_ms,
    )


def _producer_ids(state: Parts) -> ProducerIds:
    store = FileBlockStore(state.log_manager, PRODUCER_ID_BLOCK_FILE)
    try:
        producer_ids = ProducerIds(store)
    except ValueError as error:
        raise DataFolderError(str(error)) from None
    if store.read() is None:
        # The folder is new or of Apache Kafka, or the file is lost. A producer id that some log
        # already knows must not be given out: its new owner's batches would pass for repeated ones.
        for log in state.log_manager.partitions():
            for producer in log.producers():
                producer_ids.note_used(producer.producer_id)
    return producer_ids


def load(state: LoadedParts, now_ms: int) -> None:
    """Load the state of new coordinators from the logs.

    Args:
        state: The broker, with its coordinators.
        now_ms: Wall milliseconds of the start.
    """
    groups, transactions = state.groups, state.transactions
    groups.load(now_ms)
    transactions.read(now_ms)
    if not state.log_manager.clean_start:
        from onceflow.broker_lite.coordinators import after_crash

        after_crash.mend(state, now_ms)
    transactions.resume(now_ms, on_settled=state.log_manager.settle_start)
    groups.start(now_ms)
    transactions.start(now_ms)

    def apply_feature(name: str, level: int) -> None:
        if name == TRANSACTION_VERSION:
            transactions.set_transaction_version(level)

    apply_feature(TRANSACTION_VERSION, state.features.level(TRANSACTION_VERSION))
    state.features.on_change.append(apply_feature)
    topics = state.topics
    groups.admin.forget_missing_topics(lambda name: topics.get(name) is not None, now_ms)


def build_coordinators(state: Parts) -> tuple[GroupCoordinator, TransactionCoordinator]:
    """Make both coordinators of a broker; load them in this order, groups first.

    Args:
        state: The broker.

    Raises:
        DataFolderError: The file with the last producer id cannot be read.
    """
    for_groups, for_transactions = group_settings(state.config), transaction_settings(state.config)
    topics, flush = state.topics, state.log_manager.shared_flush
    groups = GroupCoordinator(
        for_groups,
        InternalTopicLog(topics, OFFSETS_TOPIC, for_groups.log_partitions),
        state.timers,
        state.random,
        topics,
        state.dynamic_config.group_value,
    )
    transactions = TransactionCoordinator(
        for_transactions,
        InternalTopicLog(topics, TRANSACTION_TOPIC, for_transactions.log_partitions),
        TransactionMarkers(topics.partition, groups),
        _producer_ids(state),
        state.timers,
        None if flush is None else flush.when_safe,
    )

    def on_deleted(topic: Topic, now_ms: int) -> None:
        groups.admin.on_topics_deleted([topic.name], now_ms)

    topics.on_deleted.append(on_deleted)
    return groups, transactions
