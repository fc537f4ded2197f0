"""Steps that heartbeats, joins of classic members and departures share (KIP-848).

Each step adds changes to a draft of a group: another subscription, a raised epoch, another target
assignment, a member's next move towards it. ``heartbeat`` and ``classic_bridge`` decide which steps
a request makes, and answer it.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import (
    ConsumerGroup,
    EpochChange,
    StandingChange,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from onceflow.broker_lite.coordinators.consumer.member import (
    Assignment,
    ConsumerMember,
    same_partitions,
)
from onceflow.broker_lite.coordinators.consumer.reconciliation import reconcile
from onceflow.broker_lite.coordinators.consumer.requests import TopicRights
from onceflow.broker_lite.coordinators.consumer.server_assignors import SERVER_ASSIGNORS, Reader
from onceflow.broker_lite.coordinators.consumer.topics import ConsumerTopics


class ConsumerSteps:
    """The steps, for all consumer groups of the broker."""

    __slots__ = ("_assignors", "topics")

    def __init__(self, topics: ConsumerTopics, assignors: tuple[str, ...]) -> None:
        """Make the steps.

        Args:
            topics: The cluster's topics.
            assignors: Names of the available assignors; groups without a preference use the first.
        """
        self.topics: ConsumerTopics = topics
        self._assignors = assignors

    def subscribe(self, draft: GroupDraft, member: ConsumerMember) -> bool:
        """Note what a member subscribes to.

        Returns:
            Whether its topics changed, or by its preference the group's assignor, so that the
            group needs a new assignment.
        """
        old = draft.group.members.get(member.member_id)
        if old is not None and old.subscription == member.subscription:
            return False
        default = self._assignors[0]
        another = draft.group.assignor(default) != draft.group.assignor(default, member)
        draft.add(SubscriptionChange(member.member_id, member))
        before = old or ConsumerMember(member.member_id)
        return another or before.topics != member.topics or before.regex != member.regex

    def raise_epoch(
        self,
        draft: GroupDraft,
        subscribed_anew: bool,
        now_ms: int,
        rights: TopicRights | None = None,
    ) -> None:
        """Raise the group's epoch if a subscription, a pattern's topics or a topic changed.

        Args:
            draft: The group.
            subscribed_anew: A subscription changed.
            now_ms: Wall milliseconds.
            rights: Topics that patterns may select; None leaves patterns to the next heartbeat.
        """
        changed = subscribed_anew
        if rights is not None:
            changed = self.topics.resolve(draft, now_ms, rights) or changed
        group = draft.group
        seen = self.topics.view.changes
        if not changed and group.topics_seen == seen:
            return
        digest = self.topics.digest(group.subscribed_topics())
        if changed or digest != group.metadata_hash:
            draft.add(EpochChange(group.group_epoch + 1, digest))
        draft.group.topics_seen = seen

    def divide(self, draft: GroupDraft, now_ms: int, interval_ms: int) -> None:
        """Assign the partitions if the group's epoch rose and the interval has passed.

        Args:
            draft: The group.
            now_ms: Wall milliseconds.
            interval_ms: Shortest time between two assignments (KIP-1263).
        """
        group = draft.group
        if group.group_epoch <= group.assignment_epoch:
            return
        since_ms = now_ms - group.assigned_at_ms
        if group.targets and 0 <= since_ms < interval_ms:  # Below 0 the clock was set back.
            return
        counts = self.topics.ids_of(group.subscribed_topics())
        readers = [self._reader(group, member) for member in group.members.values()]
        assign = SERVER_ASSIGNORS[group.assignor(self._assignors[0])]
        for member_id, target in assign(readers, counts).items():
            if group.targets.get(member_id) != target:
                draft.add(TargetChange(member_id, target))
        draft.add(TargetEpochChange(group.group_epoch, now_ms))

    def _reader(self, group: ConsumerGroup, member: ConsumerMember) -> Reader:
        return Reader(
            member.member_id,
            member.instance_id,
            frozenset(self.topics.ids_of(group.topics_of(member))),
            group.targets.get(member.member_id, {}),
        )

    def move(self, draft: GroupDraft, member_id: str, owned: Assignment | None) -> None:
        """Move one member one step towards its target assignment."""
        group = draft.group
        member = group.members[member_id]
        readable = set(self.topics.ids_of(group.topics_of(member)))

        def is_subscribed(topic_id: UUID) -> bool:
            return topic_id in readable

        moved = reconcile(
            member,
            group.assignment_epoch,
            group.targets.get(member_id, {}),
            owned,
            group.is_owned,
            is_subscribed,
        )
        if moved is not member and moved.standing != member.standing:
            draft.add(StandingChange(member_id, moved))

    def remove(self, draft: GroupDraft, members: Iterable[ConsumerMember]) -> None:
        """Remove members and raise the epoch, so that their partitions are assigned again."""
        for member in members:
            draft.add(*draft.group.removal(member))
        group = draft.group
        epoch = group.group_epoch + 1
        draft.add(EpochChange(epoch, self.topics.digest(group.subscribed_topics())))
        if not group.members:
            draft.add(TargetEpochChange(epoch))

    def default_assignor(self, group: ConsumerGroup) -> str:
        """Return the assignor of the group."""
        return group.assignor(self._assignors[0])

    @property
    def assignors(self) -> tuple[str, ...]:
        """Names of the available assignors."""
        return self._assignors


def assignment_changed(before: ConsumerMember | None, after: ConsumerMember) -> bool:
    """Whether the answer must contain the member's assignment."""
    return before is None or not same_partitions(before.assigned, after.assigned)
