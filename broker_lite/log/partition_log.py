"""The log of one partition: append, roll, flush, compact, cut at the start.

It decides the order of an append (checks, producers, segment, file, positions) and moves the high
watermark and the last stable offset. ``append_checks`` checks batches, ``producer_state`` sequence
numbers and transactions; ``recovery`` opens the files at a start, ``log_view`` reads, and
``retention`` finds old segments. Nothing here reads a clock or opens a file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from onceflow.broker_lite.log import checkpoints, retention
from onceflow.broker_lite.log.append_checks import (
    IncomingBatch,
    client_batch,
    own_batches,
    place_batches,
)
from onceflow.broker_lite.log.log_config import LONG_MAX, LogConfig
from onceflow.broker_lite.log.log_errors import AppendError, LogError
from onceflow.broker_lite.log.log_results import AppendResult
from onceflow.broker_lite.log.log_view import LogView
from onceflow.broker_lite.log.recovery import load_log
from onceflow.broker_lite.log.removals import Removals
from onceflow.broker_lite.log.segment import BatchPlace
from onceflow.broker_lite.log.segment_writer import SegmentWriter
from onceflow.broker_lite.log.shared_flush import SharedFlush
from onceflow.broker_lite.log.storage import Buffer, Storage
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import control_batch, set_log_append_time

if TYPE_CHECKING:
    from onceflow.broker_lite.log.compaction import Cleanable, Compaction

HIGH_WATERMARK = -1
"""Given to :meth:`PartitionLog.delete_records_before` for "all that can be read"."""

_logger = logging.getLogger("onceflow.broker_lite.log")


class PartitionLog(LogView):
    """One partition's log on a storage.

    Args:
        storage: Where the files are.
        topic_partition: Which partition it is.
        config: The topic's settings; may be replaced at any time.
        now_ms: The broker's clock.
        clean: Whether the last stop was clean; otherwise the end of the log is checked.
        recovery_point: Offset below which the log is known to be on the disk.
        log_start_offset: First offset that may be read, as checkpointed.
        replicated: The high watermark waits for :meth:`advance_high_watermark`; otherwise it
            follows each append, as on a single node.
        shared_flush: With durability ``group``, gets a note of each append. Then the high watermark
            follows the flushes, so that no consumer reads records that a power loss could remove.
        removals: Removes unused files later; by default a new object.
        compacted_offset: Offset below which the log is compacted.
        begins_epoch: Begin a new leader epoch if the end of the log had to be checked; otherwise
            the caller does that.

    Attributes:
        topic_partition: Which partition it is.
        config: The topic's settings.
        listeners: Called without arguments after the high watermark or the last stable offset
            moved.
        compacted_offset: Offset below which the log is compacted; the log manager stores it.
        checked: Whether the end of the log had to be checked at the start.
        cut: Whether the start found more damage than one unfinished batch at the end.
    """

    def __init__(
        self,
        storage: Storage,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        replicated: bool = False,
        shared_flush: SharedFlush | None = None,
        removals: Removals | None = None,
        compacted_offset: int = 0,
        begins_epoch: bool = True,
    ) -> None:
        directory = str(topic_partition)
        loaded = load_log(
            storage,
            directory,
            config,
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            compacted_offset=compacted_offset,
        )
        super().__init__(
            topic_partition,
            loaded.segments,
            loaded.producers,
            loaded.epochs,
            loaded.log_start_offset,
            loaded.log_end_offset,
        )
        self._storage = storage
        self._removals = Removals(storage) if removals is None else removals
        self.config = config
        self.listeners: list[Callable[[], None]] = []
        self.compacted_offset: int = min(compacted_offset, loaded.log_end_offset)
        self.checked: bool = loaded.checked
        self.cut: bool = loaded.cut
        self._known_epoch = loaded.known_epoch
        self._replicated = replicated or shared_flush is not None
        self._shared_flush = shared_flush
        self._flushes_each = config.durability == "always"
        self._on_start_moved: Callable[[], None] | None = None
        self._on_epoch: Callable[[int], None] | None = None
        self._on_disk_failed: Callable[[OSError], None] | None = None
        self._failed = self._closed = False
        self._epochs_behind = False
        self._writer = SegmentWriter(
            storage,
            self._directory,
            loaded.segments,
            loaded.producers,
            loaded.recovery_point,
            self._disk_failed,
        )
        self._unflushed_records = 0
        if config.durability != "kafka":
            # From now on readers see records that may be only in the page cache: sync them.
            self._writer.flush(self._log_end_offset)
        self._writer.flush_closed_later()
        if loaded.checked and begins_epoch:
            # A crash may have cost records that readers saw; the new epoch lets them notice.
            self.begin_leader_epoch(self.known_epoch + 1)
        self._producers.high_watermark_moved(self._high_watermark)
        self._settle_last_stable_offset()

    @property
    def recovery_point(self) -> int:
        """Offset below which batches, indexes and snapshots are known to be on the disk."""
        return self._writer.recovery_point

    @property
    def noted_recovery_point(self) -> int:
        """The recovery point to write for the next start."""
        return self._writer.noted_recovery_point

    @property
    def flushed_offset(self) -> int:
        """Offset below which batches are known to be on the disk."""
        return self._writer.flushed_offset

    @property
    def known_epoch(self) -> int:
        """The greatest leader or coordinator epoch that the log knows of, -1 for none.

        It may know later leader epochs than its current one, from batches that the start cut.
        """
        coordinator_epochs = (each.coordinator_epoch for each in self._producers.entries.values())
        return max(self._known_epoch, self._epochs.latest, max(coordinator_epochs, default=-1))

    def begin_leader_epoch(self, leader_epoch: int) -> None:
        """Let new batches carry a later epoch (KIP-101).

        If the checkpoint cannot be written, appends continue: batches carry the epoch themselves,
        and the file is written before the recovery point passes them.
        """
        if self._epochs.assign(leader_epoch, self._log_end_offset):
            self._epochs_behind = True
            try:
                if self._on_epoch is not None:
                    self._on_epoch(leader_epoch)
                self.write_epochs_behind()
            except OSError as error:
                _logger.warning("%s: leader epochs are not written: %s", self._directory, error)

    def write_epochs_behind(self) -> None:
        """Write the leader epochs if an earlier write failed.

        Raises:
            OSError: The write failed again.
        """
        if self._epochs_behind:
            self._write_epochs()

    # Appending

    def append(
        self,
        records: Buffer,
        *,
        now_ms: int,
        from_client: bool = True,
        verified_transaction: bool = True,
        first_sequence_zero: bool = False,
        header: BatchHeader | None = None,
    ) -> AppendResult:
        """Append a client's batch, or a coordinator's batches.

        Args:
            records: One batch; a coordinator may give several, which are written in one piece.
            now_ms: The broker's clock.
            from_client: Whether the rules for clients hold: shape, checksum, records, sequences.
            verified_transaction: Whether the transaction coordinator knows that the partition is
                part of the producer's transaction (KIP-890).
            first_sequence_zero: Whether a producer without state here must begin with sequence
                0, as transactions of version 2 do.
            header: Header of a client's batch, if the caller has read it.

        Raises:
            AppendError: Nothing was appended.
        """
        if self._failed:
            raise self._offline()
        if not from_client:
            batches = own_batches(records, self.config, now_ms)
            for batch in batches:
                self._producers.check_epoch(batch.header.producer_id, batch.header.producer_epoch)
            return self._append_batches(batches, now_ms)
        batch = client_batch(records, self.config, now_ms, header)
        header = batch.header
        if header.producer_id >= 0:
            repeated = self._producers.check(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.last_offset_delta + 1,
                transactional=bool(header.attributes & TRANSACTIONAL_BIT),
                verified_transaction=verified_transaction,
                first_sequence_zero=first_sequence_zero,
            )
            if repeated is not None:
                return AppendResult(
                    repeated.base_offset,
                    repeated.last_offset,
                    repeated.timestamp_ms,
                    self._log_start_offset,
                    True,
                )
        return self._append_batches([batch], now_ms)

    def append_control(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
    ) -> AppendResult:
        """End a producer's transaction on this partition with a marker.

        A marker is also written for a producer without an open transaction, to fence it.

        Args:
            producer_id: Whose transaction.
            producer_epoch: Epoch in the marker; not below the known one.
            coordinator_epoch: Epoch of the transaction coordinator.
            committed: Commit, or abort.
            now_ms: The broker's clock.

        Raises:
            AppendError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED or
                KAFKA_STORAGE_ERROR.
        """
        if self._failed:
            raise self._offline()
        producers = self._producers
        producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        offset = self._log_end_offset
        data = control_batch(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            committed,
            base_offset=offset,
            timestamp_ms=now_ms,
            leader_epoch=self._epochs.latest,
        )
        if self.config.log_append_time:
            set_log_append_time(data, now_ms)
        self._write([data], [BatchPlace(len(data), offset, now_ms)], now_ms)
        aborted = producers.append_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch,
            committed=committed,
            offset=offset,
            timestamp_ms=now_ms,
            now_ms=now_ms,
        )
        if aborted is not None:
            try:
                self._segments.active.aborted.append(aborted)
            except OSError as error:
                # The marker is written, but readers cannot find it: only a new start repairs that.
                self._disk_failed(error)
                raise self._storage_error(error) from error
        self._flush_if_each(offset + 1, len(data))
        self._appended(offset + 1, 1)
        return AppendResult(offset, offset, NO_TIMESTAMP, self._log_start_offset, False)

    def _append_batches(self, batches: list[IncomingBatch], now_ms: int) -> AppendResult:
        first_offset = offset = self._log_end_offset
        parts, places = place_batches(batches, offset, self._epochs.latest)
        self._write(parts, places, now_ms)
        if self._flushes_each:
            size = sum(place.size for place in places)
            self._flush_if_each(places[-1].last_offset + 1, size)
        for header, _, _ in batches:
            last_offset = offset + header.last_offset_delta
            if header.producer_id >= 0:
                self._producers.append(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    transactional=bool(header.attributes & TRANSACTIONAL_BIT),
                    base_offset=offset,
                    last_offset=last_offset,
                    max_timestamp_ms=header.max_timestamp,
                    now_ms=now_ms,
                )
            offset = last_offset + 1
        self._appended(offset, offset - first_offset)
        return AppendResult(
            first_offset,
            offset - 1,
            batches[-1].log_append_time_ms,
            self._log_start_offset,
            False,
        )

    def _write(self, parts: list[Buffer], places: list[BatchPlace], now_ms: int) -> None:
        try:
            self._writer.write(parts, places, self.config, self._log_end_offset, now_ms)
        except OSError as error:
            raise self._storage_error(error) from error

    def _appended(self, log_end_offset: int, records_count: int) -> None:
        """Move the positions after a write, and wake readers that wait."""
        self._log_end_offset = log_end_offset
        self._unflushed_records += records_count
        if self._unflushed_records >= self.config.flush_messages:
            self.flush()
        if not self._replicated:
            self._high_watermark = log_end_offset
            self._move_last_stable_offset()
            for listener in self.listeners:
                listener()
        elif self._shared_flush is not None:
            self._shared_flush.note(self)

    def _flush_if_each(self, end_offset: int, size: int) -> None:
        """With durability ``always``, sync an append before it becomes visible."""
        if self._flushes_each:
            try:
                self._writer.flush_batches(end_offset)
            except OSError as error:
                self._segments.active.disown(size)
                self._disk_failed(error)
                raise self._storage_error(error) from error

    def unsafe_paths(self) -> list[str]:
        """Files that a shared flush must sync."""
        return self._writer.unflushed_paths(self._log_end_offset)

    def flushed(self, end_offset: int) -> None:
        """Let readers see the log up to an offset that a shared flush has synced."""
        if not self._failed:
            self._writer.flushed_below(end_offset)
            self.advance_high_watermark(end_offset)

    def when_disk_failed(self, callback: Callable[[OSError], None]) -> None:
        """Call a function when the disk has failed and its state is unknown."""
        self._on_disk_failed = callback

    def when_epoch_begins(self, callback: Callable[[int], None]) -> None:
        """Call a function with each new leader epoch, before a batch carries it."""
        self._on_epoch = callback

    def _disk_failed(self, error: OSError) -> None:
        """Take the log offline after a failed flush, or a failed change that cannot be undone.

        The kernel may have dropped what it could not flush, or only a part of a change in several
        files is done. So nothing may be acknowledged after that. This may run in the flushing
        thread.
        """
        self.fail()
        if self._on_disk_failed is not None:
            self._on_disk_failed(error)

    def fail(self) -> None:
        """Take the log offline until the next start, which checks it."""
        self._failed = True

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Let readers see more of a replicated log.

        Args:
            high_watermark: New value; a lower one is ignored, one past the end means the end.
        """
        bounded = min(high_watermark, self._log_end_offset)
        if bounded > self._high_watermark:
            self._high_watermark = bounded
            self._move_last_stable_offset()
            for listener in self.listeners:
                listener()

    def _move_last_stable_offset(self) -> None:
        if self._producers.unsettled:
            self._producers.high_watermark_moved(self._high_watermark)
            self._settle_last_stable_offset()
        else:
            self._last_stable_offset = self._high_watermark

    def _settle_last_stable_offset(self) -> None:
        first_unstable = self._producers.first_unstable_offset()
        if first_unstable is None:
            self._last_stable_offset = self._high_watermark
        else:
            first_readable = max(first_unstable, self._log_start_offset)
            self._last_stable_offset = min(first_readable, self._high_watermark)

    def roll(self, now_ms: int) -> None:
        """Begin a new segment now, unless the active one is empty.

        Raises:
            AppendError: KAFKA_STORAGE_ERROR.
        """
        if self._segments.active.size:
            try:
                self._writer.roll(self.config, self._log_end_offset, now_ms)
            except OSError as error:
                raise self._storage_error(error) from error

    def flush(self) -> None:
        """Return when everything appended so far would survive a power loss.

        Raises:
            AppendError: KAFKA_STORAGE_ERROR.
        """
        try:
            self._writer.flush(self._log_end_offset)
        except OSError as error:
            self._disk_failed(error)
            raise self._storage_error(error) from error
        self._unflushed_records = 0

    @property
    def flush_deadline_ms(self) -> int | None:
        """When ``flush.ms`` is over; None if everything is flushed or the setting is off."""
        if self.config.flush_ms == LONG_MAX:
            return None
        return self._writer.flush_deadline_ms(self.config.flush_ms)

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if ``flush.ms`` is over since the first unflushed append.

        Raises:
            AppendError: KAFKA_STORAGE_ERROR.
        """
        deadline_ms = self.flush_deadline_ms
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.flush()

    # Start of the log, retention, end

    def delete_records_before(self, offset: int) -> int:
        """Move the start of the log (DeleteRecords, KIP-107).

        Args:
            offset: New start; -1 stands for the high watermark.

        Returns:
            The start of the log afterwards.

        Raises:
            LogError: POLICY_VIOLATION on a topic that is only compacted; OFFSET_OUT_OF_RANGE
                below 0 or above the high watermark; KAFKA_STORAGE_ERROR if the start moved but
                could not be written, so that a restart of the broker may move it back.
        """
        if not self.config.deletes:
            raise LogError(
                ErrorCode.POLICY_VIOLATION,
                f"cleanup.policy of {self._directory} is compact, without delete",
            )
        if offset == HIGH_WATERMARK:
            offset = self._high_watermark
        if not 0 <= offset <= self._high_watermark:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self._directory} is outside of 0 to {self._high_watermark}",
            )
        if offset > self._log_start_offset:
            self._move_start(offset)
            try:
                if self._on_start_moved is not None:
                    self._on_start_moved()
            except OSError as error:
                raise self._storage_error(error) from error
        return self._log_start_offset

    def _move_start(self, offset: int) -> None:
        self._log_start_offset = offset
        epochs_moved = self._epochs.truncate_from_start(offset)
        self._settle_last_stable_offset()
        for listener in self.listeners:
            listener()
        if epochs_moved:
            try:
                self._write_epochs()
            except OSError as error:
                raise self._storage_error(error) from error

    def when_start_moved(self, callback: Callable[[], None]) -> None:
        """Call a function when records were deleted, which stores the new log start."""
        self._on_start_moved = callback

    def apply_retention(self, now_ms: int) -> int:
        """Do all of :meth:`retaining` at once; return how many segments were removed."""
        before = self._segments.dropped
        for _ in self.retaining(now_ms):
            pass
        return self._segments.dropped - before

    def retaining(self, now_ms: int) -> Iterator[None]:
        """Drop old segments by age, size and log start, and forget idle producers.

        From the first step on readers see none of the segments; each further step renames the files
        of one. After a crash, the next start drops the segments before the log start.

        Args:
            now_ms: The broker's clock.

        Raises:
            LogError: KAFKA_STORAGE_ERROR; the next start removes what could not be renamed.
        """
        self._producers.expire(now_ms, self.config.producer_id_expiration_ms)
        count = retention.expired_segments(
            self._segments,
            self.config,
            now_ms=now_ms,
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
            log_end_offset=self._log_end_offset,
        )
        if count == len(self._segments):
            # The active segment is old too: begin a new one, so that it can be removed.
            self.roll(now_ms)
        first_offset = self._segments[count].base_offset
        if first_offset > self._log_start_offset:
            self._move_start(first_offset)
        dropped = [self._segments.drop_first() for _ in range(count)]
        due_ms = now_ms + self.config.file_delete_delay_ms
        for segment in dropped:
            if self._closed:  # The folder may belong to a new topic of this name by now.
                return
            try:
                self._writer.drop_snapshot(segment.base_offset)
                segment.close(complete=False)
                self._removals.set_aside(self._directory, segment.paths(), due_ms)
            except OSError as error:
                raise self._storage_error(error) from error
            yield

    def cleanable(self, now_ms: int) -> Cleanable | None:
        """Return the segments that compaction may work on now; None if nothing is due.

        Args:
            now_ms: The broker's clock.
        """
        if not self.config.compacts or self._failed or len(self._segments) < 2:
            return None
        from onceflow.broker_lite.log.compaction import cleanable

        return cleanable(
            self._segments,
            self.config,
            now_ms=now_ms,
            first_dirty_offset=self.compacted_offset,
            last_stable_offset=self._last_stable_offset,
        )

    def compaction(self, now_ms: int) -> Generator[None, None, None] | None:
        """Keep only the newest record of each key in the closed segments, if that is due.

        Args:
            now_ms: The broker's clock.

        Returns:
            The work as small steps, each of which may raise LogError; None if there is none.
        """
        found = self.cleanable(now_ms)
        if found is None:
            return None
        from onceflow.broker_lite.log.compaction import Compaction

        return self._compact(
            Compaction(
                self._storage,
                self._removals,
                self._directory,
                self._segments,
                found.segments,
                self._producers,
                self.config,
                now_ms,
            )
        )

    def _compact(self, compaction: Compaction) -> Generator[None, None, None]:
        try:
            yield from compaction.run(self.compacted_offset, self.unsafe_paths())
        except OSError as error:
            if compaction.swapping:
                self._disk_failed(error)
            raise self._storage_error(error) from error
        for base_offset in compaction.removed_bases:
            self._writer.drop_snapshot(base_offset)
        self.compacted_offset = max(self.compacted_offset, compaction.cleaned_offset)

    def abandon(self) -> None:
        """Stop all writes, because the log's folder is being removed with its handles."""
        self._closed = True
        self.fail()
        if self._shared_flush is not None:
            self._shared_flush.forget(self)

    def close(self, clean: bool = True) -> None:
        """Close the files.

        Args:
            clean: Complete indexes, write a snapshot and sync; otherwise the files stay as a
                crash would leave them.

        Raises:
            AppendError: KAFKA_STORAGE_ERROR; the next start must check the log.
        """
        self._closed = True
        if self._shared_flush is not None:
            self._shared_flush.forget(self)
        try:
            if clean and not self._failed:
                self.write_epochs_behind()
            self._writer.close(self._log_end_offset, clean=clean and not self._failed)
        except OSError as error:
            raise self._storage_error(error) from error

    @property
    def failed(self) -> bool:
        """Whether the log is offline until the next start."""
        return self._failed

    def _write_epochs(self) -> None:
        self._storage.replace(
            f"{self._directory}/{checkpoints.LEADER_EPOCH_FILE}",
            checkpoints.render_leader_epochs(self._epochs.entries()),
        )
        self._epochs_behind = False

    def _storage_error(self, error: OSError) -> AppendError:
        _logger.error("%s: %s", self._directory, error)
        return AppendError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._directory}: {error}")

    def _offline(self) -> AppendError:
        return AppendError(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self._directory} is offline since the disk failed a write; restart the broker",
        )
