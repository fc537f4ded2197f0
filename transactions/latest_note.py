"""Finds the latest committed record of a key in a partition, reading from the partition's end."""

from __future__ import annotations

from typing import cast

from onceflow.sdk import Consumer, ConsumerConfig
from onceflow.sdk.model.partitions import TopicPartition

FIRST_LOOK = 16
"""Offsets of the first look; each further one goes eight times as far back."""


def latest_note(config: ConsumerConfig, partition: TopicPartition, key: bytes) -> bytes | None:
    """Return the value of the latest committed record with a key; None if there is none.

    Fence the writers of the key first, or one of them may write a later record meanwhile.

    Args:
        config: Settings of a consumer that reads committed records.
        partition: The partition.
        key: The key.
    """
    with Consumer(config=config) as consumer:
        consumer.assign([partition])
        begin = consumer.beginning_offsets([partition])[partition]
        end = consumer.end_offsets([partition])[partition]
        back = FIRST_LOOK
        while True:
            # Markers, aborted records and other keys lie between: go further back until it is
            # found.
            start = max(begin, end - back)
            found = _in_range(consumer, partition, key, start, end)
            if found is not None or start <= begin:
                return found
            back *= 8


def _in_range(
    consumer: Consumer[object, object],
    partition: TopicPartition,
    key: bytes,
    start: int,
    end: int,
) -> bytes | None:
    consumer.seek(partition, start)
    latest: bytes | None = None
    while consumer.position(partition) < end:
        for records in consumer.poll(1_000).values():
            for record in records:
                if record.key == key:
                    latest = cast("bytes | None", record.value)
    return latest
