"""Compaction: keeps only the newest record of each key (``cleanup.policy=compact``).

The rules are those of Kafka's LogCleaner:

- Records at or above the last stable offset, and those in the active segment, stay.
- Aborted records are removed.
- A marker stays while a batch of its transaction exists, and then for ``delete.retention.ms``, like
  a tombstone.
- The newest batch of each producer and the last batch of each new file stay, without records if
  none remains.

A record is removed only if the newer record of its key survives a power loss.

The work is done in small steps, so that the broker serves others in between. Work that waits for
the disk runs in jobs. The new files replace the old ones in one step, of which a crash leaves all
or nothing. ``compactions`` decides which log is compacted when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onceflow.broker_lite.log.batch_filter import empty_batch, smaller_batch
from onceflow.broker_lite.log.disk_jobs import outcome
from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import LogError
from onceflow.broker_lite.log.removals import Removals, remove_later
from onceflow.broker_lite.log.segment import (
    ABORTED_SUFFIXES,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    RELATIVE_OFFSET_MAX,
    BatchPlace,
    Segment,
)
from onceflow.broker_lite.log.segment_list import SegmentList
from onceflow.broker_lite.log.segment_walk import (
    CHUNK_BYTES,
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    FoundBatch,
    SegmentWalk,
)
from onceflow.broker_lite.log.storage import Buffer, Storage
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    BatchHeader,
    parse_batch_header,
)
from onceflow.sdk.protocol.records import decode_batch, parse_control_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceflow.broker_lite.log.producer_state import ProducerState

T = TypeVar("T")

STEP_BYTES = 256 * 1024
"""Bytes that one step reads."""

STEP_RECORDS = 2_000
"""Records that one step decodes; a batch with more is decoded in a job."""

KEYS_MAX = 1_000_000
"""Most keys that one round remembers; records after them wait for the next round."""

GROUP_SEGMENTS_MAX = 100
"""Most segments that are merged into one; their files are renamed in one step."""

_ABORTED_AT_ONCE = 10_000
_LONG_KEY_BYTES = 24


class Cleanable(NamedTuple):
    """The segments of a log that compaction may work on now.

    Attributes:
        segments: The segments to compact: the first ones, in order.
        dirty_ratio: Share of their bytes that no earlier round has compacted.
        overdue: Whether ``max.compaction.lag.ms`` is over for some record.
    """

    segments: list[Segment]
    dirty_ratio: float
    overdue: bool


def cleanable(
    segments: SegmentList,
    config: LogConfig,
    *,
    now_ms: int,
    first_dirty_offset: int,
    last_stable_offset: int,
) -> Cleanable | None:
    """Return the segments that are worth compacting now, or None.

    Args:
        segments: The partition's segments.
        config: The topic's settings.
        now_ms: The broker's clock.
        first_dirty_offset: Offset below which an earlier round has compacted.
        last_stable_offset: Records from here on stay.
    """
    found: list[Segment] = []
    dirty: list[Segment] = []
    for number in range(len(segments) - 1):
        segment = segments[number]
        end_offset = segments[number + 1].base_offset
        too_new = now_ms - segment.max_timestamp_ms < config.min_compaction_lag_ms
        if end_offset > last_stable_offset or (config.min_compaction_lag_ms and too_new):
            break
        found.append(segment)
        if end_offset > first_dirty_offset:
            dirty.append(segment)
    if not dirty:
        return None
    total_bytes = sum(segment.size for segment in found)
    dirty_ratio = sum(segment.size for segment in dirty) / max(1, total_bytes)
    overdue = now_ms - dirty[0].first_timestamp_ms > config.max_compaction_lag_ms
    if not overdue and dirty_ratio < config.min_cleanable_dirty_ratio:
        return None
    return Cleanable(found, dirty_ratio, overdue)


class _TransactionFilter:
    """Tells which batches of a walk are aborted, and which markers may be removed.

    Args:
        aborted: The aborted transactions of the log.
    """

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # Producers in an aborted transaction, and whether the walk has met a batch of it.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committing: set[int] = set()

    def meet(self, header: BatchHeader) -> None:
        """Move the walk to a batch."""
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            entry = self._pending.pop()
            self._aborting[entry.producer_id] = (entry, False)

    def drops_data(self, header: BatchHeader) -> bool:
        """Whether a batch of records was aborted."""
        if not header.is_transactional:
            return False
        found = self._aborting.get(header.producer_id)
        if found is not None:
            self._aborting[header.producer_id] = (found[0], True)
            return True
        self._committing.add(header.producer_id)
        return False

    def aborts(self, header: BatchHeader) -> AbortedTransaction | None:
        """Return the transaction that a marker ends, if it was aborted."""
        found = self._aborting.get(header.producer_id)
        return (
            found[0] if found is not None and found[0].last_offset == header.base_offset else None
        )

    def marker_may_go(self, batch: FoundBatch) -> bool:
        """Whether the walk has met no batch of the transaction that a marker ends."""
        if batch.header.records_count == 0:
            return True
        marker = parse_control_batch(batch.data)
        producer_id = batch.header.producer_id
        if marker.is_commit:
            met = producer_id in self._committing
            self._committing.discard(producer_id)
            return not met
        if marker.is_abort:
            return not self._aborting.pop(producer_id, (None, False))[1]
        return False


class _Output:
    """The new files of a group of segments; jobs write them, through separate handles."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.size = 0
        self._parts: list[Buffer] = []
        self._places: list[BatchPlace] = []
        self._aborted: list[AbortedTransaction] = []

    def add(self, data: Buffer, aborts: AbortedTransaction | None) -> None:
        """Keep a batch for the next :meth:`write`."""
        header = parse_batch_header(data)
        self._parts.append(data)
        self._places.append(BatchPlace(len(data), header.last_offset, header.max_timestamp))
        self.size += len(data)
        if header.is_control and aborts is not None:
            self._aborted.append(aborts)

    def write(self) -> None:
        """Write the batches that were added since the last call."""
        parts, self._parts = self._parts, []
        places, self._places = self._places, []
        aborted, self._aborted = self._aborted, []
        for first in range(0, len(parts), _PARTS_AT_ONCE):
            last = first + _PARTS_AT_ONCE
            self.segment.append(parts[first:last], places[first:last])
        for entry in aborted:
            self.segment.aborted.append(entry)

    def complete(self) -> None:
        """Write the rest and sync everything to the disk."""
        self.write()
        self.segment.finish()
        self.segment.flush_all()
        self.segment.close(complete=False)


class Compaction:
    """One round over one partition.

    Args:
        storage: Where the files are.
        removals: Gets the files that were replaced.
        directory: The partition's folder.
        segments: All segments of the partition; the round replaces groups in it.
        chosen: The segments to compact: the first ones, in order.
        producers: The partition's producers.
        config: The topic's settings.
        now_ms: The broker's clock.

    Attributes:
        removed_bases: Base offsets of segments that were merged into others.
        cleaned_offset: Offset below which the log is compacted, after the round.
        swapping: Whether files are being replaced; a failure then leaves the log unusable
            until the next start, which completes it.
    """

    def __init__(
        self,
        storage: Storage,
        removals: Removals,
        directory: str,
        segments: SegmentList,
        chosen: list[Segment],
        producers: ProducerState,
        config: LogConfig,
        now_ms: int,
    ) -> None:
        self._storage = storage
        self._removals = removals
        self._files = storage.aside()
        self._directory = directory
        self._segments = segments
        self._chosen = chosen
        self._ends = [segment.base_offset for segment in segments][1 : len(chosen) + 1]
        self._producers = producers
        self._config = config
        self._now_ms = now_ms
        self._newest: dict[bytes, int] = {}
        self._first_dirty_offset = 0
        # The round knows the keys up to here; records after it stay as they are.
        self._known_end = self._ends[len(chosen) - 1]
        self._aborted: list[AbortedTransaction] = []
        self.removed_bases: list[int] = []
        self.cleaned_offset: int = 0
        self.swapping: bool = False

    def run(self, first_dirty_offset: int, unflushed: Sequence[str]) -> Iterator[None]:
        """Do the round; each step looks at about ``STEP_BYTES``, or waits for the disk.

        Args:
            first_dirty_offset: Offset below which an earlier round has compacted.
            unflushed: Files that may not be on the disk yet. The round syncs them first: a record
                is removed because of a newer one, so the newer one, and the marker of its
                transaction, must survive a power loss.

        Raises:
            LogError: A segment is damaged; nothing more is replaced.
            OSError: The storage failed; nothing more is replaced.
        """
        dropped = self._segments.dropped
        for _ in self._round(first_dirty_offset, unflushed):
            # Retention has dropped segments meanwhile: the rest waits for the next round.
            if self._segments.dropped != dropped and not self.swapping:
                return
            yield
            if self._segments.dropped != dropped and not self.swapping:
                return
        self.cleaned_offset = self._known_end

    def _round(self, first_dirty_offset: int, unflushed: Sequence[str]) -> Iterator[None]:
        if unflushed:
            yield from self._job(partial(self._storage.flush_files, list(unflushed)))
        yield from self._read_aborted()
        yield from self._remember_keys(first_dirty_offset)
        transactions = _TransactionFilter(self._aborted)
        for group in self._groups():
            yield from self._clean_group(group, transactions)
            yield

    def _job(self, work: Callable[[], T]) -> Generator[None, None, T]:
        """Run work in a job that waits for the disk or takes long to compute."""
        result = yield from outcome(self._storage.begin(work))
        return result

    def _read_aborted(self) -> Iterator[None]:
        """Read the aborted transactions of the log, which may be many."""
        for segment in list(self._segments):
            for entry in segment.aborted.entries_from(0):
                self._aborted.append(entry)
                if len(self._aborted) % _ABORTED_AT_ONCE == 0:
                    yield

    # Reading

    def _batches(self, segment: Segment) -> Iterator[FoundBatch | None]:
        """Batches of a segment, with a None after each step and while the disk reads.

        Raises:
            LogError: The segment is damaged.
        """
        file = self._files.open(segment.path(LOG_SUFFIX))
        walk = SegmentWalk(segment.base_offset, segment.size)
        try:
            while not walk.ended:
                piece = yield from self._job(partial(file.read, walk.position, walk.wanted))
                yield from _in_steps(walk.batches(piece))
        finally:
            # If the round was given up, a job may still be reading: close after it.
            self._storage.begin(file.close)
        if walk.position != segment.size:
            raise segment.corrupt(f"holds no valid batch at position {walk.position}")

    def _decoded(
        self, batch: FoundBatch, work: Callable[[FoundBatch], T]
    ) -> Generator[None, None, T]:
        """Apply a function to all records of a batch, in a job if there are many.

        Raises:
            LogError: The batch cannot be read.
        """
        try:
            if batch.header.records_count <= STEP_RECORDS:
                return work(batch)
            result = yield from self._job(partial(work, batch))
            return result
        except InvalidBatchError as error:
            raise LogError(error.code, f"{self._directory}: {error}") from error

    # Which record is the newest of its key

    def _remember_keys(self, first_dirty_offset: int) -> Iterator[None]:
        """Note the newest offset of each key in the dirty segments, as far as memory allows."""
        self._first_dirty_offset = first_dirty_offset
        transactions = _TransactionFilter(
            [entry for entry in self._aborted if entry.last_offset >= first_dirty_offset]
        )
        for number, segment in enumerate(list(self._chosen)):
            if self._ends[number] <= first_dirty_offset:
                continue
            for batch in self._batches(segment):
                if batch is None:
                    yield
                    continue
                full = yield from self._note_keys(batch, transactions)
                if full:
                    del self._chosen[number + 1 :]
                    return

    def _note_keys(
        self, batch: FoundBatch, transactions: _TransactionFilter
    ) -> Generator[None, None, bool]:
        """Note the keys of one batch; return whether there is no room for more."""
        header = batch.header
        transactions.meet(header)
        if header.is_control:
            transactions.marker_may_go(batch)
        elif not transactions.drops_data(header) and header.last_offset >= self._first_dirty_offset:
            known_end = yield from self._decoded(batch, self._take_keys)
            if known_end is not None:
                self._known_end = known_end
                return True
        return False

    def _take_keys(self, batch: FoundBatch) -> int | None:
        """Note keys; return the offset of the first record whose key has no room."""
        newest, first_dirty_offset = self._newest, self._first_dirty_offset
        for record in decode_batch(batch.data, header=batch.header, verify_crc=False):
            if record.key is not None and record.offset >= first_dirty_offset:
                key = _short(record.key)
                if len(newest) >= KEYS_MAX and key not in newest:
                    return record.offset
                newest[key] = record.offset
        return None

    # Writing the new files

    def _groups(self) -> Iterator[list[Segment]]:
        """Return groups of neighbouring segments that fit into one."""
        group: list[Segment] = []
        size = 0
        for number, segment in enumerate(list(self._chosen)):
            if group and (
                size + segment.size > self._config.segment_bytes
                or self._ends[number] - group[0].base_offset > RELATIVE_OFFSET_MAX
                or len(group) >= GROUP_SEGMENTS_MAX
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _clean_group(
        self, group: list[Segment], transactions: _TransactionFilter
    ) -> Iterator[None]:
        base = group[0]
        cleaned = [base.path(suffix) + CLEANED_SUFFIX for suffix in _SUFFIXES]
        swapped = False
        try:
            output = yield from self._job(partial(self._new_output, base, cleaned))
            try:
                yield from self._fill(output, group, transactions)
                yield from self._job(output.complete)
            finally:
                self._storage.begin(partial(output.segment.close, complete=False))
            swapped = yield from self._swap(group, with_aborted=len(output.segment.aborted) > 0)
        finally:
            if not swapped:
                remove_later(self._storage, cleaned)

    def _new_output(self, base: Segment, leftovers: Sequence[str]) -> _Output:
        for path in leftovers:
            self._storage.remove(path)
        return _Output(
            Segment(
                self._files,
                self._directory,
                base.base_offset,
                index_interval_bytes=self._config.index_interval_bytes,
                created_ms=self._now_ms,
                ending=CLEANED_SUFFIX,
            )
        )

    def _fill(
        self, output: _Output, group: list[Segment], transactions: _TransactionFilter
    ) -> Iterator[None]:
        """Write the remaining records of a group."""
        last: FoundBatch | None = None
        kept_last = False
        written = 0
        for segment in group:
            for batch in self._batches(segment):
                if batch is None:
                    yield
                    continue
                data = yield from self._clean_batch(batch, transactions)
                last, kept_last = batch, data is not None
                if data is not None:
                    output.add(data, batch.aborts)
                if output.size - written >= CHUNK_BYTES:
                    written = output.size
                    yield from self._job(output.write)
        if last is not None and not kept_last:
            # The last batch stays, so that readers know the file's range of offsets. Clients fail
            # at a marker without a record, so a marker stays whole.
            whole = last.header.is_control
            output.add(last.data if whole else empty_batch(last.header), last.aborts)

    def _clean_batch(
        self, batch: FoundBatch, transactions: _TransactionFilter
    ) -> Generator[None, None, Buffer | None]:
        """Return the rest of a batch; None if nothing remains."""
        header = batch.header
        transactions.meet(header)
        newest_of_producer = self._is_newest_of_producer(header)
        if header.is_control:
            return self._clean_marker(batch, transactions, newest_of_producer)
        if transactions.drops_data(header):
            return empty_batch(header) if newest_of_producer else None
        if header.records_count == 0:
            return batch.data if newest_of_producer else None
        kept = yield from self._decoded(batch, self._clean_records)
        return empty_batch(header) if kept is None and newest_of_producer else kept

    def _clean_records(self, batch: FoundBatch) -> Buffer | None:
        """Return the batch with its remaining records; None if none remains."""
        header = batch.header
        horizon = header.delete_horizon_ms
        tombstones_go = horizon is not None and horizon <= self._now_ms
        records = decode_batch(batch.data, header=header, verify_crc=False)
        newest, known_end = self._newest, self._known_end
        kept = [
            record
            for record in records
            if record.offset >= known_end
            or (
                record.key is not None
                and record.offset >= newest.get(_short(record.key), -1)
                and not (tombstones_go and record.value is None)
            )
        ]
        if not kept:
            return None
        if horizon is None and any(record.value is None for record in kept):
            horizon = self._now_ms + self._config.delete_retention_ms
        elif len(kept) == len(records):
            return batch.data
        return smaller_batch(header, kept, horizon)

    def _clean_marker(
        self, batch: FoundBatch, transactions: _TransactionFilter, newest_of_producer: bool
    ) -> Buffer | None:
        header = batch.header
        batch.aborts = transactions.aborts(header)
        if not transactions.marker_may_go(batch):
            return batch.data
        horizon = header.delete_horizon_ms
        if horizon is None:
            records = decode_batch(batch.data, header=header, verify_crc=False)
            return smaller_batch(header, records, self._now_ms + self._config.delete_retention_ms)
        return None if horizon <= self._now_ms and not newest_of_producer else batch.data

    def _is_newest_of_producer(self, header: BatchHeader) -> bool:
        entry = self._producers.entries.get(header.producer_id)
        if entry is None:
            return False
        if entry.batches:
            return entry.last_offset == header.last_offset
        return header.is_control and header.producer_epoch == entry.producer_epoch

    def _swap(self, group: list[Segment], *, with_aborted: bool) -> Generator[None, None, bool]:
        """Replace the old files by the new ones.

        The rename of the log to ``.swap`` decides. After a crash before it, a start drops the new
        files; after a crash behind it, a start drops the remaining old ones (see ``recovery``). The
        old files are removed only when the new ones are on the disk under these names.

        Returns:
            False if retention has dropped old segments meanwhile, so that nothing was done.
        """
        base, directory = group[0], self._directory
        # The log is renamed last, so that it never exists without its indexes.
        paths = [
            base.path(suffix)
            for suffix in reversed(_SUFFIXES)
            if with_aborted or suffix not in ABORTED_SUFFIXES
        ]
        flush_names = partial(self._storage.flush_directory, directory)
        yield from self._job(flush_names)
        for path in paths:
            self._storage.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        self.swapping = True
        dropped = self._segments.dropped
        yield from self._job(flush_names)
        if self._segments.dropped != dropped:
            for path in reversed(paths):
                self._storage.rename(path + SWAP_SUFFIX, path + CLEANED_SUFFIX)
            self.swapping = False
            return False
        due_ms = self._now_ms + self._config.file_delete_delay_ms
        for segment in group:
            segment.close(complete=False)
            self._removals.set_aside(directory, segment.paths(), due_ms)
        for path in paths:
            self._storage.rename(path + SWAP_SUFFIX, path)
        new = Segment(
            self._storage,
            directory,
            base.base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=self._now_ms,
        )
        self._segments.replace(group, [new])
        self.removed_bases += [segment.base_offset for segment in group[1:]]
        self.swapping = False
        return True


_SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES)
_PARTS_AT_ONCE = 512
"""Batches that are written at once; the system takes 1,024 pieces in one call."""


def _in_steps(batches: Iterator[FoundBatch]) -> Iterator[FoundBatch | None]:
    """Yield the batches, with a None after each step."""
    size = records = 0
    for batch in batches:
        yield batch
        size += len(batch.data)
        records += batch.header.records_count
        if size >= STEP_BYTES or records >= STEP_RECORDS:
            size = records = 0
            yield None


def _short(key: bytes) -> bytes:
    """Return the key, or a digest of a long one."""
    if len(key) <= _LONG_KEY_BYTES:
        return bytes(key)
    return hashlib.blake2b(key, digest_size=_LONG_KEY_BYTES + 1).digest()
