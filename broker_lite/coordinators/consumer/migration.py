"""Converts groups between the classic and the consumer protocol while they work (KIP-848).

The first member of the new protocol converts a classic group into a consumer group, which may have
members of both protocols. When the last new one leaves, the group becomes classic again. Each
conversion is one batch in the log, so that a crash never leaves half of it. This module applies
``group.consumer.migration.policy``; ``classic_bridge`` answers classic members of a consumer group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup, Member
from onceflow.broker_lite.coordinators.classic.rebalance import Rebalancer
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.classic.subscription_metadata import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import (
    ConsumerGroup,
    EpochChange,
    StandingChange,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    owned_since,
)
from onceflow.broker_lite.coordinators.consumer.member import (
    ClassicSide,
    ConsumerMember,
    Owned,
    assignment_of,
    plain,
)
from onceflow.broker_lite.coordinators.consumer.requests import GroupError
from onceflow.broker_lite.coordinators.consumer.topics import ConsumerTopics
from onceflow.broker_lite.coordinators.group_records import group_tombstone
from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import CONSUMER_PROTOCOL_TYPE
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

UPGRADE_POLICIES = ("upgrade", "bidirectional")
DOWNGRADE_POLICIES = ("downgrade", "bidirectional")


class Migration:
    """Converts groups of one protocol into groups of the other.

    Attributes:
        on_upgraded: Called with a group that became a consumer group and the time, to start its
            members' sessions.
    """

    def __init__(
        self,
        settings: GroupSettings,
        table: GroupTable,
        rebalancer: Rebalancer,
        topics: ConsumerTopics,
    ) -> None:
        self._settings = settings
        self._table = table
        self._rebalancer = rebalancer
        self._topics = topics
        self.on_upgraded: Callable[[ConsumerGroup, int], None] = lambda group, now_ms: None

    # --- to the consumer protocol

    def upgrade(self, classic: ClassicGroup) -> GroupDraft:
        """Return a draft of the consumer group that replaces a classic group.

        Raises:
            GroupError: The group must stay classic.
        """
        draft = GroupDraft(ConsumerGroup(classic.group_id))
        draft.origin.offsets = classic.offsets
        if classic.generation_id > 0:
            draft.before.append(group_tombstone(classic.group_id))
        if classic.members:
            self._check_upgrade(classic)
            self._take_members(draft, classic)

        def on_written(now_ms: int) -> None:
            logger.info("%s is a consumer group now", classic.group_id)
            self._rebalancer.dissolve(classic, ErrorCode.REBALANCE_IN_PROGRESS)
            self.on_upgraded(draft.origin, now_ms)

        draft.on_written = on_written
        return draft

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        settings = self._settings
        if settings.consumer_migration_policy not in UPGRADE_POLICIES:
            raise _stays_classic(classic, "online upgrade is disabled.")
        if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise _stays_classic(classic, "the group does not use the consumer embedded protocol.")
        if len(classic.members) > settings.consumer_max_size:
            raise _stays_classic(classic, "the group size exceeds the consumer group maximum size.")

    def _take_members(self, draft: GroupDraft, classic: ClassicGroup) -> None:
        epoch = classic.generation_id
        members = [self._converted(classic, member, epoch) for member in classic.members.values()]
        for member in members:
            draft.add(SubscriptionChange(member.member_id, member))
        topics = draft.group.subscribed_topics()
        # Between the two rounds of a cooperative rebalance some partitions have no owner. Digest 0
        # makes the next heartbeat assign again. Otherwise they could stay without an owner: a
        # static member that replaces another one changes no subscription.
        digest = self._topics.digest(topics) if self._is_whole(members, topics) else 0
        draft.add(EpochChange(epoch, digest))
        for member in members:
            draft.add(TargetChange(member.member_id, plain(member.assigned)))
        draft.add(TargetEpochChange(epoch))
        for member in members:
            draft.add(StandingChange(member.member_id, member))

    def _is_whole(self, members: Iterable[ConsumerMember], topics: Collection[str]) -> bool:
        """Whether each partition of the group's topics has an owner."""
        owned = {
            (topic_id, number)
            for member in members
            for topic_id, numbers in member.assigned.items()
            for number in numbers
        }
        counts = self._topics.ids_of(topics)
        return all(
            (topic_id, number) in owned
            for topic_id, count in counts.items()
            for number in range(count)
        )

    def _converted(self, classic: ClassicGroup, member: Member, epoch: int) -> ConsumerMember:
        protocol = classic.protocol_name or member.protocols[0].name
        subscription = read_subscription(member.metadata(protocol))
        assignment = read_assignment(member.assignment)
        if subscription is None or assignment is None:
            raise _stays_classic(classic, f"the bytes of member {member.member_id} are malformed.")
        partitions, has_own_data = assignment
        if has_own_data:
            raise _stays_classic(
                classic,
                "an unsupported custom assignor is in use: it keeps data of its own in the "
                "assignments, which would be lost.",
            )
        return ConsumerMember(
            member.member_id,
            member.group_instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            tuple(sorted(set(subscription.topics))),
            "",
            member.rebalance_timeout_ms,
            None,
            ClassicSide(member.session_timeout_ms, member.protocols),
            epoch,
            epoch,
            assigned=self.owned(partitions, epoch),
        )

    def owned(self, partitions: Iterable[TopicPartition], epoch: int) -> Owned:
        """Return partitions by topic id, without those of deleted topics."""
        pairs: list[tuple[UUID, list[int]]] = []
        for partition in partitions:
            topic = self._topics.view.get(partition.topic)
            if topic is not None:
                pairs.append((topic.topic_id, [partition.partition]))
        return owned_since(assignment_of(pairs), epoch)

    # --- to the classic protocol

    def wants_downgrade(self, group: ConsumerGroup, gone: Collection[str]) -> bool:
        """Whether the group should become classic once these members are gone."""
        left = len(group.members) - len(gone)
        return (
            self._settings.consumer_migration_policy in DOWNGRADE_POLICIES
            and group.all_classic(without=gone)
            and left <= self._settings.max_size
        )

    def downgrade(self, group: ConsumerGroup, gone: Collection[str], now_ms: int) -> None:
        """Convert the group into a classic one of the remaining members, and begin a rebalance.

        Raises:
            StateLogError: Nothing was written, and nothing changed.
        """
        successor = ClassicGroup(group.group_id)
        successor.generation_id = group.group_epoch
        successor.protocol_type = CONSUMER_PROTOCOL_TYPE
        successor.state_timestamp_ms = now_ms
        for member in group.members.values():
            if member.member_id not in gone:
                successor.add(self._classic_member(member))
        successor.protocol_name = successor.elect_protocol()
        successor.note_subscriptions()
        successor.state = GroupState.STABLE
        successor.leader = None  # So a start before the rebalance ends begins another one.
        self._table.write_downgrade(group, successor, now_ms, with_members=True)
        logger.info("%s is a classic group now", group.group_id)
        for member_id in list(group.members):
            group.forget_timers(member_id)
        for each in successor.members.values():
            self._rebalancer.touch(successor, each, now_ms)
        self._rebalancer.rebalance(successor, now_ms)

    def _classic_member(self, member: ConsumerMember) -> Member:
        assert member.classic is not None
        return Member(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.classic.session_timeout_ms,
            member.classic.protocols,
            self.assignment_bytes(member),
        )

    def assignment_bytes(self, member: ConsumerMember) -> bytes:
        """Return a classic member's assignment, in the version of its subscription."""
        assert member.classic is not None
        found = read_subscription(member.classic.protocols[0].metadata)
        by_name = {
            name: partitions
            for topic_id, partitions in member.assigned.items()
            if (name := self._topics.name_of(topic_id)) is not None
        }
        return write_assignment(by_name, 0 if found is None else found.version)

    def retire(self, group: ConsumerGroup, now_ms: int) -> ClassicGroup:
        """Replace an empty consumer group by an empty classic one, which keeps the offsets.

        Raises:
            StateLogError: Nothing was written, and nothing changed.
        """
        successor = ClassicGroup(group.group_id)
        self._table.write_downgrade(group, successor, now_ms, with_members=False)
        return successor


def _stays_classic(classic: ClassicGroup, reason: str) -> GroupError:
    return GroupError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}",
    )
