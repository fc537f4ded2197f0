"""What requests about groups and their offsets ask for, as Apache Kafka 4.4 asks.

| request | needs |
| --- | --- |
| JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat | READ on the group |
| OffsetCommit | READ on the group, READ on each topic |
| OffsetFetch | DESCRIBE on the group, DESCRIBE on each topic |
| OffsetDelete | DELETE on the group, READ on each topic |
| DescribeGroups, ConsumerGroupDescribe | DESCRIBE on each group |
| ListGroups | DESCRIBE on the cluster for all, or on each group |
| DeleteGroups | DELETE on each group |
| ConsumerGroupHeartbeat, ConsumerGroupDescribe | DESCRIBE on each topic that is named |
"""

from __future__ import annotations

from onceflow.broker_lite.guards.access import Access, Verdict, guards, split
from onceflow.broker_lite.guards.topics import DENIED, take_out
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
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
from onceflow.sdk.protocol.schema import Response

GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED


@guards(JoinGroupRequest)
def join_group(access: Access, request: JoinGroupRequest) -> Verdict:
    """READ on the group."""
    if access.group(AclOperation.READ, request.group_id):
        return None
    return JoinGroupResponse(
        error_code=GROUP_DENIED,
        generation_id=-1,
        protocol_name=None if access.api_version >= 7 else "",
        leader="",
        member_id="",
        members=[],
    )


@guards(SyncGroupRequest)
def sync_group(access: Access, request: SyncGroupRequest) -> Verdict:
    """READ on the group."""
    if access.group(AclOperation.READ, request.group_id):
        return None
    return SyncGroupResponse(error_code=GROUP_DENIED, assignment=b"")


@guards(HeartbeatRequest)
def heartbeat(access: Access, request: HeartbeatRequest) -> Verdict:
    """READ on the group."""
    if access.group(AclOperation.READ, request.group_id):
        return None
    return HeartbeatResponse(error_code=GROUP_DENIED)


@guards(LeaveGroupRequest)
def leave_group(access: Access, request: LeaveGroupRequest) -> Verdict:
    """READ on the group."""
    if access.group(AclOperation.READ, request.group_id):
        return None
    return LeaveGroupResponse(error_code=GROUP_DENIED, members=[])


@guards(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(access: Access, request: ConsumerGroupHeartbeatRequest) -> Verdict:
    """READ on the group, DESCRIBE on each topic that is subscribed to by name."""
    if not access.group(AclOperation.READ, request.group_id):
        return ConsumerGroupHeartbeatResponse(
            error_code=GROUP_DENIED, member_epoch=0, heartbeat_interval_ms=0
        )
    names = request.subscribed_topic_names or []
    if not all(access.topic(AclOperation.DESCRIBE, name) for name in names):
        return ConsumerGroupHeartbeatResponse(
            error_code=DENIED, member_epoch=0, heartbeat_interval_ms=0
        )
    return None


@guards(OffsetCommitRequest)
def offset_commit(access: Access, request: OffsetCommitRequest) -> Verdict:
    """READ on the group, READ on each topic."""

    def may_read(topic: OffsetCommitRequest.OffsetCommitRequestTopic) -> bool:
        name = access.name_of(topic.name, topic.topic_id)
        return name is None or access.topic(AclOperation.READ, name)

    allowed: list[OffsetCommitRequest.OffsetCommitRequestTopic] = []
    if access.group(AclOperation.READ, request.group_id):
        code = DENIED
        allowed, denied = split(request.topics, may_read)
        if not denied:
            return None
    else:
        code, denied = GROUP_DENIED, list(request.topics)
    refused = [
        OffsetCommitResponse.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponse.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
                for partition in topic.partitions
            ],
        )
        for topic in denied
    ]
    if not allowed:
        return OffsetCommitResponse(topics=refused)
    request.topics = allowed

    def add(response: Response) -> None:
        assert isinstance(response, OffsetCommitResponse)
        response.topics.extend(refused)

    return add


@guards(OffsetFetchRequest)
def offset_fetch(access: Access, request: OffsetFetchRequest) -> Verdict:
    """DESCRIBE on each group and topic; of all topics, hidden ones are left out."""
    if access.api_version < 8:
        return _offset_fetch_of_one(access, request)
    refused_groups = []
    refused_topics: dict[str, list[OffsetFetchResponse.OffsetFetchResponseTopics]] = {}
    about_all = set()
    allowed = []
    for group in request.groups:
        if not access.group(AclOperation.DESCRIBE, group.group_id):
            refused_groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=[], error_code=GROUP_DENIED
                )
            )
            continue
        allowed.append(group)
        if group.topics is None:
            about_all.add(group.group_id)
            continue
        kept = []
        for topic in group.topics:
            name = access.name_of(topic.name, topic.topic_id)
            if name is None or access.topic(AclOperation.DESCRIBE, name):
                kept.append(topic)
                continue
            refused_topics.setdefault(group.group_id, []).append(
                OffsetFetchResponse.OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetFetchResponse.OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=-1,
                            metadata="",
                            error_code=DENIED,
                        )
                        for index in topic.partition_indexes
                    ],
                )
            )
        group.topics = kept
    request.groups = allowed

    def edit(response: Response) -> None:
        assert isinstance(response, OffsetFetchResponse)
        for group in response.groups:
            if group.group_id in about_all:
                group.topics = [
                    topic
                    for topic in group.topics
                    if (name := access.name_of(topic.name, topic.topic_id)) is not None
                    and access.topic(AclOperation.DESCRIBE, name)
                ]
            if not group.error_code:
                group.topics.extend(refused_topics.get(group.group_id, ()))
        response.groups.extend(refused_groups)

    return edit


def _offset_fetch_of_one(access: Access, request: OffsetFetchRequest) -> Verdict:
    """The same before version 8, which asks about one group."""
    if not access.group(AclOperation.DESCRIBE, request.group_id):
        topics = []
        if access.api_version < 2:
            topics = [_refused_fetch(topic, GROUP_DENIED) for topic in request.topics or ()]
        return OffsetFetchResponse(topics=topics, error_code=GROUP_DENIED)
    about_all = request.topics is None
    refused = []
    if request.topics is not None:
        denied = take_out(access, request.topics, AclOperation.DESCRIBE)
        refused = [_refused_fetch(topic, DENIED) for topic in denied]

    def edit(response: Response) -> None:
        assert isinstance(response, OffsetFetchResponse)
        if about_all:
            response.topics = [
                topic
                for topic in response.topics
                if access.topic(AclOperation.DESCRIBE, topic.name)
            ]
        if not response.error_code:
            response.topics.extend(refused)

    return edit


def _refused_fetch(
    topic: OffsetFetchRequest.OffsetFetchRequestTopic, code: ErrorCode
) -> OffsetFetchResponse.OffsetFetchResponseTopic:
    return OffsetFetchResponse.OffsetFetchResponseTopic(
        name=topic.name,
        partitions=[
            OffsetFetchResponse.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        ],
    )


@guards(OffsetDeleteRequest)
def offset_delete(access: Access, request: OffsetDeleteRequest) -> Verdict:
    """DELETE on the group, READ on each topic."""
    if not access.group(AclOperation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=GROUP_DENIED, topics=[])
    refused = [
        OffsetDeleteResponse.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index, error_code=DENIED
                )
                for partition in topic.partitions
            ],
        )
        for topic in take_out(access, request.topics, AclOperation.READ)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, OffsetDeleteResponse)
        if not response.error_code:
            response.topics.extend(refused)

    return add if refused else None


@guards(DescribeGroupsRequest)
def describe_groups(access: Access, request: DescribeGroupsRequest) -> Verdict:
    """DESCRIBE on each group."""
    request.groups, denied = split(
        request.groups, lambda name: access.group(AclOperation.DESCRIBE, name)
    )
    refused = [
        DescribeGroupsResponse.DescribedGroup(
            error_code=GROUP_DENIED,
            group_id=name,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        )
        for name in dict.fromkeys(denied)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, DescribeGroupsResponse)
        response.groups.extend(refused)

    return add if refused else None


@guards(ConsumerGroupDescribeRequest)
def consumer_group_describe(access: Access, request: ConsumerGroupDescribeRequest) -> Verdict:
    """DESCRIBE on each group, and on each topic that its members subscribe to or own."""
    request.group_ids, denied = split(
        request.group_ids, lambda name: access.group(AclOperation.DESCRIBE, name)
    )
    refused = [_refused_group(name, GROUP_DENIED) for name in dict.fromkeys(denied)]

    def edit(response: Response) -> None:
        assert isinstance(response, ConsumerGroupDescribeResponse)
        for index, group in enumerate(response.groups):
            names = {name for member in group.members for name in member.subscribed_topic_names}
            names |= {
                partitions.topic_name
                for member in group.members
                for assignment in (member.assignment, member.target_assignment)
                for partitions in assignment.topic_partitions
            }
            if not all(access.topic(AclOperation.DESCRIBE, name) for name in names):
                hidden = _refused_group(group.group_id, DENIED)
                hidden.error_message = (
                    "The group has described topic(s) that the client is not authorized to "
                    "describe."
                )
                response.groups[index] = hidden
        response.groups.extend(refused)

    return edit


def _refused_group(name: str, code: ErrorCode) -> ConsumerGroupDescribeResponse.DescribedGroup:
    return ConsumerGroupDescribeResponse.DescribedGroup(
        error_code=code,
        group_id=name,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


@guards(ListGroupsRequest)
def list_groups(access: Access, request: ListGroupsRequest) -> Verdict:
    """All with DESCRIBE on the cluster, else those that may be described."""
    if access.cluster(AclOperation.DESCRIBE):
        return None

    def edit(response: Response) -> None:
        assert isinstance(response, ListGroupsResponse)
        response.groups = [
            group
            for group in response.groups
            if access.group(AclOperation.DESCRIBE, group.group_id)
        ]

    return edit


@guards(DeleteGroupsRequest)
def delete_groups(access: Access, request: DeleteGroupsRequest) -> Verdict:
    """DELETE on each group."""
    request.groups_names, denied = split(
        request.groups_names, lambda name: access.group(AclOperation.DELETE, name)
    )
    refused = [
        DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=GROUP_DENIED)
        for name in dict.fromkeys(denied)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, DeleteGroupsResponse)
        response.results.extend(refused)

    return add if refused else None
