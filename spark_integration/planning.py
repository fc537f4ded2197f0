"""Which offsets a micro-batch covers and how they are cut into tasks: pure arithmetic.

Ranges are in offsets, not rows: transactional and compacted topics have gaps, so a range without
rows is normal and is never taken for lost data. Nothing here talks to a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onceflow.sdk import TopicPartition

MARK: Final = "@onceflow"
"""Key of our source's positions that is no topic (names of topics have no ``@``).

It holds the ids of the cluster and of the topics, and the offsets that the query began at."""

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")


class DataLossError(Exception):
    """Offsets that a query still needs are gone; the message names them and the remedy."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A half-open range of offsets of one partition, read by one task.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        start: First offset.
        end: Offset after the last one.
    """

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that is read."""
        return TopicPartition(self.topic, self.partition)


def limit_offsets(
    start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Choose an end for each partition so that at most ``limit`` offsets are covered together.

    Each partition gets a share by its backlog, and at least one offset where it has any while the
    limit lasts, so that a small partition is not starved by a large one.

    Args:
        start: First offset of the batch by partition.
        latest: Offset after the last available one by partition.
        limit: Most offsets of the batch, at least 1.

    Returns:
        End offsets by partition, between start and latest.
    """
    backlog = {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}
    total = sum(backlog.values())
    if total <= limit:
        return dict(latest)
    share = {tp: size * limit // total for tp, size in backlog.items()}
    left = limit - sum(share.values())
    # What rounding left over goes first to those who got nothing, then to the largest backlogs.
    for tp in sorted(backlog, key=lambda tp: (share[tp] > 0, -backlog[tp], tp)):
        if left == 0:
            break
        if share[tp] < backlog[tp]:
            share[tp] += 1
            left -= 1
    return {tp: start.get(tp, latest[tp]) + share[tp] for tp in latest}


@dataclass(slots=True)
class BatchDelay:
    """Whether a micro-batch waits for more records, as ``minOffsetsPerTrigger`` asks.

    Attributes:
        least: Offsets that it waits for.
        delay_ms: Longest wait since the batch before.
        last_ms: Time of the batch before, None for the first one, which does not wait.
    """

    least: int
    delay_ms: int
    last_ms: int | None = None

    def waits(
        self,
        start: Mapping[TopicPartition, int],
        latest: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> bool:
        """Whether the batch has to wait; if not, it counts as begun now.

        Args:
            start: First offset by partition.
            latest: Offset after the last available one by partition.
            now_ms: A clock that only goes forward, in milliseconds.
        """
        is_due = self.last_ms is None or now_ms - self.last_ms >= self.delay_ms
        backlog = sum(max(0, end - start.get(tp, end)) for tp, end in latest.items())
        if not is_due and backlog < self.least:
            return True
        self.last_ms = now_ms
        return False


def plan_ranges(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut a batch into ranges, one a partition or more where a limit asks for it.

    Args:
        start: First offset by partition; partitions that are only in ``end`` are an error here,
            their start has to be found before.
        end: Offset after the last one, by partition.
        min_partitions: Least number of ranges; large ranges are split in proportion.
        max_records: Most offsets of a range.

    Returns:
        Ranges with at least one offset each, sorted by partition.
    """
    whole = [
        OffsetRange(tp.topic, tp.partition, start[tp], offset)
        for tp, offset in sorted(end.items())
        if offset > start[tp]
    ]
    total = sum(r.end - r.start for r in whole)
    least = min_partitions if min_partitions is not None and len(whole) < min_partitions else 0
    pieces: list[OffsetRange] = []
    for r in whole:
        size = r.end - r.start
        parts = max(1, min(size, round(size * least / total)))
        if max_records is not None:
            parts = max(parts, -(-size // max_records))
        borders = [r.start + size * i // parts for i in range(parts + 1)]
        pieces += [
            OffsetRange(r.topic, r.partition, borders[i], borders[i + 1]) for i in range(parts)
        ]
    return pieces


def check_data_loss(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
    *,
    fail: bool,
) -> dict[TopicPartition, int]:
    """Compare the offsets that a batch needs with those that are still there.

    Args:
        start: First offset of the batch by partition.
        end: Offset after the last one by partition.
        earliest: First offset that the broker still has, by partition.
        fail: Option ``failOnDataLoss``.

    Returns:
        Start offsets, moved to the earliest available where data is gone and ``fail`` is false.

    Raises:
        DataLossError: Offsets are gone and ``fail`` is true.
    """
    lost = {
        tp: (offset, earliest[tp])
        for tp, offset in start.items()
        if tp in earliest and offset < earliest[tp] and end.get(tp, offset) > offset
    }
    shrunk = {tp: (offset, end[tp]) for tp, offset in start.items() if end.get(tp, offset) < offset}
    if fail and (lost or shrunk):
        parts = [f"{tp}: wanted {a}, the log begins at {b}" for tp, (a, b) in sorted(lost.items())]
        parts += [f"{tp}: at {a}, but the log ends at {b}" for tp, (a, b) in sorted(shrunk.items())]
        raise DataLossError(
            f"offsets are gone ({'; '.join(parts)}). They expired, were deleted, or the topic was "
            "made anew. Set failOnDataLoss=false to go on without them, or start a new checkpoint."
        )
    moved = {tp: min(begin, end.get(tp, begin)) for tp, (_, begin) in lost.items()}
    for tp, begin in sorted(moved.items()):
        log_skipped(tp, start[tp], begin, "they expired or were deleted")
    for tp, (at, stop) in sorted(shrunk.items()):
        logger.warning(
            "failOnDataLoss=false: %s was read to offset %d, but its log ends at %d; goes on there",
            tp, at, stop,
        )  # fmt: skip
    moved |= {tp: stop for tp, (_, stop) in shrunk.items()}
    return {**start, **moved}


def log_skipped(tp: TopicPartition, start: int, end: int, reason: str) -> None:
    """Tell which offsets a query with ``failOnDataLoss=false`` goes on without.

    Args:
        tp: The partition.
        start: First offset that is skipped.
        end: Offset after the last one.
        reason: Why they are skipped.
    """
    if end > start:
        logger.warning(
            "failOnDataLoss=false: skips topic %s, partition %d, offsets %d to %d (%d offsets): %s",
            tp.topic, tp.partition, start, end - 1, end - start, reason,
        )  # fmt: skip
