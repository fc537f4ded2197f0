"""Messages that find offsets by time or leader epoch, and that delete records before an offset.

ListOffsets (key 2), versions 1-11, flexible from 6:
    2 isolation level and throttle time
    4 leader epochs
    5 OFFSET_NOT_AVAILABLE
    7 largest timestamp (KIP-734)
    8 earliest local (KIP-405)
    9 latest tiered (KIP-1005)
    10 timeout (KIP-1075)
    11 earliest pending upload (KIP-1023)
DeleteRecords (key 21), versions 0-2, flexible from 2:
    1 throttling after the answer, by the client
OffsetForLeaderEpoch (key 23), versions 2-4, flexible from 4:
    2 current leader epoch (KIP-320)
    3 replica id
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    string,
)


class ListOffsetsRequest(Request, api_key=2, versions="1-11", flexible="6+"):
    """Ask for the first offset at or after a time; negative times are special (-1 latest ...)."""

    class ListOffsetsTopic(Struct):
        class ListOffsetsPartition(Struct):
            partition_index: int = int32()
            current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
            timestamp: int = int64()

        name: str = string()
        partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)

    ListOffsetsPartition: TypeAlias = ListOffsetsTopic.ListOffsetsPartition

    replica_id: int = int32(default=-1)
    isolation_level: int = int8("2+", default=0)
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+", default=0, ignorable=True)


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    """The requested offsets; -1 for none."""

    class ListOffsetsTopicResponse(Struct):
        class ListOffsetsPartitionResponse(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)
            timestamp: int = int64(default=-1)
            offset: int = int64(default=-1)
            leader_epoch: int = int32("4+", default=-1)

        name: str = string()
        partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)

    ListOffsetsPartitionResponse: TypeAlias = ListOffsetsTopicResponse.ListOffsetsPartitionResponse

    throttle_time_ms: int = int32("2+", default=0, ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class DeleteRecordsRequest(Request, api_key=21, versions="0-2", flexible="2+"):
    """Move the start of logs up to given offsets; -1 is the high watermark."""

    class DeleteRecordsTopic(Struct):
        class DeleteRecordsPartition(Struct):
            partition_index: int = int32()
            offset: int = int64()

        name: str = string()
        partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)

    DeleteRecordsPartition: TypeAlias = DeleteRecordsTopic.DeleteRecordsPartition

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsResponse(Response, api_key=21, versions="0-2", flexible="2+"):
    """Where the logs start now."""

    class DeleteRecordsTopicResult(Struct):
        class DeleteRecordsPartitionResult(Struct):
            partition_index: int = int32()
            low_watermark: int = int64(default=-1)
            error_code: int = int16(default=0)

        name: str = string()
        partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)

    DeleteRecordsPartitionResult: TypeAlias = DeleteRecordsTopicResult.DeleteRecordsPartitionResult

    throttle_time_ms: int = int32(default=0)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


class OffsetForLeaderEpochRequest(Request, api_key=23, versions="2-4", flexible="4+"):
    """Ask where a leader epoch ended, to find where two logs differ (KIP-320)."""

    class OffsetForLeaderTopic(Struct):
        class OffsetForLeaderPartition(Struct):
            partition: int = int32()
            current_leader_epoch: int = int32(default=-1)
            leader_epoch: int = int32()

        topic: str = string()
        partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)

    OffsetForLeaderPartition: TypeAlias = OffsetForLeaderTopic.OffsetForLeaderPartition

    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="2-4", flexible="4+"):
    """The ends of the epochs."""

    class OffsetForLeaderTopicResult(Struct):
        class EpochEndOffset(Struct):
            """The answer for one partition: the last epoch up to the requested one, and its end."""

            error_code: int = int16(default=0)
            partition: int = int32()
            leader_epoch: int = int32(default=-1)
            end_offset: int = int64(default=-1)

        topic: str = string()
        partitions: list[EpochEndOffset] = array(EpochEndOffset)

    EpochEndOffset: TypeAlias = OffsetForLeaderTopicResult.EpochEndOffset

    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
