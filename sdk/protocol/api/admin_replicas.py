"""Messages about replicas: log directories, leader elections, reassignments, partitions of topics.

AlterReplicaLogDirs (key 34), versions 1-2, flexible from 2:
    (KIP-113)
DescribeLogDirs (key 35), versions 1-5, flexible from 2:
    3 error of the whole answer
    4 size of the volume (KIP-827)
    5 whether the directory is cordoned (KIP-1066)
ElectLeaders (key 43), versions 0-2, flexible from 2:
    1 unclean elections (KIP-460)
AlterPartitionReassignments (key 45), versions 0-1, all flexible:
    1 whether the replication factor may change (KIP-860)
ListPartitionReassignments (key 46), version 0, flexible
DescribeTopicPartitions (key 75), version 0, flexible:
    (KIP-966)
"""

from __future__ import annotations

import enum
from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)


class ElectionType(enum.IntEnum):
    """Which replica may become the leader."""

    PREFERRED = 0
    UNCLEAN = 1


class AlterReplicaLogDirsRequest(Request, api_key=34, versions="1-2", flexible="2+"):
    """Move replicas of the broker to other log directories of the same broker."""

    class AlterReplicaLogDir(Struct):
        """A log directory and the replicas to move there."""

        class AlterReplicaLogDirTopic(Struct):
            name: str = string()
            partitions: list[int] = array(int32)

        path: str = string()
        topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)

    AlterReplicaLogDirTopic: TypeAlias = AlterReplicaLogDir.AlterReplicaLogDirTopic

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirsResponse(Response, api_key=34, versions="1-2", flexible="2+"):
    """The outcome for each replica."""

    class AlterReplicaLogDirTopicResult(Struct):
        class AlterReplicaLogDirPartitionResult(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)

        topic_name: str = string()
        partitions: list[AlterReplicaLogDirPartitionResult] = array(
            AlterReplicaLogDirPartitionResult
        )

    AlterReplicaLogDirPartitionResult: TypeAlias = (
        AlterReplicaLogDirTopicResult.AlterReplicaLogDirPartitionResult
    )

    throttle_time_ms: int = int32(default=0)
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)


class DescribeLogDirsRequest(Request, api_key=35, versions="1-5", flexible="2+"):
    """Ask a broker for its log directories; null asks for all partitions."""

    class DescribableLogDirTopic(Struct):
        topic: str = string()
        partitions: list[int] = array(int32)

    topics: list[DescribableLogDirTopic] | None = array(
        DescribableLogDirTopic, nullable="0+", default=None
    )


class DescribeLogDirsResponse(Response, api_key=35, versions="1-5", flexible="2+"):
    """The log directories of a broker with their replicas."""

    class DescribeLogDirsResult(Struct):
        class DescribeLogDirsTopic(Struct):
            class DescribeLogDirsPartition(Struct):
                partition_index: int = int32()
                partition_size: int = int64()
                offset_lag: int = int64()
                is_future_key: bool = boolean()

            name: str = string()
            partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)

        error_code: int = int16(default=0)
        log_dir: str = string()
        topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
        total_bytes: int = int64("4+", default=-1, ignorable=True)
        usable_bytes: int = int64("4+", default=-1, ignorable=True)
        is_cordoned: bool = boolean("5+", default=False, ignorable=True)

    DescribeLogDirsTopic: TypeAlias = DescribeLogDirsResult.DescribeLogDirsTopic
    DescribeLogDirsPartition: TypeAlias = (
        DescribeLogDirsResult.DescribeLogDirsTopic.DescribeLogDirsPartition
    )

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("3+", default=0, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


class ElectLeadersRequest(Request, api_key=43, versions="0-2", flexible="2+"):
    """Elect leaders; null stands for all partitions."""

    class TopicPartitions(Struct):
        topic: str = string()
        partitions: list[int] = array(int32)

    election_type: int = int8("1+", default=0)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    """The outcome for each partition."""

    class ReplicaElectionResult(Struct):
        class PartitionResult(Struct):
            partition_id: int = int32()
            error_code: int = int16(default=0)
            error_message: str | None = string(nullable="0+", default=None)

        topic: str = string()
        partition_result: list[PartitionResult] = array(PartitionResult)

    PartitionResult: TypeAlias = ReplicaElectionResult.PartitionResult

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


class AlterPartitionReassignmentsRequest(Request, api_key=45, versions="0-1", flexible="0+"):
    """Move partitions to other brokers; null replicas cancel the running reassignment."""

    class ReassignableTopic(Struct):
        class ReassignablePartition(Struct):
            """One partition and its new replicas."""

            partition_index: int = int32()
            replicas: list[int] | None = array(int32, nullable="0+", default=None)

        name: str = string()
        partitions: list[ReassignablePartition] = array(ReassignablePartition)

    ReassignablePartition: TypeAlias = ReassignableTopic.ReassignablePartition

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions="0-1", flexible="0+"):
    """The outcome for each partition."""

    class ReassignableTopicResponse(Struct):
        class ReassignablePartitionResponse(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)
            error_message: str | None = string(nullable="0+", default=None)

        name: str = string()
        partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)

    ReassignablePartitionResponse: TypeAlias = (
        ReassignableTopicResponse.ReassignablePartitionResponse
    )

    throttle_time_ms: int = int32(default=0)
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)


class ListPartitionReassignmentsRequest(Request, api_key=46, versions="0", flexible="0+"):
    """Ask for the running reassignments; null asks for all partitions."""

    class ListPartitionReassignmentsTopics(Struct):
        name: str = string()
        partition_indexes: list[int] = array(int32)

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


class ListPartitionReassignmentsResponse(Response, api_key=46, versions="0", flexible="0+"):
    """The running reassignments."""

    class OngoingTopicReassignment(Struct):
        class OngoingPartitionReassignment(Struct):
            partition_index: int = int32()
            replicas: list[int] = array(int32)
            adding_replicas: list[int] = array(int32)
            removing_replicas: list[int] = array(int32)

        name: str = string()
        partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)

    OngoingPartitionReassignment: TypeAlias = OngoingTopicReassignment.OngoingPartitionReassignment

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)


class DescribeTopicPartitionsRequest(Request, api_key=75, versions="0", flexible="0+"):
    """Ask for the partitions of topics, page by page; an empty list asks for all topics."""

    class TopicRequest(Struct):
        name: str = string()

    class Cursor(Struct):
        """Topic and partition at which the page begins."""

        topic_name: str = string()
        partition_index: int = int32()

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponse(Response, api_key=75, versions="0", flexible="0+"):
    """One page of partitions, in the order of the topics' names."""

    class DescribeTopicPartitionsResponseTopic(Struct):
        """A topic, or the error about it."""

        class DescribeTopicPartitionsResponsePartition(Struct):
            """A partition with its leader, -1 for none."""

            error_code: int = int16(default=0)
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32(default=-1)
            replica_nodes: list[int] = array(int32)
            isr_nodes: list[int] = array(int32)
            eligible_leader_replicas: list[int] | None = array(int32, nullable="0+", default=None)
            last_known_elr: list[int] | None = array(int32, nullable="0+", default=None)
            offline_replicas: list[int] = array(int32)

        error_code: int = int16(default=0)
        name: str | None = string(nullable="0+")
        topic_id: UUID = uuid(default=ZERO_UUID)
        is_internal: bool = boolean(default=False)
        partitions: list[DescribeTopicPartitionsResponsePartition] = array(
            DescribeTopicPartitionsResponsePartition
        )
        topic_authorized_operations: int = int32(default=NOT_REQUESTED)

    DescribeTopicPartitionsResponsePartition: TypeAlias = (
        DescribeTopicPartitionsResponseTopic.DescribeTopicPartitionsResponsePartition
    )

    class Cursor(Struct):
        """Topic and partition at which the next page begins."""

        topic_name: str = string()
        partition_index: int = int32()

    throttle_time_ms: int = int32(default=0)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)
