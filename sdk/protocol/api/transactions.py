"""Messages of transactions: producer ids, partitions and offsets, end, markers, description.

Layouts only: the rules are in `core.produce.transaction_manager` and in the broker's coordinator.
This module also exports TxnOffsetCommit, which `group_offsets` declares.

InitProducerId (key 22), versions 0-5, flexible from 2:
    3 a new epoch for a known producer id (KIP-360)
    4 PRODUCER_FENCED
    5 TRANSACTION_ABORTABLE (KIP-890)
    6 two-phase commit (KIP-939), not declared, as Kafka does not advertise it
AddPartitionsToTxn (key 24), versions 0-5, flexible from 3:
    2 PRODUCER_FENCED
    4 several transactions and verification, for brokers only
    5 TRANSACTION_ABORTABLE (KIP-890)
AddOffsetsToTxn (key 25), versions 0-4, flexible from 3:
    2 PRODUCER_FENCED
    4 TRANSACTION_ABORTABLE (KIP-890)
EndTxn (key 26), versions 0-5, flexible from 3:
    2 PRODUCER_FENCED
    4 TRANSACTION_ABORTABLE
    5 the next epoch in the answer (KIP-890)
WriteTxnMarkers (key 27), versions 1-2, flexible from 1:
    2 transaction version (KIP-1228)
DescribeProducers (key 61), version 0, all flexible:
    (KIP-664)
DescribeTransactions (key 65), version 0, all flexible:
    (KIP-664)
ListTransactions (key 66), versions 0-2, all flexible:
    1 shortest duration (KIP-994)
    2 pattern of transactional ids (KIP-1152)
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.api.group_offsets import TxnOffsetCommitRequest as TxnOffsetCommitRequest
from onceflow.sdk.protocol.api.group_offsets import (
    TxnOffsetCommitResponse as TxnOffsetCommitResponse,
)
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
)


class InitProducerIdRequest(Request, api_key=22, versions="0-5", flexible="2+"):
    """Ask for a producer id; with a transactional id, fence its former producer."""

    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)


class InitProducerIdResponse(Response, api_key=22, versions="0-5", flexible="2+"):
    """Producer id and epoch."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16(default=-1)


class AddPartitionsToTxnRequest(Request, api_key=24, versions="0-5", flexible="3+"):
    """Add partitions to a transaction; clients use versions 0 to 3, brokers 4 and 5 (batched)."""

    class AddPartitionsToTxnTransaction(Struct):
        """One transaction, and whether only to verify its partitions."""

        class AddPartitionsToTxnTopic(Struct):
            name: str = string()
            partitions: list[int] = array(int32)

        transactional_id: str = string()
        producer_id: int = int64()
        producer_epoch: int = int16()
        verify_only: bool = boolean(default=False)
        topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)

    AddPartitionsToTxnTopic: TypeAlias = AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic

    transactions: list[AddPartitionsToTxnTransaction] = array(
        AddPartitionsToTxnTransaction, "4+", default=[]
    )
    v3_and_below_transactional_id: str = string("0-3", default="")
    v3_and_below_producer_id: int = int64("0-3", default=-1)
    v3_and_below_producer_epoch: int = int16("0-3", default=-1)
    v3_and_below_topics: list[AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic] = array(
        AddPartitionsToTxnTopic, "0-3", default=[]
    )


class AddPartitionsToTxnResponse(Response, api_key=24, versions="0-5", flexible="3+"):
    """The outcome for each partition."""

    class AddPartitionsToTxnResult(Struct):
        class AddPartitionsToTxnTopicResult(Struct):
            class AddPartitionsToTxnPartitionResult(Struct):
                partition_index: int = int32()
                partition_error_code: int = int16()

            name: str = string()
            results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
                AddPartitionsToTxnPartitionResult
            )

        transactional_id: str = string()
        topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)

    AddPartitionsToTxnTopicResult: TypeAlias = (
        AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult
    )
    AddPartitionsToTxnPartitionResult: TypeAlias = (
        AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult
    )

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16("4+", default=0, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(
        AddPartitionsToTxnResult, "4+", default=[]
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult] = (
        array(AddPartitionsToTxnTopicResult, "0-3", default=[])
    )


class AddOffsetsToTxnRequest(Request, api_key=25, versions="0-4", flexible="3+"):
    """Add the offsets of a group to a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    """The outcome."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)


class EndTxnRequest(Request, api_key=26, versions="0-5", flexible="3+"):
    """Commit or abort a transaction."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    """The outcome; from version 5 on with producer id and epoch for the next transaction."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class WriteTxnMarkersRequest(Request, api_key=27, versions="1-2", flexible="1+"):
    """Write the markers that end transactions; coordinators send it to leaders."""

    class WritableTxnMarker(Struct):
        """The end of one transaction."""

        class WritableTxnMarkerTopic(Struct):
            name: str = string()
            partition_indexes: list[int] = array(int32)

        producer_id: int = int64()
        producer_epoch: int = int16()
        transaction_result: bool = boolean()
        topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
        coordinator_epoch: int = int32()
        transaction_version: int = int8("2+", default=0, ignorable=True)

    WritableTxnMarkerTopic: TypeAlias = WritableTxnMarker.WritableTxnMarkerTopic

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WriteTxnMarkersResponse(Response, api_key=27, versions="1-2", flexible="1+"):
    """The outcome for each marker."""

    class WritableTxnMarkerResult(Struct):
        class WritableTxnMarkerTopicResult(Struct):
            class WritableTxnMarkerPartitionResult(Struct):
                partition_index: int = int32()
                error_code: int = int16(default=0)

            name: str = string()
            partitions: list[WritableTxnMarkerPartitionResult] = array(
                WritableTxnMarkerPartitionResult
            )

        producer_id: int = int64()
        topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)

    WritableTxnMarkerTopicResult: TypeAlias = WritableTxnMarkerResult.WritableTxnMarkerTopicResult
    WritableTxnMarkerPartitionResult: TypeAlias = (
        WritableTxnMarkerResult.WritableTxnMarkerTopicResult.WritableTxnMarkerPartitionResult
    )

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


class DescribeProducersRequest(Request, api_key=61, versions="0", flexible="0+"):
    """Ask for the idempotent and transactional producers of partitions."""

    class TopicRequest(Struct):
        name: str = string()
        partition_indexes: list[int] = array(int32)

    topics: list[TopicRequest] = array(TopicRequest)


class DescribeProducersResponse(Response, api_key=61, versions="0", flexible="0+"):
    """The producers known to the leader."""

    class TopicResponse(Struct):
        class PartitionResponse(Struct):
            class ProducerState(Struct):
                """One producer; a start offset other than -1 means an open transaction."""

                producer_id: int = int64()
                producer_epoch: int = int32()
                last_sequence: int = int32(default=-1)
                last_timestamp: int = int64(default=-1)
                coordinator_epoch: int = int32()
                current_txn_start_offset: int = int64(default=-1)

            partition_index: int = int32()
            error_code: int = int16(default=0)
            error_message: str | None = string(nullable="0+", default=None)
            active_producers: list[ProducerState] = array(ProducerState, default=[])

        name: str = string()
        partitions: list[PartitionResponse] = array(PartitionResponse)

    PartitionResponse: TypeAlias = TopicResponse.PartitionResponse
    ProducerState: TypeAlias = TopicResponse.PartitionResponse.ProducerState

    throttle_time_ms: int = int32(default=0)
    topics: list[TopicResponse] = array(TopicResponse)


class DescribeTransactionsRequest(Request, api_key=65, versions="0", flexible="0+"):
    """Ask for the state of transactional ids."""

    transactional_ids: list[str] = array(string)


class DescribeTransactionsResponse(Response, api_key=65, versions="0", flexible="0+"):
    """The requested states."""

    class TransactionState(Struct):
        class TopicData(Struct):
            topic: str = string()
            partitions: list[int] = array(int32)

        error_code: int = int16(default=0)
        transactional_id: str = string()
        transaction_state: str = string(default="")
        transaction_timeout_ms: int = int32(default=0)
        transaction_start_time_ms: int = int64(default=-1)
        producer_id: int = int64(default=-1)
        producer_epoch: int = int16(default=-1)
        topics: list[TopicData] = array(TopicData, default=[])

    TopicData: TypeAlias = TransactionState.TopicData

    throttle_time_ms: int = int32(default=0)
    transaction_states: list[TransactionState] = array(TransactionState)


class ListTransactionsRequest(Request, api_key=66, versions="0-2", flexible="0+"):
    """Ask a coordinator for the transactional ids that match filters."""

    state_filters: list[str] = array(string, default=[])
    producer_id_filters: list[int] = array(int64, default=[])
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    """The transactional ids that match the filters."""

    class TransactionState(Struct):
        transactional_id: str = string()
        producer_id: int = int64()
        transaction_state: str = string()

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    unknown_state_filters: list[str] = array(string, default=[])
    transaction_states: list[TransactionState] = array(TransactionState, default=[])
