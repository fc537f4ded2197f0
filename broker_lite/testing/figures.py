"""Offsets of partitions: log start, high watermark, last stable offset, open transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services


class PartitionFigures(NamedTuple):
    """Offsets of one partition.

    Attributes:
        topic: Name of the topic.
        partition: Number of the partition.
        log_start_offset: First readable offset.
        last_stable_offset: End of ``read_committed``: all transactions below it have ended.
        high_watermark: End of ``read_uncommitted``: all records below it are stored.
        last_stable_offset_lag: High watermark minus last stable offset; Kafka's metric
            ``LastStableOffsetLag``. Above 0, an open transaction hides later records.
        open_transactions: First offset of each open transaction by producer id, the one that holds
            the last stable offset first.
    """

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    last_stable_offset_lag: int
    open_transactions: dict[int, int]


def partition_figures(state: Services, topic_name: str | None = None) -> list[PartitionFigures]:
    """Return the offsets of all partitions, sorted by topic and number.

    Args:
        state: The broker.
        topic_name: Only of this topic; None for all, also internal ones.

    Raises:
        KeyError: The topic does not exist.
    """
    topics = list(state.topics)
    if topic_name is not None:
        topics = [topic for topic in topics if topic.name == topic_name]
        if not topics:
            raise KeyError(f"unknown topic {topic_name}")
    found = []
    for topic in sorted(topics, key=lambda each: each.name):
        for index, log in enumerate(topic.partitions):
            begun = {
                producer.producer_id: producer.current_transaction_start_offset
                for producer in log.producers()
                if producer.current_transaction_start_offset >= 0
            }
            found.append(
                PartitionFigures(
                    topic.name,
                    index,
                    log.log_start_offset,
                    log.last_stable_offset,
                    log.high_watermark,
                    log.high_watermark - log.last_stable_offset,
                    dict(sorted(begun.items(), key=lambda each: each[1])),
                )
            )
    return found
