"""The part that members of both group protocols share: events for the application, and timers.

A rebalance continues only after the application has polled, got the `RebalanceEvent` and confirmed
it, so that no partition moves without its knowledge. Heartbeats do not wait for the application,
but end if it does not poll for ``max.poll.interval.ms`` (KIP-62). ``classic_member`` and
``consumer_member`` (KIP-848) are the protocols. This module never waits and reads no clock.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from uuid import UUID

from onceflow.sdk.core.group.steps import (
    GroupSettings,
    MemberState,
    RebalanceEvent,
    RebalanceKind,
    Step,
)
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

logger: logging.Logger = logging.getLogger("onceflow.sdk.group")

REDISCOVER: frozenset[ErrorCode] = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)

EXPELLED: frozenset[ErrorCode] = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""Codes of a coordinator that does not know this member, or not in this generation or epoch."""


class Membership(ABC):
    """One member of a group, with the calls of its application and of its driver.

    Attributes:
        state: State of the member.
        coordinator_known: Whether the coordinator is known, so that requests can be sent.
        generation_id: Generation, or member epoch; -1 outside of the group.
        member_id: Its id; empty until the coordinator gives one.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self.state: MemberState = MemberState.UNJOINED
        self.coordinator_known: bool = False
        self.generation_id: int = -1
        self.member_id: str = ""
        self._topics: frozenset[str] = frozenset()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._lost = False
        self._pending: frozenset[TopicPartition] | None = None
        self._event: RebalanceEvent | None = None
        self._failure: KafkaError | None = None
        self._not_before_ms = 0
        self._failures = 0
        self._heartbeat_due_ms = 0
        self._polling = False
        self._last_poll_ms = 0
        self._warned = False

    # --- methods of each protocol ------------------------------------------------------------

    @abstractmethod
    def subscribe(self, topics: frozenset[str]) -> None:
        """Set the topics to read; an empty set makes the member leave."""

    @abstractmethod
    def subscribe_regex(self, regex: str) -> None:
        """Set a pattern that the coordinator resolves; only for the consumer protocol."""

    @abstractmethod
    def confirm_event(self, event: RebalanceEvent) -> None:
        """Note that the application has handled the event."""

    @abstractmethod
    def _make_event(self) -> RebalanceEvent | None: ...

    @property
    @abstractmethod
    def watched_topics(self) -> frozenset[str]:
        """Topics whose partition counts matter."""

    @abstractmethod
    def on_partition_counts(self, partition_counts: Mapping[str, int]) -> None:
        """Handle the partition counts of new metadata."""

    @abstractmethod
    def next_step(self, now_ms: int) -> Step:
        """Return the driver's next step."""

    @abstractmethod
    def on_partitions_of_group(self, partition_counts: Mapping[str, int], now_ms: int) -> None:
        """Take the partition counts for `LookUpTopics`."""

    @abstractmethod
    def on_topic_names(self, names: Mapping[UUID, str], now_ms: int) -> None:
        """Take the names for `NameTopics`, as far as they are known."""

    @abstractmethod
    def on_failure(self, error: KafkaError, now_ms: int) -> None:
        """Handle a step that failed: no connection, no coordinator, no answer in time."""

    @abstractmethod
    def on_response(self, response: Response, now_ms: int) -> None:
        """Handle the answer to an `Exchange`, or to `probe_request`."""

    @abstractmethod
    def probe_request(self) -> Request:
        """Return an extra heartbeat, which asks whether this member is still valid."""

    @abstractmethod
    def closing_request(self, leave_group: bool | None = None) -> Request | None:
        """Return the request by which a closing consumer leaves the group, in any state.

        Args:
            leave_group: Whether to leave; None as Kafka does: dynamic members leave, static ones
                keep their place until their session times out (KIP-345, KIP-1092).

        Returns:
            The request; None to stay, or if the coordinator does not know this member.
        """

    # --- the application's side ---------------------------------------------------------------

    def poll_started(self, now_ms: int) -> None:
        """Note that the application polls, which it may do for any time."""
        self._polling = True
        self._last_poll_ms = now_ms
        self._warned = False

    def poll_ended(self, now_ms: int) -> None:
        """Note the end of a poll, from which the time until the next one is limited."""
        self._polling = False
        self._last_poll_ms = now_ms

    def take_failure(self) -> KafkaError | None:
        """Return the error that a poll must raise: once, or at each poll when it is final."""
        failure = self._failure
        if self.state is not MemberState.FAILED:
            self._failure = None
        return failure

    def next_event(self) -> RebalanceEvent | None:
        """Return the event for the application; the same one until it is confirmed."""
        if self._event is None:
            self._event = self._make_event()
        return self._event

    @property
    def _subscribed(self) -> bool:
        return bool(self._topics)

    def _take_over(self, event: RebalanceEvent) -> bool:
        """Apply a confirmed event; return False if the membership was lost meanwhile."""
        self._owned = event.assignment if self._subscribed else frozenset()
        if self._event is not event:
            # The membership was lost while the application handled the event. So its partitions
            # are lost, and the next event says so.
            self._lost = bool(self._owned)
            return False
        self._event = None
        if event.kind is RebalanceKind.LOST:
            self._lost = False
        return True

    def _event_of_loss(self) -> RebalanceEvent | None:
        """Return the event about lost partitions, if there are any."""
        if self._lost and self._owned:
            return RebalanceEvent.of(RebalanceKind.LOST, self._owned, frozenset())
        self._lost = False
        return None

    def _event_towards(self, wanted: frozenset[TopicPartition]) -> RebalanceEvent:
        """Return the next event towards these partitions: first give up, then take."""
        given_up = self._owned - wanted
        if given_up:
            return RebalanceEvent.of(RebalanceKind.REVOKED, given_up, self._owned - given_up)
        return RebalanceEvent.of(RebalanceKind.ASSIGNED, wanted - self._owned, wanted)

    def forget_owned(self) -> None:
        """Forget the partitions that the application gave up (unsubscribe or close)."""
        self._owned = frozenset()
        self._lost = False
        self._event = None
        self._pending = None

    @property
    def is_member(self) -> bool:
        """Whether the coordinator knows this member under its present generation."""
        return self.generation_id >= 0 and bool(self.member_id) and not self._lost

    def metadata(self) -> ConsumerGroupMetadata:
        """Return the present membership, for offset commits and transactions."""
        instance_id = self._settings.group_instance_id
        if not self.is_member:
            return ConsumerGroupMetadata(self._settings.group_id, -1, "", instance_id)
        return ConsumerGroupMetadata(
            self._settings.group_id, self.generation_id, self.member_id, instance_id
        )

    # --- the driver's side --------------------------------------------------------------------

    def on_coordinator(self) -> None:
        """Note that the coordinator was found."""
        self.coordinator_known = True

    def expect_expulsion(self) -> None:
        """Check at once, after a refused commit, whether this member is still valid."""
        self._heartbeat_due_ms = 0

    def _poll_overdue(self, now_ms: int) -> bool:
        if self._polling:
            return False
        silent_ms = now_ms - self._last_poll_ms
        limit_ms = self._settings.max_poll_interval_ms
        if silent_ms >= limit_ms // 2 and not self._warned:
            self._warned = True
            logger.warning(
                "group %s: no poll for %d ms; after %d ms (max.poll.interval.ms) this member "
                "leaves the group. Raise the limit, or lower max.poll.records",
                self._settings.group_id,
                silent_ms,
                limit_ms,
            )
        return silent_ms >= limit_ms

    def _next_deadline_ms(self) -> int:
        deadline_ms = self._heartbeat_due_ms
        if not self._polling:
            share = 1 if self._warned else 2
            poll_ms = self._last_poll_ms + self._settings.max_poll_interval_ms // share
            deadline_ms = min(deadline_ms, poll_ms)
        return deadline_ms

    def _lose_partitions(self) -> None:
        self._pending = None
        self._event = None
        self._lost = bool(self._owned)

    def _rediscover(self, now_ms: int) -> None:
        self.coordinator_known = False
        self._back_off(now_ms)

    def _back_off(self, now_ms: int) -> None:
        settings = self._settings
        delay_ms = min(settings.retry_backoff_ms << self._failures, settings.retry_backoff_max_ms)
        self._failures = min(self._failures + 1, 10)
        self._not_before_ms = now_ms + delay_ms
