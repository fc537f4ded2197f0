"""One member of a consumer group whose coordinator assigns the partitions (KIP-848).

Every request is a heartbeat. It joins (epoch 0), reports changes, gets the assignment, confirms
revoked partitions, and leaves (epoch -1, or -2 for a static member that may come back). The member
reaches an assignment in steps that the application confirms: first it gives up partitions, then it
takes new ones. If an answer may be lost, the next heartbeat has all fields.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from onceflow.sdk.core.group.membership import EXPELLED, REDISCOVER, Membership
from onceflow.sdk.core.group.steps import (
    Exchange,
    FindCoordinator,
    GroupSettings,
    MemberState,
    NameTopics,
    RebalanceEvent,
    RebalanceKind,
    Step,
    Wait,
)
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.schema import Response

logger: logging.Logger = logging.getLogger("onceflow.sdk.group")

UNRELEASED_PAUSE_MS: Final = 1_000
"""Pause between tries to join while another member has the instance id."""

_Partitions = dict[UUID, frozenset[int]]


class _News(NamedTuple):
    """The changes in a heartbeat in flight, which the coordinator knows after its answer."""

    subscription: tuple[frozenset[str], str]
    owned_version: int


class ConsumerMember(Membership):
    """A member of a consumer group; see the module's text."""

    def __init__(self, settings: GroupSettings) -> None:
        super().__init__(settings)
        self.member_id: str = settings.member_id
        self.cooperative: bool = True
        self._regex = ""
        self._names: dict[UUID, str] = {}
        self._target: _Partitions | None = None
        self._unnamed_until_ms = 0
        self._interval_ms = settings.heartbeat_interval_ms
        self._say_everything = True
        self._said_subscription: tuple[frozenset[str], str] | None = None
        # Counts confirmed events. An unchanged set of partitions must be reported too, because the
        # coordinator may wait for the revocation of partitions that were never taken.
        self._owned_version = 0
        self._said_version = 0
        self._saying: _News | None = None
        self._told = False
        self._unreleased = 0
        # The coordinator may keep the instance id for this very member: an answer was lost, or this
        # member was in the group before.
        self._may_be_there = False
        self._releasing = False

    # --- the application's side -------------------------------------------------------------

    def subscribe(self, topics: frozenset[str]) -> None:
        """Set the topics to read; an empty set makes the member leave."""
        if topics == self._topics and not self._regex:
            return
        self._topics, self._regex = topics, ""
        self._subscription_changed()

    def subscribe_regex(self, regex: str) -> None:
        """Set a pattern of topics, in RE2's syntax."""
        if regex == self._regex:
            return
        self._topics, self._regex = frozenset(), regex
        self._subscription_changed()

    def _subscription_changed(self) -> None:
        if self._subscribed:
            self._heartbeat_due_ms = 0
        else:
            self._begin_leave()

    @property
    def _subscribed(self) -> bool:
        return bool(self._topics or self._regex)

    @property
    def watched_topics(self) -> frozenset[str]:
        """Topics of the subscription; the coordinator watches how they grow."""
        return self._topics

    def on_partition_counts(self, partition_counts: Mapping[str, int]) -> None:
        """Nothing to do: the coordinator assigns and knows the counts."""

    def confirm_event(self, event: RebalanceEvent) -> None:
        """Note that the application has handled the event."""
        self._owned_version += 1
        self._heartbeat_due_ms = 0  # The coordinator waits for the report.
        if not self._take_over(event):
            return
        if event.kind is RebalanceKind.ASSIGNED:
            self._told = True
        if self.state is MemberState.PREPARING:
            self.state = MemberState.JOINING

    def _make_event(self) -> RebalanceEvent | None:
        if loss := self._event_of_loss():
            return loss
        # `_pending` is the target assignment. It may change at any time, also while the application
        # handles an event.
        if self._pending is not None and (self._pending != self._owned or not self._told):
            return self._event_towards(self._pending)
        if self.state in (MemberState.UNJOINED, MemberState.PREPARING) and self._subscribed:
            self.state = MemberState.JOINING
        return None

    # --- the driver's side --------------------------------------------------------------------

    def next_step(self, now_ms: int) -> Step:
        """Return the driver's next step."""
        if self.state in (MemberState.UNJOINED, MemberState.FAILED, MemberState.PREPARING):
            return Wait(None)
        if self.generation_id >= 0 and self._poll_overdue(now_ms):
            self._give_up_for_silence()
            return self.next_step(now_ms)
        if now_ms < self._not_before_ms:
            return Wait(self._not_before_ms)
        if not self.coordinator_known:
            return FindCoordinator()
        if self.state is MemberState.LEAVING or self._releasing:
            return Exchange(self._leave_request())
        if self.state is MemberState.JOINING or now_ms >= self._heartbeat_due_ms:
            return Exchange(self._heartbeat())
        if self._unnamed() and now_ms >= self._unnamed_until_ms:
            return NameTopics(self._unnamed(), self._topics)
        deadline_ms = self._next_deadline_ms()
        return Wait(min(deadline_ms, self._unnamed_until_ms) if self._unnamed() else deadline_ms)

    def _unnamed(self) -> frozenset[UUID]:
        return frozenset(self._target or ()) - self._names.keys()

    def on_partitions_of_group(self, partition_counts: Mapping[str, int], now_ms: int) -> None:
        """Do nothing: no member leads in this protocol."""

    def on_topic_names(self, names: Mapping[UUID, str], now_ms: int) -> None:
        """Take the names for `NameTopics`; unknown ids are looked up again later."""
        # A topic that was deleted and created again has another id.
        renamed = set(names.values())
        self._names = {t: name for t, name in self._names.items() if name not in renamed}
        self._names.update(names)
        if self._unnamed():
            self._unnamed_until_ms = now_ms + self._settings.retry_backoff_max_ms
        self._aim()

    def _aim(self) -> None:
        """Move towards the target assignment, as far as the topics' names are known."""
        if self._target is None:
            return
        wanted = frozenset(
            TopicPartition(self._names[topic_id], partition)
            for topic_id, partitions in self._target.items()
            if topic_id in self._names
            for partition in partitions
        )
        self._pending = wanted
        if wanted == self._owned and self._told:
            self._owned_version += 1  # Nothing changes for the application: report at once.
            self._heartbeat_due_ms = 0

    def on_failure(self, error: KafkaError, now_ms: int) -> None:
        """React to a step that failed: no connection, no coordinator, no answer in time."""
        self._say_everything = True
        self._saying = None
        self._may_be_there = True
        if self.state is MemberState.LEAVING:
            self._reset(MemberState.UNJOINED)
            return
        logger.info(
            "group %s: %s while %s; looking for the coordinator again",
            self._settings.group_id,
            error,
            self.state.value,
        )
        if not error.retriable:
            self._failure = error
        self._rediscover(now_ms)

    def on_response(self, response: Response, now_ms: int) -> None:
        """Handle the answer to a heartbeat."""
        if not isinstance(response, ConsumerGroupHeartbeatResponse):
            return
        if self.state is MemberState.LEAVING:
            # An answer with an epoch belongs to the heartbeat before the leave. The answer to the
            # leave is still in flight.
            if response.error_code != ErrorCode.NONE or response.member_epoch < 0:
                self._reset(MemberState.UNJOINED)
            return
        if self.state not in (MemberState.JOINING, MemberState.STABLE):
            return
        if self._releasing:
            self._on_released(response, now_ms)
            return
        if response.error_code != ErrorCode.NONE:
            self._say_everything = True
            self._saying = None
            self._on_error(response.error_code, response.error_message or "", now_ms)
            return
        if response.member_epoch < self.generation_id:
            return  # The answer to a later heartbeat has arrived already.
        self._on_success(response, now_ms)

    def _on_released(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        """Handle the answer to a leave after which this member joins again."""
        code = response.error_code
        if code in REDISCOVER:
            self._rediscover(now_ms)
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._back_off(now_ms)
        elif code != ErrorCode.NONE or response.member_epoch < 0:
            self._releasing = self._may_be_there = False
            if code != ErrorCode.NONE:  # Another member has the id.
                self._not_before_ms = now_ms + UNRELEASED_PAUSE_MS

    def _on_success(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        self._failures = 0
        self._unreleased = 0
        self._may_be_there = True
        if self._saying is not None:
            self._said_subscription, self._said_version = self._saying
            self._saying = None
            self._say_everything = False
        if self.state is MemberState.JOINING:
            logger.info(
                "group %s: member %s joined in epoch %d",
                self._settings.group_id,
                self.member_id,
                response.member_epoch,
            )
        self.state = MemberState.STABLE
        self.generation_id = response.member_epoch
        self._interval_ms = response.heartbeat_interval_ms or self._interval_ms
        self._heartbeat_due_ms = now_ms + self._interval_ms
        if not self._subscribed:
            self._begin_leave()
            return
        news = _News((self._topics, self._regex), self._owned_version)
        if news != (self._said_subscription, self._said_version):
            self._heartbeat_due_ms = 0
        if response.assignment is not None:
            self._target = {
                topic.topic_id: frozenset(topic.partitions)
                for topic in response.assignment.topic_partitions
            }
            self._unnamed_until_ms = 0
            if not self._unnamed():
                self._aim()

    # --- heartbeats ---

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        settings = self._settings
        joins = self.state is MemberState.JOINING
        everything = joins or self._say_everything
        subscription = (self._topics, self._regex)
        request = ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if joins else self.generation_id,
            instance_id=settings.group_instance_id,
        )
        if everything:
            request.rack_id = settings.rack
            request.rebalance_timeout_ms = settings.max_poll_interval_ms
            request.server_assignor = settings.remote_assignor
        if everything or subscription != self._said_subscription:
            request.subscribed_topic_names = sorted(self._topics)
            had_regex = self._said_subscription is not None and self._said_subscription[1]
            if self._regex or had_regex:
                request.subscribed_topic_regex = self._regex
        owned = frozenset[TopicPartition]() if joins else self._owned
        if everything or self._owned_version != self._said_version:
            request.topic_partitions = self._by_id(owned)
        self._saying = _News(subscription, self._owned_version)
        return request

    def _by_id(
        self, owned: frozenset[TopicPartition]
    ) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        by_id: dict[UUID, list[int]] = {}
        for topic, partition in sorted(owned):
            by_id.setdefault(ids[topic], []).append(partition)
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_id.items()
        ]

    def probe_request(self) -> ConsumerGroupHeartbeatRequest:
        """Return a heartbeat without changes."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=self.member_id,
            member_epoch=self.generation_id,
            instance_id=self._settings.group_instance_id,
            topic_partitions=self._by_id(self._owned),
        )

    def _on_error(self, code: int, message: str, now_ms: int) -> None:
        group_id = self._settings.group_id
        if code in EXPELLED or (code == ErrorCode.GROUP_ID_NOT_FOUND and self.generation_id >= 0):
            self._expelled(code)
        elif code == ErrorCode.FENCED_INSTANCE_ID:
            self._lose_partitions()
            self._reset(MemberState.FAILED)
            self._failure = error_for(
                code,
                f"group.instance.id {self._settings.group_instance_id!r} of group {group_id!r} was "
                "taken over by another consumer; give every running consumer an id of its own",
            )
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID:
            # Another member has the instance id. If it died without leaving, its session must end
            # first. If it lives, it keeps its place: unlike the classic protocol, this one does not
            # fence it. It may also be this member itself. Then a leave under this member id frees
            # the place; it does nothing to another member.
            if self._may_be_there and self.state is MemberState.JOINING:
                self._releasing = True
                return
            self._unreleased += 1
            if self._unreleased & (self._unreleased - 1) == 0:  # 1, 2, 4, 8 ... seconds
                logger.warning(
                    "group %s: waiting to take over group.instance.id %r; give every running "
                    "consumer an id of its own: %s",
                    group_id,
                    self._settings.group_instance_id,
                    message,
                )
            self._not_before_ms = now_ms + UNRELEASED_PAUSE_MS
        elif code in REDISCOVER:
            self._rediscover(now_ms)
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._back_off(now_ms)
        else:
            advice = ""
            if code == ErrorCode.UNSUPPORTED_VERSION:
                advice = (
                    '; this cluster needs group_protocol="classic": the consumer protocol '
                    "(KIP-848) is served from Apache Kafka 4.0 on"
                )
            self._failure = error_for(
                code, f"heartbeat in group {group_id!r}: {message or 'refused'}{advice}"
            )
            self._back_off(now_ms)

    def expect_expulsion(self) -> None:
        """Find out, after a refused commit, whether this member is still valid."""
        super().expect_expulsion()
        self._say_everything = True

    # --- leaving and losing ---

    def _begin_leave(self) -> None:
        if self.state in (MemberState.JOINING, MemberState.FAILED, MemberState.LEAVING):
            return  # The answer in flight shows whether this member is in the group.
        if self.generation_id < 0:
            self._reset(MemberState.UNJOINED)
            return
        self.state = MemberState.LEAVING
        self._not_before_ms = 0
        self.generation_id = -1

    def _leave_request(self, *, for_good: bool = False) -> ConsumerGroupHeartbeatRequest:
        static = self._settings.group_instance_id is not None and not for_good
        return ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_STATIC_EPOCH if static else LEAVE_EPOCH,
            instance_id=self._settings.group_instance_id,
        )

    def closing_request(
        self, leave_group: bool | None = None
    ) -> ConsumerGroupHeartbeatRequest | None:
        """Return the leave of a consumer that closes now; a static member may come back."""
        static = self._settings.group_instance_id is not None
        if self.state in (MemberState.UNJOINED, MemberState.FAILED, MemberState.PREPARING):
            return None
        if leave_group is False and not static:
            return None
        return self._leave_request(for_good=bool(leave_group))

    def _give_up_for_silence(self) -> None:
        logger.warning(
            "group %s: member %s leaves, the application has not polled for %d ms",
            self._settings.group_id,
            self.member_id,
            self._settings.max_poll_interval_ms,
        )
        self._lose_partitions()
        self.generation_id = -1
        if self.coordinator_known:
            self.state = MemberState.LEAVING
            self._not_before_ms = 0
        else:
            self._reset(MemberState.UNJOINED)

    def _expelled(self, code: int) -> None:
        logger.warning(
            "group %s: %s to member %s in epoch %d; joining again",
            self._settings.group_id,
            ErrorCode(code).name,
            self.member_id,
            self.generation_id,
        )
        self._lose_partitions()
        self._reset(MemberState.PREPARING if self._subscribed else MemberState.UNJOINED)

    def _reset(self, state: MemberState) -> None:
        self.state: MemberState = state
        self.generation_id: int = -1
        self._pending = None
        self._target = None
        self._failures = 0
        self._say_everything = True
        self._said_subscription = None
        self._saying = None
        self._told = False
        self._releasing = False
