"""Figures of a query: how far it is behind, and what it published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceflow.sdk import TopicPartition
from onceflow.spark_integration.planning import MARK

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(slots=True)
class PublishMetrics:
    """What a ``foreach_batch`` did since it was made.

    Attributes:
        last_batch_id: Number of the last batch that is published, None for none yet.
        transactions: Transactions that were committed.
        aborted_attempts: Attempts of batches that failed; nothing of them is visible.
        skipped_batches: Batches that were found to be published already.
        rows: Rows that were published.
        bytes: Size of the batches that hold them, as they were sent.
    """

    last_batch_id: int | None = None
    transactions: int = 0
    aborted_attempts: int = 0
    skipped_batches: int = 0
    rows: int = 0
    bytes: int = 0


def lag_of(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Offsets between what a query has read and the ends of the logs, by partition.

    They come from the query's last progress, for our source and for Spark's own. Of two sources
    that read one partition the larger lag is told.

    Args:
        query: The query.
    """
    progress = query.lastProgress
    found: dict[TopicPartition, int] = {}
    for source in [] if progress is None else progress["sources"]:
        ends, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        for tp, offset in latest.items():
            behind = max(0, offset - ends.get(tp, 0))
            found[tp] = max(behind, found.get(tp, 0))
    return found


def _offsets(text: Any) -> dict[TopicPartition, int]:
    """Offsets by partition, none where a source tells something else."""
    try:
        parsed = json.loads(text) if isinstance(text, str) else text
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, numbers in (parsed.items() if isinstance(parsed, Mapping) else ())
            if topic != MARK
            for partition, offset in numbers.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}
