"""Rebalances of classic groups: the join barrier, session timers, expulsion, generations.

It decides when a rebalance begins and ends, and which members are expelled. ``coordinator`` decides
which requests start one, and answers requests. When a member goes, this module drops its parked
answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from onceflow.broker_lite.coordinators.classic.group import (
    ClassicGroup,
    JoinResult,
    Member,
    SyncResult,
)
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.broker_lite.purgatory import Deferred, Timers
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

_CAN_REBALANCE = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)


class Rebalancer:
    """Drives rebalances of all groups on one set of timers."""

    __slots__ = ("_persist", "_settings", "_timers")

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers,
        persist: Callable[[ClassicGroup, int], None],
    ) -> None:
        """Make a rebalancer.

        Args:
            settings: Delays and timeouts.
            timers: Where deadlines are kept.
            persist: ``persist(group, now_ms)`` writes a group that became empty.
        """
        self._settings = settings
        self._timers = timers
        self._persist = persist

    # --- sessions

    def touch(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        """Restart a member's session, since a request from it has arrived."""
        timeout_ms = (
            self._settings.new_member_join_timeout_ms
            if member.is_new
            else member.session_timeout_ms
        )
        member.session_deadline_ms = now_ms + timeout_ms
        timer = member.session_timer
        # A later deadline needs no new timer: the old one checks the deadline when it is due.
        if timer is None or not timer.active or timer.at_ms > member.session_deadline_ms:
            if timer is not None:
                timer.cancel()
            self._watch_session(group, member)

    def _watch_session(self, group: ClassicGroup, member: Member) -> None:
        member.session_timer = self._timers.schedule(
            member.session_deadline_ms, lambda now_ms: self._session_due(group, member, now_ms)
        )

    def _session_due(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        if group.members.get(member.member_id) is not member:
            return
        parked = member.awaiting_join is not None or member.awaiting_sync is not None
        if parked and not member.is_new:
            # The coordinator has not answered the client, so its silence means nothing.
            member.session_deadline_ms = max(
                member.session_deadline_ms, now_ms + member.session_timeout_ms
            )
        if member.session_deadline_ms > now_ms:
            self._watch_session(group, member)
            return
        logger.info("%s: member %s timed out", group.group_id, member.member_id)
        self.expel(group, member, now_ms)

    def expect(
        self, group: ClassicGroup, member_id: str, session_timeout_ms: int, now_ms: int
    ) -> None:
        """Expect an id given with MEMBER_ID_REQUIRED to join in time; else forget it (trap 52)."""

        def forget(now_ms: int) -> None:
            if group.pending_members.pop(member_id, None) is not None:
                self.check_barrier(group, now_ms)

        group.pending_members[member_id] = self._timers.schedule(
            now_ms + session_timeout_ms, forget
        )

    def forget_pending(self, group: ClassicGroup, member_id: str) -> bool:
        """Remove an id from the pending ones; True if it was one of them."""
        timer = group.pending_members.pop(member_id, None)
        if timer is None:
            return False
        timer.cancel()
        return True

    # --- parked answers

    def park_join(
        self, group: ClassicGroup, member: Member, now_ms: int, *, member_id_known: bool
    ) -> Deferred[JoinResult]:
        """Park the member's JoinGroup until the barrier is complete.

        An older parked request of the same member is answered with an error.

        Args:
            group: The group.
            member: The member.
            now_ms: Wall milliseconds.
            member_id_known: False if the client does not know its member id yet, so that it
                could not rejoin as this member.
        """
        older, member.awaiting_join = member.awaiting_join, None
        parked: Deferred[JoinResult] = Deferred()
        parked.on_disconnect = lambda: self._join_abandoned(group, member, parked, member_id_known)
        member.awaiting_join = parked
        if older is not None:
            older.complete(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        return parked

    def _join_abandoned(
        self,
        group: ClassicGroup,
        member: Member,
        parked: Deferred[JoinResult],
        member_id_known: bool,
    ) -> None:
        """Count a member as not joined, because its connection closed while its JoinGroup waited.

        A member that knows its id may rejoin until its session or the barrier ends. One that does
        not is removed at the next run of the timers.
        """
        if member.awaiting_join is not parked:
            return
        member.awaiting_join = None
        if not member_id_known and member.group_instance_id is None:

            def leave(now_ms: int) -> None:
                if group.members.get(member.member_id) is member and member.awaiting_join is None:
                    self.expel(group, member, now_ms)

            self._timers.schedule(0, leave)
        elif member.is_new:
            member.is_new = False
            self._timers.schedule(0, lambda now_ms: self._touch_if_member(group, member, now_ms))

    def _touch_if_member(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        if group.members.get(member.member_id) is member and member.awaiting_join is None:
            self.touch(group, member, now_ms)

    def park_sync(self, member: Member) -> Deferred[SyncResult]:
        """Park the member's SyncGroup until the leader's assignment comes."""
        older, member.awaiting_sync = member.awaiting_sync, None
        parked: Deferred[SyncResult] = Deferred()

        def abandoned() -> None:
            if member.awaiting_sync is parked:
                member.awaiting_sync = None

        parked.on_disconnect = abandoned
        member.awaiting_sync = parked
        if older is not None:
            older.complete(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        return parked

    @staticmethod
    def answer_parked(member: Member, code: ErrorCode) -> None:
        """Answer the parked requests of a member with an error; an unknown member gets no id."""
        join, member.awaiting_join = member.awaiting_join, None
        sync, member.awaiting_sync = member.awaiting_sync, None
        if join is not None:
            member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            join.complete(JoinResult(code, member_id))
        if sync is not None:
            sync.complete(SyncResult(code))

    # --- leaving

    def expel(self, group: ClassicGroup, member: Member, now_ms: int) -> None:
        """Remove a member that left or timed out, and begin a rebalance."""
        self._drop(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance(group, now_ms)
        else:
            self.check_barrier(group, now_ms)

    def _drop(self, group: ClassicGroup, member: Member) -> None:
        if member.session_timer is not None:
            member.session_timer.cancel()
        group.remove(member)
        self.answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID)

    def dissolve(self, group: ClassicGroup, code: ErrorCode) -> None:
        """End a group: stop every timer and answer every parked request with ``code``."""
        for timer in group.pending_members.values():
            timer.cancel()
        group.pending_members.clear()
        for member in list(group.members.values()):
            if member.session_timer is not None:
                member.session_timer.cancel()
            self.answer_parked(member, code)
        group.members.clear()
        group.static_members.clear()
        self._cancel_barrier(group)
        self._cancel_sync(group)
        if group.state is not GroupState.DEAD:
            group.enter(GroupState.DEAD)

    # --- the barrier

    def rebalance(self, group: ClassicGroup, now_ms: int) -> None:
        """Begin a rebalance, if none is under way, and end its barrier if all have joined."""
        if group.state not in _CAN_REBALANCE:
            self.check_barrier(group, now_ms)
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.fail_sync(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel_sync(group)
        first = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE)
        delay_ms = self._settings.initial_rebalance_delay_ms
        if first and delay_ms > 0:
            # Members of a new group usually start together: wait for them, so that they do not
            # rebalance one after the other (trap 56).
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            group.joined_in_delay = False
            self._arm_initial_delay(group, now_ms + delay_ms)
        elif first:
            self._complete_join(group, now_ms)
        else:
            self._arm_barrier(group, now_ms)
            self.check_barrier(group, now_ms)

    def check_barrier(self, group: ClassicGroup, now_ms: int) -> None:
        """End the barrier if all members have joined."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay_left_ms is None
            and group.everybody_joined
        ):
            self._complete_join(group, now_ms)

    def _arm_initial_delay(self, group: ClassicGroup, at_ms: int) -> None:
        def due(now_ms: int) -> None:
            left_ms = group.initial_delay_left_ms or 0
            if group.joined_in_delay and left_ms > 0:
                stretch_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
                group.initial_delay_left_ms = left_ms - stretch_ms
                group.joined_in_delay = False
                self._arm_initial_delay(group, now_ms + stretch_ms)
                return
            group.initial_delay_left_ms = None
            self._complete_join(group, now_ms)

        group.barrier_timer = self._timers.schedule(at_ms, due)

    def _arm_barrier(self, group: ClassicGroup, now_ms: int) -> None:
        group.barrier_timer = self._timers.schedule(
            now_ms + group.rebalance_timeout_ms,
            lambda now_ms: self._complete_join(group, now_ms),
        )

    def _complete_join(self, group: ClassicGroup, now_ms: int) -> None:
        """End the barrier: the present members form the next generation."""
        self._cancel_barrier(group)
        # A static member keeps its place until its session ends; others that did not join are out.
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                logger.info("%s: member %s did not rejoin", group.group_id, member.member_id)
                self._drop(group, member)
        if not group.members:
            self._become_empty(group, now_ms)
            return
        if not group.elect_joined_leader():
            self._arm_barrier(group, now_ms)
            return
        group.generation_id += 1
        group.protocol_name = group.elect_protocol()
        group.note_subscriptions()
        group.enter(GroupState.COMPLETING_REBALANCE)
        self._await_sync(group, now_ms)
        answers: list[tuple[Deferred[JoinResult], JoinResult]] = []
        for member in group.members.values():
            parked, member.awaiting_join = member.awaiting_join, None
            member.is_new = False
            if parked is not None:
                self.touch(group, member, now_ms)
                answers.append((parked, group.join_result(member)))
        for parked, result in answers:
            parked.complete(result)

    def _become_empty(self, group: ClassicGroup, now_ms: int) -> None:
        group.generation_id += 1
        group.protocol_name = None
        group.note_subscriptions()
        group.leader = None
        group.enter(GroupState.EMPTY)
        group.state_timestamp_ms = now_ms
        try:
            self._persist(group, now_ms)
        except StateLogError as error:
            # The log keeps the old generation. After a restart its members time out.
            logger.error("%s: empty group was not written: %s", group.group_id, error)

    def _cancel_barrier(self, group: ClassicGroup) -> None:
        if group.barrier_timer is not None:
            group.barrier_timer.cancel()
            group.barrier_timer = None
        group.initial_delay_left_ms = None

    # --- waiting for SyncGroup

    def _await_sync(self, group: ClassicGroup, now_ms: int) -> None:
        generation_id = group.generation_id

        def due(now_ms: int) -> None:
            if group.generation_id == generation_id:
                self._expel_unsynced(group, now_ms)

        self._cancel_sync(group)
        group.pending_sync = set(group.members)
        group.sync_timer = self._timers.schedule(now_ms + group.rebalance_timeout_ms, due)

    def _expel_unsynced(self, group: ClassicGroup, now_ms: int) -> None:
        """Remove members that joined and did not send SyncGroup in time (trap 55)."""
        group.sync_timer = None
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        missing = [group.members[member_id] for member_id in sorted(group.pending_sync)]
        for member in missing:
            logger.info("%s: member %s never synced", group.group_id, member.member_id)
            self._drop(group, member)
        if missing:
            self.rebalance(group, now_ms)

    def _cancel_sync(self, group: ClassicGroup) -> None:
        group.pending_sync.clear()
        if group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None

    @staticmethod
    def synced(group: ClassicGroup, member: Member) -> None:
        """Note a member's SyncGroup; after the last one, stop the timer that waits for them."""
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync and group.sync_timer is not None:
            group.sync_timer.cancel()
            group.sync_timer = None

    def share_assignment(
        self, group: ClassicGroup, assignments: dict[str, bytes], now_ms: int
    ) -> None:
        """Make the group stable and answer parked SyncGroups, after the assignment is written."""
        group.enter(GroupState.STABLE)
        answers: list[tuple[Deferred[SyncResult], SyncResult]] = []
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            parked, member.awaiting_sync = member.awaiting_sync, None
            if parked is not None:
                self.touch(group, member, now_ms)
                answers.append((parked, group.sync_result(member)))
        for parked, result in answers:
            parked.complete(result)

    def fail_sync(self, group: ClassicGroup, code: ErrorCode) -> None:
        """Answer every parked SyncGroup with ``code``: this generation gets no assignment."""
        for member in group.members.values():
            member.assignment = b""
            parked, member.awaiting_sync = member.awaiting_sync, None
            if parked is not None:
                parked.complete(SyncResult(code))
