"""What an admin client asks about topics, records, settings and the cluster: one exchange each.

Every flow answers with an outcome for each item: its result, or the error that the broker gave for
it, made with the item's name. Which errors are worth another try is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.errors import KafkaError, RemoteProtocolError, UnsupportedVersionError
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.model.admin import (
    BrokerNode,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from onceflow.sdk.model.partitions import NewTopic, TopicPartition, by_topic
from onceflow.sdk.model.special_values import ConfigSource
from onceflow.sdk.protocol.api.admin import (
    ConfigOperation,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from onceflow.sdk.protocol.api.cluster import (
    NOT_REQUESTED,
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.offsets import DeleteRecordsRequest, DeleteRecordsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.primitives import ZERO_UUID

K = TypeVar("K")
V = TypeVar("V")

RESOURCE_TYPES = frozenset(map(int, ResourceType))

Outcomes = dict[K, V | KafkaError]
"""Result or error by item."""


def outcome(code: int, message: str | None, item: object, value: V) -> V | KafkaError:
    """The value, or the error for the code with the item's name."""
    if code == ErrorCode.NONE:
        return value
    return error_for(code, f"{item}: {message}" if message else str(item))


def fill_missing(items: Iterable[K], found: Outcomes[K, V]) -> Outcomes[K, V]:
    """Give items that the broker left out an error of their own."""
    for item in items:
        if item not in found:
            found[item] = RemoteProtocolError(f"the broker's answer leaves out {item}")
    return found


def operations_of(bits: int) -> frozenset[AclOperation] | None:
    """Return the operations that an answer's bits stand for (KIP-430); None if it has none."""
    if bits == NOT_REQUESTED:
        return None
    return frozenset(each for each in AclOperation if bits & 1 << each)


def topic_operations(
    names: Collection[str], target: int | None
) -> Flow[dict[str, frozenset[AclOperation] | None]]:
    """What this client may do with topics; those that the broker does not show are left out."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    reply = yield from ask(request, MetadataResponse, target)
    return {
        topic.name: operations_of(topic.topic_authorized_operations)
        for topic in reply.topics
        if topic.name is not None and topic.error_code == ErrorCode.NONE
    }


def create_topics(
    topics: Sequence[NewTopic], timeout_ms: int, *, validate_only: bool, target: int | None
) -> Flow[Outcomes[str, UUID]]:
    """Create topics; each result is the new topic's id."""
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                    for name, value in (topic.configs or {}).items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    reply = yield from ask(request, CreateTopicsResponse, target)
    return fill_missing(
        (topic.name for topic in topics),
        {
            answer.name: outcome(
                answer.error_code,
                answer.error_message,
                f"topic {answer.name!r}",
                answer.topic_id,
            )
            for answer in reply.topics
        },
    )


def delete_topics(
    topics: Sequence[str], timeout_ms: int, *, by_state: bool, target: int | None
) -> Flow[Outcomes[str, None]]:
    """Delete topics by name.

    Args:
        topics: Their names.
        timeout_ms: How long the broker may take.
        by_state: Whether the broker speaks a version that takes names or ids (6 and up).
        target: Whom to ask.
    """
    if by_state:
        states = [DeleteTopicsRequest.DeleteTopicState(name=t, topic_id=ZERO_UUID) for t in topics]
        request = DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)
    else:
        request = DeleteTopicsRequest(topic_names=list(topics), timeout_ms=timeout_ms)
    reply = yield from ask(request, DeleteTopicsResponse, target)
    found: Outcomes[str, None] = {
        answer.name: outcome(
            answer.error_code, answer.error_message, f"topic {answer.name!r}", None
        )
        for answer in reply.responses
        if answer.name is not None
    }
    return fill_missing(topics, found)


def create_partitions(
    totals: Mapping[str, int], timeout_ms: int, *, validate_only: bool, target: int | None
) -> Flow[Outcomes[str, None]]:
    """Raise topics to new totals of partitions."""
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count)
            for name, count in totals.items()
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    reply = yield from ask(request, CreatePartitionsResponse, target)
    found: Outcomes[str, None] = {
        answer.name: outcome(
            answer.error_code, answer.error_message, f"topic {answer.name!r}", None
        )
        for answer in reply.results
    }
    return fill_missing(totals, found)


def describe_configs(
    resources: Sequence[ConfigResource], *, target: int | None
) -> Flow[Outcomes[ConfigResource, dict[str, ConfigEntry]]]:
    """All settings of some resources."""
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource.type, resource_name=resource.name
            )
            for resource in resources
        ]
    )
    reply = yield from ask(request, DescribeConfigsResponse, target)
    found: Outcomes[ConfigResource, dict[str, ConfigEntry]] = {}
    for result in reply.results:
        if result.resource_type not in RESOURCE_TYPES:
            continue  # Nobody asked for it.
        resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
        entries = {
            entry.name: ConfigEntry(
                entry.name,
                entry.value,
                entry.config_source == ConfigSource.DEFAULT_CONFIG,
                entry.read_only,
                entry.is_sensitive,
                entry.config_source,
            )
            for entry in result.configs
        }
        found[resource] = outcome(
            result.error_code, result.error_message, _named(resource), entries
        )
    return fill_missing(resources, found)


def alter_configs(
    changes: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool,
    target: int | None,
) -> Flow[Outcomes[ConfigResource, None]]:
    """Change single settings; None as value takes the resource's own value away."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=name,
                        config_operation=ConfigOperation.DELETE
                        if value is None
                        else ConfigOperation.SET,
                        value=value,
                    )
                    for name, value in settings.items()
                ],
            )
            for resource, settings in changes.items()
        ],
        validate_only=validate_only,
    )
    reply = yield from ask(request, IncrementalAlterConfigsResponse, target)
    found: Outcomes[ConfigResource, None] = {}
    for answer in reply.responses:
        if answer.resource_type not in RESOURCE_TYPES:
            continue  # Nobody asked for it.
        resource = ConfigResource(ResourceType(answer.resource_type), answer.resource_name)
        found[resource] = outcome(answer.error_code, answer.error_message, _named(resource), None)
    return fill_missing(changes, found)


def _named(resource: ConfigResource) -> str:
    return f"{resource.type.name.lower()} {resource.name!r}"


def delete_records(
    node_id: int, before: Mapping[TopicPartition, int], timeout_ms: int
) -> Flow[Outcomes[TopicPartition, int]]:
    """Have one leader move the start of logs; each result is where a log starts now."""
    message = DeleteRecordsRequest
    topics = by_topic(
        (topic, message.DeleteRecordsPartition(partition_index=index, offset=offset))
        for (topic, index), offset in before.items()
    )
    request = message(
        topics=[
            message.DeleteRecordsTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        timeout_ms=timeout_ms,
    )
    reply = yield from ask(request, DeleteRecordsResponse, node_id)
    found: Outcomes[TopicPartition, int] = {}
    for answered in reply.topics:
        for answer in answered.partitions:
            partition = TopicPartition(answered.name, answer.partition_index)
            found[partition] = outcome(answer.error_code, None, partition, answer.low_watermark)
    return fill_missing(before, found)


def describe_cluster() -> Flow[ClusterDescription]:
    """Id, brokers and controller of the cluster.

    Raises:
        BrokerError: The broker refused.
    """
    try:
        reply = yield from ask(DescribeClusterRequest(), DescribeClusterResponse)
    except UnsupportedVersionError:  # Before 2.8.
        return (yield from _describe_cluster_by_metadata())
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message)
    nodes = tuple(BrokerNode(b.broker_id, b.host, b.port, b.rack) for b in reply.brokers)
    return ClusterDescription(reply.cluster_id, reply.controller_id, nodes)


def _describe_cluster_by_metadata() -> Flow[ClusterDescription]:
    reply = yield from ask(MetadataRequest(topics=[]), MetadataResponse)
    nodes = tuple(BrokerNode(b.node_id, b.host, b.port, b.rack) for b in reply.brokers)
    return ClusterDescription(reply.cluster_id or "", reply.controller_id, nodes)
