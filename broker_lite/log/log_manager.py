"""All logs of a broker: opens, maintains and closes the partitions of a data folder.

It decides whether the last stop was clean, writes Kafka's checkpoint files in the root, and makes
and removes partitions. ``partition_log`` handles the content of one log. Topic settings arrive as
text; a function of the broker converts them to a :class:`LogConfig`.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.compactions import Compactions
from onceflow.broker_lite.log.data_folder import read_overrides, settle_meta
from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import DataFolderError, LogError
from onceflow.broker_lite.log.partition_folders import STRAY_SUFFIX, PartitionFolders
from onceflow.broker_lite.log.partition_log import PartitionLog
from onceflow.broker_lite.log.removals import Removals
from onceflow.broker_lite.log.root_offsets import NotedOffsets, RootOffsets
from onceflow.broker_lite.log.shared_flush import SharedFlush
from onceflow.broker_lite.log.start_notes import StartNotes
from onceflow.broker_lite.log.storage import Storage, Volume
from onceflow.broker_lite.log.topic_changes import TopicChange, TopicChanges
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import TopicPartition

FLUSHED_AT_ONCE = 100
"""Folders of new partitions that one sync covers, so that other work gets its turn in
between."""

_logger = logging.getLogger("onceflow.broker_lite.log")


def _default_config(overrides: Mapping[str, str]) -> LogConfig:
    return LogConfig()


class LogManager:
    """Every partition log under one storage.

    Opening locks the folder, reads or writes ``meta.properties``, and opens each partition. After
    a stop that was not clean, each partition is checked from its recovery point on.

    Args:
        storage: The data folder.
        now_ms: The broker's clock.
        new_uuid: Source of random ids (cluster, directory, names of deleted folders).
        node_id: This node; must agree with the folder's, if that names one.
        cluster_id: Cluster that the folder must belong to; None takes the folder's, or a new one.
        config_for: Converts a topic's settings from text.
        usable: Returns those of a topic's settings in Apache Kafka that this broker has.

    Attributes:
        cluster_id: Cluster that the folder belongs to.
        node_id: This node.
        clean_start: Whether the last stop was clean.
        power_lost: Whether a power loss may have cost acknowledged writes of any file.
        shared_flush: With durability ``group``, syncs appends to the disk; None otherwise.
        failure: The error after which the disk is not used any more, or None: a flush failed, or
            a change of several files that cannot be undone.
        on_failure: Called once with that error, perhaps in another thread.

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
        usable: Callable[[Mapping[str, str]], dict[str, str]] = dict,
    ) -> None:
        self._storage = storage
        self._new_uuid = new_uuid
        self._offsets = RootOffsets(storage)
        self._config_for = config_for
        self._topics: dict[str, tuple[uuid.UUID, dict[int, PartitionLog]]] = {}
        self._compaction: Compactions = Compactions(self.partitions)
        self._removals = Removals(storage)
        self._starts_moved = self._starts_wait = False
        self._noted_recovery_points = 0
        self.node_id = node_id
        self.failure: OSError | None = None
        self.on_failure: Callable[[OSError], None] | None = None
        self.shared_flush: SharedFlush | None = None
        if config_for({}).durability == "group":
            self.shared_flush = SharedFlush(storage)
            self.shared_flush.on_failure = self._disk_failed
        storage.lock()
        try:
            self.cluster_id: str = settle_meta(storage, node_id, cluster_id, new_uuid)
            self._overrides = read_overrides(storage, usable)
            self._folders = PartitionFolders(storage, new_uuid, self._removals)
            self._changes = TopicChanges(storage)
            self._notes = StartNotes(storage)
            self.clean_start: bool = storage.read_bytes(checkpoints.CLEAN_SHUTDOWN_FILE) is not None
            self.power_lost: bool = not self.clean_start and self._notes.power_lost
            storage.remove(checkpoints.CLEAN_SHUTDOWN_FILE)
            self._load(now_ms)
            self._removals.run_due(now_ms)
            if self.clean_start or not self._topics:
                self.settle_start()
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

    def growing(
        self,
        topic: str,
        topic_id: uuid.UUID,
        total: int,
        config: LogConfig,
        *,
        now_ms: int = 0,
    ) -> Iterator[PartitionLog]:
        """Yield the missing logs of a topic, new or not; each is made when it is asked for.

        If the process dies meanwhile, the next start makes all of the new logs or none.

        Args:
            topic: Topic name.
            topic_id: Id of the topic.
            total: Partition count that the topic is to have.
            config: The topic's settings.
            now_ms: The broker's clock.

        Raises:
            OSError: A folder cannot be written; the logs made before it stay.
        """
        known_id, logs = self._topics.get(topic, (topic_id, {}))
        if known_id == topic_id and not logs and topic in self._changes:
            # Folders that an earlier topic of that name left.
            for number in self._folders.partitions_of(topic):
                self._folders.discard(topic, number)
            self._changes.finish(topic)
        missing = [index for index in range(total) if index not in logs]
        noted = len(missing) > 1
        if noted:
            self._begin_growth(topic, topic_id, total)
        for index in missing:
            yield self.create_partition(topic, topic_id, index, config, now_ms=now_ms)
        if noted:
            self._changes.finish(topic)
        self._flush_names_later(topic, missing)

    def _flush_names_later(self, topic: str, numbers: list[int]) -> None:
        """Sync the folders of new partitions in the background, before files in them."""
        if self._config_for({}).durability != "kafka":
            return  # They are synced already.
        for first in range(0, len(numbers), FLUSHED_AT_ONCE):
            names = [
                f"{topic}-{number}/{checkpoints.PARTITION_METADATA_FILE}"
                for number in numbers[first : first + FLUSHED_AT_ONCE]
            ]
            # Syncing any file of the root syncs the names in the root too.
            paths = [*names, checkpoints.META_FILE]
            self._storage.flush_later(paths, lambda: None, self._disk_failed)

    def _begin_growth(self, topic: str, topic_id: uuid.UUID, total: int) -> None:
        try:
            self._changes.begin(topic, topic_id, total)
        except OSError:
            with contextlib.suppress(OSError):
                self._changes.finish(topic)
            raise

    def give_up_growth(self, topic: str) -> None:
        """Leave a topic whose growth failed with the partitions that it has.

        Raises:
            OSError: The next start may still try to finish it.
        """
        self._changes.finish(topic)

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
        if self.failure is not None:
            raise self.failure
        directory = f"{topic}-{partition}"
        if self._storage.names(directory):
            # A failed deletion or creation left this folder: its records are not this topic's.
            self._folders.discard(topic, partition)
        try:
            log = PartitionLog(
                self._storage,
                TopicPartition(topic, partition),
                config,
                now_ms=now_ms,
                shared_flush=self.shared_flush,
                removals=self._removals,
            )
            self._folders.name_topic_id(topic, partition, topic_id)
            if self._notes.first_epoch:
                log.begin_leader_epoch(self._notes.first_epoch)
        except OSError:
            # The next start would take half a partition for a whole one.
            with contextlib.suppress(OSError):
                self._folders.discard(topic, partition)
            raise
        self._keep(log)
        logs[partition] = log
        self._topics[topic] = (topic_id, logs)
        return log

    def delete_topic(self, topic: str, now_ms: int = 0) -> None:
        """Remove a topic at once; see :meth:`deleting`."""
        for _ in self.deleting(topic, now_ms):
            pass

    def deleting(self, topic: str, now_ms: int = 0) -> Iterator[None]:
        """Remove a topic, in steps of one partition.

        The folders are renamed, so that a crash cannot bring the topic back, and removed after
        ``log.segment.delete.delay.ms``; folders of a failed creation too. If the process dies or
        the caller stops meanwhile, the whole topic is left, or a note by which the next start
        removes the rest. If the note cannot be written, all renames happen in one step. No topic
        of that name may be made meanwhile.

        Args:
            topic: Topic name; an unknown one is ignored.
            now_ms: The broker's clock.

        Raises:
            OSError: The topic is deleted, and the next start removes its remaining folders.
        """
        topic_id, logs = self._topics.pop(topic, (None, {}))
        unfinished = self._changes.get(topic)
        if unfinished is not None:
            topic_id = topic_id or unfinished.topic_id
        numbers, noted = list(logs), False
        if topic_id is not None and (unfinished is not None or len(logs) > 1):
            # On a full disk the note cannot be written, but the deletion can continue.
            with contextlib.suppress(OSError):
                self._changes.begin(topic, topic_id, 0)
                noted = True
            numbers = self._folders.partitions_of(topic)
        for log in logs.values():
            self._compaction.forget(log)
            log.abandon()
        due_ms = now_ms + self._config_for({}).file_delete_delay_ms
        try:
            for number in numbers:
                self._folders.discard(topic, number, due_ms)
                if noted:
                    yield
        except OSError:
            # Remaining folders must not become part of this or a later topic of that name.
            if topic_id is not None:
                with contextlib.suppress(OSError):
                    self._changes.begin(topic, topic_id, 0)
            raise
        self._drop_overrides(topic)
        self._changes.finish(topic)
        if logs:
            self._offsets.write_recovery_points(self.partitions())
            self._offsets.write_log_starts(self.partitions())
            self._offsets.write_compacted(self.partitions())

    def topic_overrides(self, topic: str) -> dict[str, str]:
        """Settings of a topic that differ from the defaults, as text."""
        return dict(self._overrides.get(topic, {}))

    def set_topic_overrides(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Keep the settings of a topic, and apply them to its logs.

        Args:
            topic: Topic name.
            overrides: All settings that differ from the defaults, as text.
        """
        changed = {name: kept for name, kept in self._overrides.items() if name != topic}
        if overrides:
            changed[topic] = dict(overrides)
        if changed != self._overrides:
            self._write_overrides(changed)
            self._overrides = changed
        _, logs = self._topics.get(topic, (None, {}))
        for log in logs.values():
            log.config = self._config_for(overrides)

    def refresh_configs(self) -> None:
        """Apply every topic's settings again, after the defaults changed."""
        for topic, (_, logs) in self._topics.items():
            config = self._config_for(self._overrides.get(topic, {}))
            for log in logs.values():
                log.config = config

    def settle_start(self) -> None:
        """Note that all repairs after the last stop are done.

        Raises:
            OSError: The next start repeats the repairs.
        """
        self._notes.settle(self._config_for({}).durability)

    def volume(self) -> Volume:
        """Return where the data folder is, and how much room there is."""
        return self._storage.volume()

    # Small files of other parts of the broker

    def read_small_file(self, name: str) -> bytes | None:
        """Return a file in the root that another part of the broker keeps, or None."""
        return self._storage.read_bytes(name)

    def write_small_file(self, name: str, data: bytes) -> None:
        """Replace a file in the root; it survives a power loss when this returns."""
        self._storage.replace(name, data, durable=True)

    # Upkeep

    def checkpoint(self, now_ms: int) -> None:
        """Write recovery points, log starts and high watermarks; flush logs that are due.

        The files are Kafka's. Kafka writes recovery points and log starts every 60 s, high
        watermarks every 5 s.
        """
        self.flush_due(now_ms)
        self._offsets.write_checkpoints(self.partitions())

    def note_recovery_points(self, now_ms: int) -> None:
        """Write the recovery points if one moved, so that a start after a crash checks less."""
        total = sum(log.noted_recovery_point for log in self.partitions())
        if total != self._noted_recovery_points:
            self._offsets.write_recovery_points(self.partitions())
            self._noted_recovery_points = total

    def flush_due(self, now_ms: int) -> None:
        """Flush the logs whose ``flush.ms`` is over."""
        for log in self.partitions():
            try:
                log.flush_if_due(now_ms)
            except LogError as error:
                _logger.error("flush of %s: %s", log.topic_partition, error)

    def apply_retention(self, now_ms: int) -> int:
        """Remove old segments of all logs at once; return how many."""
        work = self.retaining(now_ms)
        while True:
            try:
                next(work)
            except StopIteration as done:
                count: int = done.value
                return count

    def retaining(self, now_ms: int) -> Generator[None, None, int]:
        """Remove old segments of all logs, in steps of one segment or one log.

        Returns:
            How many were removed.
        """
        count = 0
        for log in self.partitions():
            before = log.log_start_offset
            try:
                for _ in log.retaining(now_ms):
                    count += 1
                    yield
            except LogError as error:
                _logger.warning("retention of %s: %s", log.topic_partition, error)
            self._starts_moved = self._starts_moved or log.log_start_offset != before
            yield
        if self._starts_moved and not self._starts_wait:
            self._starts_moved = False
            self._offsets.write_log_starts(self.partitions())
        return count

    def remove_due(self, now_ms: int) -> None:
        """Begin to remove files and folders that were set aside long enough ago."""
        self._removals.run_due(now_ms)

    @contextlib.contextmanager
    def log_starts_together(self) -> Iterator[None]:
        """Write the file of all log starts once, at the end of the context, if one moved.

        Raises:
            OSError: They moved, but the file could not be written.
        """
        self._starts_wait = True
        try:
            yield
        finally:
            self._starts_wait = False
            if self._starts_moved:
                self._starts_moved = False
                self._offsets.write_log_starts(self.partitions())

    def _keep(self, log: PartitionLog) -> None:
        log.when_start_moved(self._note_start_moved)
        log.when_disk_failed(self._disk_failed)
        log.when_epoch_begins(self._notes.cover)

    def _disk_failed(self, error: OSError) -> None:
        """Fail all logs after a failed flush, or a change that the disk left half done.

        The kernel may have dropped what it could not write, and a later flush would succeed without
        it. The next start repairs a half-done change. Until then some partitions could not be
        served and transactions could not end. So the broker stops, as Kafka's does without its
        last log directory. This may run in the flushing thread.
        """
        if self.failure is not None:
            return
        self.failure = error
        _logger.critical("the data folder is offline, the disk failed: %s", error)
        for log in self.partitions():
            log.fail()
        if self.shared_flush is not None:
            self.shared_flush.post(partial(self.shared_flush.fail, error))
        if self.on_failure is not None:
            self.on_failure(error)

    def _note_start_moved(self) -> None:
        if self._starts_wait:
            self._starts_moved = True
        else:
            self._offsets.write_log_starts(self.partitions())

    def compact(self, now_ms: int) -> bool:
        """Do one small step of compaction, of the current log or of the next one.

        Args:
            now_ms: The broker's clock.

        Returns:
            Whether there is more to do at once.
        """
        log = self._compaction.step(now_ms)
        if log is not None:
            self._offsets.write_compacted(self.partitions())
        return self._compaction.busy

    def close(self, clean: bool = True) -> None:
        """Close every log and give back the folder.

        Args:
            clean: Sync everything and mark the folder as clean; otherwise leave the files as after
                a crash, so that the next start checks them.
        """
        sound = clean
        self._compaction.close()
        for log in self.partitions():
            try:
                log.close(clean)
                sound = sound and not log.failed
            except LogError as error:
                _logger.error("closing %s: %s", log.topic_partition, error)
                sound = False
        try:
            if clean:
                self._offsets.write_checkpoints(self.partitions())
            if sound:
                self._storage.replace(
                    checkpoints.CLEAN_SHUTDOWN_FILE,
                    checkpoints.render_clean_shutdown(),
                    durable=True,
                )
        except OSError as error:
            _logger.error("the clean stop is not noted; the next start checks every log: %s", error)
        finally:
            self._storage.close()

    # Files in the root

    def _write_overrides(self, overrides: Mapping[str, Mapping[str, str]]) -> None:
        self._storage.replace(
            checkpoints.TOPIC_CONFIGS_FILE,
            checkpoints.render_topic_configs(overrides),
            durable=True,
        )

    def _drop_overrides(self, topic: str) -> None:
        if self._overrides.pop(topic, None) is not None:
            self._write_overrides(self._overrides)

    # Loading

    def _load(self, now_ms: int) -> None:
        noted = self._offsets.read()
        found = self._folders.by_topic(now_ms)
        for topic, change in self._changes.pending().items():
            if not change.partitions:
                self._finish_deletion(topic, change, found)
        for topic, partitions in found.items():
            topic_id = self._settled_topic_id(topic, partitions)
            try:
                config = self._config_for(self._overrides.get(topic, {}))
            except ConfigError as error:
                raise DataFolderError(
                    f"{checkpoints.TOPIC_CONFIGS_FILE}, topic {topic}: {error}"
                ) from error
            for number in sorted(partitions):
                if partitions[number] not in (topic_id, None):
                    # A failed deletion without a note left this folder, and the name was used
                    # again. As in Kafka, the folder is kept, but is not a partition any more.
                    stray = self._folders.set_aside(topic, number, STRAY_SUFFIX)
                    _logger.error("%s-%d is of another topic id: kept as %s", topic, number, stray)
                    continue
                self._load_partition(TopicPartition(topic, number), topic_id, config, noted, now_ms)
        if self._topics or self._notes.found:
            self._begin_epochs()
        for topic, change in self._changes.pending().items():
            self._finish_growth(topic, change, now_ms)

    def _begin_epochs(self) -> None:
        """Let logs that were checked begin an epoch that no client has ever seen.

        After a crash it is one epoch for all logs, above all leader and coordinator epochs that
        any log knows: another log may know an epoch that this one lost.
        """
        logs = self.partitions()
        if not self.clean_start:
            epoch = self._notes.begin_epoch(max((log.known_epoch for log in logs), default=-1))
        for log in logs:
            if log.checked:
                log.begin_leader_epoch(log.known_epoch + 1 if self.clean_start else epoch)

    def _settled_topic_id(
        self, topic: str, partitions: Mapping[int, uuid.UUID | None]
    ) -> uuid.UUID:
        """Return the topic id of a topic's folders; write it to those without one."""
        change = self._changes.get(topic)
        named = [partitions[number] for number in sorted(partitions) if partitions[number]]
        settled = named[0] if named else None
        if settled is None:
            settled = change.topic_id if change else self._new_uuid()
        for number, topic_id in partitions.items():
            if topic_id is None:
                _logger.warning("%s-%d named no topic id and gets %s", topic, number, settled)
                self._folders.name_topic_id(topic, number, settled)
        return settled

    def _load_partition(
        self,
        topic_partition: TopicPartition,
        topic_id: uuid.UUID,
        config: LogConfig,
        noted: NotedOffsets,
        now_ms: int,
    ) -> None:
        topic, number = topic_partition
        log = PartitionLog(
            self._storage,
            topic_partition,
            config,
            now_ms=now_ms,
            clean=self.clean_start,
            recovery_point=noted.recovery_points.get(topic_partition, 0),
            log_start_offset=noted.log_starts.get(topic_partition, 0),
            shared_flush=self.shared_flush,
            removals=self._removals,
            compacted_offset=noted.compacted.get(topic_partition, 0),
            begins_epoch=False,
        )
        self._keep(log)
        self._topics.setdefault(topic, (topic_id, {}))[1][number] = log

    def _finish_deletion(
        self,
        topic: str,
        change: TopicChange,
        found: dict[str, dict[int, uuid.UUID | None]],
    ) -> None:
        """Remove the rest of a deleted topic, but not a later topic of that name."""
        partitions = found.pop(topic, {})
        kept: dict[int, uuid.UUID | None] = {
            number: topic_id
            for number, topic_id in partitions.items()
            if topic_id not in (change.topic_id, None)
        }
        for number in partitions.keys() - kept.keys():
            self._folders.discard(topic, number)
        _logger.warning("the deletion of topic %s (%s) is finished", topic, change.topic_id)
        if kept:
            found[topic] = kept
        else:
            self._drop_overrides(topic)
        self._changes.finish(topic)

    def _finish_growth(self, topic: str, change: TopicChange, now_ms: int) -> None:
        """Make the partitions that an interrupted creation or growth did not reach."""
        config = self._config_for(self._overrides.get(topic, {}))
        topic_id, logs = self._topics.get(topic, (change.topic_id, {}))
        for number in range(change.partitions if topic_id == change.topic_id else 0):
            if number not in logs:
                self.create_partition(topic, topic_id, number, config, now_ms=now_ms)
        self._changes.finish(topic)
