"""Messages of consumer groups whose coordinator assigns the partitions (KIP-848).

Layouts only: the rules are in `core.group.consumer_member` and in the broker's coordinator.

ConsumerGroupHeartbeat (key 68), versions 0-1, flexible from 0:
    1 pattern subscription, member id made by the client
ConsumerGroupDescribe (key 69), versions 0-1, flexible from 0:
    1 the member's protocol: classic or consumer
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    struct,
    uuid,
)


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions="0-1", flexible="0+"):
    """Join, stay in, or leave a group; null and -1 mean "unchanged since the last heartbeat"."""

    class TopicPartitions(Struct):
        """Partitions of one topic that the member owns."""

        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32(default=0)
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = array(
        TopicPartitions, nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions="0-1", flexible="0+"):
    """The member's epoch, and its assignment when that changed."""

    class Assignment(Struct):
        """The member's target assignment."""

        class TopicPartitions(Struct):
            topic_id: UUID = uuid()
            partitions: list[int] = array(int32)

        topic_partitions: list[TopicPartitions] = array(TopicPartitions)

    TopicPartitions: TypeAlias = Assignment.TopicPartitions

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32(default=0)
    heartbeat_interval_ms: int = int32(default=0)
    assignment: Assignment | None = struct(Assignment, nullable="0+", default=None)


class ConsumerGroupDescribeRequest(Request, api_key=69, versions="0-1", flexible="0+"):
    """Ask for members, epochs and assignments of groups."""

    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean(default=False)


class DescribedAssignment(Struct):
    """Partitions of a member."""

    class TopicPartitions(Struct):
        topic_id: UUID = uuid()
        topic_name: str = string()
        partitions: list[int] = array(int32)

    topic_partitions: list[TopicPartitions] = array(TopicPartitions, default=[])


class ConsumerGroupDescribeResponse(Response, api_key=69, versions="0-1", flexible="0+"):
    """The groups; a group of another protocol has GROUP_ID_NOT_FOUND."""

    class DescribedGroup(Struct):
        class Member(Struct):
            """One member with its current and its target assignment."""

            member_id: str = string()
            instance_id: str | None = string(nullable="0+", default=None)
            rack_id: str | None = string(nullable="0+", default=None)
            member_epoch: int = int32()
            client_id: str = string()
            client_host: str = string()
            subscribed_topic_names: list[str] = array(string)
            subscribed_topic_regex: str | None = string(nullable="0+", default=None)
            assignment: DescribedAssignment = struct(DescribedAssignment)
            target_assignment: DescribedAssignment = struct(DescribedAssignment)
            member_type: int = int8("1+", default=-1, ignorable=True)

        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        group_id: str = string()
        group_state: str = string(default="")
        group_epoch: int = int32(default=0)
        assignment_epoch: int = int32(default=0)
        assignor_name: str = string(default="")
        members: list[Member] = array(Member, default=[])
        authorized_operations: int = int32(default=NOT_REQUESTED)

    Member: TypeAlias = DescribedGroup.Member

    throttle_time_ms: int = int32(default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)
