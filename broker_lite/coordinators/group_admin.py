"""Administration of groups: describing, listing, deleting, and the expiry of offsets.

It reads what the coordinator keeps and removes what is no longer used. Who may ask is checked by
the handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from onceflow.broker_lite.coordinators.group import ClassicGroup
from onceflow.broker_lite.coordinators.group_states import GroupState
from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.broker_lite.coordinators.rebalance import Rebalancer
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.broker_lite.coordinators.subscription_metadata import subscribed_topics
from onceflow.sdk.model import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

GROUP_TYPE = "classic"
"""Type of every group here, as ListGroups version 5 names it."""

CONSUMER_PROTOCOL_TYPE = "consumer"


class MemberDescription(NamedTuple):
    """One member as DescribeGroups shows it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


class GroupDescription(NamedTuple):
    """One group as DescribeGroups shows it; a group that is not there is Dead."""

    error_code: ErrorCode
    group_id: str
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: Sequence[MemberDescription] = ()


class GroupListing(NamedTuple):
    """One group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    group_state: str


class GroupAdmin:
    """Administration of every group of the broker."""

    __slots__ = ("_rebalancer", "_settings", "_table")

    def __init__(self, settings: GroupSettings, table: GroupTable, rebalancer: Rebalancer) -> None:
        self._settings = settings
        self._table = table
        self._rebalancer = rebalancer

    def describe(self, group_id: str) -> GroupDescription:
        """Members and state of a group; subscriptions only while it is stable, as in Kafka."""
        group = self._table.get(group_id)
        if group is None:
            return GroupDescription(ErrorCode.GROUP_ID_NOT_FOUND, group_id, GroupState.DEAD.value)
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
        """Groups whose state and type are asked for; empty filters let all pass.

        Names in filters are compared without regard to case (KIP-518, KIP-848).
        """
        states = {name.lower() for name in state_filters}
        types = {name.lower() for name in type_filters}
        if types and GROUP_TYPE not in types:
            return []
        return [
            GroupListing(group.group_id, group.protocol_type or "", group.state.value)
            for group in self._table
            if not states or group.state.value.lower() in states
        ]

    def delete(self, group_id: str, now_ms: int) -> ErrorCode:
        """Delete a group without members, with its offsets."""
        group = self._table.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        return self._remove(group, now_ms)

    def _remove(self, group: ClassicGroup, now_ms: int) -> ErrorCode:
        try:
            self._table.remove(group, now_ms)
        except StateLogError as error:
            logger.error("%s: group was not removed: %s", group.group_id, error)
            return error.code
        self._rebalancer.dissolve(group, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ErrorCode.NONE

    def on_topics_deleted(self, topics: Iterable[str], now_ms: int) -> None:
        """Offsets of deleted topics go, so that a topic made anew under the name starts fresh."""
        gone = set(topics)
        self._forget_topics(lambda topic: topic in gone, now_ms)

    def forget_missing_topics(self, exists: Callable[[str], bool], now_ms: int) -> None:
        """Offsets go whose topics do not exist: the process died while they were deleted."""
        self._forget_topics(lambda topic: not exists(topic), now_ms)

    def _forget_topics(self, is_gone: Callable[[str], bool], now_ms: int) -> None:
        for group in self._table:
            self._forget(
                group, [tp for tp in group.offsets.partitions() if is_gone(tp.topic)], now_ms
            )

    def remove_expired(self, now_ms: int) -> None:
        """Offsets past their retention go, and with the last one an empty group."""
        for group in self._table:
            self._forget(group, self._expired(group, now_ms), now_ms)
            if group.state is GroupState.EMPTY and not group.offsets and not group.pending_members:
                self._remove(group, now_ms)

    def _expired(self, group: ClassicGroup, now_ms: int) -> list[TopicPartition]:
        retention_ms = self._settings.offsets_retention_ms
        offsets = group.offsets
        if group.state is GroupState.EMPTY:
            # The time runs from when the last member went, or from the commit if nobody ever was.
            return offsets.expired(now_ms, retention_ms, unused_since_ms=group.state_timestamp_ms)
        if group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            topics = self._subscribed(group)
            if topics is not None:
                return offsets.expired(now_ms, retention_ms, keep_topics=topics)
        return []

    @staticmethod
    def _subscribed(group: ClassicGroup) -> set[str] | None:
        """Topics that any member subscribes to, None when one subscription is not readable."""
        topics: set[str] = set()
        for member in group.members.values():
            of_member = subscribed_topics(member.metadata(group.protocol_name))
            if of_member is None:
                return None
            topics |= of_member
        return topics

    def _forget(self, group: ClassicGroup, partitions: list[TopicPartition], now_ms: int) -> None:
        try:
            self._table.forget_offsets(group, partitions, now_ms)
        except StateLogError as error:
            logger.error("%s: offsets were not removed: %s", group.group_id, error)
