"""Partitions whose next records cannot be read: when to try again, and what a poll raises.

The reason may be a damaged batch, a record that a deserializer refuses, or a partition that the
broker refuses. It delays only its own partition, which is tried again after a growing pause. A poll
raises the error only after the application has got all records before this offset, so that a seek
past it loses no other record. Nothing is fetched or decoded here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from onceflow.sdk.core.consume.subscription import PartitionState, Subscription
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.sdk.fetcher")


@dataclass(slots=True)
class _Trouble:
    stamp: int
    offset: int
    count: int
    until_ms: int
    failure: KafkaError | None


class Unreadable:
    """The unreadable offsets of one consumer."""

    def __init__(self, subscription: Subscription, first_ms: int, longest_ms: int) -> None:
        """Make the object, without unreadable offsets.

        Args:
            subscription: Positions.
            first_ms: First pause before a partition is tried again.
            longest_ms: Longest pause; it doubles with each failure at the same place.
        """
        self._subscription = subscription
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._troubles: dict[TopicPartition, _Trouble] = {}

    def __bool__(self) -> bool:
        """Whether there is any unreadable offset."""
        return bool(self._troubles)

    def note(
        self,
        state: PartitionState,
        offset: int,
        error: KafkaError,
        now_ms: int,
        *,
        may_pass: bool = False,
    ) -> int:
        """Note that a partition could not be read at an offset.

        Args:
            state: The partition.
            offset: The offset.
            error: Why; its ``place`` is set.
            now_ms: The present time.
            may_pass: Whether one more try may succeed, as for an answer that was damaged on its
                way; then only the second failure is raised.

        Returns:
            When to try again.
        """
        partition = state.topic_partition
        before = self._troubles.get(partition)
        same = before is not None and (before.stamp, before.offset) == (state.stamp, offset)
        count = before.count + 1 if before is not None and same else 1
        pause_ms = min(self._first_ms << min(count - 1, 20), self._longest_ms)
        error.place = (*partition, offset)
        told: KafkaError | None = error
        if may_pass and count == 1:
            logger.warning("%s", error)
            told = None
        self._troubles[partition] = _Trouble(state.stamp, offset, count, now_ms + pause_ms, told)
        return now_ms + pause_ms

    def holds(self, state: PartitionState, now_ms: int) -> bool:
        """Whether a partition waits for its next try."""
        trouble = self._troubles.get(state.topic_partition)
        if trouble is None or trouble.stamp != state.stamp or trouble.offset != state.position:
            return False
        return now_ms < trouble.until_ms

    def passed(self, state: PartitionState) -> None:
        """Forget the unreadable offset of a partition that was read past it."""
        trouble = self._troubles.get(state.topic_partition)
        if trouble is None or (trouble.stamp == state.stamp and state.position <= trouble.offset):
            return
        del self._troubles[state.topic_partition]

    def answered(self, partition: TopicPartition) -> None:
        """Forget a broker's refusal of a partition that it now serves."""
        trouble = self._troubles.get(partition)
        if trouble is not None:
            trouble.failure = None

    def take_failure(self) -> KafkaError | None:
        """Return the error that a poll must raise now: once for each try, at the application's
        position."""
        trouble = self._due()
        if trouble is None:
            return None
        failure, trouble.failure = trouble.failure, None
        return failure

    @property
    def has_failure(self) -> bool:
        """Whether a poll must raise something now."""
        return self._due() is not None

    def _due(self) -> _Trouble | None:
        for partition, trouble in list(self._troubles.items()):
            state = self._subscription.get(partition)
            if state is None or state.stamp != trouble.stamp:
                del self._troubles[partition]
            elif trouble.failure is None or state.held_back:
                continue
            elif state.position == trouble.offset:
                return trouble
        return None

    def next_tries_ms(self, now_ms: int) -> list[int]:
        """Return when the held partitions may be tried again."""
        waits = (trouble.until_ms for trouble in self._troubles.values())
        return [until_ms for until_ms in waits if until_ms > now_ms]
