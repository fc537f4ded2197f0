"""The messages that append record batches to partitions.

Layout only: `sdk.protocol.records` encodes batches, and the broker's log validates them.

Produce (key 0), versions 3-13, flexible from 9:
    3 transactional id and record format 2 (KIP-98)
    5 log start offset
    7 zstd (KIP-110)
    8 the refused records (KIP-467)
    10 new leaders (KIP-951)
    11 TRANSACTION_ABORTABLE and 12 adding partitions implicitly (KIP-890)
    13 topic ids (KIP-516)

Brokers advertise versions 0 to 2 as well and refuse them (KAFKA-18659); they have no layout here.
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
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from onceflow.sdk.protocol.schema import records as record_batches


class ProduceRequest(Request, api_key=0, versions="3-13", flexible="9+"):
    """Append a record batch to each named partition.

    A request with `acks` 0 gets no answer; with -1 the answer waits for all in-sync replicas.
    """

    class TopicProduceData(Struct):
        """The batches for one topic."""

        class PartitionProduceData(Struct):
            """The batch for one partition."""

            index: int = int32()
            records: Buffer | None = record_batches(nullable="0+")

        name: str = string("3-12", default="", ignorable=True)
        topic_id: UUID = uuid("13+", default=ZERO_UUID, ignorable=True)
        partition_data: list[PartitionProduceData] = array(PartitionProduceData)

    PartitionProduceData: TypeAlias = TopicProduceData.PartitionProduceData

    transactional_id: str | None = string(nullable="0+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    """The offsets of the appended batches, or errors."""

    class TopicProduceResponse(Struct):
        class PartitionProduceResponse(Struct):
            """The outcome for one partition; append time -1 means the producer's timestamps."""

            class BatchIndexAndErrorMessage(Struct):
                """A refused record."""

                batch_index: int = int32()
                batch_index_error_message: str | None = string(nullable="0+", default=None)

            class LeaderIdAndEpoch(Struct):
                """The new leader, if the broker no longer leads the partition (KIP-951)."""

                leader_id: int = int32(default=-1)
                leader_epoch: int = int32(default=-1)

            index: int = int32()
            error_code: int = int16(default=0)
            base_offset: int = int64(default=-1)
            log_append_time_ms: int = int64(default=-1)
            log_start_offset: int = int64("5+", default=-1, ignorable=True)
            record_errors: list[BatchIndexAndErrorMessage] = array(
                BatchIndexAndErrorMessage, "8+", default=[], ignorable=True
            )
            error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
            current_leader: LeaderIdAndEpoch | None = struct(
                LeaderIdAndEpoch, default=None, tag=0, tagged="10+"
            )

        name: str = string("3-12", default="", ignorable=True)
        topic_id: UUID = uuid("13+", default=ZERO_UUID, ignorable=True)
        partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)

    class NodeEndpoint(Struct):
        """Address of a new leader (KIP-951)."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable="0+", default=None)

    PartitionProduceResponse: TypeAlias = TopicProduceResponse.PartitionProduceResponse
    BatchIndexAndErrorMessage: TypeAlias = (
        TopicProduceResponse.PartitionProduceResponse.BatchIndexAndErrorMessage
    )
    LeaderIdAndEpoch: TypeAlias = TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(default=0)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, default=[], tag=0, tagged="10+")
