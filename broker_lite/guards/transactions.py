"""What requests about transactions and coordinators ask for, as Apache Kafka 4.4 asks.

| request | needs |
| --- | --- |
| FindCoordinator | DESCRIBE on the group or transactional id |
| InitProducerId | WRITE on the transactional id; without one, IDEMPOTENT_WRITE on the cluster |
| | or WRITE on any topic |
| AddPartitionsToTxn | WRITE on the transactional id and each topic; from version 4 CLUSTER_ACTION |
| AddOffsetsToTxn | WRITE on the transactional id, READ on the group |
| TxnOffsetCommit | the same, and READ on each topic |
| EndTxn | WRITE on the transactional id |
| WriteTxnMarkers | CLUSTER_ACTION or ALTER on the cluster |
| DescribeTransactions, ListTransactions | DESCRIBE on each transactional id and topic told |
"""

from __future__ import annotations

from onceflow.broker_lite.guards.access import Access, Verdict, guards, split
from onceflow.broker_lite.guards.groups import GROUP_DENIED
from onceflow.broker_lite.guards.topics import DENIED, take_out
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.protocol.api.cluster import (
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from onceflow.sdk.protocol.api.group_offsets import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Response

ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER_DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@guards(FindCoordinatorRequest)
def find_coordinator(access: Access, request: FindCoordinatorRequest) -> Verdict:
    """DESCRIBE on the group or transactional id."""

    def code_of(key: str) -> ErrorCode:
        if request.key_type == CoordinatorType.GROUP and not access.group(
            AclOperation.DESCRIBE, key
        ):
            return GROUP_DENIED
        if request.key_type == CoordinatorType.TRANSACTION and not access.transactional_id(
            AclOperation.DESCRIBE, key
        ):
            return ID_DENIED
        return ErrorCode.NONE

    if access.api_version < 4:
        code = code_of(request.key)
        if not code:
            return None
        return FindCoordinatorResponse(error_code=code, node_id=-1, host="", port=-1)
    codes = {key: code_of(key) for key in request.coordinator_keys}
    refused = [
        FindCoordinatorResponse.Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)
        for key, code in codes.items()
        if code
    ]
    if not refused:
        return None
    request.coordinator_keys = [key for key in request.coordinator_keys if not codes[key]]
    if not request.coordinator_keys:
        return FindCoordinatorResponse(coordinators=refused)

    def add(response: Response) -> None:
        assert isinstance(response, FindCoordinatorResponse)
        response.coordinators.extend(refused)

    return add


@guards(InitProducerIdRequest)
def init_producer_id(access: Access, request: InitProducerIdRequest) -> Verdict:
    """WRITE on the transactional id, or the right to write idempotently."""
    if request.transactional_id is not None:
        allowed = access.transactional_id(AclOperation.WRITE, request.transactional_id)
        code = ID_DENIED
    else:
        allowed, code = access.may_write_idempotently(), CLUSTER_DENIED
    if allowed:
        return None
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@guards(AddPartitionsToTxnRequest)
def add_partitions_to_txn(access: Access, request: AddPartitionsToTxnRequest) -> Verdict:
    """WRITE on the id and each topic; from version 4 on, it is for brokers (CLUSTER_ACTION)."""
    if access.api_version >= 4:
        if access.cluster(AclOperation.CLUSTER_ACTION):
            return None
        return AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED)
    topics = request.v3_and_below_topics
    if not access.transactional_id(AclOperation.WRITE, request.v3_and_below_transactional_id):
        codes = dict.fromkeys((topic.name for topic in topics), ID_DENIED)
    else:
        codes = {
            topic.name: ErrorCode.OPERATION_NOT_ATTEMPTED
            if access.topic(AclOperation.WRITE, topic.name)
            else DENIED
            for topic in topics
        }
        if DENIED not in codes.values():
            return None
    unknown = {
        (topic.name, index)
        for topic in topics
        for index in topic.partitions
        if codes[topic.name] == ErrorCode.OPERATION_NOT_ATTEMPTED
        and not _exists(access, topic.name, index)
    }
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        if (topic.name, index) in unknown
                        else codes[topic.name],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


def _exists(access: Access, name: str, index: int) -> bool:
    topic = access.state.topics.get(name)
    return topic is not None and 0 <= index < len(topic.partitions)


@guards(AddOffsetsToTxnRequest)
def add_offsets_to_txn(access: Access, request: AddOffsetsToTxnRequest) -> Verdict:
    """WRITE on the id, READ on the group."""
    if not access.transactional_id(AclOperation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ID_DENIED)
    if not access.group(AclOperation.READ, request.group_id):
        return AddOffsetsToTxnResponse(error_code=GROUP_DENIED)
    return None


@guards(EndTxnRequest)
def end_txn(access: Access, request: EndTxnRequest) -> Verdict:
    """WRITE on the id."""
    if access.transactional_id(AclOperation.WRITE, request.transactional_id):
        return None
    return EndTxnResponse(error_code=ID_DENIED)


@guards(TxnOffsetCommitRequest)
def txn_offset_commit(access: Access, request: TxnOffsetCommitRequest) -> Verdict:
    """WRITE on the id, READ on the group and on each topic."""
    if not access.transactional_id(AclOperation.WRITE, request.transactional_id):
        code, denied = ID_DENIED, list(request.topics)
    elif not access.group(AclOperation.READ, request.group_id):
        code, denied = GROUP_DENIED, list(request.topics)
    else:
        code, denied = DENIED, take_out(access, request.topics, AclOperation.READ)
        if not denied:
            return None
    refused = [
        TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
                for partition in topic.partitions
            ],
        )
        for topic in denied
    ]
    if code != DENIED or not request.topics:
        return TxnOffsetCommitResponse(topics=refused)

    def add(response: Response) -> None:
        assert isinstance(response, TxnOffsetCommitResponse)
        response.topics.extend(refused)

    return add


@guards(WriteTxnMarkersRequest)
def write_txn_markers(access: Access, request: WriteTxnMarkersRequest) -> Verdict:
    """CLUSTER_ACTION or ALTER on the cluster."""
    if access.cluster(AclOperation.ALTER) or access.cluster(AclOperation.CLUSTER_ACTION):
        return None
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponse.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=CLUSTER_DENIED
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


@guards(DescribeTransactionsRequest)
def describe_transactions(access: Access, request: DescribeTransactionsRequest) -> Verdict:
    """DESCRIBE on each id; topics that may not be described are left out."""
    request.transactional_ids, denied = split(
        request.transactional_ids,
        lambda name: access.transactional_id(AclOperation.DESCRIBE, name),
    )
    refused = [
        DescribeTransactionsResponse.TransactionState(
            error_code=ID_DENIED,
            transactional_id=name,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
        for name in dict.fromkeys(denied)
    ]

    def edit(response: Response) -> None:
        assert isinstance(response, DescribeTransactionsResponse)
        for each in response.transaction_states:
            each.topics = [
                topic for topic in each.topics if access.topic(AclOperation.DESCRIBE, topic.topic)
            ]
        response.transaction_states.extend(refused)

    return edit


@guards(ListTransactionsRequest)
def list_transactions(access: Access, request: ListTransactionsRequest) -> Verdict:
    """Those that may be described."""

    def edit(response: Response) -> None:
        assert isinstance(response, ListTransactionsResponse)
        response.transaction_states = [
            each
            for each in response.transaction_states
            if access.transactional_id(AclOperation.DESCRIBE, each.transactional_id)
        ]

    return edit
