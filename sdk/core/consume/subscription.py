"""A consumer's topics or partitions, and the state and position of each partition.

This module decides which partitions may be fetched or delivered and which offset comes next. Each
assignment, seek, reset or loss gives a partition a new *stamp*. An answer to a request under an
older stamp (a fetch, a committed offset, a look-up by time) is ignored. This module sends nothing,
knows no group protocol, and holds no records.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from onceflow.sdk.core.arguments import partition_of
from onceflow.sdk.errors import (
    ConfigError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
)
from onceflow.sdk.model.partitions import IsolationLevel, OffsetAndMetadata, TopicPartition
from onceflow.sdk.model.special_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from onceflow.sdk.protocol.primitives import ZERO_UUID

logger: logging.Logger = logging.getLogger("onceflow.sdk.subscription")

DURATION_AGO: Final = -(2**62)
"""Stands for the time of ``auto.offset.reset=by_duration:...``; the code that asks the broker has a
clock and replaces it."""


class SubscriptionMode(enum.Enum):
    """How the partitions of a consumer are chosen."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    MANUAL = "manual"


class PartitionPhase(enum.Enum):
    """What a partition waits for before it can be fetched."""

    LOADING = "loading"
    """The committed offset must be fetched."""
    RESETTING = "resetting"
    """The offset for ``reset_timestamp`` must be looked up."""
    VALIDATING = "validating"
    """The leader changed; the position must be compared with its epochs (KIP-320)."""
    READY = "ready"
    """The position is known."""
    FAILED = "failed"
    """There is no position and no reset policy; only a seek sets one."""


class PartitionState:
    """Everything that is known of one assigned partition.

    Attributes:
        topic_partition: The partition.
        stamp: Changes with each assignment, seek, reset or loss.
        phase: What the partition waits for.
        position: Offset of the next record for the application; -1 while unknown.
        position_epoch: Leader epoch of the record before the position, -1 if unknown.
        fetch_offset: Offset to fetch next; it is ahead of the position.
        fetch_epoch: Leader epoch of the batch before the fetch offset, -1 if unknown.
        validated_epoch: Leader epoch under which the position was last validated.
        reset_timestamp: ListOffsets target while RESETTING.
        failure: The error that every poll raises while FAILED.
        paused: Whether the application paused it.
        revoking: Whether it is being revoked, so that no records are delivered.
        unsubscribed: Whether its topic is not subscribed any more, but the group still assigns it.
        high_watermark: End of the replicated log as of the last fetch, -1 if unknown.
        last_stable_offset: First offset of the earliest open transaction as of the last fetch.
        log_start_offset: Start of the log as of the last fetch.
        retry_at_ms: No request for this partition is sent before this time.
        preferred_replica: Node to fetch from instead of the leader (KIP-392), or None.
        preferred_until_ms: When the preference ends.
        topic_id: Id of the topic that the position belongs to, all zero while unknown. None after
            a seek, until a fetch from there was answered.
    """

    __slots__ = (
        "failure",
        "fetch_epoch",
        "fetch_offset",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "paused",
        "phase",
        "position",
        "position_epoch",
        "preferred_replica",
        "preferred_until_ms",
        "reset_timestamp",
        "retry_at_ms",
        "revoking",
        "stamp",
        "topic_id",
        "topic_partition",
        "unsubscribed",
        "validated_epoch",
    )

    def __init__(self, topic_partition: TopicPartition, stamp: int) -> None:
        self.topic_partition: TopicPartition = topic_partition
        self.stamp: int = stamp
        self.phase: PartitionPhase = PartitionPhase.LOADING
        self.position: int = -1
        self.position_epoch: int = -1
        self.fetch_offset: int = -1
        self.fetch_epoch: int = -1
        self.validated_epoch: int = -1
        self.reset_timestamp: int = LATEST_TIMESTAMP
        self.failure: KafkaError | None = None
        self.paused: bool = False
        self.revoking: bool = False
        self.unsubscribed: bool = False
        self.high_watermark: int = -1
        self.last_stable_offset: int = -1
        self.log_start_offset: int = -1
        self.retry_at_ms: int = 0
        self.preferred_replica: int | None = None
        self.preferred_until_ms: int = 0
        self.topic_id: UUID | None = ZERO_UUID

    @property
    def has_position(self) -> bool:
        """Whether the position is known; it may still wait for validation."""
        return self.phase in (PartitionPhase.READY, PartitionPhase.VALIDATING)

    @property
    def held_back(self) -> bool:
        """Whether the application must not get records of the partition at present."""
        return self.paused or self.revoking or self.unsubscribed

    @property
    def deliverable(self) -> bool:
        """Whether the application may get records of the partition now."""
        return self.phase is PartitionPhase.READY and not self.held_back

    def resume(self) -> None:
        """End a pause; the end of the log may have moved, so it is unknown until a fetch."""
        known = self.high_watermark if self.last_stable_offset < 0 else self.last_stable_offset
        if self.paused and self.position >= known:
            self.high_watermark = self.last_stable_offset = -1
        self.paused = False

    def fetchable(self, now_ms: int) -> bool:
        """Whether the partition may be part of a fetch now."""
        return self.deliverable and self.retry_at_ms <= now_ms

    def lag(self, isolation_level: IsolationLevel) -> int | None:
        """Offsets between the position and the end at the last fetch, None if unknown."""
        end = self.high_watermark
        if isolation_level is IsolationLevel.READ_COMMITTED:
            end = self.last_stable_offset
        if not self.has_position or end < 0:
            return None
        return max(0, end - self.position)

    @property
    def lead(self) -> int | None:
        """Offsets between the log start at the last fetch and the position."""
        if not self.has_position or self.log_start_offset < 0:
            return None
        return max(0, self.position - self.log_start_offset)

    @property
    def last_stable_offset_lag(self) -> int | None:
        """Offsets that an open transaction hid at the last fetch; None if unknown."""
        if self.high_watermark < 0 or self.last_stable_offset < 0:
            return None
        return max(0, self.high_watermark - self.last_stable_offset)

    def committable(self) -> OffsetAndMetadata | None:
        """The position as a commit would store it, or None while it is unknown."""
        if not self.has_position:
            return None
        return OffsetAndMetadata(self.position, "", self.position_epoch)


class Subscription:
    """The subscription and the partition states of one consumer."""

    def __init__(self, auto_offset_reset: str = "latest") -> None:
        self.mode: SubscriptionMode = SubscriptionMode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.auto_offset_reset = auto_offset_reset
        self._states: dict[TopicPartition, PartitionState] = {}
        self._stamp = 0

    # --- what to read ---

    def subscribe(self, topics: Iterable[str]) -> bool:
        """Choose topics by name; a former list or pattern is replaced.

        Returns:
            Whether the list differs from the former one.

        Raises:
            IllegalStateError: Partitions were assigned by hand.
        """
        self._enter(SubscriptionMode.TOPICS)
        changed = self._set_topics(frozenset(topics))
        self._hold_what_is_not_subscribed()
        return changed

    def subscribe_pattern(self, pattern: re.Pattern[str]) -> None:
        """Choose topics by a regular expression that must match the whole name.

        Raises:
            IllegalStateError: Partitions were assigned by hand.
        """
        self._enter(SubscriptionMode.PATTERN)
        self.pattern = pattern
        self._hold_what_is_not_subscribed()

    def match_topics(self, known_topics: Iterable[str]) -> bool:
        """Apply the pattern to the topics of the cluster.

        Returns:
            Whether the set of matching topics changed (a reason to rejoin the group).
        """
        if self.pattern is None:
            return False
        matching = frozenset(name for name in known_topics if self.pattern.fullmatch(name))
        return self._set_topics(matching)

    def note_topics(self, topics: Iterable[str]) -> None:
        """Note the topics that the coordinator chose by the pattern."""
        self.topics = frozenset(topics)

    def assign_manually(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without assignment by a group.

        Partitions that are already assigned keep their position.

        Raises:
            IllegalStateError: Topics or a pattern were subscribed.
        """
        self._enter(SubscriptionMode.MANUAL)
        self._replace(partitions)
        self.topics = frozenset(partition.topic for partition in self._states)

    def unsubscribe(self) -> None:
        """Forget topics, pattern and partitions."""
        self.mode = SubscriptionMode.NONE
        self.topics = frozenset()
        self.pattern = None
        self._states.clear()

    def check_chosen(self) -> None:
        """Refuse to poll without topics and partitions: no record would ever arrive.

        Raises:
            IllegalStateError: Neither topics nor partitions were chosen.
        """
        if self.mode is SubscriptionMode.NONE:
            raise IllegalStateError(
                "there is nothing to read: call subscribe([...]) or assign([...]) first"
            )

    def _enter(self, mode: SubscriptionMode) -> None:
        group_modes = (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)
        compatible = self.mode is SubscriptionMode.NONE or (
            (self.mode in group_modes) == (mode in group_modes)
        )
        if not compatible:
            raise IllegalStateError(
                "subscribe() and assign() exclude each other: call unsubscribe() in between"
            )
        self.mode = mode
        if mode is not SubscriptionMode.PATTERN:
            self.pattern = None

    def _hold_what_is_not_subscribed(self) -> None:
        """Deliver no records of unsubscribed topics whose partitions are still assigned.

        Under the consumer protocol (KIP-848) and with cooperative assignors, the group takes them
        away some time after the subscription was changed.
        """
        for partition, state in self._states.items():
            state.unsubscribed = not self._is_subscribed(partition.topic)

    def _is_subscribed(self, topic: str) -> bool:
        if self.mode is SubscriptionMode.PATTERN:
            return self.pattern is not None and self.pattern.fullmatch(topic) is not None
        return self.mode is not SubscriptionMode.TOPICS or topic in self.topics

    def _set_topics(self, topics: frozenset[str]) -> bool:
        changed = topics != self.topics
        self.topics = topics
        return changed

    @property
    def uses_group(self) -> bool:
        """Whether a group coordinator assigns the partitions."""
        return self.mode in (SubscriptionMode.TOPICS, SubscriptionMode.PATTERN)

    # --- partitions ---

    def assign_from_group(self, partitions: Iterable[TopicPartition]) -> None:
        """Set the assignment; partitions that stay keep their state."""
        self._replace(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that were revoked or lost."""
        for partition in partitions:
            self._states.pop(partition, None)

    def mark_revoking(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching and delivering partitions that are being revoked."""
        for partition in partitions:
            state = self._states.get(partition)
            if state is not None:
                state.revoking = True

    def _replace(self, partitions: Iterable[TopicPartition]) -> None:
        former = self._states
        self._states = {
            partition: former.get(partition) or PartitionState(partition, self.next_stamp())
            for partition in partitions
        }
        self._hold_what_is_not_subscribed()

    def next_stamp(self) -> int:
        """Return a stamp that no partition has had yet."""
        self._stamp += 1
        return self._stamp

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions, including those that are being revoked."""
        return set(self._states)

    def get(self, partition: TopicPartition) -> PartitionState | None:
        """State of a partition, or None if it is not assigned."""
        return self._states.get(partition)

    def state(self, partition: TopicPartition) -> PartitionState:
        """State of an assigned partition.

        Raises:
            IllegalStateError: The partition is not assigned to this consumer.
            ConfigError: It is not a partition.
        """
        state = self._states.get(partition_of(partition, "partition"))
        if state is None:
            raise IllegalStateError(f"partition {partition} is not assigned to this consumer")
        return state

    def is_current(self, partition: TopicPartition, stamp: int) -> bool:
        """Whether an answer to a request under ``stamp`` is still valid."""
        state = self._states.get(partition)
        return state is not None and state.stamp == stamp

    def __iter__(self) -> Iterator[PartitionState]:
        return iter(self._states.values())

    def __len__(self) -> int:
        return len(self._states)

    # --- positions ---

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Set the position of a partition.

        Args:
            partition: An assigned partition.
            offset: Offset of the next record, 0 or greater.
            leader_epoch: Leader epoch of the record before it, -1 if unknown.

        Raises:
            IllegalStateError: The partition is not assigned to this consumer.
            ConfigError: The offset is negative.
        """
        if offset < 0:
            raise ConfigError(
                "offset", offset, f"must be the offset to seek {partition} to, 0 or more"
            )
        state = self.state(partition)
        state.topic_id = None
        self._set_position(state, offset, leader_epoch)
        state.stamp = self.next_stamp()

    def request_reset(self, partition: TopicPartition, timestamp: int) -> None:
        """Have the position looked up by time, or at either end of the log.

        Raises:
            IllegalStateError: The partition is not assigned to this consumer.
        """
        state = self.state(partition)
        state.topic_id = None
        self._begin_reset(state, timestamp)

    def _policy_timestamp(self) -> int | None:
        """ListOffsets target of ``auto.offset.reset``; ``none`` has no target."""
        if self.auto_offset_reset == "earliest":
            return EARLIEST_TIMESTAMP
        if self.auto_offset_reset == "latest":
            return LATEST_TIMESTAMP
        return None if self.auto_offset_reset == "none" else DURATION_AGO

    def reset_by_policy(self, state: PartitionState, failure: KafkaError) -> None:
        """Apply ``auto.offset.reset`` to a partition that has no usable position.

        With ``none`` the failure is kept, and every poll raises it until a seek.
        """
        timestamp = self._policy_timestamp()
        if timestamp is not None:
            self._begin_reset(state, timestamp)
            return
        state.stamp = self.next_stamp()
        state.phase = PartitionPhase.FAILED
        state.failure = failure

    def request_load(self, partition: TopicPartition) -> None:
        """Have the position loaded from the group's committed offset."""
        state = self.state(partition)
        state.stamp = self.next_stamp()
        state.phase = PartitionPhase.LOADING
        state.failure = None
        state.retry_at_ms = 0

    def find_again(self, state: PartitionState) -> None:
        """Drop a position that belongs to a deleted topic, and look it up again."""
        state.high_watermark = state.last_stable_offset = state.log_start_offset = -1
        state.preferred_replica = None
        if state.phase is PartitionPhase.RESETTING:
            self._begin_reset(state, state.reset_timestamp)
        else:
            self.request_load(state.topic_partition)

    def apply_position(
        self, partition: TopicPartition, stamp: int, offset: int, leader_epoch: int = -1
    ) -> bool:
        """Set the position to a looked-up offset, unless the partition has another stamp by now.

        A seek or an assignment may come before the answer to a look-up; only the stamp of the
        request shows whether the answer is still valid (franz-go #1348).

        Returns:
            Whether it was applied.
        """
        if not self.is_current(partition, stamp):
            return False
        self._set_position(self._states[partition], offset, leader_epoch)
        return True

    def begin_validation(self, state: PartitionState) -> None:
        """Hold a partition until its position was compared with the leader's epochs."""
        state.phase = PartitionPhase.VALIDATING
        state.retry_at_ms = 0

    def apply_epoch_end(
        self, partition: TopicPartition, leader_epoch: int, end_offset: int, under_epoch: int
    ) -> None:
        """Compare the fetch offset with where its leader epoch ends (KIP-320).

        If the log ends below it, later records were lost and may have been replaced. With a reset
        policy reading continues at the first offset that may differ; without one every poll
        raises an error.

        Args:
            partition: A partition that waits for validation.
            leader_epoch: Largest epoch of the leader not above the requested one, -1 for none.
            end_offset: Where that epoch ends, -1 if unknown.
            under_epoch: Leader epoch at the request.
        """
        state = self.state(partition)
        if state.phase is not PartitionPhase.VALIDATING:
            return
        if leader_epoch >= 0 and end_offset >= state.fetch_offset:
            state.phase = PartitionPhase.READY
            state.validated_epoch = under_epoch
            return
        cut_at = end_offset if leader_epoch >= 0 else -1
        what = f"the log of {partition} was cut at {cut_at}, below the offset {state.fetch_offset}"
        logger.warning("%s; auto.offset.reset=%s", what, self.auto_offset_reset)
        failure = NoOffsetForPartitionError(
            f'{what}, and auto_offset_reset is "none": seek to an offset'
        )
        if cut_at < 0 or self.auto_offset_reset == "none":
            self.reset_by_policy(state, failure)
            return
        state.stamp = self.next_stamp()
        self._set_position(state, min(cut_at, state.position), leader_epoch)
        state.validated_epoch = under_epoch

    def _set_position(self, state: PartitionState, offset: int, leader_epoch: int) -> None:
        state.phase = PartitionPhase.READY
        state.position = state.fetch_offset = offset
        state.position_epoch = state.fetch_epoch = leader_epoch
        state.validated_epoch = -1
        state.failure = None
        state.retry_at_ms = 0

    def _begin_reset(self, state: PartitionState, timestamp: int) -> None:
        state.stamp = self.next_stamp()
        state.phase = PartitionPhase.RESETTING
        state.reset_timestamp = timestamp
        state.failure = None
        state.retry_at_ms = 0

    def in_phase(self, phase: PartitionPhase, now_ms: int) -> list[PartitionState]:
        """Return the partitions in a phase whose next try is due."""
        return [
            state
            for state in self._states.values()
            if state.phase is phase and state.retry_at_ms <= now_ms and not state.revoking
        ]

    def failure(self) -> KafkaError | None:
        """Return the error for the next poll: that of the first partition in phase FAILED."""
        for state in self._states.values():
            if state.phase is PartitionPhase.FAILED:
                return state.failure
        return None

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a commit of all returned records stores."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, state in self._states.items():
            committable = state.committable()
            if committable is not None:
                found[partition] = committable
        return found
