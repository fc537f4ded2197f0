"""Writes a partition's files: when a segment is full, and what is on the disk.

It decides when a new segment begins (Kafka's rules), writes producer snapshots there, and brings
closed segments to the disk in the background, one after the other. It keeps two offsets. Below the
flushed offset batches are on the disk. Below the recovery point, indexes and snapshots are on the
disk too, on which a start relies.
"""

from __future__ import annotations

import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable

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
"""Bytes after which the active segment is checkpointed. After a crash, a start checks about as
much of each partition that was in use."""

CHECKPOINT_BATCHES = 10_000
"""The same as a number of batches, where they are small: each costs the check some microseconds."""

_SNAPSHOTS = (SNAPSHOT_SUFFIX, WINDOW_SUFFIX)
_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12

_logger = logging.getLogger("onceflow.broker_lite.log")


class _Flush:
    """A flush in the background: its end offset, and whether it is finished."""

    __slots__ = ("end_offset", "finished")

    def __init__(self, end_offset: int) -> None:
        self.end_offset: int = end_offset
        self.finished: bool = False


class SegmentWriter:
    """Appends to the active segment of one partition.

    Args:
        storage: Where the files are.
        directory: The partition's folder.
        segments: Its segments.
        producers: Its producers, for snapshots.
        recovery_point: Offset below which the log is on the disk.
        disk_failed: Called when files could not be synced, perhaps in another thread.

    Attributes:
        recovery_point: Offset below which batches, indexes and snapshots are on the disk: where a
            start after a crash begins to check.
        flushed_offset: Offset below which batches are on the disk; not below the recovery point.
    """

    __slots__ = (
        "_batches",
        "_bytes",
        "_checkpoint_offset",
        "_directory",
        "_disk_failed",
        "_flushes",
        "_new_files",
        "_producers",
        "_segments",
        "_snapshot_offset",
        "_storage",
        "_submitted_offset",
        "_unflushed_since_ms",
        "flushed_offset",
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
        self.flushed_offset: int = recovery_point
        self._disk_failed = disk_failed
        self._snapshot_offset = -1
        # Written since the last checkpoint, and its offset if that is not a segment's begin.
        self._bytes = self._batches = 0
        self._checkpoint_offset = -1
        # Flushes in the background that have not moved the recovery point yet, in order, and the
        # offset up to which files were handed to one.
        self._flushes: deque[_Flush] = deque()
        self._submitted_offset = recovery_point
        self._unflushed_since_ms = -1
        self._new_files = True  # The names of the active segment's files may not be on the disk.

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
            places: The fields of each batch for the indexes, in order.
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
        """Begin a new segment, and sync the old one in the background.

        Args:
            config: The topic's settings.
            end_offset: End of the log, where the segment begins.
            now_ms: The broker's clock.

        Raises:
            OSError: The old segment stays the active one.
        """
        old = self._segments.active
        old.finish()
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
        self._new_files = True
        if self.recovery_point >= end_offset:
            # The old segment's batches are on the disk, but the last entries of its indexes are
            # not. A start does not check indexes of closed segments below the recovery point.
            self.recovery_point = self._submitted_offset = old.base_offset
        self._flush_later(end_offset, [file_name(end_offset, SNAPSHOT_SUFFIX)])
        return segment

    def flush_closed_later(self) -> None:
        """Sync closed segments that an earlier process may have left in the page cache."""
        end_offset = self._segments.active.base_offset
        if self._submitted_offset < end_offset:
            self._flush_later(end_offset, [])

    def _flush_later(self, end_offset: int, snapshots: Iterable[str]) -> None:
        """Sync everything below an offset in the background, then move the recovery point there.

        Args:
            end_offset: Begin of a segment, or a checkpoint in the active one.
            snapshots: Names of the producer snapshots at that offset.
        """
        first = self._segments.number_of(self._submitted_offset)
        paths = [
            path
            for number in range(first, len(self._segments))
            if self._segments[number].base_offset < end_offset
            for path in self._segments[number].paths()
        ]
        paths += [f"{self._directory}/{name}" for name in snapshots]
        self._submitted_offset = end_offset
        flush = _Flush(end_offset)
        self._flushes.append(flush)
        self._storage.flush_later(paths, lambda: self._finished(flush), self._disk_failed)

    def _finished(self, flush: _Flush) -> None:
        """Move the recovery point to the end of the last flush before the first unfinished one.

        May run in the flushing thread.
        """
        flush.finished = True
        flushes = self._flushes
        while flushes and flushes[0].finished:
            end_offset = flushes.popleft().end_offset
            self.recovery_point = max(self.recovery_point, end_offset)
            self.flushed_below(end_offset)

    def _checkpoint(self, segment: Segment, config: LogConfig, end_offset: int) -> None:
        """Make a checkpoint, from which a start after a crash checks the segment.

        It syncs everything below: the log, its present indexes, and a snapshot of the producers.
        """
        self._bytes = self._batches = 0
        previous = self._checkpoint_offset
        try:
            segment.prepare_checkpoint()
            self.write_snapshot(end_offset)
            if previous >= 0:
                self.drop_snapshot(previous)
        except OSError as error:
            _logger.warning("%s: no checkpoint at %d: %s", self._directory, end_offset, error)
            return
        self._checkpoint_offset = end_offset
        self._flush_later(end_offset, [file_name(end_offset, each) for each in _SNAPSHOTS])

    def _drop_checkpoint(self) -> None:
        """Remove the last checkpoint's snapshot, which that of the new segment replaces."""
        self._bytes = self._batches = 0
        previous, self._checkpoint_offset = self._checkpoint_offset, -1
        if previous >= 0:
            self.drop_snapshot(previous)

    def flushed_below(self, offset: int) -> None:
        """Note that batches below an offset are on the disk; may run in the flushing thread."""
        self.flushed_offset = max(self.flushed_offset, offset)

    @property
    def noted_recovery_point(self) -> int:
        """The recovery point to write for the next start.

        It is not above the last roll or checkpoint, from which a start checks in any case. Until
        the indexes of the active segment are on the disk, it must not be above its begin.
        """
        limit = max(self._segments.active.base_offset, self._checkpoint_offset)
        return min(self.recovery_point, limit)

    def _unflushed_closed(self) -> list[Segment]:
        """Return the closed segments whose batches may not be on the disk yet."""
        first = self._segments.number_of(self.flushed_offset)
        return [self._segments[number] for number in range(first, len(self._segments) - 1)]

    def unflushed_paths(self, end_offset: int) -> list[str]:
        """Return the files, up to the end of the log, that may not be on the disk yet."""
        if self.flushed_offset >= end_offset:
            return []
        paths = []
        for segment in (*self._unflushed_closed(), self._segments.active):
            paths.append(segment.path(LOG_SUFFIX))
            if len(segment.aborted):
                # A start does not check these below the recovery point.
                paths += [segment.path(suffix) for suffix in ABORTED_SUFFIXES]
        return paths

    def flush_batches(self, end_offset: int) -> None:
        """Return when the batches up to the log's end would survive a power loss.

        Raises:
            OSError: The flushed offset stays.
        """
        if self.flushed_offset < end_offset:
            self._flush_names()
            for segment in (*self._unflushed_closed(), self._segments.active):
                segment.flush()
            self.flushed_below(end_offset)
        self._unflushed_since_ms = -1

    def _flush_names(self) -> None:
        """Sync the folder, without which a new file does not survive a power loss."""
        if self._new_files:
            self._storage.flush_directory(self._directory)
            self._new_files = False

    def flush(self, end_offset: int) -> None:
        """Return when the log up to its end, with its indexes, would survive a power loss.

        Raises:
            OSError: The recovery point stays.
        """
        if self.recovery_point < end_offset:
            self._flush_names()
            first = self._segments.number_of(self.recovery_point)
            for number in range(first, len(self._segments)):
                self._segments[number].flush_all()
            self.recovery_point = end_offset
            self.flushed_below(end_offset)
        self._unflushed_since_ms = -1

    def flush_deadline_ms(self, flush_ms: int) -> int | None:
        """When ``flush.ms`` is over since the first unflushed append; None if all is flushed."""
        return None if self._unflushed_since_ms < 0 else self._unflushed_since_ms + flush_ms

    def write_snapshot(self, offset: int) -> None:
        """Write the producer state at an offset, in Kafka's file and in ``.producers5``.

        Raises:
            OSError: The snapshot may be missing; older ones stay.
        """
        if offset in (self._snapshot_offset, 0):
            return  # It exists, or nothing was ever appended; Kafka writes none then either.
        entries = self._producers.entries.values()
        # `.producers5` first: Kafka's file alone is a valid snapshot, the other alone is not.
        for suffix, render in ((WINDOW_SUFFIX, render_window), (SNAPSHOT_SUFFIX, render_snapshot)):
            path = f"{self._directory}/{file_name(offset, suffix)}"
            self._storage.replace(path, render(entries))
        self._snapshot_offset = offset

    def drop_snapshot(self, offset: int) -> None:
        """Remove the snapshot at the begin of a removed segment."""
        for suffix in (SNAPSHOT_SUFFIX, WINDOW_SUFFIX):
            self._storage.remove(f"{self._directory}/{file_name(offset, suffix)}")

    def close(self, end_offset: int, *, clean: bool) -> None:
        """Close the files.

        Args:
            end_offset: End of the log.
            clean: Complete indexes, write a snapshot and sync, so that the next start need not
                check anything.

        Raises:
            OSError: The next start must check the log.
        """
        if clean:
            self.write_snapshot(end_offset)
        for segment in self._segments:
            segment.close(complete=clean)
        if clean:
            self.flush(end_offset)
            # With all indexes and a snapshot on the disk, the end is a checkpoint.
            self._checkpoint_offset = end_offset
