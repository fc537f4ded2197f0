"""What requests about records and topics ask for, as Apache Kafka 4.4 asks.

| request | needs |
| --- | --- |
| Produce | WRITE on the transactional id where records are transactional, WRITE on each topic |
| Fetch | READ on each topic; looked at by the handler too, since a session outlives its request |
| ListOffsets, OffsetForLeaderEpoch, DescribeTopicPartitions | DESCRIBE on each topic |
| Metadata | DESCRIBE on each topic; CREATE on the cluster or the topic to make one |
| DeleteRecords | DELETE on each topic |
| DescribeProducers | READ on each topic |
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from onceflow.broker_lite.guards.access import Access, Verdict, guards, split
from onceflow.broker_lite.request_context import CloseConnection
from onceflow.broker_lite.security.acl_model import CLUSTER_NAME
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.protocol.api.admin_replicas import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED, MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from onceflow.sdk.protocol.batch_header import iter_batch_headers
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Response

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Named(Protocol):
    """A part of a request that names a topic."""

    name: str


NamedT = TypeVar("NamedT", bound=Named)


def take_out(access: Access, topics: list[NamedT], operation: int) -> list[NamedT]:
    """Remove the topics that the client may not touch, and give them."""
    topics[:], denied = split(topics, lambda topic: access.topic(operation, topic.name))
    return denied


@guards(ProduceRequest)
def produce(access: Access, request: ProduceRequest) -> Verdict:
    """Close the connection of a producer with acks=0, the only way to tell it, as in Kafka."""

    def may_write(topic: ProduceRequest.TopicProduceData) -> bool:
        name = access.name_of(topic.name, topic.topic_id)
        return name is None or access.topic(AclOperation.WRITE, name)

    transactional_id = request.transactional_id
    allowed: list[ProduceRequest.TopicProduceData] = []
    if _is_transactional(request) and not (
        transactional_id is not None
        and access.transactional_id(AclOperation.WRITE, transactional_id)
    ):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        denied = list(request.topic_data)
    else:
        code = DENIED
        allowed, denied = split(request.topic_data, may_write)
        if not denied:
            return None
    if request.acks == 0:
        raise CloseConnection("a producer without answers may not write to a topic")
    refused = [_refused_produce(topic, code) for topic in denied]
    if not allowed:
        return ProduceResponse(responses=refused)
    request.topic_data = allowed

    def add(response: Response) -> None:
        assert isinstance(response, ProduceResponse)
        response.responses.extend(refused)

    return add


def _is_transactional(request: ProduceRequest) -> bool:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            for _, header in iter_batch_headers(partition.records or b""):
                if header.is_transactional:
                    return True
    return False


def _refused_produce(
    topic: ProduceRequest.TopicProduceData, code: ErrorCode
) -> ProduceResponse.TopicProduceResponse:
    return ProduceResponse.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            ProduceResponse.PartitionProduceResponse(
                index=partition.index, error_code=code, base_offset=-1
            )
            for partition in topic.partition_data
        ],
    )


@guards(FetchRequest)
def fetch(access: Access, request: FetchRequest) -> Verdict:
    """A replica needs CLUSTER_ACTION; what a consumer may read is looked at as it is read."""
    replica = request.replica_state
    replica_id = request.replica_id if replica is None else replica.replica_id
    if replica_id >= 0 and not access.cluster(AclOperation.CLUSTER_ACTION):
        return FetchResponse(error_code=0, session_id=0, responses=[
            FetchResponse.FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=partition.partition,
                        error_code=DENIED,
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=b"",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ])  # fmt: skip
    return None


@guards(ListOffsetsRequest)
def list_offsets(access: Access, request: ListOffsetsRequest) -> Verdict:
    """DESCRIBE on each topic."""
    refused = [
        ListOffsetsResponse.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index,
                    error_code=DENIED,
                    timestamp=-1,
                    offset=-1,
                )
                for partition in topic.partitions
            ],
        )
        for topic in take_out(access, request.topics, AclOperation.DESCRIBE)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, ListOffsetsResponse)
        response.topics.extend(refused)

    return add if refused else None


@guards(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(access: Access, request: OffsetForLeaderEpochRequest) -> Verdict:
    """DESCRIBE on each topic, or CLUSTER_ACTION."""
    if access.cluster(AclOperation.CLUSTER_ACTION):
        return None
    refused = []
    allowed = []
    for topic in request.topics:
        if access.topic(AclOperation.DESCRIBE, topic.topic):
            allowed.append(topic)
            continue
        refused.append(
            OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    OffsetForLeaderEpochResponse.EpochEndOffset(
                        partition=partition.partition, error_code=DENIED
                    )
                    for partition in topic.partitions
                ],
            )
        )
    request.topics = allowed

    def add(response: Response) -> None:
        assert isinstance(response, OffsetForLeaderEpochResponse)
        response.topics.extend(refused)

    return add if refused else None


@guards(DeleteRecordsRequest)
def delete_records(access: Access, request: DeleteRecordsRequest) -> Verdict:
    """DELETE on each topic."""
    refused = [
        DeleteRecordsResponse.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                DeleteRecordsResponse.DeleteRecordsPartitionResult(
                    partition_index=partition.partition_index, error_code=DENIED, low_watermark=-1
                )
                for partition in topic.partitions
            ],
        )
        for topic in take_out(access, request.topics, AclOperation.DELETE)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, DeleteRecordsResponse)
        response.topics.extend(refused)

    return add if refused else None


@guards(DescribeProducersRequest)
def describe_producers(access: Access, request: DescribeProducersRequest) -> Verdict:
    """READ on each topic."""
    refused = [
        DescribeProducersResponse.TopicResponse(
            name=topic.name,
            partitions=[
                DescribeProducersResponse.PartitionResponse(
                    partition_index=index,
                    error_code=DENIED,
                    error_message="Topic authorization failed.",
                    active_producers=[],
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in take_out(access, request.topics, AclOperation.READ)
    ]

    def add(response: Response) -> None:
        assert isinstance(response, DescribeProducersResponse)
        response.topics.extend(refused)

    return add if refused else None


@guards(MetadataRequest)
def metadata(access: Access, request: MetadataRequest) -> Verdict:
    """DESCRIBE on each topic, CREATE for those that would be made; hidden ones are not listed."""
    refused: list[MetadataResponse.MetadataResponseTopic] = []
    asks_for_all = request.topics is None or (access.api_version == 0 and not request.topics)
    if request.topics:
        allowed = []
        for topic in request.topics:
            name = access.name_of(topic.name, topic.topic_id)
            if name is None or _may_look(access, request, name):
                allowed.append(topic)
                continue
            by_id = topic.topic_id != ZERO_UUID
            refused.append(
                MetadataResponse.MetadataResponseTopic(
                    error_code=DENIED,
                    name=(topic.name or "") if access.api_version < 12 or not by_id else None,
                    topic_id=topic.topic_id if by_id else ZERO_UUID,
                    partitions=[],
                )
            )
        if refused and not allowed and access.api_version == 0:
            # None at all would ask for everything in this version.
            allowed = request.topics[:1]
        request.topics = allowed

    def edit(response: Response) -> None:
        assert isinstance(response, MetadataResponse)
        topics = response.topics
        if asks_for_all:
            topics = [
                each for each in topics if access.topic(AclOperation.DESCRIBE, each.name or "")
            ]
        elif access.api_version == 0:
            topics = [each for each in topics if _may_look(access, request, each.name or "")]
        for each in topics:
            if each.topic_authorized_operations != NOT_REQUESTED:
                bits = access.bits(AclResourceType.TOPIC, each.name or "")
                each.topic_authorized_operations = bits
        response.topics = [*topics, *refused]
        if response.cluster_authorized_operations != NOT_REQUESTED:
            response.cluster_authorized_operations = cluster_bits(access)

    return edit


def _may_look(access: Access, request: MetadataRequest, name: str) -> bool:
    """Whether a topic may be described, and made where the request would make it."""
    if not access.topic(AclOperation.DESCRIBE, name):
        return False
    state = access.state
    would_create = (
        state.config.auto_create_topics_enable
        and (access.api_version < 4 or request.allow_auto_topic_creation)
        and state.topics.get(name) is None
    )
    return (
        not would_create
        or access.cluster(AclOperation.CREATE)
        or access.topic(AclOperation.CREATE, name)
    )


def cluster_bits(access: Access) -> int:
    """Operations that the client may do with the cluster; none if it may not describe it."""
    if not access.cluster(AclOperation.DESCRIBE):
        return 0
    return access.bits(AclResourceType.CLUSTER, CLUSTER_NAME)


@guards(DescribeTopicPartitionsRequest)
def describe_topic_partitions(access: Access, request: DescribeTopicPartitionsRequest) -> Verdict:
    """DESCRIBE on each topic that is named; of all topics, the handler lists those with it."""
    refused = [
        DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
            error_code=DENIED, name=topic.name, topic_id=ZERO_UUID, partitions=[]
        )
        for topic in request.topics
        if not access.topic(AclOperation.DESCRIBE, topic.name)
    ]
    names = {topic.name for topic in refused}
    if names and len(names) == len({topic.name for topic in request.topics}):
        return DescribeTopicPartitionsResponse(topics=refused)
    request.topics = [topic for topic in request.topics if topic.name not in names]

    def edit(response: Response) -> None:
        assert isinstance(response, DescribeTopicPartitionsResponse)
        for each in response.topics:
            each.topic_authorized_operations = access.bits(AclResourceType.TOPIC, each.name or "")
        response.topics.extend(refused)

    return edit
