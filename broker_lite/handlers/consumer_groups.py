"""Heartbeats and description of consumer groups (KIP-848): converts requests for the coordinator.

``coordinators.consumer.heartbeat`` decides the answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.member import (
    Assignment,
    ConsumerMember,
    assignment_of,
    merged,
    plain,
)
from onceflow.broker_lite.coordinators.consumer.requests import (
    EVERY_TOPIC,
    ConsumerHeartbeat,
    TopicRights,
)
from onceflow.broker_lite.coordinators.group_admin import ConsumerDescription
from onceflow.broker_lite.features import GROUP_VERSION
from onceflow.broker_lite.guards.access import Access
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1

_Group = ConsumerGroupDescribeResponse.DescribedGroup


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    state: Services,
    context: RequestContext,
    request: ConsumerGroupHeartbeatRequest,
    now_ms: int,
) -> ConsumerGroupHeartbeatResponse:
    """Join, stay in or leave a consumer group."""
    if state.features.level(GROUP_VERSION) < 1:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="The consumer group protocol needs feature group.version 1.",
        )
    owned = None
    if request.topic_partitions is not None:
        owned = assignment_of((t.topic_id, t.partitions) for t in request.topic_partitions)
    topics = request.subscribed_topic_names
    answer = state.groups.consumers.heartbeat(
        ConsumerHeartbeat(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            client_id=context.client_id or "",
            client_host=context.client_host,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=None if topics is None else tuple(topics),
            regex=request.subscribed_topic_regex,
            server_assignor=request.server_assignor,
            owned=owned,
            api_version=context.api_version,
            rights=_rights(state, context),
        ),
        now_ms,
    )
    assignment = None
    if answer.assignment is not None:
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponse.TopicPartitions(
                    topic_id=topic_id, partitions=sorted(partitions)
                )
                for topic_id, partitions in answer.assignment.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=answer.error_code,
        error_message=answer.error_message,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _rights(state: Services, context: RequestContext) -> TopicRights:
    if state.authorizer is None:
        return EVERY_TOPIC
    access = Access(state, context)
    return TopicRights(
        lambda name: access.topic(AclOperation.DESCRIBE, name), state.authorizer.changes
    )


@handles(ConsumerGroupDescribeRequest)
def consumer_group_describe(
    state: Services,
    context: RequestContext,
    request: ConsumerGroupDescribeRequest,
    now_ms: int,
) -> ConsumerGroupDescribeResponse:
    """Describe members, epochs and assignments of consumer groups."""
    groups = []
    refused = state.features.level(GROUP_VERSION) < 1
    for group_id in dict.fromkeys(request.group_ids):
        if refused:
            groups.append(_Group(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION))
            continue
        if not group_id:
            groups.append(_Group(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID))
            continue
        found = state.groups.admin.describe_consumer(group_id)
        if found is None:
            missing = state.groups.admin.describe(group_id).error_code is not ErrorCode.NONE
            groups.append(
                _Group(
                    group_id=group_id,
                    error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                    error_message=f"Group {group_id} not found."
                    if missing
                    else f"Group {group_id} is not a consumer group.",
                )
            )
            continue
        described = _described(found)
        if request.include_authorized_operations:
            described.authorized_operations = Access(state, context).bits(
                AclResourceType.GROUP, group_id
            )
        groups.append(described)
    return ConsumerGroupDescribeResponse(groups=groups)


def _described(found: ConsumerDescription) -> _Group:
    group = found.group
    return _Group(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=found.assignor_name,
        members=[
            _described_member(member, group.targets.get(member.member_id, {}), found.topic_names)
            for member in group.members.values()
        ],
    )


def _described_member(
    member: ConsumerMember, target: Assignment, names: Mapping[UUID, str]
) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_described_assignment(plain(merged(member.assigned, member.revoking)), names),
        target_assignment=_described_assignment(target, names),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _described_assignment(assignment: Assignment, names: Mapping[UUID, str]) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedAssignment.TopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(partitions)
            )
            for topic_id, partitions in assignment.items()
            if topic_id in names
        ]
    )
