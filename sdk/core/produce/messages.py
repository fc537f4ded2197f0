"""Produce requests from batches, and the outcome of each batch from the answer.

A request has one batch per partition, and topics by name and id, so that the connection may choose
any version. The sender decides what an error code means.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.sdk.core.connection.metadata import ClusterMetadata, Node
from onceflow.sdk.core.produce.accumulator import PartitionQueue
from onceflow.sdk.core.produce.batch import ProducerBatch
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.primitives import ZERO_UUID

CLASSIC_TRANSACTIONS_MAX = 11
"""Highest version whose partitions must be added to the transaction first."""
TOPIC_NAMES_MAX = 12
"""Highest version that names topics by their names."""


class ProduceJob(NamedTuple):
    """One request and the batches in it.

    Attributes:
        node_id: The broker.
        request: The message.
        items: Queue and batch of each partition.
        max_version: Highest version to use, None for no limit.
    """

    node_id: int
    request: ProduceRequest
    items: list[tuple[PartitionQueue, ProducerBatch]]
    max_version: int | None


class PartitionResult(NamedTuple):
    """A broker's answer about one batch.

    Attributes:
        error_code: 0 if it is stored.
        error_message: The broker's message, or None.
        base_offset: Offset of the first record, -1 if the answer has none.
        log_append_time_ms: The broker's timestamp, -1 if the records keep theirs.
        record_errors: Index and message of the faulty records.
    """

    error_code: int
    error_message: str
    base_offset: int
    log_append_time_ms: int
    record_errors: tuple[tuple[int, str | None], ...]


def make_request(
    node_id: int,
    items: list[tuple[PartitionQueue, ProducerBatch]],
    metadata: ClusterMetadata,
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    protocol_version: int,
) -> ProduceJob:
    """Put batches for one broker into a request.

    Args:
        node_id: The broker.
        items: At most one batch per partition.
        metadata: For the topics' ids.
        acks: -1, 0 or 1.
        timeout_ms: How long the broker may wait for replicas.
        transactional_id: Whose transaction this is, None outside of one.
        protocol_version: Transaction protocol; 1 means at most ``CLASSIC_TRANSACTIONS_MAX``.
    """
    topics: dict[str, list[ProduceRequest.TopicProduceData.PartitionProduceData]] = {}
    for queue, batch in items:
        topics.setdefault(queue.topic, []).append(
            ProduceRequest.TopicProduceData.PartitionProduceData(
                index=queue.partition, records=batch.data
            )
        )
    ids = {name: metadata.topic_id(name) for name in topics}
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, topic_id=ids[name], partition_data=data)
            for name, data in topics.items()
        ],
    )
    max_version = None
    if transactional_id is not None and protocol_version == 1:
        max_version = CLASSIC_TRANSACTIONS_MAX
    elif ZERO_UUID in ids.values():
        max_version = TOPIC_NAMES_MAX
    return ProduceJob(node_id, request, items, max_version)


def read_response(
    job: ProduceJob, response: ProduceResponse
) -> dict[tuple[str, int], PartitionResult]:
    """Return the outcome by topic and partition; those missing in the answer are left out."""
    names = {data.topic_id: data.name for data in job.request.topic_data}
    found = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for result in topic.partition_responses:
            found[name, result.index] = PartitionResult(
                result.error_code,
                result.error_message or "",
                result.base_offset,
                result.log_append_time_ms,
                tuple((r.batch_index, r.batch_index_error_message) for r in result.record_errors),
            )
    return found


def with_named_leaders(
    metadata: ClusterMetadata, job: ProduceJob, response: ProduceResponse
) -> ClusterMetadata:
    """Take in the new leaders that an answer names (KIP-951).

    Args:
        metadata: The present view.
        job: The request.
        response: Its answer.

    Returns:
        The new view, or the same one if the answer names no new leader.
    """
    for topic in response.responses:
        for result in topic.partition_responses:
            leader = result.current_leader
            if leader is None or leader.leader_id < 0:
                continue
            ids = {data.topic_id: data.name for data in job.request.topic_data}
            name = topic.name or ids.get(topic.topic_id, "")
            node = next(
                (
                    Node(n.node_id, n.host, n.port, n.rack)
                    for n in response.node_endpoints
                    if n.node_id == leader.leader_id
                ),
                None,
            )
            metadata = metadata.with_leader(
                TopicPartition(name, result.index), leader.leader_id, leader.leader_epoch, node
            )
    return metadata
