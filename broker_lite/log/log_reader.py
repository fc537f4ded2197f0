"""Reads a partition: whole batches from an offset, aborted transactions, records by time.

These are functions of the segments. The caller gives the offset up to which a reader may see the
log. Results always end at a batch border.
"""

from __future__ import annotations

from onceflow.broker_lite.log.segment import Segment
from onceflow.broker_lite.log.segment_list import SegmentList
from onceflow.broker_lite.log.storage import Buffer
from onceflow.sdk.protocol.batch_header import LENGTH_END, parse_batch_header
from onceflow.sdk.protocol.records import first_record_at_or_after


def read_batches(
    segments: SegmentList,
    fetch_offset: int,
    max_bytes: int,
    upper_bound: int,
    log_end_offset: int,
    *,
    minimum_one_batch: bool,
) -> tuple[Buffer, int]:
    """Return whole batches of one segment, beginning with the one that holds an offset.

    Args:
        segments: The partition's segments.
        fetch_offset: Where to begin; below ``upper_bound``.
        max_bytes: Most bytes to give.
        upper_bound: End of what may be read.
        log_end_offset: End of the log.
        minimum_one_batch: Return the first batch even if it is larger than ``max_bytes``.

    Returns:
        The batches, and an offset between the end of the last one and the next batch.
    """
    located = segments.locate(fetch_offset, log_end_offset)
    if located is None:
        return b"", fetch_offset
    segment, position = located
    number = segments.number_of(segment.base_offset)
    end = segments.position_of(upper_bound, segment, number, log_end_offset)
    if end <= position:
        return b"", fetch_offset
    end_offset = min(upper_bound, segments.next_base(number, log_end_offset))
    if end - position <= max_bytes:
        data = segment.read(position, end - position)
        if int.from_bytes(data[8:LENGTH_END], "big") + LENGTH_END > len(data):
            raise segment.corrupt(f"holds no whole batch at position {position}")
        segments.remember(end_offset, segment, end)
        return data, end_offset
    return _read_some(segments, segment, position, fetch_offset, max_bytes, minimum_one_batch)


def _read_some(
    segments: SegmentList,
    segment: Segment,
    position: int,
    fetch_offset: int,
    max_bytes: int,
    minimum_one_batch: bool,
) -> tuple[Buffer, int]:
    """Return as many whole batches as fit, if more follow."""
    data = segment.read(position, max(max_bytes, LENGTH_END))
    border, last = segment.last_border(data, position, position + max_bytes)
    if last < 0:
        if not minimum_one_batch:
            return b"", fetch_offset
        size = int.from_bytes(data[8:LENGTH_END], "big") + LENGTH_END
        data, border, last = segment.read(position, size), position + size, position
        if len(data) < size:
            raise segment.corrupt(f"holds no whole batch at position {position}")
    header = parse_batch_header(data, last - position)
    segments.remember(header.next_offset, segment, border)
    size = border - position
    return (data if len(data) == size else memoryview(data)[:size]), header.next_offset


def aborted_transactions(
    segments: SegmentList, fetch_offset: int, upper_bound: int
) -> list[tuple[int, int]]:
    """Return the aborted transactions that a committed reader of a range must filter.

    These are the ones whose marker is not before the range and whose first offset is before its
    end. The search ends at an entry that was written when the whole range was stable: no later
    entry can belong to the range.

    Args:
        segments: The partition's segments.
        fetch_offset: First offset of the range.
        upper_bound: Offset after the range.

    Returns:
        Producer id and first offset of each, by first offset.
    """
    found = []
    for number in range(segments.number_of(fetch_offset), len(segments)):
        aborted = segments[number].aborted
        if not len(aborted):
            continue
        for entry in aborted.entries_from(fetch_offset):
            if entry.first_offset < upper_bound:
                found.append((entry.first_offset, entry.producer_id))
            if entry.last_stable_offset >= upper_bound:
                found.sort()
                return [(producer_id, first) for first, producer_id in found]
    found.sort()
    return [(producer_id, first) for first, producer_id in found]


def first_at_or_after(
    segments: SegmentList, timestamp_ms: int, log_start_offset: int
) -> tuple[int, int, int] | None:
    """Return the first record of the log at or after a time.

    Returns:
        Offset, timestamp and leader epoch, or None.
    """
    for segment in segments:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        first_offset = max(segment.time_index.offset_before(timestamp_ms), log_start_offset)
        border = segment.find(first_offset)
        if border is None:
            continue
        for batch in segment.borders(border.position):
            if batch.max_timestamp_ms < timestamp_ms:
                continue
            data = segment.read(batch.position, batch.size)
            found = first_record_at_or_after(data, 0, timestamp_ms, log_start_offset)
            if found is not None:
                return (*found, parse_batch_header(data).partition_leader_epoch)
    return None


def greatest_timestamp(segments: SegmentList, log_start_offset: int) -> tuple[int, int, int] | None:
    """Return the first record with the greatest timestamp of the log.

    Returns:
        Offset, timestamp and leader epoch, or None if no record has a timestamp.
    """
    greatest = max(segment.max_timestamp_ms for segment in segments)
    while greatest >= 0:
        found = first_at_or_after(segments, greatest, log_start_offset)
        if found is not None:
            return found
        # The record is before the start of the log, in a segment that still exists.
        greatest = max(
            (
                border.max_timestamp_ms
                for segment in segments
                for border in segment.borders()
                if border.last_offset >= log_start_offset and border.max_timestamp_ms < greatest
            ),
            default=-1,
        )
    return None
