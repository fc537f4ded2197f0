"""Opens the files of a log at a start: checks them, cuts damage, rebuilds what is derived.

After a clean stop the files are used as they are. After any other stop, every batch from the
recovery point on is checked, and the log is cut at the first damaged one. Indexes, producers and
open transactions are then rebuilt from the remaining batches.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.leader_epochs import LeaderEpochs
from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import ReadError
from onceflow.broker_lite.log.producer_snapshot import (
    SNAPSHOT_SUFFIX,
    WINDOW_SUFFIX,
    apply_window,
    parse_snapshot,
)
from onceflow.broker_lite.log.producer_state import ProducerState
from onceflow.broker_lite.log.removals import DELETED_SUFFIX, Removals, remove_later
from onceflow.broker_lite.log.segment import (
    ABORTED_SUFFIXES,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    BatchPlace,
    Segment,
    file_name,
)
from onceflow.broker_lite.log.segment_list import SegmentList
from onceflow.broker_lite.log.segment_walk import CLEANED_SUFFIX, SWAP_SUFFIX, walk
from onceflow.broker_lite.log.storage import Storage
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.protocol.batch_header import HEADER_SIZE, BatchHeader
from onceflow.sdk.protocol.records import parse_control_batch

_SNAPSHOT_SUFFIXES = (SNAPSHOT_SUFFIX, WINDOW_SUFFIX)
_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
_ONLY_THE_FIRST_EPOCH = checkpoints.render_leader_epochs([(0, 0)])
"""The usual content; comparing bytes is faster than parsing the files of many partitions."""

_logger = logging.getLogger("onceflow.broker_lite.log")


@dataclass(slots=True)
class LoadedLog:
    """Result of opening a log.

    Attributes:
        segments: The segments, at least one.
        producers: Producers at the end of the log.
        epochs: Leader epochs.
        log_start_offset: First offset that may be read.
        log_end_offset: Offset of the next record.
        recovery_point: Offset below which everything is on the disk.
        checked: Whether the end of the log had to be checked.
        cut: Whether more was cut than one unfinished batch: something followed it.
        known_epoch: The greatest leader epoch in any batch, also in those that were cut.
    """

    segments: SegmentList
    producers: ProducerState
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    checked: bool
    cut: bool
    known_epoch: int


def apply_batch(
    producers: ProducerState, header: BatchHeader, data: memoryview, now_ms: int
) -> AbortedTransaction | None:
    """Apply a batch that was read from the log to the producer state.

    Returns:
        The transaction that the batch aborts; None if it is not the abort marker of an open one.
    """
    if header.producer_id < 0:
        return None
    if header.is_control:
        if header.records_count == 0:
            return None  # Kafka's cleaner leaves such a marker if it removed the transaction.
        marker = parse_control_batch(data)
        if not (marker.is_commit or marker.is_abort):
            return None
        return producers.append_marker(
            header.producer_id,
            header.producer_epoch,
            marker.coordinator_epoch,
            committed=marker.is_commit,
            offset=header.base_offset,
            timestamp_ms=header.max_timestamp,
            now_ms=now_ms,
        )
    producers.append(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        transactional=header.is_transactional,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp,
        now_ms=now_ms,
    )
    return None


def load_log(
    storage: Storage,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    clean: bool,
    recovery_point: int,
    log_start_offset: int,
    compacted_offset: int = 0,
) -> LoadedLog:
    """Open the files of one partition.

    Args:
        storage: Where they are.
        directory: The partition's folder; it exists.
        config: The topic's settings.
        now_ms: The broker's clock.
        clean: Whether the last stop was clean.
        recovery_point: Offset below which the log was synced; from there it is checked unless
            ``clean``.
        log_start_offset: First offset that may be read, as checkpointed.
        compacted_offset: Below it, compaction may have left holes between segments.
    """
    return _Loader(storage, directory, config, now_ms, compacted_offset).load(
        clean=clean, recovery_point=recovery_point, log_start_offset=log_start_offset
    )


class _Loader:
    """The steps of opening one log."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        config: LogConfig,
        now_ms: int,
        compacted_offset: int,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._compacted_offset = compacted_offset
        self._cut = False
        self._names = storage.names(directory)
        self._has_aborted = self._has_snapshots = True
        if not self._names:
            storage.make_directory(directory)

    def load(self, *, clean: bool, recovery_point: int, log_start_offset: int) -> LoadedLog:
        segments = self._open_segments(log_start_offset)
        log_start_offset = max(log_start_offset, segments[0].base_offset)
        recovery_point = max(recovery_point, segments[0].base_offset)  # Older segments are removed.
        epochs = self._read_epochs()
        first = self._first_to_check(segments, clean, recovery_point)
        end_offset = self._end_of(segments[-1]) if first is None else None
        if end_offset is not None:
            producers, from_offset = self._read_snapshot(end_offset)
            self._replay(segments, producers, from_offset, end_offset)
        else:
            first = len(segments) - 1 if first is None else first
            end_offset, producers = self._recover(segments, first, epochs, recovery_point)
            recovery_point = min(recovery_point, end_offset)
        known_epoch = epochs.latest
        if end_offset < log_start_offset:
            self._cut = True
            _logger.warning(
                "%s: log end %d is before log start %d; the log begins empty there",
                self._directory,
                end_offset,
                log_start_offset,
            )
            self._drop(segments, 0)
            segments = [self._new_segment(log_start_offset)]
            producers, end_offset = ProducerState(), log_start_offset
            recovery_point = end_offset
        self._settle_epochs(epochs, segments, log_start_offset, end_offset)
        self._drop_stray_snapshots(segments, end_offset)
        return LoadedLog(
            SegmentList(segments),
            producers,
            epochs,
            log_start_offset,
            end_offset,
            min(recovery_point, end_offset) if first is not None else end_offset,
            first is not None,
            self._cut,
            known_epoch,
        )

    # Files

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _new_segment(self, base_offset: int) -> Segment:
        segment = self._segment(base_offset)
        segment.create()
        return segment

    def _segment(self, base_offset: int, ending: str = "") -> Segment:
        return Segment(
            self._storage,
            self._directory,
            base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=self._now_ms,
            ending=ending,
            without_aborted=not (self._has_aborted or ending),
        )

    def _open_segments(self, log_start_offset: int) -> list[Segment]:
        if any(name.endswith(LOG_SUFFIX + SWAP_SUFFIX) for name in self._names):
            self._finish_swaps()
        bases = {_offset_of(name) for name in self._names if name.endswith(LOG_SUFFIX)}
        leftovers = []
        for name in list(self._names):
            if name.endswith(".tmp") or (
                name.endswith(INDEX_SUFFIXES) and _offset_of(name) not in bases
            ):
                self._storage.remove(self._path(name))
            elif name.endswith(_LEFTOVER_SUFFIXES):
                # They may be large. No later step looks at these names, so remove them later.
                leftovers.append(self._path(name))
            else:
                continue
            self._names.discard(name)
        if leftovers:
            remove_later(self._storage, leftovers)
        self._has_aborted = any(name.endswith(ABORTED_SUFFIXES) for name in self._names)
        self._has_snapshots = any(name.endswith(_SNAPSHOT_SUFFIXES) for name in self._names)
        segments = [self._segment(base) for base in sorted(base for base in bases if base >= 0)]
        return segments or [self._new_segment(log_start_offset)]

    def _finish_swaps(self) -> None:
        """Complete the replacement of files by compacted ones that a crash interrupted."""
        names = sorted(self._names)
        for name in names:
            if not name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                continue
            base_offset = _offset_of(name)
            last_offset = self._segment(base_offset, SWAP_SUFFIX).last_offset()
            replaced = range(base_offset, (base_offset if last_offset is None else last_offset) + 1)
            old = [
                self._path(each)
                for each in names
                if _offset_of(each) in replaced and each.endswith((LOG_SUFFIX, *INDEX_SUFFIXES))
            ]
            self._remove_files(old)
            for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                path = self._path(file_name(base_offset, suffix))
                with contextlib.suppress(FileNotFoundError):
                    self._storage.rename(path + SWAP_SUFFIX, path)
        self._names = self._storage.names(self._directory)

    def _remove_files(self, paths: list[str]) -> None:
        """Rename files at once, and remove them in the background."""
        removals = Removals(self._storage)
        removals.set_aside(self._directory, paths, self._now_ms)
        removals.run_due(self._now_ms)

    def _drop(self, segments: list[Segment], first: int) -> None:
        for segment in reversed(segments[first:]):
            segment.close(complete=False)
            self._remove_files(segment.paths())
        del segments[first:]

    def _read_epochs(self) -> LeaderEpochs:
        data = None
        if checkpoints.LEADER_EPOCH_FILE in self._names:
            data = self._storage.read_bytes(self._path(checkpoints.LEADER_EPOCH_FILE))
        try:
            if data == _ONLY_THE_FIRST_EPOCH:
                return LeaderEpochs(((0, 0),))
            return LeaderEpochs(checkpoints.parse_leader_epochs(data) if data else ())
        except ValueError:
            _logger.warning("%s: leader epochs are damaged and are dropped", self._directory)
            return LeaderEpochs()

    def _settle_epochs(
        self, epochs: LeaderEpochs, segments: list[Segment], start_offset: int, end_offset: int
    ) -> None:
        changed = epochs.truncate_from_end(end_offset)
        changed |= epochs.truncate_from_start(start_offset)
        if epochs.latest < 0:
            changed |= epochs.assign(0, segments[0].base_offset)
        if changed:
            self._storage.replace(
                self._path(checkpoints.LEADER_EPOCH_FILE),
                checkpoints.render_leader_epochs(epochs.entries()),
            )

    # Checking

    def _first_to_check(
        self, segments: list[Segment], clean: bool, recovery_point: int
    ) -> int | None:
        """Return the index of the first segment that must be checked."""
        names = self._names
        for number, segment in enumerate(segments):
            last = number + 1 == len(segments)
            unsafe = not clean and (last or segments[number + 1].base_offset > recovery_point)
            index_missing = file_name(segment.base_offset, OFFSET_INDEX_SUFFIX) not in names
            if unsafe or (segment.size and index_missing) or not segment.indexes_sound():
                return number
        return None

    def _end_of(self, active: Segment) -> int | None:
        """Return the offset after the last record; None if the file does not end with a batch."""
        try:
            last_offset = active.last_offset()
        except ReadError:
            return None
        return active.base_offset if last_offset is None else last_offset + 1

    def _recover(
        self,
        segments: list[Segment],
        first: int,
        epochs: LeaderEpochs,
        recovery_point: int,
    ) -> tuple[int, ProducerState]:
        """Check from one segment on; return the log's end and the producers there."""
        later = segments[first + 1 : first + 2]
        # A snapshot past the segment's end is not its checkpoint: later segments would be cut.
        limit = min([recovery_point, *(segment.base_offset - 1 for segment in later)])
        base, position = self._checkpoint_in(segments[first], limit)
        producers, from_offset = self._read_snapshot(base)
        self._replay(segments[: first + bool(position)], producers, from_offset, base)
        next_offset = base
        for number in range(first, len(segments)):
            segment = segments[number]
            next_offset, sound_size = self._recover_segment(
                segment, max(next_offset, segment.base_offset), producers, epochs, position
            )
            position = 0
            torn_bytes = segment.size - sound_size
            if torn_bytes:
                self._cut = self._cut or _goes_on_behind(segment, sound_size)
                segment.truncate(sound_size)
            last = number + 1 == len(segments)
            following = next_offset if last else segments[number + 1].base_offset
            if following == next_offset and not (last and torn_bytes):
                # No offset is missing: bytes after the last batch belong to no batch.
                continue
            if torn_bytes or following > max(recovery_point, self._compacted_offset):
                # A power loss may keep a later file and lose an earlier one. A later batch may end
                # a transaction whose records are lost, and sequence numbers would have a gap.
                _logger.warning(
                    "%s: cut %d bytes and %d later segments at offset %d, where the log is damaged",
                    segment.path(LOG_SUFFIX),
                    torn_bytes,
                    len(segments) - number - 1,
                    next_offset,
                )
                self._cut = self._cut or number + 1 < len(segments)
                self._drop(segments, number + 1)
                break
            if following > next_offset and not self._config.compacts:
                _logger.warning(
                    "%s: the log has no records at the offsets %d to %d",
                    segment.path(LOG_SUFFIX),
                    next_offset,
                    following - 1,
                )
        return next_offset, producers

    def _checkpoint_in(self, segment: Segment, limit: int) -> tuple[int, int]:
        """Return offset and position of a segment's last checkpoint, from which it is checked.

        A checkpoint is a snapshot within the segment. The indexes up to there were written before,
        and the recovery point passes it only when all of it is on the disk.
        """
        base = segment.base_offset
        for offset in reversed(self._snapshot_offsets()):
            if base < offset <= limit and self._read_snapshot(offset)[1] == offset:
                position = segment.keep_indexes_below(offset)
                return (base, 0) if position is None else (offset, position)
        return base, 0

    def _recover_segment(
        self,
        segment: Segment,
        next_offset: int,
        producers: ProducerState,
        epochs: LeaderEpochs,
        position: int,
    ) -> tuple[int, int]:
        """Check one segment and rebuild its indexes; return the next offset and the valid size.

        The segment is not checked before ``position``, the place of ``next_offset``.
        """
        if not position:
            segment.clear_indexes()
        for batch in walk(segment, next_offset, position):
            header = batch.header
            place = BatchPlace(len(batch.data), header.last_offset, header.max_timestamp)
            segment.note(batch.position, place)
            epochs.assign(header.partition_leader_epoch, header.base_offset)
            aborted = apply_batch(producers, header, batch.data, self._now_ms)
            if aborted is not None:
                segment.aborted.append(aborted)
            next_offset = header.next_offset
            position = batch.position + len(batch.data)
            producers.high_watermark_moved(next_offset)
        segment.finish()
        return next_offset, position

    # Producers

    def _read_snapshot(self, offset: int) -> tuple[ProducerState, int]:
        """Return the newest valid snapshot at or below an offset, and its offset."""
        found = self._snapshot_offsets()
        for at in reversed([at for at in found if 0 <= at <= offset]):
            data = self._storage.read_bytes(self._path(file_name(at, SNAPSHOT_SUFFIX)))
            name = file_name(at, WINDOW_SUFFIX)
            try:
                entries = parse_snapshot(data or b"", self._now_ms)
                if entries and name in self._names:
                    apply_window(entries, self._storage.read_bytes(self._path(name)) or b"")
            except ValueError as error:
                _logger.warning("%s: snapshot %d: %s", self._directory, at, error)
                self._remove_snapshot(at)
                continue
            return ProducerState(entries), at
        return ProducerState(), 0

    def _replay(
        self, segments: list[Segment], producers: ProducerState, from_offset: int, end_offset: int
    ) -> None:
        """Apply the batches between a snapshot and an offset to the producer state."""
        for number, segment in enumerate(segments):
            following = (
                segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
            )
            if following <= from_offset:
                continue
            try:
                border = segment.find(from_offset)
            except ReadError:  # Batches before the damage count; readers of the rest get the error.
                border = segment.border_at(0)
            if border is None:
                continue
            for batch in walk(segment, border.base_offset, border.position):
                if batch.header.base_offset >= from_offset:
                    apply_batch(producers, batch.header, batch.data, self._now_ms)
                    producers.high_watermark_moved(batch.header.next_offset)

    def _drop_stray_snapshots(self, segments: list[Segment], end_offset: int) -> None:
        """Keep the snapshots that begin a segment, and the newest one."""
        if not self._has_snapshots:
            return
        snapshots = self._snapshot_offsets()
        usable = [at for at in snapshots if at <= end_offset]
        kept = {segment.base_offset for segment in segments}.union(usable[-1:])
        for name in sorted(self._names):
            if name.endswith(_SNAPSHOT_SUFFIXES):
                at = _offset_of(name)
                if at not in kept or at > end_offset:
                    self._storage.remove(self._path(name))

    def _snapshot_offsets(self) -> list[int]:
        if not self._has_snapshots:
            return []
        return sorted(_offset_of(name) for name in self._names if name.endswith(SNAPSHOT_SUFFIX))

    def _remove_snapshot(self, offset: int) -> None:
        for suffix in (SNAPSHOT_SUFFIX, WINDOW_SUFFIX):
            name = file_name(offset, suffix)
            self._storage.remove(self._path(name))
            self._names.discard(name)


def _goes_on_behind(segment: Segment, position: int) -> bool:
    """Whether a damaged batch is not the last one of its file."""
    border = segment.border_at(position)
    return border is not None and border.size >= HEADER_SIZE and border.end < segment.size


def _offset_of(name: str) -> int:
    """Return the offset in a file's name, -1 if it has none."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdecimal() else -1
