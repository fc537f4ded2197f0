"""Administration of groups: describes, lists and deletes them, and expires offsets.

The handlers have checked the caller's rights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup
from onceflow.broker_lite.coordinators.classic.rebalance import Rebalancer
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.consumer.group import ConsumerGroup
from onceflow.broker_lite.coordinators.consumer.member import merged
from onceflow.broker_lite.coordinators.consumer.states import ConsumerGroupState
from onceflow.broker_lite.coordinators.consumer.steps import ConsumerSteps
from onceflow.broker_lite.coordinators.group_table import Group, GroupTable
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import CONSUMER_PROTOCOL_TYPE
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

SKIPPED_GENERATIONS = 10_000
"""More rebalances than a group can have before the system writes its file cache to the disk."""

GENERATION_MAX = 2**31 - 1 - SKIPPED_GENERATIONS

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"
"""Types of groups, as ListGroups version 5 names them."""


class MemberDescription(NamedTuple):
    """One member as DescribeGroups shows it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class GroupDescription(NamedTuple):
    """One group as DescribeGroups shows it; an unknown group is Dead."""

    error_code: ErrorCode
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: Sequence[MemberDescription] = ()
    error_message: str | None = None


class GroupListing(NamedTuple):
    """One group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ConsumerDescription(NamedTuple):
    """One group as ConsumerGroupDescribe shows it."""

    group: ConsumerGroup
    assignor_name: str
    topic_names: Mapping[UUID, str]


class GroupAdmin:
    """Administration of every group of the broker."""

    __slots__ = ("_rebalancer", "_settings", "_steps", "_table")

    def __init__(
        self,
        settings: GroupSettings,
        table: GroupTable,
        rebalancer: Rebalancer,
        steps: ConsumerSteps,
    ) -> None:
        self._settings = settings
        self._table = table
        self._rebalancer = rebalancer
        self._steps = steps

    def describe(self, group_id: str) -> GroupDescription:
        """Return members and state of a group; subscriptions only if it is stable, as in Kafka."""
        group = self._table.get(group_id)
        if group is None:
            return GroupDescription(
                ErrorCode.GROUP_ID_NOT_FOUND,
                group_id,
                GroupState.DEAD.value,
                error_message=f"Group {group_id} not found."
                if self._table.find(group_id) is None
                else f"Group {group_id} is not a classic group.",
            )
        stable = group.state is GroupState.STABLE
        members = [
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ]
        return GroupDescription(
            ErrorCode.NONE,
            group_id,
            group.state.value,
            group.protocol_type or "",
            (group.protocol_name or "") if stable else "",
            members,
        )

    def list_groups(
        self, state_filters: Collection[str] = (), type_filters: Collection[str] = ()
    ) -> list[GroupListing]:
        """Return the groups that pass the filters; an empty filter lets all pass.

        Names in filters are compared without regard to case (KIP-518, KIP-848).
        """
        states = {name.lower() for name in state_filters}
        types = {name.lower() for name in type_filters}
        listed = [
            GroupListing(
                group.group_id,
                CONSUMER_PROTOCOL_TYPE
                if isinstance(group, ConsumerGroup)
                else group.protocol_type or "",
                group.state.value,
                CONSUMER_TYPE if isinstance(group, ConsumerGroup) else CLASSIC_TYPE,
            )
            for group in self._table
        ]
        return [
            group
            for group in listed
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]

    def describe_consumer(self, group_id: str) -> ConsumerDescription | None:
        """Return a consumer group with its details; None if there is no such group."""
        group = self._table.get_consumer(group_id)
        if group is None:
            return None
        topic_ids = {t for m in group.members.values() for t in merged(m.assigned, m.revoking)}
        topic_ids |= {t for target in group.targets.values() for t in target}
        names = {t: name for t in topic_ids if (name := self._steps.topics.name_of(t)) is not None}
        return ConsumerDescription(group, self._steps.default_assignor(group), names)

    def delete(self, group_id: str, now_ms: int) -> ErrorCode:
        """Delete a group without members, with its offsets."""
        group = self._table.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not _is_empty(group):
            return ErrorCode.NON_EMPTY_GROUP
        return self._remove(group, now_ms)

    def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], now_ms: int
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Delete offsets of topics that the group does not read (KIP-496).

        Returns:
            A code for the whole request, or one for each partition.
        """
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._table.find(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        kept: set[str] | None = set()
        if isinstance(group, ConsumerGroup):
            kept = group.subscribed_topics()
        elif group.state is not GroupState.EMPTY:
            if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return ErrorCode.NON_EMPTY_GROUP
            kept = group.topics_read
        codes = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if kept is None or partition.topic in kept
            else ErrorCode.NONE
            for partition in partitions
        }
        known = group.offsets.partitions()
        doomed = [tp for tp in known if codes.get(tp) is ErrorCode.NONE]
        try:
            self._table.forget_offsets(group, doomed, now_ms)
        except StateLogError as error:
            logger.error("%s: offsets were not deleted: %s", group_id, error)
            return error.code
        return codes

    def _remove(self, group: Group, now_ms: int) -> ErrorCode:
        try:
            self._table.remove(group, now_ms)
        except StateLogError as error:
            logger.error("%s: group was not removed: %s", group.group_id, error)
            return error.code
        if isinstance(group, ClassicGroup):
            self._rebalancer.dissolve(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ErrorCode.NONE

    def on_topics_deleted(self, topics: Iterable[str], now_ms: int) -> None:
        """Delete the offsets of deleted topics, so that a new topic of the name has none."""
        gone = set(topics)
        self._forget_topics(lambda topic: topic in gone, now_ms)

    def forget_missing_topics(self, exists: Callable[[str], bool], now_ms: int) -> None:
        """Delete the offsets of missing topics, after the process died during a deletion."""
        self._forget_topics(lambda topic: not exists(topic), now_ms)

    def skip_generations(self, now_ms: int) -> None:
        """Raise the generations of classic groups far, after a power loss.

        Later generations may be lost. Without this, a static member that slept through the crash
        could meet its generation again, with another assignment.

        Raises:
            StateLogError: The write failed.
        """
        for group in self._table.classic():
            if group.generation_id:
                skipped = min(group.generation_id + SKIPPED_GENERATIONS, GENERATION_MAX)
                group.generation_id = skipped
                self._table.write_generation(group, now_ms)

    def cut_offsets(self, end_of: Callable[[TopicPartition], int | None], now_ms: int) -> None:
        """Move committed offsets that are beyond the end of a log back to this end.

        Offsets with a leader epoch stay: their consumers notice the loss by the epoch.

        Args:
            end_of: Returns the end of a log that may have lost records; None for other logs.
            now_ms: Wall milliseconds.

        Raises:
            StateLogError: The write failed.
        """
        for group in self._table:
            cut = []
            for partition, offset in group.offsets.committed.items():
                end = end_of(partition)
                behind = end is not None and offset.committed_offset > end
                if end is not None and behind and offset.committed_leader_epoch < 0:
                    logger.warning(
                        "group %s: %s lost its end, and the offset goes back from %d to %d",
                        group.group_id,
                        partition,
                        offset.committed_offset,
                        end,
                    )
                    cut.append((partition, replace(offset, committed_offset=end)))
            if cut:
                self._table.commit(group, cut, now_ms)

    def _forget_topics(self, is_gone: Callable[[str], bool], now_ms: int) -> None:
        for group in self._table:
            self._forget(
                group, [tp for tp in group.offsets.partitions() if is_gone(tp.topic)], now_ms
            )

    def remove_expired(self, now_ms: int) -> None:
        """Delete offsets past their retention, and an empty group with its last offset."""
        for group in self._table:
            self._forget(group, self._expired(group, now_ms), now_ms)
            awaited = isinstance(group, ClassicGroup) and group.pending_members
            if _is_empty(group) and not group.offsets and not awaited:
                self._remove(group, now_ms)

    def _expired(self, group: Group, now_ms: int) -> list[TopicPartition]:
        retention_ms = self._settings.offsets_retention_ms
        offsets = group.offsets
        if isinstance(group, ConsumerGroup):
            return offsets.expired(now_ms, retention_ms, keep_topics=group.subscribed_topics())
        if group.state is GroupState.EMPTY:
            # The retention begins when the last member left; without any member, at the commit.
            return offsets.expired(now_ms, retention_ms, unused_since_ms=group.state_timestamp_ms)
        if group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            topics = group.topics_read
            if topics is not None:
                return offsets.expired(now_ms, retention_ms, keep_topics=topics)
        return []

    def _forget(self, group: Group, partitions: list[TopicPartition], now_ms: int) -> None:
        try:
            self._table.forget_offsets(group, partitions, now_ms)
        except StateLogError as error:
            logger.error("%s: offsets were not removed: %s", group.group_id, error)


def _is_empty(group: Group) -> bool:
    if isinstance(group, ConsumerGroup):
        return group.state is ConsumerGroupState.EMPTY
    return group.state is GroupState.EMPTY
