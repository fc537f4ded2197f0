"""Finds the segments that a topic's retention settings let go.

The rules are Kafka's for ``retention.ms``, ``retention.bytes`` and the start of the log. A pure
function counts the segments; ``partition_log`` removes them.
"""

from __future__ import annotations

from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.segment import Segment
from onceflow.broker_lite.log.segment_list import SegmentList


def expired_segments(
    segments: SegmentList,
    config: LogConfig,
    *,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
) -> int:
    """Return how many segments, from the oldest on, may be removed.

    Args:
        segments: The partition's segments.
        config: The topic's settings.
        now_ms: The broker's clock.
        high_watermark: Segments that reach beyond it stay.
        log_start_offset: Segments that end at or before it may be removed at any age.
        log_end_offset: End of the log.

    Returns:
        The count; it includes the active segment only if that is too old and not empty.
    """
    count = 0
    total = segments.size_bytes
    for number, segment in enumerate(segments):
        active = number + 1 == len(segments)
        end_offset = segments.next_base(number, log_end_offset)
        if end_offset > high_watermark or (active and segment.size == 0):
            break
        before_start = end_offset <= log_start_offset and not active
        expired = config.deletes and (
            _too_old(segment, config.retention_ms, now_ms)
            or (not active and _over_size(total, segment.size, config.retention_bytes))
        )
        if not (before_start or expired):
            break
        total -= segment.size
        count += 1
    return count


def _too_old(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    if retention_ms < 0:
        return False
    newest_ms = segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.created_ms
    return now_ms - newest_ms > retention_ms


def _over_size(total: int, size: int, retention_bytes: int) -> bool:
    """Whether the log still reaches ``retention.bytes`` without the segment."""
    return retention_bytes >= 0 and total - size >= retention_bytes
