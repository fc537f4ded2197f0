"""The messages that read record batches from partitions.

Layout only: `core.consume` and the broker implement sessions, waiting and isolation.

Fetch (key 1), versions 4-18, flexible from 12:
    4 isolation level and aborted transactions (KIP-98)
    5 log start offset
    7 sessions (KIP-227)
    9 leader epoch (KIP-320)
    10 zstd (KIP-110)
    11 rack and preferred replica (KIP-392)
    12 diverging epochs (KIP-595)
    13 topic ids (KIP-516)
    14 OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
    15 replica state (KIP-903)
    16 new leaders (KIP-951)
    17 directory ids (KIP-853)
    18 high watermark (KIP-1166)
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.primitives import ZERO_UUID, Buffer
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
    struct,
    uuid,
)
from onceflow.sdk.protocol.schema import records as record_batches


class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+"):
    """Ask for record batches from offsets on; wait at most `max_wait_ms` for `min_bytes`."""

    class ReplicaState(Struct):
        """The follower that sends the request; clients leave it out."""

        replica_id: int = int32(default=-1)
        replica_epoch: int = int64(default=-1)

    class FetchTopic(Struct):
        class FetchPartition(Struct):
            partition: int = int32()
            current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
            fetch_offset: int = int64()
            last_fetched_epoch: int = int32("12+", default=-1)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            partition_max_bytes: int = int32()
            replica_directory_id: UUID = uuid(
                default=ZERO_UUID, tag=0, tagged="17+", ignorable=True
            )
            high_watermark: int = int64(
                default=0x7FFFFFFFFFFFFFFF, tag=1, tagged="18+", ignorable=True
            )

        topic: str = string("4-12", default="", ignorable=True)
        topic_id: UUID = uuid("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition)

    class ForgottenTopic(Struct):
        """Partitions to remove from the fetch session."""

        topic: str = string("7-12", default="", ignorable=True)
        topic_id: UUID = uuid("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[int] = array(int32)

    FetchPartition: TypeAlias = FetchTopic.FetchPartition

    cluster_id: str | None = string(
        nullable="12+", default=None, tag=0, tagged="12+", ignorable=True
    )
    replica_id: int = int32("4-14", default=-1)
    replica_state: ReplicaState | None = struct(ReplicaState, default=None, tag=1, tagged="15+")
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8(default=0)
    session_id: int = int32("7+", default=0, ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+", default=[])
    rack_id: str = string("11+", default="", ignorable=True)


class FetchResponse(Response, api_key=1, versions="4-18", flexible="12+"):
    """Record batches; in a fetch session only of partitions with changes."""

    class FetchableTopicResponse(Struct):
        class PartitionData(Struct):
            """The answer for one partition; `records` may be empty and must not be None."""

            class EpochEndOffset(Struct):
                """The offset from which the log differs from the follower's (KIP-595)."""

                epoch: int = int32(default=-1)
                end_offset: int = int64(default=-1)

            class LeaderIdAndEpoch(Struct):
                """The new leader, if the broker no longer leads the partition (KIP-951)."""

                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            class SnapshotId(Struct):
                """A snapshot to fetch instead; only in the metadata log."""

                end_offset: int = int64(default=-1)
                epoch: int = int32(default=-1)

            class AbortedTransaction(Struct):
                """A transaction whose records the consumer skips up to the abort marker."""

                producer_id: int = int64()
                first_offset: int = int64()

            partition_index: int = int32()
            error_code: int = int16(default=0)
            high_watermark: int = int64(default=-1)
            last_stable_offset: int = int64(default=-1)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            diverging_epoch: EpochEndOffset | None = struct(
                EpochEndOffset, default=None, tag=0, tagged="12+"
            )
            current_leader: LeaderIdAndEpoch | None = struct(
                LeaderIdAndEpoch, default=None, tag=1, tagged="12+"
            )
            snapshot_id: SnapshotId | None = struct(SnapshotId, default=None, tag=2, tagged="12+")
            aborted_transactions: list[AbortedTransaction] | None = array(
                AbortedTransaction, nullable="0+", default=None
            )
            preferred_read_replica: int = int32("11+", default=-1)
            records: Buffer | None = record_batches(nullable="0+", default=b"")

        topic: str = string("4-12", default="", ignorable=True)
        topic_id: UUID = uuid("13+", default=ZERO_UUID, ignorable=True)
        partitions: list[PartitionData] = array(PartitionData)

    class NodeEndpoint(Struct):
        """Address of a new leader (KIP-951)."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable="0+", default=None)

    PartitionData: TypeAlias = FetchableTopicResponse.PartitionData
    EpochEndOffset: TypeAlias = FetchableTopicResponse.PartitionData.EpochEndOffset
    LeaderIdAndEpoch: TypeAlias = FetchableTopicResponse.PartitionData.LeaderIdAndEpoch
    SnapshotId: TypeAlias = FetchableTopicResponse.PartitionData.SnapshotId
    AbortedTransaction: TypeAlias = FetchableTopicResponse.PartitionData.AbortedTransaction

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("7+", default=0, ignorable=True)
    session_id: int = int32("7+", default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, default=[], tag=0, tagged="16+")
