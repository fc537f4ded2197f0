"""The writing end of a partition's files: when a segment is full, and what is safely on the disk.

It decides when a new segment begins (Kafka's rules), writes producer snapshots there, and keeps
the recovery point: everything below it was synced. What is written is decided by the partition
log.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable

from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    WINDOW_SUFFIX,
    render_snapshot,
    render_window,
)
from onceflow.broker_lite.log.producer_state import ProducerState
from onceflow.broker_lite.log.segment import (
    ABORTED_SUFFIXES,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    BatchPlace,
    Segment,
    file_name,
)
from onceflow.broker_lite.log.segment_list import SegmentList
from onceflow.broker_lite.log.storage import Buffer, Storage

CHECKPOINT_BYTES = 64 * 1024 * 1024
"""Bytes after which the active segment is checkpointed: about what a start has to check of each
partition that was written to when the process died."""

CHECKPOINT_BATCHES = 10_000
"""The same as a number of batches, where they are small: each costs the check some microseconds."""

_SNAPSHOTS = (SNAPSHOT_SUFFIX, WINDOW_SUFFIX)
_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12

_logger = logging.getLogger("onceflow.broker_lite.log")


class SegmentWriter:
    """Appends to the active segment of one partition.

    Args:
        storage: Where the files are.
        directory: The partition's folder.
        segments: Its segments.
        producers: Its producers, for snapshots.
        recovery_point: Offset below which the log is on the disk.
        disk_failed: Called when files could not be brought to the disk, perhaps in another thread.

    Attributes:
        recovery_point: Offset below which the log is on the disk.
    """

    __slots__ = (
        "_batches",
        "_bytes",
        "_checkpoint_offset",
        "_checkpoints_on_their_way",
        "_directory",
        "_disk_failed",
        "_producers",
        "_segments",
        "_snapshot_offset",
        "_storage",
        "_unflushed_since_ms",
        "recovery_point",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentList,
        producers: ProducerState,
        recovery_point: int,
        disk_failed: Callable[[OSError], None],
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._segments = segments
        self._producers = producers
        self.recovery_point: int = recovery_point
        self._disk_failed = disk_failed
        self._snapshot_offset = -1
        # Since the last checkpoint, and where that was if it does not begin a segment.
        self._bytes = self._batches = 0
        self._checkpoint_offset = -1
        self._checkpoints_on_their_way = 0
        self._unflushed_since_ms = -1

    def write(
        self,
        parts: list[Buffer],
        places: list[BatchPlace],
        config: LogConfig,
        base_offset: int,
        now_ms: int,
    ) -> Segment:
        """Write batches in one piece to the active segment, after a roll if it is full.

        Args:
            parts: All bytes.
            places: What the indexes must know of each batch, in order.
            config: The topic's settings.
            base_offset: Offset of the first record.
            now_ms: The broker's clock.

        Returns:
            The segment that took them.

        Raises:
            OSError: Nothing was written.
        """
        segment = self._segments.active
        if self._roll_is_due(segment, places, config, now_ms):
            segment = self.roll(config, base_offset, now_ms)
        elif self._bytes >= CHECKPOINT_BYTES or self._batches >= CHECKPOINT_BATCHES:
            self._checkpoint(segment, config, base_offset)
        before = segment.size
        segment.append(parts, places)
        self._bytes += segment.size - before
        self._batches += len(places)
        if self._unflushed_since_ms < 0:
            self._unflushed_since_ms = now_ms
        return segment

    def _roll_is_due(
        self, segment: Segment, places: list[BatchPlace], config: LogConfig, now_ms: int
    ) -> bool:
        if segment.size == 0:
            return False
        last = places[-1]
        size = last.size if len(places) == 1 else sum(place.size for place in places)
        if (
            segment.size > config.segment_bytes - size
            or last.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or len(segment.offset_index) >= config.segment_index_bytes // _OFFSET_ENTRY_BYTES
            or len(segment.time_index) >= config.segment_index_bytes // _TIME_ENTRY_BYTES
        ):
            return True
        first_timestamp_ms = segment.first_timestamp_ms
        if first_timestamp_ms >= 0 and last.max_timestamp_ms >= 0:
            age_ms = last.max_timestamp_ms - first_timestamp_ms
        else:
            age_ms = now_ms - segment.created_ms
        limit_ms = config.segment_ms
        if config.compacts:
            limit_ms = min(limit_ms, config.max_compaction_lag_ms)
        return age_ms > limit_ms - self._jitter_ms(config)

    def _jitter_ms(self, config: LogConfig) -> int:
        """Time taken off the age limit, so that partitions do not all roll at once."""
        if config.segment_jitter_ms <= 0:
            return 0
        spread = zlib.crc32(self._directory.encode()) % config.segment_jitter_ms
        return min(spread, config.segment_ms)

    def roll(self, config: LogConfig, end_offset: int, now_ms: int) -> Segment:
        """Begin a new segment; the old one goes to the disk without holding up anybody.

        Args:
            config: The topic's settings.
            end_offset: End of the log, where the segment begins.
            now_ms: The broker's clock.

        Raises:
            OSError: The old segment stays the active one.
        """
        old = self._segments.active
        old.finish()
        if config.durability != "kafka":
            # The recovery point may be past it already, and the next start trusts its indexes.
            try:
                old.flush_all()
            except OSError as error:
                self._disk_failed(error)
                raise
        self.write_snapshot(end_offset)
        segment = Segment(
            self._storage,
            self._directory,
            end_offset,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=now_ms,
        )
        segment.create()
        self._segments.append(segment)
        self._drop_checkpoint()
        self._unflushed_since_ms = -1
        # Below an older segment that is still on its way the recovery point cannot move.
        if config.durability == "kafka" and self.recovery_point >= old.base_offset:
            files = [*old.paths(), f"{self._directory}/{file_name(end_offset, SNAPSHOT_SUFFIX)}"]
            self._storage.flush_later(
                files, lambda: self.flushed_below(end_offset), self._disk_failed
            )
        return segment

    def _checkpoint(self, segment: Segment, config: LogConfig, end_offset: int) -> None:
        """Let a start after a crash begin to check here and not at the segment's begin.

        Everything below goes to the disk: the log, its indexes as they are, and the producers.
        """
        self._bytes = self._batches = 0
        previous = self._checkpoint_offset
        try:
            segment.prepare_checkpoint()
            if config.durability != "kafka":
                segment.flush_all()
            self.write_snapshot(end_offset)
            if previous >= 0:
                self.drop_snapshot(previous)
        except OSError as error:
            _logger.warning("%s: no checkpoint at %d: %s", self._directory, end_offset, error)
            return
        self._checkpoint_offset = end_offset
        if config.durability == "kafka" and self.recovery_point >= segment.base_offset:
            self._checkpoints_on_their_way += 1
            files = [
                *segment.paths(),
                *(f"{self._directory}/{file_name(end_offset, each)}" for each in _SNAPSHOTS),
            ]
            self._storage.flush_later(
                files, lambda: self._checkpointed(end_offset), self._disk_failed
            )

    def _checkpointed(self, end_offset: int) -> None:
        self._checkpoints_on_their_way -= 1
        self.flushed_below(end_offset)

    def _drop_checkpoint(self) -> None:
        """The snapshot that begins the new segment takes the place of the last checkpoint's."""
        self._bytes = self._batches = 0
        previous, self._checkpoint_offset = self._checkpoint_offset, -1
        if previous >= 0:
            self.drop_snapshot(previous)

    def flushed_below(self, offset: int) -> None:
        """Note that the log below an offset is safe; may run in the flushing thread."""
        self.recovery_point = max(self.recovery_point, offset)

    def unflushed_paths(self, end_offset: int) -> list[str]:
        """Files that hold what is not known to be on the disk, up to the end of the log."""
        if self.recovery_point >= end_offset:
            return []
        first = self._segments.number_of(self.recovery_point)
        closed = [self._segments[number] for number in range(first, len(self._segments) - 1)]
        paths = [path for segment in closed for path in segment.paths()]
        active = self._segments.active
        paths.append(active.path(LOG_SUFFIX))
        if len(active.aborted):
            # A start that begins to check further on trusts these.
            paths += [active.path(suffix) for suffix in ABORTED_SUFFIXES]
        return paths

    def flush(self, end_offset: int) -> None:
        """Return when the log up to its end would survive a power loss.

        Raises:
            OSError: The recovery point stays.
        """
        if self.recovery_point < end_offset:
            first = self._segments.number_of(self.recovery_point)
            for number in range(first, len(self._segments) - 1):
                # The next start trusts the indexes of closed segments.
                self._segments[number].flush_all()
            if self._checkpoints_on_their_way or len(self._segments.active.aborted):
                self._segments.active.flush_all()
            else:
                self._segments.active.flush()
            self.flushed_below(end_offset)
        self._unflushed_since_ms = -1

    def flush_deadline_ms(self, flush_ms: int) -> int | None:
        """When ``flush.ms`` has gone by since the first append that was not flushed."""
        return None if self._unflushed_since_ms < 0 else self._unflushed_since_ms + flush_ms

    def write_snapshot(self, offset: int) -> None:
        """Write the producer state as of an offset, in Kafka's file and in our wider one.

        Raises:
            OSError: The snapshot may be missing; older ones are untouched.
        """
        if offset in (self._snapshot_offset, 0):
            return  # Kafka writes none either where nothing was ever appended.
        entries = self._producers.entries.values()
        # Ours first: Kafka's file alone is a usable snapshot, ours alone is none.
        for suffix, render in ((WINDOW_SUFFIX, render_window), (SNAPSHOT_SUFFIX, render_snapshot)):
            path = f"{self._directory}/{file_name(offset, suffix)}"
            self._storage.replace(path, render(entries))
        self._snapshot_offset = offset

    def drop_snapshot(self, offset: int) -> None:
        """Remove the snapshot that began a removed segment."""
        for suffix in (SNAPSHOT_SUFFIX, WINDOW_SUFFIX):
            self._storage.remove(f"{self._directory}/{file_name(offset, suffix)}")

    def close(self, end_offset: int, *, clean: bool) -> None:
        """Give back the handles.

        Args:
            end_offset: End of the log.
            clean: Complete indexes, write a snapshot and sync, so that the next start need not
                check anything.

        Raises:
            OSError: The stop is not clean.
        """
        if clean:
            self.write_snapshot(end_offset)
        for segment in self._segments:
            segment.close(complete=clean)
        if clean:
            self.flush(end_offset)
