"""The writing end of a partition's files: when a segment is full, and what is safely on the disk.

It decides when a new segment begins (Kafka's rules), writes producer snapshots there, and brings
closed segments to the disk in the background, one after the other. It keeps two offsets: batches
below the flushed offset are on the disk, and below the recovery point so are the indexes and
snapshots that a start relies on. What is written is decided by the partition log.
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
"""Bytes after which the active segment is checkpointed: about what a start has to check of each
partition that was written to when the process died."""

CHECKPOINT_BATCHES = 10_000
"""The same as a number of batches, where they are small: each costs the check some microseconds."""

_SNAPSHOTS = (SNAPSHOT_SUFFIX, WINDOW_SUFFIX)
_OFFSET_ENTRY_BYTES = 8
_TIME_ENTRY_BYTES = 12

_logger = logging.getLogger("onceflow.broker_lite.log")


class _Flush:
    """A flush in the background: what it reaches, and whether it is finished."""

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
        disk_failed: Called when files could not be brought to the disk, perhaps in another thread.

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
        # Since the last checkpoint, and where that was if it does not begin a segment.
        self._bytes = self._batches = 0
        self._checkpoint_offset = -1
        # Flushes in the background that have not moved the recovery point yet, in order, and the
        # offset up to which files were handed to one.
        self._flushes: deque[_Flush] = deque()
        self._submitted_offset = recovery_point
        self._unflushed_since_ms = -1
        self._new_files = True  # Of the active segment: their names may not be on the disk.

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
            # The old segment's batches are on the disk, the last entries of its indexes are not. A
            # start trusts the indexes of closed segments below the recovery point.
            self.recovery_point = self._submitted_offset = old.base_offset
        self._flush_later(end_offset, [file_name(end_offset, SNAPSHOT_SUFFIX)])
        return segment

    def flush_closed_later(self) -> None:
        """Bring closed segments to the disk that an earlier process left in the page cache."""
        end_offset = self._segments.active.base_offset
        if self._submitted_offset < end_offset:
            self._flush_later(end_offset, [])

    def _flush_later(self, end_offset: int, snapshots: Iterable[str]) -> None:
        """Bring everything below an offset to the disk, then move the recovery point there.

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
        """Move the recovery point over all flushes that have no unfinished one before them.

        May run in the flushing thread.
        """
        flush.finished = True
        flushes = self._flushes
        while flushes and flushes[0].finished:
            end_offset = flushes.popleft().end_offset
            self.recovery_point = max(self.recovery_point, end_offset)
            self.flushed_below(end_offset)

    def _checkpoint(self, segment: Segment, config: LogConfig, end_offset: int) -> None:
        """Let a start after a crash begin to check here and not at the segment's begin.

        Everything below goes to the disk: the log, its indexes as they are, and the producers.
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
        """The snapshot that begins the new segment takes the place of the last checkpoint's."""
        self._bytes = self._batches = 0
        previous, self._checkpoint_offset = self._checkpoint_offset, -1
        if previous >= 0:
            self.drop_snapshot(previous)

    def flushed_below(self, offset: int) -> None:
        """Note that batches below an offset are safe; may run in the flushing thread."""
        self.flushed_offset = max(self.flushed_offset, offset)

    @property
    def noted_recovery_point(self) -> int:
        """The recovery point as it is kept for the next start.

        It is not above the last roll or checkpoint: from there on a start checks in any case, and
        the next roll needs the point below itself until the segment's indexes are on the disk.
        """
        limit = max(self._segments.active.base_offset, self._checkpoint_offset)
        return min(self.recovery_point, limit)

    def _unflushed_closed(self) -> list[Segment]:
        """Closed segments that hold batches which are not known to be on the disk."""
        first = self._segments.number_of(self.flushed_offset)
        return [self._segments[number] for number in range(first, len(self._segments) - 1)]

    def unflushed_paths(self, end_offset: int) -> list[str]:
        """Files that hold what is not known to be on the disk, up to the end of the log."""
        if self.flushed_offset >= end_offset:
            return []
        paths = []
        for segment in (*self._unflushed_closed(), self._segments.active):
            paths.append(segment.path(LOG_SUFFIX))
            if len(segment.aborted):
                # A start that begins to check further on trusts these.
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
        """A file that is new is only safe once its folder is."""
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
            # With all indexes and a snapshot on the disk, the end is a checkpoint.
            self._checkpoint_offset = end_offset
