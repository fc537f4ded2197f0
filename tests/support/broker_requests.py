"""Requests and answers of single partitions, so that a test of the broker says what it is about.

Each function builds the smallest request of its kind, or takes the one partition's part out of an
answer. Versions are the tests' business.
"""

from __future__ import annotations

import uuid

from broker_wire import Wire

from onceflow.sdk.protocol.api.admin import CreateTopicsRequest, CreateTopicsResponse
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest, ListOffsetsResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.primitives import ZERO_UUID

PRODUCE_BY_NAME = 9
FETCH_BY_NAME = 12
FETCH_BY_ID = 18


def produce_request(
    topic: str | uuid.UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Produce of one partition."""
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, uuid.UUID) else ZERO_UUID,
                partition_data=[
                    ProduceRequest.PartitionProduceData(index=partition, records=records)
                ],
            )
        ],
    )


async def produce(
    wire: Wire,
    topic: str | uuid.UUID,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    api_version: int | None = None,
) -> ProduceResponse.PartitionProduceResponse:
    """Produce to one partition and give its part of the answer."""
    if api_version is None:
        api_version = PRODUCE_BY_NAME if isinstance(topic, str) else 13
    response = await wire.ask(
        produce_request(
            topic, records, partition=partition, acks=acks, transactional_id=transactional_id
        ),
        api_version,
        ProduceResponse,
    )
    return response.responses[0].partition_responses[0]


def fetch_request(
    topic: str | uuid.UUID,
    *offsets: int,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    partition_max_bytes: int = 1_048_576,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    partitions: dict[int, int] | None = None,
    forgotten: list[int] | None = None,
) -> FetchRequest:
    """Fetch of partitions 0, 1, ... from the given offsets, or of those in `partitions`."""
    wanted = dict(enumerate(offsets)) if partitions is None else partitions
    name = topic if isinstance(topic, str) else ""
    topic_id = topic if isinstance(topic, uuid.UUID) else ZERO_UUID
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            FetchRequest.FetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    FetchRequest.FetchPartition(
                        partition=partition,
                        current_leader_epoch=current_leader_epoch,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                    )
                    for partition, offset in wanted.items()
                ],
            )
        ]
        if wanted
        else [],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=forgotten)
        ]
        if forgotten
        else [],
    )


def fetched(response: object) -> dict[int, FetchResponse.PartitionData]:
    """Partitions of an answer by number."""
    assert isinstance(response, FetchResponse)
    assert response.error_code == 0
    return {data.partition_index: data for topic in response.responses for data in topic.partitions}


async def fetch(
    wire: Wire,
    topic: str | uuid.UUID,
    offset: int = 0,
    *,
    isolation_level: int = 0,
    partition_max_bytes: int = 1_048_576,
    max_bytes: int = 2**31 - 1,
    current_leader_epoch: int = -1,
    api_version: int | None = None,
) -> FetchResponse.PartitionData:
    """Fetch partition 0 without waiting."""
    if api_version is None:
        api_version = FETCH_BY_NAME if isinstance(topic, str) else FETCH_BY_ID
    response = await wire.ask(
        fetch_request(
            topic,
            offset,
            isolation_level=isolation_level,
            partition_max_bytes=partition_max_bytes,
            max_bytes=max_bytes,
            current_leader_epoch=current_leader_epoch,
        ),
        api_version,
        FetchResponse,
    )
    return fetched(response)[0]


async def list_offset(
    wire: Wire,
    topic: str,
    timestamp_ms: int,
    *,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    api_version: int = 11,
) -> ListOffsetsResponse.ListOffsetsPartitionResponse:
    """Ask for one offset of partition 0."""
    response = await wire.ask(
        ListOffsetsRequest(
            isolation_level=isolation_level,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=0,
                            current_leader_epoch=current_leader_epoch,
                            timestamp=timestamp_ms,
                        )
                    ],
                )
            ],
        ),
        api_version,
        ListOffsetsResponse,
    )
    return response.topics[0].partitions[0]


async def topic_metadata(
    wire: Wire, name: str, *, create: bool = False, api_version: int = 13
) -> MetadataResponse.MetadataResponseTopic:
    """Metadata of one topic."""
    response = await wire.ask(
        MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name)],
            allow_auto_topic_creation=create,
        ),
        api_version,
        MetadataResponse,
    )
    return response.topics[0]


async def create_topic(
    wire: Wire,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: dict[str, str | None] | None = None,
    validate_only: bool = False,
    api_version: int = 7,
) -> CreateTopicsResponse.CreatableTopicResult:
    """Create one topic over the wire."""
    response = await wire.ask(
        CreateTopicsRequest(
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    assignments=[],
                    configs=[
                        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).items()
                    ],
                )
            ],
            validate_only=validate_only,
        ),
        api_version,
        CreateTopicsResponse,
    )
    return response.topics[0]
