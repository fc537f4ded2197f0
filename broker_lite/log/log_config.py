"""Settings of one topic's logs, with Kafka's names and defaults.

It holds values only. Names, types and bounds of what users may set are declared in
``onceflow.broker_lite.settings.topic_config``, which also builds these.
"""

from __future__ import annotations

from dataclasses import dataclass

from onceflow.sdk.protocol.record_validation import RECORD_BYTES_MAX

LONG_MAX = 2**63 - 1
_DEFAULT_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Topic settings that the log obeys; each is Kafka's property with underscores for dots.

    Attributes:
        cleanup_policy: ``delete``, ``compact`` or both, separated by a comma.
        compression_gzip_level: Level of gzip where batches are recompressed, -1 for its own.
        compression_lz4_level: Level of lz4; 9 is Kafka's name for the fast compressor.
        compression_zstd_level: Level of zstd.
        compression_type: Codec of stored batches; ``producer`` keeps the client's.
        delete_retention_ms: How long tombstones of a compacted topic are kept, milliseconds.
        file_delete_delay_ms: How long files that are out of use stay, under another name.
        flush_messages: Records after which the log is synced to the disk.
        flush_ms: Milliseconds after which the log is synced to the disk.
        index_interval_bytes: Bytes of log between two index entries.
        max_compaction_lag_ms: Latest time until a record is compacted, milliseconds.
        max_decompressed_message_bytes: Largest record of a compressed batch, unpacked.
        max_message_bytes: Largest batch, as stored.
        message_timestamp_after_max_ms: How far ahead of the clock a client's timestamp may be.
        message_timestamp_before_max_ms: How far behind the clock it may be.
        message_timestamp_type: ``CreateTime`` or ``LogAppendTime``.
        min_cleanable_dirty_ratio: Share of dirty bytes from which the log is compacted.
        min_compaction_lag_ms: How long a record stays uncompacted, milliseconds.
        min_insync_replicas: In-sync replicas that ``acks=all`` needs.
        retention_bytes: Size from which old segments go, -1 for none.
        retention_ms: Age from which segments go, -1 for never.
        segment_bytes: Size of a full segment.
        segment_index_bytes: Largest index file.
        segment_jitter_ms: Greatest time taken off ``segment_ms``; spread by partition.
        segment_ms: Age of a full segment, milliseconds.
        producer_id_expiration_ms: Idle time after which a producer's state is forgotten
            (broker property ``producer.id.expiration.ms``), milliseconds.
        durability: When what was appended must be on the disk: ``kafka`` leaves that to the page
            cache, ``group`` shares one flush among the requests that wait, ``always`` flushes each
            append (broker property ``onceflow.durability``).
    """

    cleanup_policy: str = "delete"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_decompressed_message_bytes: int = RECORD_BYTES_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    producer_id_expiration_ms: int = 86_400_000
    durability: str = "kafka"

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
        """Whether old segments go by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock sets the timestamps."""
        return self.message_timestamp_type == "LogAppendTime"
