"""Membership and administration of classic groups: converts requests for the coordinator.

``coordinators.classic.coordinator`` and ``coordinators.group_admin`` decide what is answered and
when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from onceflow.broker_lite.coordinators.classic.group import GroupProtocol, JoinResult, SyncResult
from onceflow.broker_lite.coordinators.classic.requests import JoinRequest, MemberIdentity
from onceflow.broker_lite.guards.access import Access
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.model.acl_enums import AclResourceType
from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED
from onceflow.sdk.protocol.api.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

REBALANCE_TIMEOUT_FROM = 1
"""First JoinGroup version with a rebalance timeout; before, the session timeout is used."""

NULL_PROTOCOL_NAME_FROM = 7
"""First JoinGroup version in which an error answer has no protocol name."""

SYNC_NAMES_PROTOCOL_FROM = 5
"""First SyncGroup version that must say the protocol's type and name (KIP-559)."""

LEAVES_IN_BATCHES_FROM = 3
"""First LeaveGroup version with a list of members."""

NOT_FOUND_IS_ERROR_FROM = 6
"""First DescribeGroups version in which an unknown group is an error (KIP-1043)."""

T = TypeVar("T")
R = TypeVar("R")


def _when_done(result: T | Deferred[T], convert: Callable[[T], R]) -> R | Deferred[R]:
    """Return the converted answer, parked as long as the coordinator's is."""
    if not isinstance(result, Deferred):
        return convert(result)
    answer: Deferred[R] = Deferred(on_disconnect=result.disconnect)
    result.add_done_callback(lambda value: _complete(answer, convert(value)))
    return answer


def _complete(answer: Deferred[R], value: R) -> None:
    answer.complete(value)


@handles(JoinGroupRequest)
def join_group(
    state: Services, context: RequestContext, request: JoinGroupRequest, now_ms: int
) -> JoinGroupResponse | Deferred[JoinGroupResponse]:
    """Join or rejoin; parked until the join barrier is complete."""
    has_rebalance_timeout = context.api_version >= REBALANCE_TIMEOUT_FROM
    result = state.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=context.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if has_rebalance_timeout
            else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(
                GroupProtocol(protocol.name, bytes(protocol.metadata))
                for protocol in request.protocols
            ),
            api_version=context.api_version,
        ),
        now_ms,
    )
    no_name = None if context.api_version >= NULL_PROTOCOL_NAME_FROM else ""

    def convert(result: JoinResult) -> JoinGroupResponse:
        return JoinGroupResponse(
            error_code=result.error_code,
            generation_id=result.generation_id,
            protocol_type=result.protocol_type,
            protocol_name=no_name if result.protocol_name is None else result.protocol_name,
            leader=result.leader,
            skip_assignment=result.skip_assignment,
            member_id=result.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    metadata=member.metadata,
                )
                for member in result.members
            ],
        )

    return _when_done(result, convert)


@handles(SyncGroupRequest)
def sync_group(
    state: Services, context: RequestContext, request: SyncGroupRequest, now_ms: int
) -> SyncGroupResponse | Deferred[SyncGroupResponse]:
    """Return a member's assignment; parked until the leader's request arrives."""
    if context.api_version >= SYNC_NAMES_PROTOCOL_FROM and (
        request.protocol_type is None or request.protocol_name is None
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    result = state.groups.sync(
        request.group_id,
        request.generation_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        request.protocol_type,
        request.protocol_name,
        {each.member_id: bytes(each.assignment) for each in request.assignments},
        now_ms,
    )

    def convert(result: SyncResult) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=result.error_code,
            protocol_type=result.protocol_type,
            protocol_name=result.protocol_name,
            assignment=result.assignment,
        )

    return _when_done(result, convert)


@handles(HeartbeatRequest)
def heartbeat(
    state: Services, context: RequestContext, request: HeartbeatRequest, now_ms: int
) -> HeartbeatResponse:
    """Restart a member's session."""
    code = state.groups.heartbeat(
        request.group_id,
        request.generation_id,
        MemberIdentity(request.member_id, request.group_instance_id),
        now_ms,
    )
    return HeartbeatResponse(error_code=code)


@handles(LeaveGroupRequest)
def leave_group(
    state: Services, context: RequestContext, request: LeaveGroupRequest, now_ms: int
) -> LeaveGroupResponse:
    """Remove members; before version 3 it is one, whose code is that of the answer."""
    batched = context.api_version >= LEAVES_IN_BATCHES_FROM
    if batched:
        identities = [
            MemberIdentity(member.member_id, member.group_instance_id) for member in request.members
        ]
    else:
        identities = [MemberIdentity(request.member_id)]
    code, codes = state.groups.leave(request.group_id, identities, now_ms)
    if not batched:
        if code is ErrorCode.NONE and codes:
            code = codes[0]
        return LeaveGroupResponse(error_code=code)
    return LeaveGroupResponse(
        error_code=code,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=member_code,
            )
            for identity, member_code in zip(identities, codes, strict=False)
        ],
    )


@handles(DescribeGroupsRequest)
def describe_groups(
    state: Services, context: RequestContext, request: DescribeGroupsRequest, now_ms: int
) -> DescribeGroupsResponse:
    """Describe members and state of groups; an unknown group is Dead."""
    groups = []
    access = Access(state, context)
    for group_id in dict.fromkeys(request.groups):
        found = state.groups.admin.describe(group_id)
        missing = found.error_code is not ErrorCode.NONE
        tells = missing and context.api_version >= NOT_FOUND_IS_ERROR_FROM
        shows = request.include_authorized_operations and not tells
        groups.append(
            DescribeGroupsResponse.DescribedGroup(
                error_code=found.error_code if tells else ErrorCode.NONE,
                error_message=found.error_message if tells else None,
                group_id=group_id,
                group_state=found.group_state,
                protocol_type=found.protocol_type,
                protocol_data=found.protocol_data,
                members=[
                    DescribeGroupsResponse.DescribedGroupMember(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        client_id=member.client_id,
                        client_host=member.client_host,
                        member_metadata=member.member_metadata,
                        member_assignment=member.member_assignment,
                    )
                    for member in found.members
                ],
                authorized_operations=access.bits(AclResourceType.GROUP, group_id)
                if shows
                else NOT_REQUESTED,
            )
        )
    return DescribeGroupsResponse(groups=groups)


@handles(ListGroupsRequest)
def list_groups(
    state: Services, context: RequestContext, request: ListGroupsRequest, now_ms: int
) -> ListGroupsResponse:
    """List the groups, filtered by state and type."""
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.group_state,
                group_type=group.group_type,
            )
            for group in state.groups.admin.list_groups(request.states_filter, request.types_filter)
        ]
    )


@handles(DeleteGroupsRequest)
def delete_groups(
    state: Services, context: RequestContext, request: DeleteGroupsRequest, now_ms: int
) -> DeleteGroupsResponse:
    """Delete groups without members."""
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=group_id, error_code=state.groups.admin.delete(group_id, now_ms)
            )
            for group_id in request.groups_names
        ]
    )
