"""Settings of topics, with Kafka's names, types, bounds and defaults; logs read them here.

Which value is in force for a topic, and where it comes from, is decided in
``onceflow.broker_lite.settings.topic_config``.
"""

from __future__ import annotations

from onceflow.sdk.protocol.record_validation import RECORD_BYTES_MAX
from onceflow.sdk.settings.declare import (
    INT64_MAX,
    Settings,
    long,
    number,
    switch,
    text,
    whole,
    words,
)

LONG_MAX = INT64_MAX
PARTITIONS_MAX = 10_000
"""Most partitions of one topic, and most that one request may make."""
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
DURABILITIES = ("kafka", "group", "always")
CLEANUP_POLICIES = ("compact", "delete")
_DEFAULT_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}


class TopicConfig(Settings, dotted=True, kind="topic", checked=False):
    """Settings of one topic, read by their declarations.

    ``aliases`` names the broker's properties that set the default, the one that wins first.
    """

    cleanup_policy: tuple[str, ...] = words(
        ("delete",),
        "What happens to old segments: delete, compact, or both.",
        choices=CLEANUP_POLICIES,
        aliases=("log.cleanup.policy",),
    )
    compression_gzip_level: int = whole(
        -1,
        "Level of gzip where batches are recompressed; -1 for the library's own.",
        -1,
        9,
        aliases=("compression.gzip.level",),
    )
    compression_lz4_level: int = whole(
        9,
        "Level of lz4 where batches are recompressed; 9 is Kafka's name for the fast one.",
        1,
        17,
        aliases=("compression.lz4.level",),
    )
    compression_zstd_level: int = whole(
        3,
        "Level of zstd where batches are recompressed.",
        -131_072,
        22,
        aliases=("compression.zstd.level",),
    )
    compression_type: str = text(
        "producer",
        "Codec of stored batches; producer keeps the client's.",
        choices=COMPRESSION_TYPES,
        aliases=("compression.type",),
    )
    delete_retention_ms: int = long(
        86_400_000,
        "How long tombstones of a compacted topic are kept.",
        aliases=("log.cleaner.delete.retention.ms",),
    )
    file_delete_delay_ms: int = long(
        60_000,
        "Time from marking a file deleted to removing it.",
        aliases=("log.segment.delete.delay.ms",),
    )
    flush_messages: int = long(
        INT64_MAX,
        "Records after which the log is flushed to the disk.",
        1,
        aliases=("log.flush.interval.messages",),
    )
    flush_ms: int = long(
        INT64_MAX,
        "Milliseconds after which the log is flushed to the disk.",
        aliases=("log.flush.interval.ms",),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = words(
        (), "Accepted for compatibility; one node replicates nothing."
    )
    index_interval_bytes: int = whole(
        4096, "Bytes of log between two index entries.", aliases=("log.index.interval.bytes",)
    )
    leader_replication_throttled_replicas: tuple[str, ...] = words(
        (), "Accepted for compatibility; one node replicates nothing."
    )
    max_compaction_lag_ms: int = long(
        INT64_MAX,
        "Latest time until a record is compacted.",
        1,
        aliases=("log.cleaner.max.compaction.lag.ms",),
    )
    max_decompressed_message_bytes: int = whole(
        RECORD_BYTES_MAX,
        "Largest record of a compressed batch, unpacked.",
        1,
        RECORD_BYTES_MAX,
        aliases=("max.decompressed.message.bytes",),
    )
    max_message_bytes: int = whole(
        1_048_588, "Largest record batch, after compression.", aliases=("message.max.bytes",)
    )
    message_timestamp_after_max_ms: int = long(
        3_600_000,
        "How far ahead of the broker's clock a client's timestamp may be.",
        aliases=("log.message.timestamp.after.max.ms",),
    )
    message_timestamp_before_max_ms: int = long(
        INT64_MAX,
        "How far behind the broker's clock a client's timestamp may be.",
        aliases=("log.message.timestamp.before.max.ms",),
    )
    message_timestamp_type: str = text(
        "CreateTime",
        "Whose clock a record's timestamp shows.",
        choices=TIMESTAMP_TYPES,
        aliases=("log.message.timestamp.type",),
    )
    min_cleanable_dirty_ratio: float = number(
        0.5,
        "Share of dirty bytes from which the log is compacted.",
        0,
        1,
        aliases=("log.cleaner.min.cleanable.ratio",),
    )
    min_compaction_lag_ms: int = long(
        0, "How long a record stays uncompacted.", aliases=("log.cleaner.min.compaction.lag.ms",)
    )
    min_insync_replicas: int = whole(
        1,
        "In-sync replicas that acks=all needs; one node has 1.",
        1,
        aliases=("min.insync.replicas",),
    )
    preallocate: bool = switch(
        False,
        "Accepted for compatibility; files grow as they are written.",
        aliases=("log.preallocate",),
    )
    retention_bytes: int = long(
        -1,
        "Size of a partition from which old segments go; -1 for none.",
        -1,
        aliases=("log.retention.bytes",),
    )
    retention_ms: int = long(
        604_800_000,
        "Age from which segments go; -1 for never.",
        -1,
        aliases=(
            "log.retention.ms",
            "log.retention.minutes",
            "log.retention.hours",
        ),
    )
    segment_bytes: int = whole(
        1_073_741_824, "Size of a full segment.", 1_048_576, aliases=("log.segment.bytes",)
    )
    segment_index_bytes: int = whole(
        10_485_760, "Largest index file of a segment.", 4, aliases=("log.index.size.max.bytes",)
    )
    segment_jitter_ms: int = long(
        0,
        "Greatest random time taken off segment.ms.",
        aliases=(
            "log.roll.jitter.ms",
            "log.roll.jitter.hours",
        ),
    )
    segment_ms: int = long(
        604_800_000,
        "Age of a full segment.",
        1,
        aliases=(
            "log.roll.ms",
            "log.roll.hours",
        ),
    )
    unclean_leader_election_enable: bool = switch(
        False, "Accepted for compatibility; with one node there are no elections."
    )


class LogConfig(TopicConfig, dotted=True, kind="topic", checked=False):
    """Settings of a topic's logs: the topic's own, and the broker's for all topics."""

    producer_id_expiration_ms: int = whole(
        86_400_000,
        "How long an idle producer is remembered.",
        1,
        aliases=("producer.id.expiration.ms",),
    )
    durability: str = text(
        "kafka",
        "When an answer may say that something is stored: kafka once the system has it (its page "
        "cache; a power loss may cost it), group after a flush to the disk that all waiting "
        "requests share, always after a flush of its own.",
        choices=DURABILITIES,
        aliases=("onceflow.durability",),
    )

    @property
    def compression_level(self) -> int | None:
        """Level of the topic's own codec, None for the default one."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        level = levels.get(self.compression_type)
        return None if level == _DEFAULT_LEVELS.get(self.compression_type) else level

    @property
    def compacts(self) -> bool:
        """Whether only the newest record of each key is kept."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are removed by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock sets the timestamps."""
        return self.message_timestamp_type == "LogAppendTime"
