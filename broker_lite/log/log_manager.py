"""All logs of a broker: what a data folder holds, how it is opened, kept up and closed.

It decides whether the last stop was clean, writes Kafka's checkpoint files in the root, and makes
and removes partitions. One log's content is the partition log's business; topic settings arrive
as text and are turned into a :class:`LogConfig` by a function that the broker gives.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import DataFolderError, LogError
from onceflow.broker_lite.log.partition_log import PartitionLog
from onceflow.broker_lite.log.storage import Storage
from onceflow.sdk.model import TopicPartition

DELETED_SUFFIX = "-delete"
FILE_NAME_MAX = 255

_logger = logging.getLogger("onceflow.broker_lite.log")


def _default_config(overrides: Mapping[str, str]) -> LogConfig:
    return LogConfig()


class LogManager:
    """Every partition log under one storage.

    Opening it takes the folder's lock, reads or writes ``meta.properties``, and opens each
    partition: as it is after a clean stop, else checked from its recovery point on.

    Args:
        storage: The data folder.
        now_ms: The broker's clock.
        new_uuid: Source of random ids (cluster, directory, names of deleted folders).
        node_id: This node; must be what the folder says, if it says so.
        cluster_id: Cluster that the folder must belong to; None takes the folder's, or a new one.
        config_for: Turns a topic's settings, as text, into those of its logs.

    Attributes:
        cluster_id: Cluster that the folder belongs to.
        node_id: This node.
        clean_start: Whether the last stop was in order.

    Raises:
        StorageLockedError: Another broker uses the folder.
        DataFolderError: The folder belongs to another cluster or node.
    """

    def __init__(
        self,
        storage: Storage,
        now_ms: int,
        *,
        new_uuid: Callable[[], uuid.UUID],
        node_id: int = 1,
        cluster_id: str | None = None,
        config_for: Callable[[Mapping[str, str]], LogConfig] = _default_config,
    ) -> None:
        self._storage = storage
        self._new_uuid = new_uuid
        self._config_for = config_for
        self._topics: dict[str, tuple[uuid.UUID, dict[int, PartitionLog]]] = {}
        self._compaction: tuple[PartitionLog, Iterator[None]] | None = None
        self.node_id = node_id
        storage.lock()
        try:
            self.cluster_id = self._settle_meta(cluster_id)
            self._overrides = self._read_overrides()
            self.clean_start = storage.read_bytes(checkpoints.CLEAN_SHUTDOWN_FILE) is not None
            storage.remove(checkpoints.CLEAN_SHUTDOWN_FILE)
            self._load(now_ms)
        except BaseException:
            storage.close()
            raise

    # Topics

    def topics(self) -> dict[str, tuple[uuid.UUID, int]]:
        """Topic id and number of partitions by topic name."""
        return {
            topic: (topic_id, max(logs) + 1) for topic, (topic_id, logs) in self._topics.items()
        }

    def partition(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition, or None if there is none."""
        found = self._topics.get(topic)
        return None if found is None else found[1].get(partition)

    def partitions(self) -> list[PartitionLog]:
        """Every log."""
        return [log for _, logs in self._topics.values() for log in logs.values()]

    def create_partition(
        self,
        topic: str,
        topic_id: uuid.UUID,
        partition: int,
        config: LogConfig,
        *,
        now_ms: int = 0,
    ) -> PartitionLog:
        """Make an empty log.

        Args:
            topic: Topic name.
            topic_id: Id of the topic; the same for all its partitions.
            partition: Number of the partition.
            config: The topic's settings.
            now_ms: The broker's clock.

        Raises:
            ValueError: The partition exists, or the topic has another id.
            OSError: The folder cannot be written.
        """
        known_id, logs = self._topics.get(topic, (topic_id, {}))
        if known_id != topic_id:
            raise ValueError(f"topic {topic} has id {known_id}, not {topic_id}")
        if partition in logs:
            raise ValueError(f"partition {topic}-{partition} exists")
        log = PartitionLog(self._storage, TopicPartition(topic, partition), config, now_ms=now_ms)
        self._storage.replace(
            f"{topic}-{partition}/{checkpoints.PARTITION_METADATA_FILE}",
            checkpoints.render_partition_metadata(topic_id),
        )
        log.when_start_moved(self._write_log_starts)
        logs[partition] = log
        self._topics[topic] = (topic_id, logs)
        return log

    def delete_topic(self, topic: str, now_ms: int = 0) -> None:
        """Remove a topic: its folders are renamed first, so that a crash cannot revive it.

        Args:
            topic: Topic name; an unknown one is ignored.
            now_ms: The broker's clock.
        """
        _, logs = self._topics.pop(topic, (None, {}))
        renamed = []
        for log in logs.values():
            if self._compaction is not None and self._compaction[0] is log:
                self._compaction = None
            log.close(clean=False)
            directory = str(log.topic_partition)
            ending = f".{self._new_uuid().hex}{DELETED_SUFFIX}"
            target = directory[: FILE_NAME_MAX - len(ending)] + ending
            self._storage.rename_directory(directory, target)
            renamed.append(target)
        if self._overrides.pop(topic, None) is not None:
            self._write_overrides()
        if logs:
            self._write_offsets(checkpoints.RECOVERY_POINT_FILE, lambda log: log.recovery_point)
            self._write_log_starts()
        for target in renamed:
            self._remove_directory(target)

    def topic_overrides(self, topic: str) -> dict[str, str]:
        """Settings of a topic that differ from the defaults, as text."""
        return dict(self._overrides.get(topic, {}))

    def set_topic_overrides(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Keep the settings of a topic, and apply them to its logs.

        Args:
            topic: Topic name.
            overrides: All settings that differ from the defaults, as text.
        """
        if overrides:
            self._overrides[topic] = dict(overrides)
        else:
            self._overrides.pop(topic, None)
        self._write_overrides()
        _, logs = self._topics.get(topic, (None, {}))
        for log in logs.values():
            log.config = self._config_for(overrides)

    # Small files of other parts of the broker

    def read_small_file(self, name: str) -> bytes | None:
        """A file in the root that another part of the broker keeps, or None."""
        return self._storage.read_bytes(name)

    def write_small_file(self, name: str, data: bytes) -> None:
        """Replace a file in the root; it survives a power loss when this returns."""
        self._storage.replace(name, data, durable=True)

    # Upkeep

    def checkpoint(self, now_ms: int) -> None:
        """Write recovery points, log starts and high watermarks; flush what is due by time.

        Kafka's files, its intervals are 60 s (recovery points, log starts) and 5 s (high
        watermarks).
        """
        self.flush_due(now_ms)
        self._write_offsets(checkpoints.RECOVERY_POINT_FILE, lambda log: log.recovery_point)
        self._write_log_starts()
        self._write_offsets(checkpoints.HIGH_WATERMARK_FILE, lambda log: log.high_watermark)

    def next_flush_ms(self) -> int | None:
        """When :meth:`flush_due` has work by the topics' ``flush.ms``, or None."""
        deadlines = [log.flush_deadline_ms for log in self.partitions()]
        return min((at for at in deadlines if at is not None), default=None)

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose ``flush.ms`` went by."""
        for log in self.partitions():
            try:
                log.flush_if_due(now_ms)
            except LogError as error:
                _logger.error("flush of %s: %s", log.topic_partition, error)

    def apply_retention(self, now_ms: int) -> int:
        """Remove old segments everywhere; returns how many went."""
        count = 0
        for log in self.partitions():
            try:
                count += log.apply_retention(now_ms)
            except LogError as error:
                _logger.warning("retention of %s: %s", log.topic_partition, error)
        return count

    def compact(self, now_ms: int) -> bool:
        """Do one small step of compaction, of the log in work or of the next that needs it.

        Args:
            now_ms: The broker's clock.

        Returns:
            Whether there is more to do at once.
        """
        if self._compaction is None:
            for log in self.partitions():
                steps = log.compaction(now_ms) if log.config.compacts else None
                if steps is not None:
                    self._compaction = (log, steps)
                    break
            else:
                return False
        log, steps = self._compaction
        try:
            next(steps)
        except StopIteration:
            self._compaction = None
            self._write_offsets(checkpoints.CLEANER_FILE, lambda log: log.compacted_offset)
        except LogError as error:
            self._compaction = None
            _logger.error("compaction of %s: %s", log.topic_partition, error)
            return False
        return True

    def close(self, clean: bool = True) -> None:
        """Close every log and give back the folder.

        Args:
            clean: Sync everything and say so in the folder; otherwise leave the files as a crash
                would, so that the next start checks them.
        """
        sound = clean
        for log in self.partitions():
            try:
                log.close(clean)
                sound = sound and not log.failed
            except LogError as error:
                _logger.error("closing %s: %s", log.topic_partition, error)
                sound = False
        if clean:
            self._write_offsets(checkpoints.RECOVERY_POINT_FILE, lambda log: log.recovery_point)
            self._write_log_starts()
            self._write_offsets(checkpoints.HIGH_WATERMARK_FILE, lambda log: log.high_watermark)
        if sound:
            self._storage.replace(
                checkpoints.CLEAN_SHUTDOWN_FILE,
                checkpoints.render_clean_shutdown(),
                durable=True,
            )
        self._storage.close()

    # Files in the root

    def _settle_meta(self, cluster_id: str | None) -> str:
        data = self._storage.read_bytes(checkpoints.META_FILE)
        known = checkpoints.parse_properties(data) if data else {}
        known_cluster = known.get("cluster.id")
        if cluster_id is not None and known_cluster not in (None, cluster_id):
            raise DataFolderError(
                f"the data folder belongs to cluster {known_cluster}, not {cluster_id}: use "
                f"another folder, or that cluster id"
            )
        if known.get("node.id", str(self.node_id)) != str(self.node_id):
            raise DataFolderError(
                f"the data folder belongs to node {known['node.id']}, not {self.node_id}: use "
                f"another folder, or that node.id"
            )
        settled = known_cluster or cluster_id or checkpoints.render_uuid(self._new_uuid())
        if not data:
            values = {
                "version": "1",
                "cluster.id": settled,
                "node.id": str(self.node_id),
                "directory.id": checkpoints.render_uuid(self._new_uuid()),
            }
            self._storage.replace(
                checkpoints.META_FILE, checkpoints.render_properties(values), durable=True
            )
        return settled

    def _read_overrides(self) -> dict[str, dict[str, str]]:
        data = self._storage.read_bytes(checkpoints.TOPIC_CONFIGS_FILE)
        return checkpoints.parse_topic_configs(data) if data else {}

    def _write_overrides(self) -> None:
        self._storage.replace(
            checkpoints.TOPIC_CONFIGS_FILE,
            checkpoints.render_topic_configs(self._overrides),
            durable=True,
        )

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        data = self._storage.read_bytes(name)
        try:
            return checkpoints.parse_offsets(data) if data else {}
        except ValueError:
            _logger.warning("%s is damaged and counts as empty", name)
            return {}

    def _write_offsets(self, name: str, offset_of: Callable[[PartitionLog], int]) -> None:
        offsets = {log.topic_partition: offset_of(log) for log in self.partitions()}
        self._storage.replace(name, checkpoints.render_offsets(offsets))

    def _write_log_starts(self) -> None:
        offsets = {
            log.topic_partition: log.log_start_offset
            for log in self.partitions()
            if log.log_start_offset > 0
        }
        self._storage.replace(checkpoints.LOG_START_FILE, checkpoints.render_offsets(offsets))

    # Loading

    def _load(self, now_ms: int) -> None:
        recovery_points = self._read_offsets(checkpoints.RECOVERY_POINT_FILE)
        log_starts = self._read_offsets(checkpoints.LOG_START_FILE)
        compacted = self._read_offsets(checkpoints.CLEANER_FILE)
        for directory in self._storage.directories():
            if directory.endswith(DELETED_SUFFIX):
                self._remove_directory(directory)
                continue
            topic, _, number = directory.rpartition("-")
            if not topic or not number.isdecimal():
                continue
            topic_partition = TopicPartition(topic, int(number))
            topic_id = self._topic_id_of(directory, topic)
            log = PartitionLog(
                self._storage,
                topic_partition,
                self._config_for(self._overrides.get(topic, {})),
                now_ms=now_ms,
                clean=self.clean_start,
                recovery_point=recovery_points.get(topic_partition, 0),
                log_start_offset=log_starts.get(topic_partition, 0),
            )
            log.compacted_offset = min(compacted.get(topic_partition, 0), log.log_end_offset)
            log.when_start_moved(self._write_log_starts)
            self._topics.setdefault(topic, (topic_id, {}))[1][topic_partition.partition] = log

    def _topic_id_of(self, directory: str, topic: str) -> uuid.UUID:
        """The id in a partition's folder; after a crash perhaps that of its siblings."""
        data = self._storage.read_bytes(f"{directory}/{checkpoints.PARTITION_METADATA_FILE}")
        try:
            topic_id = checkpoints.parse_partition_metadata(data or b"")
        except ValueError:
            known = self._topics.get(topic)
            topic_id = self._new_uuid() if known is None else known[0]
            _logger.warning("%s named no topic id and gets %s", directory, topic_id)
            self._storage.replace(
                f"{directory}/{checkpoints.PARTITION_METADATA_FILE}",
                checkpoints.render_partition_metadata(topic_id),
            )
        return topic_id

    def _remove_directory(self, directory: str) -> None:
        try:
            self._storage.remove_directory(directory)
        except OSError as error:
            _logger.warning("%s is left to the next start: %s", directory, error)
