"""What an admin client asks about groups: one exchange each.

As in ``topics``, every flow answers with an outcome for each item. Coordinators are named as
targets and found by the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from onceflow.sdk.core.admin.topics import Outcomes, fill_missing, operations_of, outcome
from onceflow.sdk.core.consume.offset_lookup import commit_offsets
from onceflow.sdk.core.flow import Coordinator, Flow, ask
from onceflow.sdk.core.group.consumer_protocol import decode_assignment
from onceflow.sdk.errors import RemoteProtocolError, UnsupportedVersionError
from onceflow.sdk.model.admin import (
    GroupDescription,
    GroupListing,
    MemberDescription,
)
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    by_topic,
)
from onceflow.sdk.model.special_values import CONSUMER_PROTOCOL_TYPE
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from onceflow.sdk.protocol.api.group_offsets import OffsetDeleteRequest, OffsetDeleteResponse
from onceflow.sdk.protocol.api.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

REASON_LENGTH_MAX: Final = 255
"""Most characters of a reason; the rest is cut off, as Kafka's clients do (KIP-800)."""


class MemberToRemove(NamedTuple):
    """A member that is to leave: a dynamic one by its id, a static one by its instance id."""

    member_id: str
    group_instance_id: str | None

    def __str__(self) -> str:
        if self.group_instance_id is not None:
            return f"static member {self.group_instance_id!r}"
        return f"member {self.member_id!r}"


def group_coordinator(group_id: str) -> Coordinator:
    """Whom to ask about a group."""
    return Coordinator(group_id, CoordinatorType.GROUP)


def list_groups(
    node_id: int, states: Collection[str], types: Collection[str] = ()
) -> Flow[list[GroupListing]]:
    """The groups that one broker coordinates.

    Args:
        node_id: The broker.
        states: Only groups in these states; empty for all.
        types: Only groups of these types; empty for all.

    Raises:
        BrokerError: The broker refused.
    """
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    reply = yield from ask(request, ListGroupsResponse, node_id)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, "ListGroups")
    return [
        GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type)
        for group in reply.groups
    ]


def describe_group(
    group_id: str, operations: bool = False
) -> Flow[Outcomes[str, GroupDescription]]:
    """State and members of one group of either protocol; an unknown one is in the state Dead.

    Args:
        group_id: The group.
        operations: Whether to ask what this client may do with it (KIP-430).
    """
    found = yield from _describe_classic(group_id, operations)
    description = found[group_id]
    if isinstance(description, GroupDescription) and description.state == "Dead":
        try:  # So a coordinator also speaks of groups of the other protocol.
            other = yield from _describe_consumer(group_id, operations)
        except UnsupportedVersionError:
            return found
        # Kafka 3.8 and 3.9 announce the request, and refuse it where the protocol is switched off.
        return found if isinstance(other[group_id], UnsupportedVersionError) else other
    return found


def _describe_classic(group_id: str, operations: bool) -> Flow[Outcomes[str, GroupDescription]]:
    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=operations)
    reply = yield from ask(request, DescribeGroupsResponse, group_coordinator(group_id))
    found: Outcomes[str, GroupDescription] = {}
    for group in reply.groups:
        code = group.error_code
        if code == ErrorCode.GROUP_ID_NOT_FOUND:  # What version 6 says for a Dead group.
            found[group.group_id] = GroupDescription(group.group_id, "Dead", "", "", ())
            continue
        members = tuple(_member(group.protocol_type, member) for member in group.members)
        description = GroupDescription(
            group.group_id,
            group.group_state,
            group.protocol_type,
            group.protocol_data,
            members,
            authorized_operations=operations_of(group.authorized_operations),
        )
        name = f"group {group.group_id!r}"
        found[group.group_id] = outcome(code, group.error_message, name, description)
    return fill_missing([group_id], found)


def _describe_consumer(group_id: str, operations: bool) -> Flow[Outcomes[str, GroupDescription]]:
    request = ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=operations
    )
    reply = yield from ask(request, ConsumerGroupDescribeResponse, group_coordinator(group_id))
    found: Outcomes[str, GroupDescription] = {}
    for group in reply.groups:
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            found[group.group_id] = GroupDescription(group.group_id, "Dead", "", "", ())
            continue
        members = tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                frozenset(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
            )
            for member in group.members
        )
        description = GroupDescription(
            group.group_id,
            group.group_state,
            CONSUMER_PROTOCOL_TYPE,
            group.assignor_name,
            members,
            "Consumer",
            operations_of(group.authorized_operations),
        )
        name = f"group {group.group_id!r}"
        found[group.group_id] = outcome(group.error_code, group.error_message, name, description)
    return fill_missing([group_id], found)


def _member(
    protocol_type: str, member: DescribeGroupsResponse.DescribedGroupMember
) -> MemberDescription:
    assignment: Iterable[TopicPartition] = ()
    if protocol_type == CONSUMER_PROTOCOL_TYPE:
        try:
            assignment = decode_assignment(member.member_assignment)
        except RemoteProtocolError:
            assignment = ()  # Another kind of member; its bytes are its own business.
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        frozenset(assignment),
    )


def delete_group(group_id: str) -> Flow[Outcomes[str, None]]:
    """Delete one group that has no members, with its offsets."""
    request = DeleteGroupsRequest(groups_names=[group_id])
    reply = yield from ask(request, DeleteGroupsResponse, group_coordinator(group_id))
    found: Outcomes[str, None] = {
        result.group_id: outcome(result.error_code, None, f"group {result.group_id!r}", None)
        for result in reply.results
    }
    return fill_missing([group_id], found)


def remove_members(
    group_id: str, members: Collection[MemberToRemove], reason: str | None
) -> Flow[Outcomes[MemberToRemove, None]]:
    """Make members leave a group (KIP-345), with a reason for the coordinator's log (KIP-800)."""
    told = "member was removed by an admin" + (f": {reason}" if reason else "")
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                reason=told[:REASON_LENGTH_MAX],
            )
            for member in members
        ],
    )
    reply = yield from ask(request, LeaveGroupResponse, group_coordinator(group_id))
    if reply.error_code != ErrorCode.NONE:
        error = error_for(reply.error_code, f"group {group_id!r}")
        return dict.fromkeys(members, error)
    codes = {
        each.group_instance_id or each.member_id: each.error_code  # An instance id is never empty.
        for each in reply.members
    }
    found: Outcomes[MemberToRemove, None] = {}
    for member in members:
        code = codes.get(member.group_instance_id or member.member_id)
        if code is not None:
            unknown = code == ErrorCode.UNKNOWN_MEMBER_ID
            message = "the group has no such member" if unknown else None
            found[member] = outcome(code, message, f"{member} of group {group_id!r}", None)
    return fill_missing(members, found)


def alter_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Flow[Outcomes[TopicPartition, None]]:
    """Store offsets for a group from outside of it."""
    codes = yield from commit_offsets(ConsumerGroupMetadata(group_id), offsets)
    found: Outcomes[TopicPartition, None] = {}
    for partition, code in codes.items():
        message = None
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            message = "the group has members; stop them first"
        found[partition] = outcome(code, message, f"{partition} in group {group_id!r}", None)
    return fill_missing(offsets, found)


def delete_group_offsets(
    group_id: str, partitions: Collection[TopicPartition]
) -> Flow[Outcomes[TopicPartition, None]]:
    """Forget offsets of a group for partitions that it does not read any more (KIP-496)."""
    message = OffsetDeleteRequest
    request = message(
        group_id=group_id,
        topics=[
            message.OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    message.OffsetDeleteRequestPartition(partition_index=index) for index in indexes
                ],
            )
            for name, indexes in by_topic(partitions).items()
        ],
    )
    reply = yield from ask(request, OffsetDeleteResponse, group_coordinator(group_id))
    found: Outcomes[TopicPartition, None] = {}
    if reply.error_code != ErrorCode.NONE:
        error = error_for(reply.error_code, f"group {group_id!r}")
        return fill_missing(partitions, dict.fromkeys(partitions, error))
    for topic_answer in reply.topics:
        for answer in topic_answer.partitions:
            where = TopicPartition(topic_answer.name, answer.partition_index)
            name = f"{where} in group {group_id!r}"
            found[where] = outcome(answer.error_code, None, name, None)
    return fill_missing(partitions, found)
