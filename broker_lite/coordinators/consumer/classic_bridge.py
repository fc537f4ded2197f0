"""Members that speak the classic protocol within a consumer group (KIP-848).

The coordinator assigns their partitions too, so none of them is a leader. Their JoinGroup has the
subscription, SyncGroup returns their partitions, and the answer to Heartbeat makes them join again
when they must give up partitions or get new ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onceflow.broker_lite.coordinators.classic.group import GroupProtocol, JoinResult, SyncResult
from onceflow.broker_lite.coordinators.classic.requests import (
    JOIN_REQUIRES_KNOWN_MEMBER_FROM,
    JoinRequest,
    MemberIdentity,
)
from onceflow.broker_lite.coordinators.classic.subscription_metadata import (
    Subscription,
    read_subscription,
)
from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import ConsumerGroup
from onceflow.broker_lite.coordinators.consumer.heartbeat import (
    ConsumerGroups,
    Random,
    new_member_id,
    unknown_member,
)
from onceflow.broker_lite.coordinators.consumer.member import (
    Assignment,
    ClassicSide,
    ConsumerMember,
    plain,
)
from onceflow.broker_lite.coordinators.consumer.migration import Migration
from onceflow.broker_lite.coordinators.consumer.requests import GroupError
from onceflow.broker_lite.coordinators.consumer.states import MemberState
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.sdk.model.special_values import CONSUMER_PROTOCOL_TYPE
from onceflow.sdk.protocol.error_codes import ErrorCode


class ClassicBridge:
    """Answers requests of the classic protocol to consumer groups."""

    def __init__(self, groups: ConsumerGroups, migration: Migration, random: Random) -> None:
        self._groups = groups
        self._migration = migration
        self._random = random

    # --- JoinGroup

    def join(self, group: ConsumerGroup, request: JoinRequest, now_ms: int) -> JoinResult:
        """Join, or take the next step towards the target assignment."""
        member_id = request.member_id
        try:
            subscription = _check_protocols(group, request)
            self._groups.check_room(group, member_id, not member_id)
            if not member_id:
                member_id = new_member_id(self._random)
                if (
                    request.group_instance_id is None
                    and request.api_version >= JOIN_REQUIRES_KNOWN_MEMBER_FROM
                ):
                    return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
            return self._join(group, request, member_id, subscription, now_ms)
        except GroupError as error:
            return JoinResult(error.code, member_id)
        except StateLogError as error:
            return JoinResult(error.code, member_id)

    def _join(
        self,
        group: ConsumerGroup,
        request: JoinRequest,
        member_id: str,
        subscription: Subscription,
        now_ms: int,
    ) -> JoinResult:
        groups, draft = self._groups, GroupDraft(group)
        before = self._find(draft, request, member_id)
        after = dataclasses.replace(
            before,
            instance_id=request.group_instance_id,
            rack_id=subscription.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            topics=tuple(sorted(set(subscription.topics))),
            regex="",
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            server_assignor=None,
            classic=ClassicSide(request.session_timeout_ms, request.protocols),
        )
        anew = groups.steps.subscribe(draft, after)
        groups.steps.raise_epoch(draft, anew, now_ms)
        groups.steps.divide(draft, now_ms, groups.assignment_interval_ms(group.group_id))
        groups.steps.move(draft, member_id, self._owned(subscription))
        group = groups.write(draft, now_ms)
        member = group.members[member_id]
        groups.watch(group, member, now_ms)
        # The member has its rebalance timeout to send SyncGroup and to give up partitions.
        groups.await_step(group, member, now_ms + member.rebalance_timeout_ms)
        if self._migration.wants_downgrade(group, ()):
            self._migration.downgrade(group, (), now_ms)
            return JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        return JoinResult(
            ErrorCode.NONE,
            member_id,
            member.member_epoch,
            CONSUMER_PROTOCOL_TYPE,
            request.protocols[0].name,
        )

    def _find(self, draft: GroupDraft, request: JoinRequest, member_id: str) -> ConsumerMember:
        instance_id = request.group_instance_id
        if instance_id is None:
            return draft.group.members.get(member_id) or ConsumerMember(member_id)
        if request.member_id:
            return self._groups.check_static(draft.group, instance_id, member_id)
        return self._groups.join_static(draft, instance_id, member_id)

    def _owned(self, subscription: Subscription) -> Assignment:
        return plain(self._migration.owned(subscription.owned, 0))

    # --- SyncGroup, Heartbeat, LeaveGroup

    def sync(
        self,
        group: ConsumerGroup,
        generation_id: int,
        identity: MemberIdentity,
        protocol_type: str | None,
        protocol_name: str | None,
        now_ms: int,
    ) -> SyncResult:
        """Return the partitions that a member owns."""
        try:
            member = self._check(group, identity, generation_id)
        except GroupError as error:
            return SyncResult(error.code)
        assert member.classic is not None
        name = member.classic.protocols[0].name
        if protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or protocol_name not in (None, name):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        behind = group.assignment_epoch > member.member_epoch
        if behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
        self._groups.watch(group, member, now_ms)
        self._groups.watch_rebalance(group, member, now_ms)
        return SyncResult(
            ErrorCode.NONE,
            CONSUMER_PROTOCOL_TYPE,
            name,
            self._migration.assignment_bytes(member),
        )

    def heartbeat(
        self, group: ConsumerGroup, generation_id: int, identity: MemberIdentity, now_ms: int
    ) -> ErrorCode:
        """Restart a member's session; REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            member = self._check(group, identity, generation_id)
        except GroupError as error:
            return error.code
        self._groups.watch(group, member, now_ms)
        group = self._groups.divide_if_due(group, now_ms)
        waits = member.state is MemberState.UNRELEASED_PARTITIONS
        if (
            member.member_epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (waits and not group.waits_for_others(member))
        ):
            if member.member_id not in group.rebalances:
                due_ms = now_ms + member.rebalance_timeout_ms
                self._groups.await_step(group, member, due_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, group: ConsumerGroup, identities: Sequence[MemberIdentity], now_ms: int
    ) -> list[ErrorCode]:
        """Remove members of either protocol, which leave or which an administrator removes."""
        codes: list[ErrorCode] = []
        gone: dict[str, ConsumerMember] = {}
        for member_id, instance_id in identities:
            try:
                if instance_id is not None:
                    if not member_id:
                        member_id = group.static_members.get(instance_id, "")
                    member = self._groups.check_static(group, instance_id, member_id)
                elif member_id in group.members:
                    member = group.members[member_id]
                else:
                    raise unknown_member(member_id, group.group_id)
            except GroupError as error:
                codes.append(error.code)
                continue
            gone[member.member_id] = member
            codes.append(ErrorCode.NONE)
        if gone:
            try:
                self._groups.expel(group, list(gone.values()), now_ms)
            except StateLogError as error:
                return [error.code if code is ErrorCode.NONE else code for code in codes]
        return codes

    def _check(
        self, group: ConsumerGroup, identity: MemberIdentity, generation_id: int
    ) -> ConsumerMember:
        member_id, instance_id = identity
        if instance_id is not None:
            member = self._groups.check_static(group, instance_id, member_id)
        else:
            found = group.members.get(member_id)
            if found is None:
                raise unknown_member(member_id, group.group_id)
            member = found
        if member.classic is None:
            raise unknown_member(member_id, group.group_id)
        if generation_id != member.member_epoch:
            raise GroupError(
                ErrorCode.ILLEGAL_GENERATION,
                f"Generation {generation_id} is not that of the member ({member.member_epoch}).",
            )
        return member


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> Subscription:
    """Return the subscription of a join, if the group can take the member (trap 54).

    Raises:
        GroupError: Type or strategies do not fit, or the subscription cannot be read.
    """
    offered = {protocol.name for protocol in request.protocols}
    sets = [
        _names(member.classic.protocols)
        for member in group.members.values()
        if member.classic is not None and member.member_id != request.member_id
    ]
    fits = request.protocol_type == CONSUMER_PROTOCOL_TYPE and bool(
        offered.intersection(*sets) if sets else offered
    )
    found = read_subscription(request.protocols[0].metadata) if request.protocols else None
    if not fits or found is None:
        raise GroupError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "A member of the classic protocol needs the type 'consumer' in this group, a "
            "strategy that the others of that protocol offer, and a subscription.",
        )
    return found


def _names(protocols: Sequence[GroupProtocol]) -> set[str]:
    return {protocol.name for protocol in protocols}
