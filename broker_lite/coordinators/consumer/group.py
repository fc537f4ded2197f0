"""One consumer group (KIP-848): members, epochs, the target assignment, and owners of partitions.

:meth:`ConsumerGroup.apply` sets all durable state, from the changes that are in the log; all other
attributes follow from it. ``heartbeat`` handles timers and requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.member import (
    NOTHING,
    Assignment,
    ConsumerMember,
    Owned,
)
from onceflow.broker_lite.coordinators.consumer.states import ConsumerGroupState, MemberState
from onceflow.broker_lite.coordinators.offsets import GroupOffsets
from onceflow.broker_lite.purgatory import Timer
from onceflow.sdk.model.special_values import LEAVE_STATIC_EPOCH

FIRST_EPOCH = 1
"""Epoch of a new group. It is not 0, because a heartbeat with epoch 0 joins."""

_SHARED = ("offsets", "sessions", "rebalances")


class EpochChange(NamedTuple):
    """The group's epoch (record kind 3); None removes the group."""

    epoch: int | None
    metadata_hash: int = 0


class SubscriptionChange(NamedTuple):
    """A member's subscription (kind 5); None removes the member."""

    member_id: str
    member: ConsumerMember | None


class TargetEpochChange(NamedTuple):
    """The epoch of the last assignment (kind 6); None removes it."""

    epoch: int | None
    timestamp_ms: int = 0


class TargetChange(NamedTuple):
    """A member's target assignment (kind 7); None removes it."""

    member_id: str
    target: Assignment | None


class StandingChange(NamedTuple):
    """A member's current assignment (kind 8); None removes it.

    Only epochs, state and partitions of `member` are used.
    """

    member_id: str
    member: ConsumerMember | None


class RegexChange(NamedTuple):
    """The topics that a pattern selects (kind 16); None removes it."""

    regex: str
    topics: frozenset[str] | None
    version: int = 0
    timestamp_ms: int = 0


class OldMetadataChange(NamedTuple):
    """The tombstone of the topic metadata that older brokers kept for a group (kind 4)."""


GroupChange: TypeAlias = (
    EpochChange
    | SubscriptionChange
    | TargetEpochChange
    | TargetChange
    | StandingChange
    | RegexChange
    | OldMetadataChange
)


class ResolvedRegex(NamedTuple):
    """Topics that a pattern selected, and the time of that."""

    topics: frozenset[str]
    timestamp_ms: int


class ConsumerGroup:
    """A group of the consumer protocol.

    Attributes:
        group_id: Name of the group.
        offsets: Committed and pending offsets.
        members: By member id.
        static_members: Member id by instance id.
        group_epoch: Rises with each change that needs a new assignment.
        assignment_epoch: Group epoch of the last assignment.
        assigned_at_ms: Time of the last assignment.
        metadata_hash: Hash of the subscribed topics when the group epoch last rose.
        targets: Target assignment by member id.
        regexes: Subscribed patterns, with the topics that they selected.
        sessions: Timers of the members' sessions.
        rebalances: Timers of members that must give up partitions in time.
        became_empty_ms: When the last member left; None if none has left since the start.
        topics_seen: `TopicsView.changes` when the group last looked at the topics.
        regexes_seen: The same when it last looked at its patterns.
    """

    __slots__ = (
        "_owners",
        "assigned_at_ms",
        "assignment_epoch",
        "became_empty_ms",
        "group_epoch",
        "group_id",
        "members",
        "metadata_hash",
        "offsets",
        "rebalances",
        "regexes",
        "regexes_seen",
        "sessions",
        "static_members",
        "targets",
        "topics_seen",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id: str = group_id
        self.offsets: GroupOffsets = GroupOffsets()
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        self.group_epoch: int = FIRST_EPOCH
        self.assignment_epoch: int = FIRST_EPOCH
        self.assigned_at_ms: int = 0
        self.metadata_hash: int = 0
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.sessions: dict[str, Timer] = {}
        self.rebalances: dict[str, Timer] = {}
        self.became_empty_ms: int | None = None
        self.topics_seen: int = -1
        self.regexes_seen: int = -1
        self._owners: dict[tuple[UUID, int], str] = {}

    # --- what follows from members and epochs

    @property
    def state(self) -> ConsumerGroupState:
        """State as ConsumerGroupDescribe shows it."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        if all(member.is_reconciled_to(epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        """Whether any member owns the partition, or still has to give it up."""
        return (topic_id, partition) in self._owners

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether another member still owns a partition of its target that it lacks."""
        for topic_id, partitions in self.targets.get(member.member_id, {}).items():
            has = member.assigned.get(topic_id, {})
            if any(p not in has and self.is_owned(topic_id, p) for p in partitions):
                return True
        return False

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Topics that a member subscribes to, by name and by pattern."""
        names = frozenset(member.topics)
        found = self.regexes.get(member.regex) if member.regex else None
        return names if found is None else names | found.topics

    def subscribed_topics(self) -> set[str]:
        """Topics that any member subscribes to."""
        topics: set[str] = set()
        for member in self.members.values():
            topics |= self.topics_of(member)
        return topics

    def used_regexes(self, *, without: str = "") -> set[str]:
        """Patterns that members subscribe to, without those of one member."""
        return {m.regex for i, m in self.members.items() if m.regex and i != without}

    def assignor(self, default: str, member: ConsumerMember | None = None) -> str:
        """The assignor that most members prefer.

        Args:
            default: The assignor if no member has a preference.
            member: Replaces the member with its id. Its preference decides if two assignors have
                equally many votes, as in Kafka; so repeating a preference may raise the epoch.
        """
        members = dict(self.members)
        if member is not None:
            members[member.member_id] = member
        votes = Counter(m.server_assignor for m in members.values() if m.server_assignor)
        own = None if member is None else member.server_assignor
        return max(votes, key=lambda name: (votes[name], name == own, name)) if votes else default

    def find_static(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the static member with that instance id, also while it is away."""
        return self.members.get(self.static_members.get(instance_id or "", ""))

    def is_away(self, member: ConsumerMember) -> bool:
        """True for a static member that left with epoch -2, so that it may come back."""
        return member.member_epoch == LEAVE_STATIC_EPOCH

    def all_classic(self, *, without: Iterable[str] = ()) -> bool:
        """Whether there are members, and all of them speak the classic protocol."""
        gone = set(without)
        rest = [member for member_id, member in self.members.items() if member_id not in gone]
        return bool(rest) and all(member.classic is not None for member in rest)

    # --- changes

    def copy(self) -> ConsumerGroup:
        """Return a copy for a draft; it shares offsets and timers with this group."""
        other = ConsumerGroup(self.group_id)
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in _SHARED and isinstance(value, dict):
                value = dict(value)
            setattr(other, name, value)
        return other

    def adopt(self, other: ConsumerGroup) -> None:
        """Take over the state of a changed copy of this group."""
        for name in self.__slots__:
            setattr(self, name, getattr(other, name))

    def apply(self, change: GroupChange) -> None:
        """Apply one change that is in the log."""
        if isinstance(change, EpochChange):
            self.group_epoch = FIRST_EPOCH if change.epoch is None else change.epoch
            self.metadata_hash = change.metadata_hash
        elif isinstance(change, TargetEpochChange):
            self.assignment_epoch = FIRST_EPOCH if change.epoch is None else change.epoch
            self.assigned_at_ms = change.timestamp_ms
        elif isinstance(change, TargetChange):
            if change.target is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.target
        elif isinstance(change, RegexChange):
            if change.topics is None:
                self.regexes.pop(change.regex, None)
            else:
                self.regexes[change.regex] = ResolvedRegex(change.topics, change.timestamp_ms)
        elif isinstance(change, SubscriptionChange):
            self._apply_subscription(change)
        elif isinstance(change, StandingChange):
            self._apply_standing(change)

    def _apply_subscription(self, change: SubscriptionChange) -> None:
        old = self.members.get(change.member_id)
        instance_id = None if old is None else old.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == change.member_id:
            del self.static_members[instance_id]
        if change.member is None:
            if old is not None:
                self._disown(old)
            self.members.pop(change.member_id, None)
            return
        new = change.member
        if old is not None:
            new = _with_standing(new, old)
        else:
            new = _with_standing(new, ConsumerMember(new.member_id))
        self.members[change.member_id] = new
        if new.instance_id is not None:
            self.static_members[new.instance_id] = change.member_id

    def _apply_standing(self, change: StandingChange) -> None:
        old = self.members.get(change.member_id) or ConsumerMember(change.member_id)
        if change.member is None and change.member_id not in self.members:
            return
        self._disown(old)
        new = _with_standing(old, change.member or ConsumerMember(change.member_id))
        self.members[change.member_id] = new
        for owned in (new.assigned, new.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    self._owners[topic_id, partition] = new.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    if self._owners.get((topic_id, partition)) == member.member_id:
                        del self._owners[topic_id, partition]

    def removal(self, member: ConsumerMember) -> list[GroupChange]:
        """Return the changes that remove a member."""
        member_id = member.member_id
        changes: list[GroupChange] = [
            StandingChange(member_id, None),
            TargetChange(member_id, None),
            SubscriptionChange(member_id, None),
        ]
        if member.regex and member.regex not in self.used_regexes(without=member_id):
            changes.append(RegexChange(member.regex, None))
        return changes

    def dissolution(self) -> list[GroupChange]:
        """Return the changes that remove the group from the log, as in Apache Kafka."""
        changes: list[GroupChange] = []
        changes += [StandingChange(member_id, None) for member_id in self.members]
        changes += [TargetChange(member_id, None) for member_id in self.members]
        changes.append(TargetEpochChange(None))
        changes += [SubscriptionChange(member_id, None) for member_id in self.members]
        changes += [RegexChange(regex, None) for regex in self.regexes]
        changes += [OldMetadataChange(), EpochChange(None)]
        return changes

    def forget_timers(self, member_id: str) -> None:
        """Stop both timers of a member."""
        for timers in (self.sessions, self.rebalances):
            timer = timers.pop(member_id, None)
            if timer is not None:
                timer.cancel()


def _with_standing(member: ConsumerMember, standing: ConsumerMember) -> ConsumerMember:
    return ConsumerMember(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        member.rebalance_timeout_ms,
        member.server_assignor,
        member.classic,
        standing.member_epoch,
        standing.previous_epoch,
        standing.state,
        standing.assigned,
        standing.revoking,
    )


def owned_since(assignment: Mapping[UUID, Iterable[int]], epoch: int) -> Owned:
    """Return an assignment whose partitions all came in the same epoch."""
    return {t: dict.fromkeys(sorted(p), epoch) for t, p in assignment.items()} or NOTHING


__all__ = [
    "ConsumerGroup",
    "EpochChange",
    "GroupChange",
    "MemberState",
    "OldMetadataChange",
    "RegexChange",
    "StandingChange",
    "SubscriptionChange",
    "TargetChange",
    "TargetEpochChange",
    "owned_since",
]
