"""Compaction: of each key only the newest record stays (``cleanup.policy=compact``).

Kafka's LogCleaner rules: nothing at or above the last stable offset, nor in the active segment, is
touched; aborted records go; markers stay while a batch of their transaction is there and then, as
tombstones, for ``delete.retention.ms``; the newest batch of each producer and the last batch of
each new file stay, empty if need be. The work is cut into small steps for a caller that must not
be held up, and each new file takes its place in one step that a crash cannot split.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator

from onceflow.broker_lite.log.batch_filter import empty_batch, smaller_batch
from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import LogError
from onceflow.broker_lite.log.producer_state import ProducerState
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
    CLEANED_SUFFIX,
    SWAP_SUFFIX,
    FoundBatch,
    walk,
)
from onceflow.broker_lite.log.storage import Buffer, Storage
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.protocol.batch_header import BatchHeader, parse_batch_header
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import decode_batch, parse_control_batch

STEP_BYTES = 256 * 1024
"""Bytes that are read in one step."""

KEYS_MAX = 1_000_000
"""Keys that one round remembers; what lies behind them waits for the next round."""

_LONG_KEY_BYTES = 24
_logger = logging.getLogger("onceflow.broker_lite.log")


def segments_to_compact(
    segments: SegmentList,
    config: LogConfig,
    *,
    now_ms: int,
    first_dirty_offset: int,
    last_stable_offset: int,
) -> list[Segment]:
    """The segments that are worth compacting now, from the first one on; perhaps none.

    Args:
        segments: The partition's segments.
        config: The topic's settings.
        now_ms: The broker's clock.
        first_dirty_offset: End of what was compacted before.
        last_stable_offset: Nothing from here on may be touched.
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
        return []
    dirty_bytes = sum(segment.size for segment in dirty)
    total_bytes = sum(segment.size for segment in found)
    overdue = now_ms - dirty[0].first_timestamp_ms > config.max_compaction_lag_ms
    if not overdue and dirty_bytes < config.min_cleanable_dirty_ratio * total_bytes:
        return []
    return found


class _TransactionFilter:
    """Which batches on a walk belong to aborted transactions, and which markers may go.

    Args:
        aborted: The aborted transactions of the log.
    """

    def __init__(self, aborted: list[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        # Producers in an aborted transaction, and whether a batch of it was met.
        self._aborting: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committing: set[int] = set()

    def meet(self, header: BatchHeader) -> None:
        """Go on to a batch."""
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            entry = self._pending.pop()
            self._aborting[entry.producer_id] = (entry, False)

    def drops_data(self, header: BatchHeader) -> bool:
        """Whether a batch of data was aborted."""
        if not header.is_transactional:
            return False
        found = self._aborting.get(header.producer_id)
        if found is not None:
            self._aborting[header.producer_id] = (found[0], True)
            return True
        self._committing.add(header.producer_id)
        return False

    def aborts(self, header: BatchHeader) -> AbortedTransaction | None:
        """The transaction that ends with a marker, if it was aborted."""
        found = self._aborting.get(header.producer_id)
        return (
            found[0] if found is not None and found[0].last_offset == header.base_offset else None
        )

    def marker_may_go(self, batch: FoundBatch) -> bool:
        """Whether no batch was met of the transaction that a marker ends."""
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


class Compaction:
    """One round over one partition.

    Args:
        storage: Where the files are.
        directory: The partition's folder.
        segments: All segments of the partition; groups are replaced in it as they are done.
        chosen: The segments to compact: the first ones, in order.
        producers: The partition's producers.
        config: The topic's settings.
        now_ms: The broker's clock.

    Attributes:
        removed_bases: Base offsets of segments that were merged into others.
        cleaned_offset: End of what is compacted, once the round is over.
        swapping: Whether files are taking their place; a failure then leaves the log unusable
            until the next start, which completes it.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        segments: SegmentList,
        chosen: list[Segment],
        producers: ProducerState,
        config: LogConfig,
        now_ms: int,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._segments = segments
        self._chosen = chosen
        self._ends = [segment.base_offset for segment in segments][1 : len(chosen) + 1]
        self._producers = producers
        self._config = config
        self._now_ms = now_ms
        self._newest: dict[bytes, int] = {}
        self._aborted = [entry for segment in segments for entry in segment.aborted.entries_from(0)]
        self.removed_bases: list[int] = []
        self.cleaned_offset: int = 0
        self.swapping: bool = False

    def run(self, first_dirty_offset: int) -> Iterator[None]:
        """Do the round; each step reads about ``STEP_BYTES``.

        Args:
            first_dirty_offset: End of what was compacted before.

        Raises:
            LogError: A segment is damaged; nothing more is replaced.
            OSError: The storage failed; nothing more is replaced.
        """
        dropped = self._segments.dropped
        for _ in self._round(first_dirty_offset):
            yield
            if self._segments.dropped != dropped:
                # Retention was faster; what is left waits for the next round.
                return
        self.cleaned_offset = self._ends[len(self._chosen) - 1]

    def _round(self, first_dirty_offset: int) -> Iterator[None]:
        yield from self._remember_keys(first_dirty_offset)
        transactions = _TransactionFilter(self._aborted)
        for group in self._groups():
            yield from self._clean_group(group, transactions)

    # Which record is the newest of its key

    def _remember_keys(self, first_dirty_offset: int) -> Iterator[None]:
        """Note the newest offset of each key in the dirty segments, as far as memory allows."""
        transactions = _TransactionFilter(
            [entry for entry in self._aborted if entry.last_offset >= first_dirty_offset]
        )
        for number, segment in enumerate(list(self._chosen)):
            if self._ends[number] > first_dirty_offset:
                for batch in _steps(segment):
                    if batch is None:
                        yield
                    else:
                        self._note_keys(batch, transactions)
            if len(self._newest) > KEYS_MAX:
                del self._chosen[number + 1 :]
                return

    def _note_keys(self, batch: FoundBatch, transactions: _TransactionFilter) -> None:
        header = batch.header
        transactions.meet(header)
        if header.is_control:
            transactions.marker_may_go(batch)
        elif not transactions.drops_data(header):
            for record in decode_batch(batch.data, header=header, verify_crc=False):
                if record.key is not None:
                    self._newest[_short(record.key)] = record.offset

    # Writing anew

    def _groups(self) -> Iterator[list[Segment]]:
        """Neighbours that fit into one segment."""
        group: list[Segment] = []
        size = 0
        for number, segment in enumerate(list(self._chosen)):
            if group and (
                size + segment.size > self._config.segment_bytes
                or self._ends[number] - group[0].base_offset > RELATIVE_OFFSET_MAX
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
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self._storage.remove(group[0].path(suffix) + CLEANED_SUFFIX)
        cleaned = self._segment(group[0].base_offset, CLEANED_SUFFIX)
        try:
            yield from self._fill(cleaned, group, transactions)
            cleaned.finish()
            cleaned.flush_all()
        finally:
            cleaned.close(complete=False)
        self.swapping = True
        self._swap(group, cleaned)
        self.swapping = False

    def _fill(
        self, cleaned: Segment, group: list[Segment], transactions: _TransactionFilter
    ) -> Iterator[None]:
        """Write what stays of a group."""
        last: FoundBatch | None = None
        kept_last = False
        for segment in group:
            for batch in _steps(segment):
                if batch is None:
                    yield
                    continue
                data = self._clean_batch(batch, transactions)
                last, kept_last = batch, data is not None
                if data is not None:
                    self._write(cleaned, batch, data)
        if last is not None and not kept_last:
            # The end of the file stays visible, so that its range of offsets is known.
            # An empty marker would puzzle clients, so a marker stays whole.
            whole = last.header.is_control
            self._write(cleaned, last, last.data if whole else empty_batch(last.header))

    def _segment(self, base_offset: int, ending: str = "") -> Segment:
        return Segment(
            self._storage,
            self._directory,
            base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=self._now_ms,
            ending=ending,
        )

    def _write(self, cleaned: Segment, batch: FoundBatch, data: Buffer) -> None:
        header = parse_batch_header(data)
        place = BatchPlace(len(data), header.last_offset, header.max_timestamp)
        cleaned.append([data], [place])
        if header.is_control and batch.aborts is not None:
            cleaned.aborted.append(batch.aborts)

    def _clean_batch(self, batch: FoundBatch, transactions: _TransactionFilter) -> Buffer | None:
        """What stays of a batch, None for nothing."""
        header = batch.header
        transactions.meet(header)
        newest_of_producer = self._is_newest_of_producer(header)
        if header.is_control:
            return self._clean_marker(batch, transactions, newest_of_producer)
        if transactions.drops_data(header):
            return empty_batch(header) if newest_of_producer else None
        if header.records_count == 0:
            return batch.data if newest_of_producer else None
        horizon = header.delete_horizon_ms
        tombstones_go = horizon is not None and horizon <= self._now_ms
        records = decode_batch(batch.data, header=header, verify_crc=False)
        kept = [
            record
            for record in records
            if record.key is not None
            and record.offset >= self._newest.get(_short(record.key), -1)
            and not (tombstones_go and record.value is None)
        ]
        if not kept:
            return empty_batch(header) if newest_of_producer else None
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

    def _swap(self, group: list[Segment], cleaned: Segment) -> None:
        """Put the new file in the place of the old ones.

        The rename to ``.swap`` decides: before it a start drops the new file, after it a start
        drops what is left of the old ones (see ``recovery``).
        """
        base = group[0]
        swap = base.path(LOG_SUFFIX) + SWAP_SUFFIX
        self._storage.rename(base.path(LOG_SUFFIX) + CLEANED_SUFFIX, swap)
        for segment in reversed(group):
            segment.remove()
        self._storage.rename(swap, base.path(LOG_SUFFIX))
        for suffix in INDEX_SUFFIXES:
            cleaned_index = base.path(suffix) + CLEANED_SUFFIX
            if suffix not in ABORTED_SUFFIXES or len(cleaned.aborted):
                self._storage.rename(cleaned_index, base.path(suffix))
        self._segments.replace(group, [self._segment(base.base_offset)])
        self.removed_bases += [segment.base_offset for segment in group[1:]]


def _steps(segment: Segment) -> Iterator[FoundBatch | None]:
    """Batches of a segment, with a None after each ``STEP_BYTES``.

    Raises:
        LogError: The segment is damaged.
    """
    end = step = 0
    for batch in walk(segment, segment.base_offset):
        yield batch
        end = batch.position + len(batch.data)
        if end - step >= STEP_BYTES:
            step = end
            yield None
    if end != segment.size:
        raise LogError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{segment.path(LOG_SUFFIX)} holds no sound batch at position {end}",
        )


def _short(key: bytes) -> bytes:
    """The key, or a digest that takes its place when it is long."""
    if len(key) <= _LONG_KEY_BYTES:
        return bytes(key)
    return hashlib.blake2b(key, digest_size=_LONG_KEY_BYTES + 1).digest()
