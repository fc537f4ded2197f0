"""Messages of classic consumer groups: membership and administration.

Layouts only: the rules are in `core.group.classic_member` and in the broker's coordinator. This
module also exports OffsetCommit and OffsetFetch (keys 8, 9), which `group_offsets` declares.

JoinGroup (key 11), versions 0-9, flexible from 6:
    1 rebalance timeout
    2 throttle time
    4 MEMBER_ID_REQUIRED (KIP-394)
    5 static members (KIP-345)
    7 protocol type (KIP-559)
    8 reason (KIP-800)
    9 leaders that skip the assignment (KIP-814)
Heartbeat (key 12), versions 0-4, flexible from 4:
    1 throttle time
    3 static members
LeaveGroup (key 13), versions 0-5, flexible from 4:
    1 throttle time
    3 several members
    5 reason (KIP-800)
SyncGroup (key 14), versions 0-5, flexible from 4:
    1 throttle time
    3 static members
    5 protocol type and name (KIP-559)
DescribeGroups (key 15), versions 0-6, flexible from 5:
    1 throttle time
    3 authorized operations
    4 static members
    6 GROUP_ID_NOT_FOUND (KIP-1043)
ListGroups (key 16), versions 0-5, flexible from 3:
    1 throttle time
    4 states (KIP-518)
    5 types (KIP-848)
DeleteGroups (key 42), versions 0-2, flexible from 2:
    1 throttling after the answer, by the client
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitRequest as OffsetCommitRequest
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitResponse as OffsetCommitResponse
from onceflow.sdk.protocol.api.group_offsets import OffsetFetchRequest as OffsetFetchRequest
from onceflow.sdk.protocol.api.group_offsets import OffsetFetchResponse as OffsetFetchResponse
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    bytes_,
    int16,
    int32,
    string,
)


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+"):
    """Join a group, or rejoin it for its next generation."""

    class JoinGroupRequestProtocol(Struct):
        """An assignment protocol that the member supports, and its subscription."""

        name: str = string()
        metadata: bytes = bytes_()

    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    """The new generation; `leader` is a member id, and only that member gets the member list."""

    class JoinGroupResponseMember(Struct):
        """A member and its subscription."""

        member_id: str = string()
        group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
        metadata: bytes = bytes_()

    throttle_time_ms: int = int32("2+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+", default="")
    leader: str = string(default="")
    skip_assignment: bool = boolean("9+", default=False)
    member_id: str = string(default="")
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember, default=[])


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+"):
    """Ask for a member's assignment; the leader sends the assignments of all members."""

    class SyncGroupRequestAssignment(Struct):
        member_id: str = string()
        assignment: bytes = bytes_()

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment, default=[])


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    """The member's assignment."""

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = bytes_(default=b"")


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
    """Tell the coordinator that a member is alive."""

    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    """Whether the generation is still current."""

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    error_code: int = int16(default=0)


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible="4+"):
    """Leave a group; from version 3 on several members at once."""

    class MemberIdentity(Struct):
        member_id: str = string()
        group_instance_id: str | None = string(nullable="0+", default=None)
        reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    group_id: str = string()
    member_id: str = string("0-2", default="")
    members: list[MemberIdentity] = array(MemberIdentity, "3+", default=[])


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    """The outcome."""

    class MemberResponse(Struct):
        member_id: str = string()
        group_instance_id: str | None = string(nullable="0+")
        error_code: int = int16(default=0)

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    members: list[MemberResponse] = array(MemberResponse, "3+", default=[])


class DescribeGroupsRequest(Request, api_key=15, versions="0-6", flexible="5+"):
    """Ask for the state and the members of groups."""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean("3+", default=False)


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    """The requested groups."""

    class DescribedGroup(Struct):
        """One group; an unknown one is Dead, and has GROUP_ID_NOT_FOUND from version 6 on."""

        class DescribedGroupMember(Struct):
            """A member with its subscription and assignment."""

            member_id: str = string()
            group_instance_id: str | None = string(
                "4+", nullable="4+", default=None, ignorable=True
            )
            client_id: str = string()
            client_host: str = string()
            member_metadata: bytes = bytes_()
            member_assignment: bytes = bytes_()

        error_code: int = int16(default=0)
        error_message: str | None = string("6+", nullable="6+", default=None)
        group_id: str = string()
        group_state: str = string(default="")
        protocol_type: str = string(default="")
        protocol_data: str = string(default="")
        members: list[DescribedGroupMember] = array(DescribedGroupMember, default=[])
        authorized_operations: int = int32("3+", default=NOT_REQUESTED)

    DescribedGroupMember: TypeAlias = DescribedGroup.DescribedGroupMember

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


class ListGroupsRequest(Request, api_key=16, versions="0-5", flexible="3+"):
    """Ask a coordinator for its groups; an empty filter matches all."""

    states_filter: list[str] = array(string, "4+", default=[])
    types_filter: list[str] = array(string, "5+", default=[])


class ListGroupsResponse(Response, api_key=16, versions="0-5", flexible="3+"):
    """The groups that match the filters."""

    class ListedGroup(Struct):
        group_id: str = string()
        protocol_type: str = string()
        group_state: str = string("4+", default="", ignorable=True)
        group_type: str = string("5+", default="", ignorable=True)

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    error_code: int = int16(default=0)
    groups: list[ListedGroup] = array(ListedGroup, default=[])


class DeleteGroupsRequest(Request, api_key=42, versions="0-2", flexible="2+"):
    """Delete groups that have no members, with their offsets."""

    groups_names: list[str] = array(string)


class DeleteGroupsResponse(Response, api_key=42, versions="0-2", flexible="2+"):
    """The outcome for each group."""

    class DeletableGroupResult(Struct):
        group_id: str = string()
        error_code: int = int16(default=0)

    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
