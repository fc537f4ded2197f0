"""Kafka's checkpoint files in the root of a data folder: one offset for each partition.

It decides which offsets of a log are in which file. A damaged file counts as empty: the start then
does work again that the file would have saved. The log manager decides when files are written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.storage import Storage
from onceflow.sdk.model.partitions import TopicPartition

if TYPE_CHECKING:
    from onceflow.broker_lite.log.partition_log import PartitionLog

_logger = logging.getLogger("onceflow.broker_lite.log")


class NotedOffsets(NamedTuple):
    """The content of the files at a start."""

    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    compacted: dict[TopicPartition, int]


class RootOffsets:
    """The files.

    Args:
        storage: The data folder.
    """

    __slots__ = ("_storage",)

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self) -> NotedOffsets:
        """Read the files of the last run."""
        return NotedOffsets(
            self._read(checkpoints.RECOVERY_POINT_FILE),
            self._read(checkpoints.LOG_START_FILE),
            self._read(checkpoints.CLEANER_FILE),
        )

    def _read(self, name: str) -> dict[TopicPartition, int]:
        data = self._storage.read_bytes(name)
        try:
            return checkpoints.parse_offsets(data) if data else {}
        except ValueError:
            _logger.warning("%s is damaged and counts as empty", name)
            return {}

    def _write(
        self, name: str, logs: Iterable[PartitionLog], offset_of: Callable[[PartitionLog], int]
    ) -> None:
        offsets = {log.topic_partition: offset_of(log) for log in logs}
        self._storage.replace(name, checkpoints.render_offsets(offsets))

    def write_recovery_points(self, logs: Iterable[PartitionLog]) -> None:
        """Write the recovery points, below which a start checks nothing and reads no epochs."""
        logs = list(logs)
        for log in logs:
            log.write_epochs_behind()
        self._write(checkpoints.RECOVERY_POINT_FILE, logs, lambda log: log.noted_recovery_point)

    def write_log_starts(self, logs: Iterable[PartitionLog]) -> None:
        """Write log starts (the first offsets that may be read), if one moved."""
        moved = [log for log in logs if log.log_start_offset > 0]
        self._write(checkpoints.LOG_START_FILE, moved, lambda log: log.log_start_offset)

    def write_compacted(self, logs: Iterable[PartitionLog]) -> None:
        """Write the offsets below which logs are compacted."""
        self._write(checkpoints.CLEANER_FILE, logs, lambda log: log.compacted_offset)

    def write_checkpoints(self, logs: Iterable[PartitionLog]) -> None:
        """Write recovery points, log starts and high watermarks."""
        logs = list(logs)
        self.write_recovery_points(logs)
        self.write_log_starts(logs)
        self._write(checkpoints.HIGH_WATERMARK_FILE, logs, lambda log: log.high_watermark)
