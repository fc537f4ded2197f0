"""Requests about replicas: log folders, elections and reassignments.

Decides how a broker with one data folder answers requests that move replicas and leaders. A change
to the present state succeeds; one that needs another node or folder is refused as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceflow.broker_lite.placement import PlacementError
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.protocol.api.admin_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

FolderTopic = DescribeLogDirsResponse.DescribeLogDirsTopic
FolderPartition = DescribeLogDirsResponse.DescribeLogDirsPartition
ElectedTopic = ElectLeadersResponse.ReplicaElectionResult
ElectedPartition = ElectLeadersResponse.PartitionResult
ReassignedPartition = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


# --- log folders


@handles(DescribeLogDirsRequest)
def describe_log_dirs(
    state: Services, context: RequestContext, request: DescribeLogDirsRequest, now_ms: int
) -> DescribeLogDirsResponse:
    """Describe the data folder, its volume, and the sizes of partitions (KIP-113, KIP-827)."""
    wanted: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        wanted = [(topic.name, range(len(topic.partitions))) for topic in state.topics]
    else:
        wanted = {asked.topic: dict.fromkeys(asked.partitions) for asked in request.topics}.items()
    topics = []
    for name, indexes in wanted:
        found = [
            FolderPartition(
                partition_index=index,
                partition_size=log.size_bytes,
                offset_lag=0,
                is_future_key=False,
            )
            for index in indexes
            if (log := state.topics.partition(name, index)) is not None
        ]
        if found:
            topics.append(FolderTopic(name=name, partitions=found))
    volume = state.log_manager.volume()
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResponse.DescribeLogDirsResult(
                log_dir=volume.folder,
                topics=topics,
                total_bytes=volume.total_bytes,
                usable_bytes=volume.usable_bytes,
            )
        ]
    )


@handles(AlterReplicaLogDirsRequest)
def alter_replica_log_dirs(
    state: Services, context: RequestContext, request: AlterReplicaLogDirsRequest, now_ms: int
) -> AlterReplicaLogDirsResponse:
    """Accept a move of a replica to the one log folder; refuse any other folder."""
    here = state.log_manager.volume().folder
    by_topic: dict[str, dict[int, ErrorCode]] = {}
    for folder in request.dirs:
        for asked in folder.topics:
            codes = by_topic.setdefault(asked.name, {})
            for index in asked.partitions:
                if folder.path != here:
                    codes[index] = ErrorCode.LOG_DIR_NOT_FOUND
                elif state.topics.partition(asked.name, index) is None:
                    codes[index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    codes[index] = ErrorCode.NONE
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                    for index, code in codes.items()
                ],
            )
            for name, codes in by_topic.items()
        ]
    )


# --- elections


@handles(ElectLeadersRequest)
def elect_leaders(
    state: Services, context: RequestContext, request: ElectLeadersRequest, now_ms: int
) -> ElectLeadersResponse:
    """Let the preferred replicas lead (KIP-460)."""
    if request.topic_partitions is None:
        state.placement.move_to_preferred(now_ms)
        return ElectLeadersResponse(
            replica_election_results=[
                ElectedTopic(topic=topic.name, partition_result=[]) for topic in state.topics
            ]
        )
    known_type = request.election_type in tuple(ElectionType)
    results = []
    for asked in request.topic_partitions:
        outcomes = []
        for index in asked.partitions:
            message: str | None
            if not known_type:
                code = ErrorCode.INVALID_REQUEST
                message = (
                    f"Unknown election type {request.election_type}; "
                    "use 0 (PREFERRED) or 1 (UNCLEAN)."
                )
            elif state.topics.partition(asked.topic, index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                message = f"Topic '{asked.topic}' has no partition {index}."
            else:
                code, message = _elect(state, asked.topic, index, now_ms)
            outcomes.append(
                ElectedPartition(partition_id=index, error_code=code, error_message=message)
            )
        results.append(ElectedTopic(topic=asked.topic, partition_result=outcomes))
    code = ErrorCode.NONE if known_type else ErrorCode.INVALID_REQUEST
    return ElectLeadersResponse(
        error_code=code if context.api_version >= 1 else ErrorCode.NONE,
        replica_election_results=results,
    )


def _elect(state: Services, name: str, partition: int, now_ms: int) -> tuple[ErrorCode, str | None]:
    """Let a partition's preferred replica lead, if it does not yet."""
    placement = state.placement
    topic = state.topics.get(name)
    preferred = placement.replicas(name, partition)[0]
    if topic is None or placement.leads(preferred, name, partition):
        return ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica leads already."
    if not placement.nodes[preferred].running:
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"Node {preferred} does not run."
    placement.move_leader(topic, partition, preferred, now_ms)
    return ErrorCode.NONE, None


# --- reassignments


@handles(AlterPartitionReassignmentsRequest)
def alter_partition_reassignments(
    state: Services,
    context: RequestContext,
    request: AlterPartitionReassignmentsRequest,
    now_ms: int,
) -> AlterPartitionReassignmentsResponse:
    """Move replicas to existing nodes at once (KIP-455)."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _reassigned(state, topic.name, partition, now_ms)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _reassigned(
    state: Services,
    topic: str,
    wish: AlterPartitionReassignmentsRequest.ReassignablePartition,
    now_ms: int,
) -> ReassignedPartition:
    index, replicas = wish.partition_index, wish.replicas
    code, message = ErrorCode.NONE, None
    found = state.topics.get(topic)
    if found is None or state.topics.partition(topic, index) is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = f"Topic '{topic}' has no partition {index}."
    elif replicas is None:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    else:
        try:
            state.placement.reassign(found, index, replicas, now_ms)
        except PlacementError as error:
            code, message = ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"These {error}."
    return ReassignedPartition(partition_index=index, error_code=code, error_message=message)


@handles(ListPartitionReassignmentsRequest)
def list_partition_reassignments(
    state: Services,
    context: RequestContext,
    request: ListPartitionReassignmentsRequest,
    now_ms: int,
) -> ListPartitionReassignmentsResponse:
    """List no reassignments: each is done when AlterPartitionReassignments is answered."""
    return ListPartitionReassignmentsResponse(topics=[])
