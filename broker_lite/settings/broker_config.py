"""Settings of the broker under Kafka's property names, with Kafka's types, bounds and defaults.

Each field of :class:`BrokerConfig` is the property with dots turned into underscores. A property
that is not listed here has no effect in this broker and is refused by name, so that nobody relies
on a setting that does nothing. Settings of single topics are in ``topic_config``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from onceflow.broker_lite.profiles import PROFILES
from onceflow.broker_lite.settings.group_properties import GroupProperties
from onceflow.broker_lite.settings.setting import (
    LONG_MAX,
    PARTITIONS_MAX,
    Kind,
    Setting,
    Value,
    declare,
    declare_int,
    declare_long,
    declare_optional_long,
    field_name,
    unknown_setting,
)
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.record_validation import RECORD_BYTES_MAX

LISTENER_PREFIX = "listener.name."
"""Before the name of a listener and a property that holds for this listener only (KIP-103)."""

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
DURABILITIES = ("kafka", "group", "always")
CLEANUP_POLICIES = ("compact", "delete")

CLUSTER_ID_MAX = 64
_CLUSTER_ID = re.compile(rf"[A-Za-z0-9_.\-]{{0,{CLUSTER_ID_MAX}}}", re.ASCII)


class BrokerConfig(GroupProperties):
    """All settings of one broker; see each field's declaration for property, bounds and meaning.

    Attributes:
        given: Properties that somebody set, also to their defaults; as far as they came by
            :meth:`from_properties`.
    """

    given: frozenset[str] = frozenset()

    # --- the node and its network
    node_id: int = declare_int("node.id", 1, "Id of this broker in every answer.")
    onceflow_cluster_id: str = declare(
        "onceflow.cluster.id",
        Kind.STRING,
        "",
        "Id of the cluster, kept in the data folder; a folder of another cluster is refused. Empty "
        "takes that of the folder, or a random one. The variable CLUSTER_ID of Kafka's images.",
    )
    socket_request_max_bytes: int = declare_int(
        "socket.request.max.bytes", 104_857_600, "Largest request in bytes.", 1
    )

    # --- topics
    auto_create_topics_enable: bool = declare(
        "auto.create.topics.enable", Kind.BOOLEAN, True, "Create a topic that is asked for by name."
    )
    delete_topic_enable: bool = declare(
        "delete.topic.enable", Kind.BOOLEAN, True, "Allow DeleteTopics."
    )
    num_partitions: int = declare(
        "num.partitions",
        Kind.INT,
        1,
        "Partitions of a topic that names none.",
        minimum=1,
        maximum=PARTITIONS_MAX,
    )
    default_replication_factor: int = declare(
        "default.replication.factor",
        Kind.INT,
        1,
        "Accepted for compatibility; one node can only keep 1 replica.",
        minimum=1,
        maximum=1,
    )

    # --- defaults of topic settings
    compression_type: str = declare(
        "compression.type",
        Kind.STRING,
        "producer",
        "Codec of stored batches; producer keeps the client's.",
        choices=COMPRESSION_TYPES,
    )
    compression_gzip_level: int = declare(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Level of gzip where batches are recompressed; -1 for the library's own.",
        minimum=-1,
        maximum=9,
    )
    compression_lz4_level: int = declare(
        "compression.lz4.level",
        Kind.INT,
        9,
        "Level of lz4 where batches are recompressed; 9 is Kafka's name for the fast one.",
        minimum=1,
        maximum=17,
    )
    compression_zstd_level: int = declare(
        "compression.zstd.level",
        Kind.INT,
        3,
        "Level of zstd where batches are recompressed.",
        minimum=-131_072,
        maximum=22,
    )
    log_cleanup_policy: str = declare(
        "log.cleanup.policy",
        Kind.LIST,
        "delete",
        "What happens to old segments.",
        choices=CLEANUP_POLICIES,
    )
    log_cleaner_backoff_ms: int = declare_long(
        "log.cleaner.backoff.ms", 15_000, "Time between two looks for logs to compact.", 1
    )
    log_cleaner_delete_retention_ms: int = declare_long(
        "log.cleaner.delete.retention.ms", 86_400_000, "How long tombstones are kept."
    )
    log_cleaner_max_compaction_lag_ms: int = declare_long(
        "log.cleaner.max.compaction.lag.ms", LONG_MAX, "Latest time until a record is compacted.", 1
    )
    log_cleaner_min_cleanable_ratio: float = declare(
        "log.cleaner.min.cleanable.ratio",
        Kind.DOUBLE,
        0.5,
        "Share of dirty bytes from which a log is compacted.",
        minimum=0,
        maximum=1,
    )
    log_cleaner_min_compaction_lag_ms: int = declare_long(
        "log.cleaner.min.compaction.lag.ms", 0, "How long a record stays uncompacted."
    )
    log_flush_interval_messages: int = declare_long(
        "log.flush.interval.messages", LONG_MAX, "Records after which a log is flushed.", 1
    )
    log_flush_interval_ms: int | None = declare_optional_long(
        "log.flush.interval.ms", "Milliseconds after which a log is flushed; unset for never."
    )
    log_index_interval_bytes: int = declare_int(
        "log.index.interval.bytes", 4096, "Bytes of log between two index entries."
    )
    log_index_size_max_bytes: int = declare_int(
        "log.index.size.max.bytes", 10_485_760, "Largest index file.", 4
    )
    log_message_timestamp_type: str = declare(
        "log.message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Whose clock a record's timestamp shows.",
        choices=TIMESTAMP_TYPES,
    )
    log_message_timestamp_before_max_ms: int = declare_long(
        "log.message.timestamp.before.max.ms", LONG_MAX, "How old a client's timestamp may be."
    )
    log_message_timestamp_after_max_ms: int = declare_long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "How far ahead a client's timestamp may be.",
    )
    log_retention_bytes: int = declare_long(
        "log.retention.bytes", -1, "Size of a partition from which old segments go; -1 for none.",
        -1,
    )  # fmt: skip
    log_retention_hours: int = declare_int(
        "log.retention.hours", 168, "Age in hours from which segments go; -1 for never.", -1
    )
    log_retention_minutes: int | None = declare_optional_long(
        "log.retention.minutes", "The same in minutes; wins over hours."
    )
    log_retention_ms: int | None = declare_optional_long(
        "log.retention.ms", "The same in milliseconds; wins over minutes."
    )
    log_roll_hours: int = declare_int("log.roll.hours", 168, "Age in hours of a full segment.", 1)
    log_roll_ms: int | None = declare_optional_long(
        "log.roll.ms", "The same in milliseconds; wins over hours."
    )
    log_roll_jitter_ms: int | None = declare_optional_long(
        "log.roll.jitter.ms", "The same as log.roll.jitter.hours in milliseconds; wins over it."
    )
    log_roll_jitter_hours: int = declare_int(
        "log.roll.jitter.hours", 0, "Greatest random time taken off the age of a full segment."
    )
    log_segment_bytes: int = declare_int(
        "log.segment.bytes", 1_073_741_824, "Size of a full segment.", 1_048_576
    )
    log_segment_delete_delay_ms: int = declare_long(
        "log.segment.delete.delay.ms", 60_000, "Time from marking a file deleted to removing it."
    )
    max_decompressed_message_bytes: int = declare(
        "max.decompressed.message.bytes",
        Kind.INT,
        RECORD_BYTES_MAX,
        "Largest record of a compressed batch, unpacked.",
        minimum=1,
        maximum=RECORD_BYTES_MAX,
    )
    message_max_bytes: int = declare_int(
        "message.max.bytes", 1_048_588, "Largest record batch, after compression."
    )
    min_insync_replicas: int = declare_int(
        "min.insync.replicas", 1, "In-sync replicas that acks=all needs; one node has 1.", 1
    )

    log_preallocate: bool = declare(
        "log.preallocate",
        Kind.BOOLEAN,
        False,
        "Accepted for compatibility; files grow as they are written.",
    )

    # --- upkeep of the logs
    onceflow_durability: str = declare(
        "onceflow.durability",
        Kind.STRING,
        "kafka",
        "When an answer may say that something is stored: kafka once the system has it (its page "
        "cache; a power loss may cost it), group after a flush to the disk that all requests share "
        "which wait, always after a flush of its own.",
        choices=DURABILITIES,
    )
    log_retention_check_interval_ms: int = declare_long(
        "log.retention.check.interval.ms", 300_000, "Time between two looks for old segments.", 1
    )
    log_flush_scheduler_interval_ms: int = declare_long(
        "log.flush.scheduler.interval.ms",
        LONG_MAX,
        "Time between two looks for logs whose flush.ms is over; they are also looked at when "
        "recovery points are written.",
        1,
    )
    log_flush_offset_checkpoint_interval_ms: int = declare_int(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "Time between two writes of the recovery points.",
        1,
    )
    producer_id_expiration_ms: int = declare_int(
        "producer.id.expiration.ms", 86_400_000, "How long an idle producer is remembered.", 1
    )

    # --- fetching
    fetch_max_bytes: int = declare_int(
        "fetch.max.bytes", 57_671_680, "Most bytes in one Fetch answer.", 1024
    )
    max_incremental_fetch_session_cache_slots: int = declare_int(
        "max.incremental.fetch.session.cache.slots", 1000, "Fetch sessions kept (KIP-227)."
    )
    min_incremental_fetch_session_eviction_ms: int = declare_long(
        "min.incremental.fetch.session.eviction.ms",
        120_000,
        "Idle time from which a fetch session may make room for another.",
    )

    # --- quotas
    quota_window_num: int = declare_int(
        "quota.window.num", 11, "Windows that rates of clients are measured over.", 1
    )
    quota_window_size_seconds: int = declare_int(
        "quota.window.size.seconds", 1, "Length of one such window.", 1
    )
    controller_quota_window_num: int = declare_int(
        "controller.quota.window.num", 11, "Windows of the quota of changes to topics.", 1
    )
    controller_quota_window_size_seconds: int = declare_int(
        "controller.quota.window.size.seconds", 1, "Length of one such window.", 1
    )

    # --- transactions
    transaction_max_timeout_ms: int = declare_int(
        "transaction.max.timeout.ms", 900_000, "Longest transaction a producer may ask for.", 1
    )
    transaction_state_log_num_partitions: int = declare(
        "transaction.state.log.num.partitions",
        Kind.INT,
        50,
        "Partitions of __transaction_state.",
        minimum=1,
        maximum=PARTITIONS_MAX,
    )
    transaction_state_log_segment_bytes: int = declare_int(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "Segment size of __transaction_state.",
        1_048_576,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = declare_int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "Time between two looks for timed-out transactions.",
        1,
    )
    transactional_id_expiration_ms: int = declare_int(
        "transactional.id.expiration.ms",
        604_800_000,
        "How long an idle transactional id is remembered.",
        1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = declare_int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "Time between two looks for expired transactional ids.",
        1,
    )
    transaction_partition_verification_enable: bool = declare(
        "transaction.partition.verification.enable",
        Kind.BOOLEAN,
        True,
        "Refuse transactional records for partitions outside the transaction (KIP-890).",
    )
    onceflow_end_txn_early_answer: bool = declare(
        "onceflow.end.txn.early.answer",
        Kind.BOOLEAN,
        False,
        "Answer EndTxn before the markers are written, as Apache Kafka does (trap 43).",
    )
    onceflow_end_txn_marker_delay_ms: int = declare_int(
        "onceflow.end.txn.marker.delay.ms",
        0,
        "How long markers lag behind an early answer to EndTxn; for tests of clients.",
    )
    onceflow_profile: str = declare(
        "onceflow.profile",
        Kind.STRING,
        "",
        "Release of Kafka, as 2.8 or 4.0, whose requests, versions and features are served and no "
        "more; empty for all that this broker knows.",
        choices=("", *PROFILES),
    )
    onceflow_transaction_version: int = declare(
        "onceflow.transaction.version",
        Kind.INT,
        2,
        "Level of the feature transaction.version: 0 classic, 2 an epoch per transaction.",
        minimum=0,
        maximum=2,
    )

    @classmethod
    def fields(cls) -> dict[str, object]:
        """See :meth:`Declared.fields`."""
        return {**super().fields(), "given": cls.given}

    def check(self) -> None:
        """See :meth:`Declared.check`."""
        super().check()
        self.check_overrides()
        self.check_groups()
        if not _CLUSTER_ID.fullmatch(self.onceflow_cluster_id):
            raise ConfigError(
                "onceflow.cluster.id",
                self.onceflow_cluster_id,
                f"use up to {CLUSTER_ID_MAX} letters, digits, '-', '_' and '.', as "
                "kafka-storage random-uuid prints them",
            )

    @property
    def retention_ms(self) -> int:
        """Default of ``retention.ms`` from the three properties that may set it."""
        if self.log_retention_ms is not None:
            return self.log_retention_ms
        if self.log_retention_minutes is not None:
            return -1 if self.log_retention_minutes < 0 else self.log_retention_minutes * 60_000
        return -1 if self.log_retention_hours < 0 else self.log_retention_hours * 3_600_000

    @property
    def durable(self) -> bool:
        """Whether an answer says that something would survive a power loss."""
        return self.onceflow_durability != "kafka"

    @property
    def roll_ms(self) -> int:
        """Default of ``segment.ms`` from the two properties that may set it."""
        return self.log_roll_hours * 3_600_000 if self.log_roll_ms is None else self.log_roll_ms

    @property
    def roll_jitter_ms(self) -> int:
        """Default of ``segment.jitter.ms`` from the two properties that may set it."""
        jitter_ms = self.log_roll_jitter_ms
        return self.log_roll_jitter_hours * 3_600_000 if jitter_ms is None else jitter_ms

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, object], defaults: Mapping[str, object] | None = None
    ) -> BrokerConfig:
        """Read settings under Kafka's names.

        Args:
            properties: Values by property name; text, or a bool or number.
            defaults: Values to use in place of the documented defaults.

        Raises:
            ConfigError: An unknown property (names the nearest one), or a bad value.
        """
        values: dict[str, Value] = {}
        given: set[str] = set()
        overrides: dict[str, dict[str, str]] = {}
        for name, value in {**(defaults or {}), **properties}.items():
            listener, found, prop = name.removeprefix(LISTENER_PREFIX).partition(".")
            if found and name.startswith(LISTENER_PREFIX):
                overrides.setdefault(listener.upper(), {})[prop] = _as_text(value)
                continue
            setting = BROKER_SETTINGS.get(name)
            if setting is None:
                raise unknown_setting(name, BROKER_SETTINGS)
            values[field_name(name)] = setting.parse(_as_text(value))
            given.add(name)
        return cls(
            listener_overrides=overrides,
            given=frozenset(given),
            **values,  # type: ignore[arg-type] # parsed above
        )

    def value(self, name: str) -> Value:
        """The value of one property, by Kafka's name."""
        return cast("Value", getattr(self, field_name(name)))


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


BROKER_SETTINGS_BY_FIELD: dict[str, Setting] = BrokerConfig.declared
"""Declarations by attribute name."""

BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting for setting in BROKER_SETTINGS_BY_FIELD.values()
}
"""Declarations by Kafka property."""

IN_PROCESS_DEFAULTS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}
"""What an in-process broker sets otherwise, for tests that should not wait."""
