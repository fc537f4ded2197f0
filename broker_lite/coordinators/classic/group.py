"""One classic group: its members, its leader, and the protocol that the members agree on.

Plain data with the rules that need nothing else: voting, leader election, static identity,
generations. ``rebalance`` and ``coordinator`` handle timers, requests and storage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onceflow.broker_lite.coordinators.classic.states import LEGAL_PREDECESSORS, GroupState
from onceflow.broker_lite.coordinators.classic.subscription_metadata import subscribed_topics
from onceflow.broker_lite.coordinators.offsets import GroupOffsets
from onceflow.broker_lite.purgatory import Deferred, Timer
from onceflow.sdk.protocol.error_codes import ErrorCode


class GroupProtocol(NamedTuple):
    """An assignment strategy that a member offers, and its opaque subscription for it."""

    name: str
    metadata: bytes


class JoinedMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """Answer to JoinGroup.

    Attributes:
        error_code: NONE, or why the member did not join.
        member_id: The member's id; also given with MEMBER_ID_REQUIRED (KIP-394).
        generation_id: Generation joined, -1 with an error.
        protocol_type: Type of the group, None with an error.
        protocol_name: Strategy that all agreed on, None with an error.
        leader: Member id of the leader.
        members: Every member, for the leader only (trap 54).
        skip_assignment: True tells a static leader to keep the assignment (KIP-814).
    """

    error_code: ErrorCode
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    skip_assignment: bool = False


class SyncResult(NamedTuple):
    """Answer to SyncGroup."""

    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Member:
    """One member of a classic group.

    Attributes:
        member_id: Id given by the coordinator; changes when a static member comes back.
        group_instance_id: Name of a static member (KIP-345), or None.
        client_id: As the client named itself.
        client_host: Address of the client, with a leading slash.
        rebalance_timeout_ms: How long a rebalance waits for this member.
        session_timeout_ms: How long it may be silent.
        protocols: Strategies in order of preference.
        assignment: The bytes that the leader assigned to it in the current generation.
        is_new: True until its first join completed. A new member may be parked only for the
            new-member timeout, since its client may have ended without leaving.
        awaiting_join: Its parked JoinGroup, or None.
        awaiting_sync: Its parked SyncGroup, or None.
        session_deadline_ms: When the coordinator removes it, if no request arrives before.
        session_timer: Checks ``session_deadline_ms`` when it is due.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_deadline_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[GroupProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.client_id: str = client_id
        self.client_host: str = client_host
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.session_timeout_ms: int = session_timeout_ms
        self.protocols: tuple[GroupProtocol, ...] = protocols
        self.assignment: bytes = assignment
        self.is_new: bool = False
        self.awaiting_join: Deferred[JoinResult] | None = None
        self.awaiting_sync: Deferred[SyncResult] | None = None
        self.session_deadline_ms: int = 0
        self.session_timer: Timer | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Subscription for one strategy, empty when the member does not offer it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str:
        """The candidate that comes first in this member's order of preference."""
        allowed = set(candidates)
        return next(protocol.name for protocol in self.protocols if protocol.name in allowed)


class ClassicGroup:
    """A group of the classic protocol, or one that only holds offsets.

    Attributes:
        group_id: Name of the group.
        state: See ``states``; only :meth:`enter` changes it.
        generation_id: Rises with each completed rebalance.
        protocol_type: ``consumer`` for consumers; None for a group that never had members.
        protocol_name: Strategy of the current generation.
        leader: Member id of the leader.
        members: By member id, in order of joining.
        static_members: Member id by instance id.
        pending_members: Ids given with MEMBER_ID_REQUIRED that have not joined, with the timer
            that forgets them.
        topics_read: Topics that the members of the current generation subscribed to when it
            began; None if a subscription cannot be read.
        pending_sync: Members of this generation whose SyncGroup has not come.
        offsets: Committed and pending offsets.
        state_timestamp_ms: When the group last became stable or empty.
        barrier_timer: Ends the wait for members.
        sync_timer: Ends the wait for SyncGroup.
        initial_delay_left_ms: What is left of the wait for more members of a new group; None
            outside of that wait.
        joined_in_delay: True when a member joined during the last part of that wait.
    """

    __slots__ = (
        "barrier_timer",
        "generation_id",
        "group_id",
        "initial_delay_left_ms",
        "joined_in_delay",
        "leader",
        "members",
        "offsets",
        "pending_members",
        "pending_sync",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "sync_timer",
        "topics_read",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id: str = group_id
        self.state: GroupState = GroupState.EMPTY
        self.generation_id: int = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, Timer] = {}
        self.topics_read: set[str] | None = None
        self.pending_sync: set[str] = set()
        self.offsets: GroupOffsets = GroupOffsets()
        self.state_timestamp_ms: int | None = None
        self.barrier_timer: Timer | None = None
        self.sync_timer: Timer | None = None
        self.initial_delay_left_ms: int | None = None
        self.joined_in_delay: bool = False

    def enter(self, state: GroupState) -> None:
        """Move to ``state``."""
        assert self.state in LEGAL_PREDECESSORS[state], (
            f"{self.group_id}: {self.state.value} may not become {state.value}"
        )
        self.state = state

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest any member asks a rebalance to wait."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def everybody_joined(self) -> bool:
        """True when all members have joined and no pending member is expected."""
        return not self.pending_members and all(
            member.awaiting_join is not None for member in self.members.values()
        )

    def note_subscriptions(self) -> None:
        """Note the topics of the generation that begins."""
        topics: set[str] = set()
        for member in self.members.values():
            of_member = subscribed_topics(member.metadata(self.protocol_name))
            if of_member is None:
                self.topics_read = None
                return
            topics |= of_member
        self.topics_read = topics

    def is_leader(self, member: Member) -> bool:
        """True when ``member`` leads the group."""
        return member.member_id == self.leader

    # --- members

    def add(self, member: Member) -> None:
        """Add a member; the first one sets the group's type and leads."""
        assert member.member_id not in self.members, f"{member.member_id} is a member already"
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the next one in order of joining leads."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        instance_id = member.group_instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]
        if self.is_leader(member):
            self.leader = next(iter(self.members), None)

    def replace_static(self, member: Member, new_member_id: str) -> None:
        """Give a static member a new id; it keeps its place, role and assignment."""
        old_member_id = member.member_id
        assert member.group_instance_id is not None
        self.members = {
            new_member_id if member_id == old_member_id else member_id: other
            for member_id, other in self.members.items()
        }
        if self.leader == old_member_id:
            self.leader = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)
        self.static_members[member.group_instance_id] = new_member_id
        member.member_id = new_member_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined the next generation.

        Returns:
            False if no member has: all are static ones that have not come back.
        """
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def check_identity(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check member id and instance id of a request against each other (KIP-345).

        Returns:
            NONE; UNKNOWN_MEMBER_ID; or FENCED_INSTANCE_ID if another member has the instance id.
        """
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # --- protocols

    def common_protocols(self) -> set[str]:
        """Strategies that every member offers."""
        sets = [
            {protocol.name for protocol in member.protocols} for member in self.members.values()
        ]
        return set.intersection(*sets) if sets else set()

    def accepts(self, protocol_type: str, protocols: Sequence[GroupProtocol]) -> bool:
        """Whether a member with these strategies could join (trap 54)."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        if protocol_type != self.protocol_type:
            return False
        common = self.common_protocols()
        return any(protocol.name in common for protocol in protocols)

    def elect_protocol(self) -> str:
        """Return the strategy that most members prefer among those that all offer.

        If two have equally many votes, the leader's preference decides.
        """
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        most = max(votes.values())
        winners = {name for name, count in votes.items() if count == most}
        leader = self.members.get(self.leader or "") or next(iter(self.members.values()))
        return leader.vote(winners)

    # --- answers

    def join_result(self, member: Member) -> JoinResult:
        """Return the JoinGroup answer for a member of the current generation."""
        members: Sequence[JoinedMember] = ()
        if self.is_leader(member):
            members = self.member_list()
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            members,
        )

    def member_list(self) -> list[JoinedMember]:
        """Return every member with its subscription for the current strategy."""
        return [
            JoinedMember(
                member.member_id, member.group_instance_id, member.metadata(self.protocol_name)
            )
            for member in self.members.values()
        ]

    def sync_result(self, member: Member) -> SyncResult:
        """Return the SyncGroup answer with a member's assignment."""
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
