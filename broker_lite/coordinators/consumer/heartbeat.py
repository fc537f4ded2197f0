"""Consumer groups (KIP-848): heartbeats, leaving, and the members' deadlines.

It decides who is a member and in which epoch (trap 58), and when a member counts as gone. ``steps``
and the modules that it uses assign partitions and hand them over. Members with the classic protocol
come through ``classic_bridge``.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import (
    ConsumerGroup,
    StandingChange,
    SubscriptionChange,
    TargetChange,
)
from onceflow.broker_lite.coordinators.consumer.member import NOTHING, ConsumerMember, plain
from onceflow.broker_lite.coordinators.consumer.migration import Migration
from onceflow.broker_lite.coordinators.consumer.requests import (
    ConsumerHeartbeat,
    GroupError,
    HeartbeatAnswer,
    check_heartbeat,
)
from onceflow.broker_lite.coordinators.consumer.states import MemberState
from onceflow.broker_lite.coordinators.consumer.steps import ConsumerSteps, assignment_changed
from onceflow.broker_lite.coordinators.consumer.topic_regex import (
    RegexEngineMissingError,
    RegexError,
)
from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.broker_lite.purgatory import Timer, Timers
from onceflow.sdk.model.special_values import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

EXPEL_RETRY_MS = 1_000
"""After the log refused the removal of a member, the time until the next try."""

GroupConfig = Callable[[str, str], int | None]
"""``config(group_id, name)`` returns a group's own value, or None for the broker's setting."""


class Random(Protocol):
    """Source of random bits; ``random.Random`` is one."""

    def getrandbits(self, bits: int, /) -> int:
        """Return an integer of that many random bits."""


def new_member_id(random: Random) -> str:
    """Return an id in Apache Kafka's form: a random UUID in base 64."""
    made = uuid.UUID(int=random.getrandbits(128), version=4)
    return base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")


class ConsumerGroups:
    """All consumer groups of the broker.

    Attributes:
        steps: Steps that heartbeats share with joins of classic members.
    """

    def __init__(
        self,
        settings: GroupSettings,
        table: GroupTable,
        steps: ConsumerSteps,
        timers: Timers,
        random: Random,
        migration: Migration,
        config: GroupConfig,
    ) -> None:
        self._settings = settings
        self._table = table
        self._timers = timers
        self._random = random
        self._migration = migration
        self._config = config
        self.steps = steps

    # --- life

    def start(self, now_ms: int) -> None:
        """Begin after loading: every member gets a whole session timeout to send a heartbeat."""
        for group in self._table.consumers():
            self.start_group(group, now_ms)

    def start_group(self, group: ConsumerGroup, now_ms: int) -> None:
        """Start the members' sessions of one group that was loaded or converted."""
        for member in group.members.values():
            self.watch(group, member, now_ms)
            self.watch_rebalance(group, member, now_ms)

    def close(self) -> None:
        """Stop every timer."""
        for group in self._table.consumers():
            for member_id in list(group.members):
                group.forget_timers(member_id)

    def session_timeout_ms(self, group_id: str) -> int:
        """``group.consumer.session.timeout.ms``, or the group's own value."""
        found = self._config(group_id, "consumer.session.timeout.ms")
        return self._settings.consumer_session_timeout_ms if found is None else found

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """``group.consumer.heartbeat.interval.ms``, or the group's own value."""
        found = self._config(group_id, "consumer.heartbeat.interval.ms")
        return self._settings.consumer_heartbeat_interval_ms if found is None else found

    def assignment_interval_ms(self, group_id: str) -> int:
        """``group.consumer.assignment.interval.ms``, or the group's own value."""
        found = self._config(group_id, "consumer.assignment.interval.ms")
        return self._settings.consumer_assignment_interval_ms if found is None else found

    # --- heartbeats

    def heartbeat(self, request: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        """Answer a heartbeat."""
        try:
            if not self._settings.serves_consumer_protocol:
                raise GroupError(
                    ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled."
                )
            check_heartbeat(request, self.steps.assignors)
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                return self._leave(request, now_ms)
            return self._beat(request, now_ms)
        except GroupError as error:
            return HeartbeatAnswer(error.code, str(error))
        except StateLogError as error:
            logger.error("%s: a change was not written: %s", request.group_id, error)
            return HeartbeatAnswer(error.code, str(error))

    def _beat(self, request: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        self._check_regex(request.regex)
        if not request.member_id:
            request = dataclasses.replace(request, member_id=new_member_id(self._random))
        draft = self._open(request)
        self.check_room(draft.group, request.member_id, request.joins)
        before = self._find_member(draft, request)
        steps = self.steps
        anew = steps.subscribe(draft, self._subscribed(before, request))
        steps.raise_epoch(draft, anew, now_ms, request.rights)
        steps.divide(draft, now_ms, self.assignment_interval_ms(request.group_id))
        steps.move(draft, request.member_id, request.owned)
        group = self.write(draft, now_ms)
        member = group.members[request.member_id]
        self.watch(group, member, now_ms)
        if member.standing != before.standing:
            self.watch_rebalance(group, member, now_ms)
        told = request.is_full or assignment_changed(before, member)
        return HeartbeatAnswer(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(request.group_id),
            assignment=plain(member.assigned) if told else None,
        )

    def _check_regex(self, regex: str | None) -> None:
        try:
            self.steps.topics.compile(regex or "")
        except RegexEngineMissingError as error:
            raise GroupError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from None
        except RegexError as error:
            raise GroupError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
            ) from None

    def _open(self, request: ConsumerHeartbeat) -> GroupDraft:
        """Return a draft of the group; a join creates the group, or converts a classic one."""
        group_id = request.group_id
        group = self._table.get_consumer(group_id)
        if group is not None:
            return GroupDraft(group)
        classic = self._table.get(group_id)
        if request.joins and classic is None:
            return GroupDraft(ConsumerGroup(group_id))
        if request.joins and classic is not None:
            return self._migration.upgrade(classic)
        raise GroupError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Consumer group {group_id} not found."
            if classic is None
            else f"Group {group_id} is not a consumer group.",
        )

    def check_room(self, group: ConsumerGroup, member_id: str, joins: bool) -> None:
        """Apply ``group.consumer.max.size``.

        Raises:
            GroupError: The group is full.
        """
        limit = self._settings.consumer_max_size
        if joins and member_id not in group.members and len(group.members) >= limit:
            raise GroupError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _find_member(self, draft: GroupDraft, request: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member as it was; for a join, a new one or one with a static member's place.

        Raises:
            GroupError: The sender is not a member, or its epoch is not accepted (trap 58).
        """
        member_id, group = request.member_id, draft.group
        if request.instance_id is not None:
            if request.joins:
                return self.join_static(draft, request.instance_id, member_id)
            member = self.check_static(group, request.instance_id, member_id)
        else:
            found = group.members.get(member_id)
            if found is None and not request.joins:
                raise unknown_member(member_id, request.group_id)
            member = found or ConsumerMember(member_id)
        if not request.joins:
            _check_epoch(member, request)
        return member

    def join_static(self, draft: GroupDraft, instance_id: str, member_id: str) -> ConsumerMember:
        """Return a static member that joins, or that comes back after it left with epoch -2.

        A member that comes back, also under another member id, inherits its former assignment at
        epoch 0 and reconciles from there. In the target's epoch it would count as reconciled.

        Raises:
            GroupError: A member that has not left has this instance id.
        """
        current = draft.group.find_static(instance_id)
        if current is None:
            return draft.group.members.get(member_id) or ConsumerMember(member_id)
        if not draft.group.is_away(current) and current.classic is None:
            raise GroupError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {current.member_id} member.",
            )
        if current.member_id == member_id:
            return current
        target = draft.group.targets.get(current.member_id, {})
        member = dataclasses.replace(
            current, member_id=member_id, member_epoch=JOIN_EPOCH, previous_epoch=0
        )
        draft.add(
            StandingChange(current.member_id, None),
            TargetChange(current.member_id, None),
            SubscriptionChange(current.member_id, None),
            SubscriptionChange(member_id, member),
            TargetChange(member_id, target),
            StandingChange(member_id, member),
        )
        return draft.member(member_id)

    def check_static(
        self, group: ConsumerGroup, instance_id: str, member_id: str
    ) -> ConsumerMember:
        """Return the static member with that instance id, if it has the given member id.

        Raises:
            GroupError: No member has the instance id, or another member has it.
        """
        current = group.find_static(instance_id)
        if current is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if current.member_id != member_id:
            raise GroupError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{current.member_id}.",
            )
        return current

    @staticmethod
    def _subscribed(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
        """Return the member with the fields that the heartbeat carries."""

        def said(value: str | None, before: str | None) -> str | None:
            return before if value is None else value

        topics = member.topics if request.topics is None else tuple(sorted(set(request.topics)))
        timeout_ms = request.rebalance_timeout_ms
        return dataclasses.replace(
            member,
            instance_id=said(request.instance_id, member.instance_id),
            rack_id=said(request.rack_id, member.rack_id),
            client_id=request.client_id,
            client_host=request.client_host,
            topics=topics,
            regex=member.regex if request.regex is None else request.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
            server_assignor=said(request.server_assignor, member.server_assignor),
            classic=None,
        )

    # --- leaving

    def _leave(self, request: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        group = self._table.get_consumer(request.group_id)
        if group is None:
            found_classic = self._table.get(request.group_id) is not None
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {request.group_id} is not a consumer group."
                if found_classic
                else f"Group {request.group_id} not found.",
            )
        if request.instance_id is not None:
            member = self.check_static(group, request.instance_id, request.member_id)
        else:
            found = group.members.get(request.member_id)
            if found is None:
                raise unknown_member(request.member_id, request.group_id)
            member = found
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            self._go_away(group, member, now_ms)
        else:
            self.expel(group, [member], now_ms)
        return HeartbeatAnswer(member_id=request.member_id, member_epoch=request.member_epoch)

    def _go_away(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Keep a static member's partitions until its session ends, because it may come back."""
        kept: dict[UUID, dict[int, int]] = {
            topic_id: dict.fromkeys(partitions, 0)
            for topic_id, partitions in member.assigned.items()
        }
        away = dataclasses.replace(
            member, member_epoch=LEAVE_STATIC_EPOCH, assigned=kept, revoking=NOTHING
        )
        draft = GroupDraft(group)
        draft.add(StandingChange(member.member_id, away))
        self.write(draft, now_ms)
        timer = group.rebalances.pop(member.member_id, None)
        if timer is not None:
            timer.cancel()

    def expel(self, group: ConsumerGroup, members: Sequence[ConsumerMember], now_ms: int) -> None:
        """Remove members; if only classic members are left, the group becomes classic again.

        Raises:
            StateLogError: Nothing was written, and no member is removed.
        """
        draft = GroupDraft(group)
        if self._migration.wants_downgrade(group, [member.member_id for member in members]):
            self._migration.downgrade(group, [member.member_id for member in members], now_ms)
            return
        self.steps.remove(draft, members)
        for member in members:
            logger.info("%s: member %s is out", group.group_id, member.member_id)
        group = self.write(draft, now_ms)
        for member in members:
            group.forget_timers(member.member_id)
        if not group.members:
            group.became_empty_ms = now_ms

    # --- writing

    def divide_if_due(self, group: ConsumerGroup, now_ms: int) -> ConsumerGroup:
        """Assign partitions if that is due: classic members send no heartbeat that would do it."""
        draft = GroupDraft(group)
        try:
            self.steps.raise_epoch(draft, False, now_ms)
            self.steps.divide(draft, now_ms, self.assignment_interval_ms(group.group_id))
            return self.write(draft, now_ms)
        except StateLogError as error:
            logger.error("%s: a division was not written: %s", group.group_id, error)
            return group

    def write(self, draft: GroupDraft, now_ms: int) -> ConsumerGroup:
        """Write a draft and make its changes in the group.

        Raises:
            StateLogError: Nothing was written, and nothing changed.
        """
        if draft.changed or self._table.get_consumer(draft.group.group_id) is None:
            self._table.write_draft(draft, now_ms)
        return draft.origin

    # --- deadlines

    def watch(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Restart a member's session, since a request from it has arrived."""
        timeout_ms = self.session_timeout_ms(group.group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._arm(group.sessions, group.group_id, member.member_id, now_ms + timeout_ms, None)

    def watch_rebalance(self, group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> None:
        """Give a member that must give up partitions its rebalance timeout for that."""
        old = group.rebalances.pop(member.member_id, None)
        if old is not None:
            old.cancel()
        if member.state is MemberState.UNREVOKED_PARTITIONS and not group.is_away(member):
            due_ms = now_ms + member.rebalance_timeout_ms
            self.await_step(group, member, due_ms)

    def await_step(self, group: ConsumerGroup, member: ConsumerMember, due_ms: int) -> None:
        """Remove the member at `due_ms`, unless its epoch has changed by then."""
        self._arm(group.rebalances, group.group_id, member.member_id, due_ms, member.member_epoch)

    def _arm(
        self,
        timers: dict[str, Timer],
        group_id: str,
        member_id: str,
        due_ms: int,
        epoch: int | None,
    ) -> None:
        old = timers.pop(member_id, None)
        if old is not None:
            old.cancel()

        def due(now_ms: int) -> None:
            # The group may have been converted meanwhile, so it is looked up again.
            if timers.get(member_id) is timer:
                del timers[member_id]
            group = self._table.get_consumer(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or epoch not in (None, member.member_epoch):
                return
            try:
                self.expel(group, [member], now_ms)
            except StateLogError as error:
                logger.error("%s: %s is still a member: %s", group_id, member_id, error)
                self._arm(timers, group_id, member_id, now_ms + EXPEL_RETRY_MS, epoch)

        timer = timers[member_id] = self._timers.schedule(due_ms, due)


def unknown_member(member_id: str, group_id: str) -> GroupError:
    """Return the error for a sender that is not a member."""
    return GroupError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Accept the member's epoch, and its previous one after a lost answer; refuse others.

    With the previous epoch the member may own only partitions that it was given: other ones may
    have another owner by now.
    """
    epoch, known = request.member_epoch, member.member_epoch
    if epoch > known:
        size = "greater"
    elif epoch < known and not (epoch == member.previous_epoch and _owns_at_most(request, member)):
        size = "smaller"
    else:
        return
    raise GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the "
        f"group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _owns_at_most(request: ConsumerHeartbeat, member: ConsumerMember) -> bool:
    if request.owned is None:
        return False
    given = plain(member.assigned)
    return all(
        partitions <= given.get(topic_id, frozenset())
        for topic_id, partitions in request.owned.items()
    )
