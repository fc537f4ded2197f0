"""Input partitions that cannot be read, and when each one is fetched again.

A damaged answer is fetched again after a growing wait, since it may have been damaged on its way.
Its partition is paused meanwhile, and others continue. If it stays damaged, the log itself is: the
worker ends with an error that names topic, partition and offset. No record is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from onceflow.processors.errors import ProcessingError
from onceflow.sdk.errors import KafkaError, RecordError
from onceflow.sdk.model.partitions import TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.processors")

REREADS_MAX = 5
BACKOFF_START_S = 0.1
BACKOFF_MAX_S = 2.0


@dataclass(slots=True)
class _Trouble:
    """One partition that could not be read.

    Attributes:
        offset: Offset that cannot be read.
        error: The latest error.
        failures: Failures in a row.
        again_s: When it is fetched again; None while a fetch is under way.
    """

    offset: int
    error: KafkaError
    failures: int
    again_s: float | None


class BadInputs:
    """The partitions that cannot be read.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._troubles: dict[TopicPartition, _Trouble] = {}

    def note(self, error: KafkaError) -> TopicPartition | None:
        """Note that reading failed.

        Returns:
            The partition to pause and fetch again; None if the error names no partition, or if
            fetching again cannot help.
        """
        if error.place is None or not isinstance(error, RecordError):
            return None
        topic, number, offset = error.place
        partition = TopicPartition(topic, number)
        known = self._troubles.get(partition)
        failures = 1 if known is None or known.offset != offset else known.failures + 1
        wait_s = min(BACKOFF_MAX_S, BACKOFF_START_S * 2 ** (failures - 1))
        self._troubles[partition] = _Trouble(offset, error, failures, self._clock() + wait_s)
        logger.warning(
            "%s cannot be read at offset %d (attempt %d of %d): %s",
            partition,
            offset,
            failures,
            REREADS_MAX,
            error,
        )
        return partition

    def given_up(self, partition: TopicPartition) -> bool:
        """Whether it was fetched ``REREADS_MAX`` times."""
        return self._troubles[partition].failures >= REREADS_MAX

    def failure(self, partition: TopicPartition) -> ProcessingError:
        """Return the error that ends the worker."""
        trouble = self._troubles[partition]
        error = ProcessingError(
            f"{partition} is damaged at offset {trouble.offset}: {trouble.error}. It was fetched "
            f"{trouble.failures} times. What precedes it is committed; restore the log, or move "
            "the group's offset behind the damage, which loses the records there",
            partition.topic,
            partition.partition,
            trouble.offset,
            trouble.failures,
        )
        error.__cause__ = trouble.error
        return error

    def held(self) -> set[TopicPartition]:
        """Return the partitions that are paused now."""
        return {tp for tp, trouble in self._troubles.items() if trouble.again_s is not None}

    def due(self) -> list[TopicPartition]:
        """Return the partitions to fetch again now; they are not paused any more."""
        now_s = self._clock()
        found = []
        for partition, trouble in self._troubles.items():
            if trouble.again_s is not None and now_s >= trouble.again_s:
                trouble.again_s = None
                found.append(partition)
        return found

    def next_s(self) -> float | None:
        """Return when the next one is fetched again."""
        waits = [t.again_s for t in self._troubles.values() if t.again_s is not None]
        return min(waits, default=None)

    def read(self, partition: TopicPartition) -> None:
        """Forget the partition, as records of it have arrived."""
        self._troubles.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Forget the partition, as it is revoked or lost."""
        self._troubles.pop(partition, None)

    def clear(self) -> None:
        """Forget all partitions."""
        self._troubles.clear()
