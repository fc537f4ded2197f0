"""An answer to any request that says nothing but an error code, in the shape of its version.

For fault rules only. It decides where in an answer the code belongs: at the top where the answer
has one there, otherwise in each topic, partition or group that the request names.
"""

from __future__ import annotations

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest, ListOffsetsResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import REQUIRED, Request, Response


def error_answer(request: Request, api_version: int, code: ErrorCode) -> Response:
    """Answer ``request`` with an error.

    Args:
        request: The request.
        api_version: Its version.
        code: The error.

    Raises:
        ValueError: For a kind of request whose answer has no plain place for an error.
    """
    match request:
        case ProduceRequest():
            return _produce(request, code)
        case FetchRequest():
            return _fetch(request, api_version, code)
        case ListOffsetsRequest():
            return _list_offsets(request, code)
        case MetadataRequest():
            return _metadata(request, code)
        case FindCoordinatorRequest() if api_version >= 4:
            return _find_coordinator(request, code)
        case OffsetCommitRequest():
            return _offset_commit(request, code)
        case OffsetFetchRequest() if api_version >= 8:
            return _offset_fetch(request, code)
        case OffsetFetchRequest() if api_version >= 2:
            return OffsetFetchResponse(topics=[], error_code=code)
        case TxnOffsetCommitRequest():
            return _txn_offset_commit(request, code)
        case AddPartitionsToTxnRequest() if api_version <= 3:
            return _add_partitions(request, code)
        case _:
            return _at_the_top(request, api_version, code)


def _at_the_top(request: Request, api_version: int, code: ErrorCode) -> Response:
    response_type = API[request.api_key].response_type
    field = response_type.fields().get("error_code")
    if field is None or not field.is_present(api_version):
        raise ValueError(
            f"answers to {type(request).__name__} version {api_version} have no error of their "
            "own: use Fault.DROP_REQUEST or Fault.DROP_ANSWER"
        )
    required = {
        name: other.absent_value
        for name, other in response_type.fields().items()
        if other.default is REQUIRED
    }
    return response_type(**{**required, "error_code": code})


def _produce(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: FetchRequest, api_version: int, code: ErrorCode) -> FetchResponse:
    if api_version >= 7 and not request.topics:
        return FetchResponse(error_code=code, responses=[])
    return FetchResponse(
        responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=partition.partition, error_code=code, records=b""
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsResponse.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=code,
                        timestamp=-1,
                        offset=-1,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _metadata(request: MetadataRequest, code: ErrorCode) -> MetadataResponse:
    return MetadataResponse(
        brokers=[],
        topics=[
            MetadataResponse.MetadataResponseTopic(
                error_code=code, name=topic.name or "", topic_id=topic.topic_id, partitions=[]
            )
            for topic in request.topics or []
        ],
    )


def _find_coordinator(request: FindCoordinatorRequest, code: ErrorCode) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=-1, host="", port=-1, error_code=code
            )
            for key in request.coordinator_keys
        ]
    )


def _offset_commit(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
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
            for topic in request.topics
        ]
    )


def _offset_fetch(request: OffsetFetchRequest, code: ErrorCode) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group.group_id, topics=[], error_code=code
            )
            for group in request.groups
        ]
    )


def _txn_offset_commit(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _add_partitions(
    request: AddPartitionsToTxnRequest, code: ErrorCode
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=partition, partition_error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )
