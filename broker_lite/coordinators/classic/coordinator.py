"""The group coordinator: membership of classic groups, from JoinGroup to LeaveGroup.

It answers membership requests and starts rebalances; ``rebalance`` runs them. ``offset_commits``
handles offsets, ``group_admin`` administration. Identity rules are KIP-394 (required member id),
KIP-345 (static members) and KIP-814 (static leaders keep the assignment).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from onceflow.broker_lite.coordinators.classic.group import (
    ClassicGroup,
    JoinResult,
    Member,
    SyncResult,
)
from onceflow.broker_lite.coordinators.classic.rebalance import Rebalancer
from onceflow.broker_lite.coordinators.classic.requests import (
    JOIN_REQUIRES_KNOWN_MEMBER_FROM,
    JoinRequest,
    MemberIdentity,
)
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.consumer.classic_bridge import ClassicBridge
from onceflow.broker_lite.coordinators.consumer.heartbeat import (
    ConsumerGroups,
    GroupConfig,
    Random,
)
from onceflow.broker_lite.coordinators.consumer.migration import Migration
from onceflow.broker_lite.coordinators.consumer.steps import ConsumerSteps
from onceflow.broker_lite.coordinators.consumer.topics import ConsumerTopics, TopicsView
from onceflow.broker_lite.coordinators.group_admin import GroupAdmin
from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.broker_lite.coordinators.offset_commits import OffsetCommits
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLog, StateLogError
from onceflow.broker_lite.purgatory import Deferred, Timer, Timers
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

PENDING_MEMBERS_MAX = 10_000
"""Most ids of one group that are given out and not used yet, so that a peer which only ever asks
for ids cannot fill the memory."""

JOIN_SKIPS_ASSIGNMENT_FROM = 9
"""First JoinGroup version that can tell a static leader to keep the assignment (KIP-814)."""


class GroupCoordinator:
    """Membership of every group of the broker.

    Attributes:
        offsets: Commits and reads of offsets.
        admin: Describing, listing and deleting groups, expiry.
        consumers: Heartbeats of the consumer protocol (KIP-848).
    """

    def __init__(
        self,
        settings: GroupSettings,
        log: StateLog,
        timers: Timers,
        random: Random,
        topics: TopicsView,
        config: GroupConfig = lambda group_id, name: None,
    ) -> None:
        """Make the coordinator.

        Args:
            settings: Limits and delays.
            log: ``__consumer_offsets``.
            timers: Where deadlines are kept.
            random: Source of member ids.
            topics: The broker's topics.
            config: Settings of single groups.
        """
        self._settings = settings
        self._timers = timers
        self._random = random
        self._table = GroupTable(log)
        self._rebalancer = Rebalancer(settings, timers, self._table.write_generation)
        self._cleanup: Timer | None = None
        view = ConsumerTopics(topics)
        migration = Migration(settings, self._table, self._rebalancer, view)
        steps = ConsumerSteps(view, settings.consumer_assignors)
        self.consumers: ConsumerGroups = ConsumerGroups(
            settings, self._table, steps, timers, random, migration, config
        )
        migration.on_upgraded = self.consumers.start_group
        self._migration = migration
        self._bridge = ClassicBridge(self.consumers, migration, random)
        self.offsets: OffsetCommits = OffsetCommits(
            settings, self._table, self._rebalancer, self.consumers.watch, topics
        )
        self.admin: GroupAdmin = GroupAdmin(settings, self._table, self._rebalancer, steps)

    # --- life of the coordinator

    def load(self, now_ms: int) -> None:
        """Reload every group; each member has one session timeout to send a request."""
        self._table.load(now_ms)
        for group in self._table.classic():
            for member in group.members.values():
                self._rebalancer.touch(group, member, now_ms)
            if group.members and group.leader is None:
                # The group was a consumer group before, and the rebalance after its downgrade did
                # not finish. Nothing else would assign the partitions of members that left.
                self._rebalancer.rebalance(group, now_ms)
        self.consumers.start(now_ms)

    def start(self, now_ms: int) -> None:
        """Schedule the periodic check for expired offsets."""
        self._cleanup = self._timers.schedule(
            now_ms + self._settings.offsets_retention_check_interval_ms, self._run_cleanup
        )

    def _run_cleanup(self, now_ms: int) -> None:
        self.admin.remove_expired(now_ms - self._timers.ahead_ms)
        self.start(now_ms)

    def clock_set(self, forward_ms: int) -> None:
        """Move deadlines after the clock was set forward: the jump is no silence of a member."""
        for group in self._table.classic():
            for member in group.members.values():
                member.session_deadline_ms += forward_ms

    def close(self) -> None:
        """Stop every timer and give up every parked answer with COORDINATOR_NOT_AVAILABLE."""
        if self._cleanup is not None:
            self._cleanup.cancel()
        for group in self._table.classic():
            self._rebalancer.dissolve(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.consumers.close()

    def partition_for(self, group_id: str) -> int:
        """Partition of ``__consumer_offsets`` that the group belongs to (trap 51)."""
        return self._table.partition_for(group_id)

    def on_transaction_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker was written to a partition of ``__consumer_offsets``."""
        self._table.end_transaction(partition, producer_id, committed)

    # --- JoinGroup

    def join(self, request: JoinRequest, now_ms: int) -> JoinResult | Deferred[JoinResult]:
        """Join a group, or rejoin it.

        Returns:
            The answer, or a parked one when the join barrier has to complete first.
        """
        code = self._check_join(request)
        consumers = self._table.get_consumer(request.group_id)
        if code is ErrorCode.NONE and consumers is not None:
            if consumers.members:
                return self._bridge.join(consumers, request, now_ms)
            try:
                self._migration.retire(consumers, now_ms)
            except StateLogError as error:
                code = error.code
        group = self._table.get(request.group_id)
        if code is ErrorCode.NONE and group is None and request.member_id:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is not ErrorCode.NONE:
            return JoinResult(code, request.member_id)
        if group is None:
            group = self._table.get_or_create(request.group_id)
        if not self._has_room(group, request.member_id):
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        if not group.accepts(request.protocol_type, request.protocols):
            self._discard_unused(group)
            return JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        if request.member_id:
            return self._join_known(group, request, now_ms)
        return self._join_new(group, request, now_ms)

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        settings = self._settings
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not (
            settings.min_session_timeout_ms
            <= request.session_timeout_ms
            <= settings.max_session_timeout_ms
        ):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        """Apply ``group.max.size``; during a rebalance the members that join first fit."""
        limit = self._settings.max_size
        if group.state is GroupState.PREPARING_REBALANCE:
            member = group.members.get(member_id)
            if member is not None and member.awaiting_join is not None:
                return True
            joined = sum(m.awaiting_join is not None for m in group.members.values())
            return joined < limit
        return member_id in group.members or len(group.members) < limit

    def _discard_unused(self, group: ClassicGroup) -> None:
        if not (group.members or group.pending_members or group.offsets or group.generation_id):
            self._table.discard(group)

    def _new_member_id(self, request: JoinRequest) -> str:
        prefix = request.group_instance_id or request.client_id
        return f"{prefix}-{uuid.UUID(int=self._random.getrandbits(128), version=4)}"

    def _join_new(
        self, group: ClassicGroup, request: JoinRequest, now_ms: int
    ) -> JoinResult | Deferred[JoinResult]:
        member_id = self._new_member_id(request)
        instance_id = request.group_instance_id
        if instance_id is not None:
            current = group.static_members.get(instance_id)
            if current is not None:
                member = group.members[current]
                return self._return_static(group, member, member_id, request, now_ms)
            return self._add_and_rebalance(group, member_id, request, now_ms)
        if request.api_version >= JOIN_REQUIRES_KNOWN_MEMBER_FROM:
            if len(group.pending_members) >= PENDING_MEMBERS_MAX:
                return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
            self._rebalancer.expect(group, member_id, request.session_timeout_ms, now_ms)
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return self._add_and_rebalance(group, member_id, request, now_ms)

    def _add_and_rebalance(
        self, group: ClassicGroup, member_id: str, request: JoinRequest, now_ms: int
    ) -> Deferred[JoinResult]:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        member.is_new = True
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        group.joined_in_delay = True
        parked = self._rebalancer.park_join(
            group, member, now_ms, member_id_known=bool(request.member_id)
        )
        self._rebalancer.touch(group, member, now_ms)
        self._rebalancer.rebalance(group, now_ms)
        return parked

    def _update_and_rebalance(
        self, group: ClassicGroup, member: Member, request: JoinRequest, now_ms: int
    ) -> Deferred[JoinResult]:
        self._update(member, request)
        parked = self._rebalancer.park_join(group, member, now_ms, member_id_known=True)
        self._rebalancer.touch(group, member, now_ms)
        self._rebalancer.rebalance(group, now_ms)
        return parked

    @staticmethod
    def _update(member: Member, request: JoinRequest) -> None:
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def _join_known(
        self, group: ClassicGroup, request: JoinRequest, now_ms: int
    ) -> JoinResult | Deferred[JoinResult]:
        """JoinGroup with a member id: the second step of a first join, or a rejoin (trap 53)."""
        member_id = request.member_id
        if request.group_instance_id is None and self._rebalancer.forget_pending(group, member_id):
            return self._add_and_rebalance(group, member_id, request, now_ms)
        code = group.check_identity(member_id, request.group_instance_id)
        if code is not ErrorCode.NONE:
            return JoinResult(code, member_id)
        member = group.members[member_id]
        unchanged = member.protocols == request.protocols
        # In CompletingRebalance, the member repeats the JoinGroup of this generation because the
        # answer was lost. In Stable, only the leader's JoinGroup asks for a rebalance.
        lost_answer = group.state is GroupState.COMPLETING_REBALANCE
        settled = group.state is GroupState.STABLE and not group.is_leader(member)
        if unchanged and (lost_answer or settled):
            self._rebalancer.touch(group, member, now_ms)
            return group.join_result(member)
        return self._update_and_rebalance(group, member, request, now_ms)

    def _return_static(
        self,
        group: ClassicGroup,
        member: Member,
        new_member_id: str,
        request: JoinRequest,
        now_ms: int,
    ) -> JoinResult | Deferred[JoinResult]:
        """Give a returned static member a new member id, which fences the old one (KIP-345)."""
        old_member_id = member.member_id
        old_leader = group.leader or ""
        self._rebalancer.answer_parked(member, ErrorCode.FENCED_INSTANCE_ID)
        before = (
            member.protocols,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.client_id,
            member.client_host,
        )
        group.replace_static(member, new_member_id)
        self._update(member, request)
        # As in Kafka, a changed subscription starts no rebalance: the member keeps its assignment.
        settled = group.state is GroupState.STABLE and (
            group.elect_protocol() == group.protocol_name
        )
        if not settled:
            parked = self._rebalancer.park_join(group, member, now_ms, member_id_known=False)
            self._rebalancer.touch(group, member, now_ms)
            self._rebalancer.rebalance(group, now_ms)
            return parked
        try:
            self._table.write_generation(group, now_ms)
        except StateLogError as error:
            logger.error("%s: static member was not replaced: %s", group.group_id, error)
            group.replace_static(member, old_member_id)
            (
                member.protocols,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.client_id,
                member.client_host,
            ) = before
            return JoinResult(ErrorCode.UNKNOWN_SERVER_ERROR, "")
        self._rebalancer.touch(group, member, now_ms)
        return self._static_result(group, member, old_leader, request.api_version)

    @staticmethod
    def _static_result(
        group: ClassicGroup, member: Member, old_leader: str, api_version: int
    ) -> JoinResult:
        """Answer with the current generation, so that a returning leader does not assign again."""
        skips = api_version >= JOIN_SKIPS_ASSIGNMENT_FROM
        leads = group.is_leader(member)
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            # Before KIP-814, the old id as leader keeps a returning leader from assigning.
            (group.leader or "") if skips else old_leader,
            group.member_list() if skips and leads else (),
            skips and leads,
        )

    # --- SyncGroup

    def sync(
        self,
        group_id: str,
        generation_id: int,
        identity: MemberIdentity,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: dict[str, bytes],
        now_ms: int,
    ) -> SyncResult | Deferred[SyncResult]:
        """Return a member's assignment; the leader's request carries all of them (trap 55)."""
        if not group_id:
            return SyncResult(ErrorCode.INVALID_GROUP_ID)
        consumers = self._table.get_consumer(group_id)
        if consumers is not None:
            return self._bridge.sync(
                consumers, generation_id, identity, protocol_type, protocol_name, now_ms
            )
        group = self._table.get(group_id)
        if group is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        code = group.check_identity(*identity)
        if code is ErrorCode.NONE:
            code = _check_sync(group, generation_id, protocol_type, protocol_name)
        if code is not ErrorCode.NONE:
            return SyncResult(code)
        member = group.members[identity.member_id]
        self._rebalancer.synced(group, member)
        if group.state is GroupState.STABLE:
            self._rebalancer.touch(group, member, now_ms)
            return group.sync_result(member)
        parked = self._rebalancer.park_sync(member)
        if group.is_leader(member):
            self._assign(group, assignments, now_ms)
        return parked

    def _assign(self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int) -> None:
        complete = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        group.state_timestamp_ms = now_ms
        try:
            self._table.write_generation(group, now_ms, complete)
        except StateLogError as error:
            logger.error("%s: assignment was not written: %s", group.group_id, error)
            self._rebalancer.fail_sync(group, error.code)
            self._rebalancer.rebalance(group, now_ms)
            return
        self._rebalancer.share_assignment(group, complete, now_ms)

    # --- Heartbeat

    def heartbeat(
        self, group_id: str, generation_id: int, identity: MemberIdentity, now_ms: int
    ) -> ErrorCode:
        """Restart a member's session; REBALANCE_IN_PROGRESS tells it to rejoin (trap 55)."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        consumers = self._table.get_consumer(group_id)
        if consumers is not None:
            return self._bridge.heartbeat(consumers, generation_id, identity, now_ms)
        group = self._table.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = group.check_identity(*identity)
        if code is not ErrorCode.NONE:
            return code
        if generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalancer.touch(group, group.members[identity.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # --- LeaveGroup

    def leave(
        self, group_id: str, identities: Sequence[MemberIdentity], now_ms: int
    ) -> tuple[ErrorCode, list[ErrorCode]]:
        """Take members out of a group.

        Returns:
            A code for the request, and one for each identity in order.
        """
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, []
        consumers = self._table.get_consumer(group_id)
        if consumers is not None:
            return ErrorCode.NONE, self._bridge.leave(consumers, identities, now_ms)
        group = self._table.get(group_id)
        if group is None:
            return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(identities)
        codes = [self._leave_one(group, identity, now_ms) for identity in identities]
        self._discard_unused(group)
        return ErrorCode.NONE, codes

    def _leave_one(self, group: ClassicGroup, identity: MemberIdentity, now_ms: int) -> ErrorCode:
        member_id, instance_id = identity
        if instance_id is None and self._rebalancer.forget_pending(group, member_id):
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                self._rebalancer.rebalance(group, now_ms)  # Not needed, but Kafka does it too.
            else:
                self._rebalancer.check_barrier(group, now_ms)
            return ErrorCode.NONE
        if instance_id is not None and not member_id:
            # An administrator names only the instance id to remove a static member.
            member_id = group.static_members.get(instance_id, "")
        code = group.check_identity(member_id, instance_id)
        if code is ErrorCode.NONE:
            self._rebalancer.expel(group, group.members[member_id], now_ms)
        return code


def _check_sync(
    group: ClassicGroup,
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str | None,
) -> ErrorCode:
    if generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if protocol_type is not None and protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if protocol_name is not None and protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
