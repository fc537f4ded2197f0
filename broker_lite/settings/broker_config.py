"""Settings of the broker under Kafka's property names, with Kafka's types, bounds and defaults.

Each field of :class:`BrokerConfig` is the property with underscores for dots. A property that is
not listed here has no effect in this broker and is refused by name, so that no user relies on it.
``topic_config`` has the settings of single topics.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, cast

from onceflow.broker_lite.log.log_config import PARTITIONS_MAX, LogConfig
from onceflow.broker_lite.profiles import PROFILES
from onceflow.broker_lite.settings.group_properties import GroupProperties
from onceflow.broker_lite.settings.security_settings import SecuritySettings, Value
from onceflow.broker_lite.settings.transaction_properties import TransactionProperties
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import (
    INT64_MAX,
    Kind,
    Setting,
    instance,
    long,
    plain,
    switch,
    text,
    whole,
)
from onceflow.sdk.settings.names import unknown_setting

LISTENER_PREFIX = "listener.name."
"""Prefix of a listener's name and a property that holds only for this listener (KIP-103)."""

CLUSTER_ID_MAX = 64
_CLUSTER_ID = re.compile(rf"[A-Za-z0-9_.\-]{{0,{CLUSTER_ID_MAX}}}", re.ASCII)


def topic_default(name: str) -> Any:
    """Declare the property that sets the default of a topic's setting, as that one is declared."""
    found = next(one for one in LogConfig.declared.values() if name in one.aliases)
    return dataclasses.replace(found, name=name, aliases=(), kafka=None)


class BrokerConfig(
    SecuritySettings, GroupProperties, TransactionProperties, dotted=True, kind="broker"
):
    """All settings of one broker; see each field's declaration for property, bounds and meaning.

    Attributes:
        given: Properties that were set by :meth:`from_properties`, also to their defaults.
    """

    given: frozenset[str] = instance(frozenset(), "Properties that somebody set.", frozenset)

    # --- the node and its network
    node_id: int = whole(1, "Id of this broker in every answer.")
    onceflow_cluster_id: str = text(
        "",
        "Id of the cluster, kept in the data folder; a folder of another cluster is refused. Empty "
        "takes that of the folder, or a random one. The variable CLUSTER_ID of Kafka's images.",
    )
    socket_request_max_bytes: int = whole(104_857_600, "Largest request in bytes.", 1)

    # --- topics
    auto_create_topics_enable: bool = switch(True, "Create a topic that is asked for by name.")
    delete_topic_enable: bool = switch(True, "Allow DeleteTopics.")
    num_partitions: int = whole(1, "Partitions of a topic that names none.", 1, PARTITIONS_MAX)
    default_replication_factor: int = whole(
        1, "Accepted for compatibility; one node can only keep 1 replica.", 1, 1
    )

    # --- defaults of topic settings
    compression_type: str = topic_default("compression.type")
    compression_gzip_level: int = topic_default("compression.gzip.level")
    compression_lz4_level: int = topic_default("compression.lz4.level")
    compression_zstd_level: int = topic_default("compression.zstd.level")
    log_cleanup_policy: tuple[str, ...] = topic_default("log.cleanup.policy")
    log_cleaner_backoff_ms: int = long(15_000, "Time between two looks for logs to compact.", 1)
    log_cleaner_delete_retention_ms: int = topic_default("log.cleaner.delete.retention.ms")
    log_cleaner_max_compaction_lag_ms: int = topic_default("log.cleaner.max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = topic_default("log.cleaner.min.cleanable.ratio")
    log_cleaner_min_compaction_lag_ms: int = topic_default("log.cleaner.min.compaction.lag.ms")
    log_flush_interval_messages: int = topic_default("log.flush.interval.messages")
    log_flush_interval_ms: int | None = long(
        None, "Milliseconds after which a log is flushed; unset for never.", -1
    )
    log_index_interval_bytes: int = topic_default("log.index.interval.bytes")
    log_index_size_max_bytes: int = topic_default("log.index.size.max.bytes")
    log_message_timestamp_type: str = topic_default("log.message.timestamp.type")
    log_message_timestamp_before_max_ms: int = topic_default("log.message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: int = topic_default("log.message.timestamp.after.max.ms")
    log_retention_bytes: int = topic_default("log.retention.bytes")
    log_retention_hours: int = whole(168, "Age in hours from which segments go; -1 for never.", -1)
    log_retention_minutes: int | None = long(None, "The same in minutes; wins over hours.", -1)
    log_retention_ms: int | None = long(None, "The same in milliseconds; wins over minutes.", -1)
    log_roll_hours: int = whole(168, "Age in hours of a full segment.", 1)
    log_roll_ms: int | None = long(None, "The same in milliseconds; wins over hours.", -1)
    log_roll_jitter_ms: int | None = long(
        None, "The same as log.roll.jitter.hours in milliseconds; wins over it.", -1
    )
    log_roll_jitter_hours: int = whole(
        0, "Greatest random time taken off the age of a full segment."
    )
    log_segment_bytes: int = topic_default("log.segment.bytes")
    log_segment_delete_delay_ms: int = topic_default("log.segment.delete.delay.ms")
    max_decompressed_message_bytes: int = topic_default("max.decompressed.message.bytes")
    message_max_bytes: int = topic_default("message.max.bytes")
    min_insync_replicas: int = topic_default("min.insync.replicas")

    log_preallocate: bool = topic_default("log.preallocate")

    # --- upkeep of the logs
    onceflow_durability: str = topic_default("onceflow.durability")
    log_retention_check_interval_ms: int = long(
        300_000, "Time between two looks for old segments.", 1
    )
    log_flush_scheduler_interval_ms: int = long(
        INT64_MAX,
        "Time between two looks for logs whose flush.ms is over; they are also looked at when "
        "recovery points are written.",
        1,
    )
    log_flush_offset_checkpoint_interval_ms: int = whole(
        60_000, "Time between two writes of the recovery points.", 1
    )
    producer_id_expiration_ms: int = topic_default("producer.id.expiration.ms")

    # --- fetching
    fetch_max_bytes: int = whole(57_671_680, "Most bytes in one Fetch answer.", 1024)
    max_incremental_fetch_session_cache_slots: int = whole(1000, "Fetch sessions kept (KIP-227).")
    min_incremental_fetch_session_eviction_ms: int = long(
        120_000, "Idle time from which a fetch session may make room for another."
    )

    # --- quotas
    quota_window_num: int = whole(11, "Windows that rates of clients are measured over.", 1)
    quota_window_size_seconds: int = whole(1, "Length of one such window.", 1)
    controller_quota_window_num: int = whole(11, "Windows of the quota of changes to topics.", 1)
    controller_quota_window_size_seconds: int = whole(1, "Length of one such window.", 1)

    onceflow_profile: str = text(
        "",
        "Release of Kafka, as 2.8 or 4.0, whose requests, versions and features are served and no "
        "more; empty for all that this broker knows.",
        choices=("", *PROFILES),
    )

    def _check(self) -> None:
        SecuritySettings._check(self)
        GroupProperties._check(self)
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
        """Whether answered writes survive a power loss."""
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
        values: dict[str, object] = {}
        given: set[str] = set()
        overrides: dict[str, dict[str, str]] = {}
        for name, value in {**(defaults or {}), **properties}.items():
            listener, found, prop = name.removeprefix(LISTENER_PREFIX).partition(".")
            if found and name.startswith(LISTENER_PREFIX):
                overrides.setdefault(listener.upper(), {})[prop] = _as_text(value)
                continue
            if name not in BROKER_SETTINGS:
                raise unknown_setting(cls.kind, name, BROKER_SETTINGS)
            values[plain(name)] = BROKER_SETTINGS[name].read(_as_text(value))
            given.add(name)
        further = {"listener_overrides": overrides, "given": frozenset(given)}
        return cls.build({**values, **further})

    def value(self, name: str) -> Value:
        """Return the value of one property, by Kafka's name."""
        return cast("Value", getattr(self, plain(name)))


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


BROKER_SETTINGS: dict[str, Setting] = {
    each.name: each for each in BrokerConfig.declared.values() if each.kind is not Kind.CLASS
}
"""Declarations by Kafka property."""
