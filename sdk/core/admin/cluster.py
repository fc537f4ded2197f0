"""What an admin client asks about replicas, folders, features and controllers: one exchange each.

As in ``admin_topics``, flows about several things answer with an outcome for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onceflow.sdk.core.admin.topics import RESOURCE_TYPES, Outcomes, fill_missing, outcome
from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.admin import ConfigResource, ResourceType
from onceflow.sdk.model.admin_cluster import (
    FeatureMetadata,
    LogDirDescription,
    PartitionReassignment,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
)
from onceflow.sdk.model.partitions import TopicPartition, by_topic
from onceflow.sdk.model.special_values import METADATA_TOPIC
from onceflow.sdk.protocol.api.admin_cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ReplicaState,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpgradeType,
)
from onceflow.sdk.protocol.api.admin_configs import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from onceflow.sdk.protocol.api.admin_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for


def list_config_resources(
    types: Collection[ResourceType], target: int | None
) -> Flow[list[ConfigResource]]:
    """Everything of some types that has settings; no types ask for all."""
    request = ListConfigResourcesRequest(resource_types=[int(kind) for kind in types])
    reply = yield from ask(request, ListConfigResourcesResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, "ListConfigResources")
    return [
        ConfigResource(ResourceType(found.resource_type), found.resource_name)
        for found in reply.config_resources
        if found.resource_type in RESOURCE_TYPES
    ]


# --- folders


def describe_log_dirs(node_id: int) -> Flow[dict[str, LogDirDescription]]:
    """Folders of one broker, by path."""
    reply = yield from ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, node_id)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, f"DescribeLogDirs of broker {node_id}")
    return {
        folder.log_dir: LogDirDescription(
            {
                TopicPartition(topic.name, replica.partition_index): ReplicaInfo(
                    replica.partition_size, replica.offset_lag, replica.is_future_key
                )
                for topic in folder.topics
                for replica in topic.partitions
            },
            folder.total_bytes,
            folder.usable_bytes,
            folder.error_code,
        )
        for folder in reply.results
    }


def alter_log_dirs(
    node_id: int, folders: Mapping[TopicPartition, str]
) -> Flow[Outcomes[TopicPartition, None]]:
    """Move replicas of one broker to other folders of it."""
    message = AlterReplicaLogDirsRequest
    by_path: dict[str, list[TopicPartition]] = {}
    for partition, path in folders.items():
        by_path.setdefault(path, []).append(partition)
    request = message(
        dirs=[
            message.AlterReplicaLogDir(
                path=path,
                topics=[
                    message.AlterReplicaLogDirTopic(name=name, partitions=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
            )
            for path, partitions in by_path.items()
        ]
    )
    reply = yield from ask(request, AlterReplicaLogDirsResponse, node_id)
    found: Outcomes[TopicPartition, None] = {}
    for topic in reply.results:
        for answer in topic.partitions:
            where = TopicPartition(topic.topic_name, answer.partition_index)
            found[where] = outcome(answer.error_code, None, where, None)
    return fill_missing(folders, found)


# --- leaders and replicas


def elect_leaders(
    partitions: Collection[TopicPartition] | None, election_type: int, timeout_ms: int, target: int
) -> Flow[Outcomes[TopicPartition, None]]:
    """Have leaders elected; one that is leader already counts as elected."""
    asked = None
    if partitions is not None:
        asked = [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=asked, timeout_ms=timeout_ms
    )
    reply = yield from ask(request, ElectLeadersResponse, target)
    found: Outcomes[TopicPartition, None] = {}
    for topic in reply.replica_election_results:
        for answer in topic.partition_result:
            where = TopicPartition(topic.topic, answer.partition_id)
            code = answer.error_code
            if code == ErrorCode.ELECTION_NOT_NEEDED:
                code = ErrorCode.NONE
            found[where] = outcome(code, answer.error_message, where, None)
    if reply.error_code != ErrorCode.NONE and not found:
        raise error_for(reply.error_code, "ElectLeaders")
    return fill_missing(partitions or (), found)


def alter_reassignments(
    replicas: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int, target: int | None
) -> Flow[Outcomes[TopicPartition, None]]:
    """Give partitions other replicas; None cancels what is under way."""
    message = AlterPartitionReassignmentsRequest
    request = message(
        timeout_ms=timeout_ms,
        topics=[
            message.ReassignableTopic(
                name=name,
                partitions=[
                    message.ReassignablePartition(
                        partition_index=index,
                        replicas=None if wanted is None else list(wanted),
                    )
                    for index in indexes
                    for wanted in (replicas[TopicPartition(name, index)],)
                ],
            )
            for name, indexes in by_topic(replicas).items()
        ],
    )
    reply = yield from ask(request, AlterPartitionReassignmentsResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "AlterPartitionReassignments")
    found: Outcomes[TopicPartition, None] = {}
    for topic in reply.responses:
        for answer in topic.partitions:
            where = TopicPartition(topic.name, answer.partition_index)
            found[where] = outcome(answer.error_code, answer.error_message, where, None)
    return fill_missing(replicas, found)


def list_reassignments(
    partitions: Collection[TopicPartition] | None, timeout_ms: int, target: int | None
) -> Flow[dict[TopicPartition, PartitionReassignment]]:
    """Return the reassignments in progress; None asks for all partitions."""
    message = ListPartitionReassignmentsRequest
    asked = None
    if partitions is not None:
        asked = [
            message.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(partitions).items()
        ]
    request = message(timeout_ms=timeout_ms, topics=asked)
    reply = yield from ask(request, ListPartitionReassignmentsResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "ListPartitionReassignments")
    return {
        TopicPartition(topic.name, found.partition_index): PartitionReassignment(
            tuple(found.replicas), tuple(found.adding_replicas), tuple(found.removing_replicas)
        )
        for topic in reply.topics
        for found in topic.partitions
    }


# --- the cluster as a whole


def describe_features(software: tuple[str, str], target: int | None) -> Flow[FeatureMetadata]:
    """Features that a broker knows, and those in force."""
    request = ApiVersionsRequest(
        client_software_name=software[0], client_software_version=software[1]
    )
    reply = yield from ask(request, ApiVersionsResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, "ApiVersions")
    return FeatureMetadata(
        {feature.name: feature.max_version_level for feature in reply.finalized_features},
        {
            feature.name: (feature.min_version, feature.max_version)
            for feature in reply.supported_features
        },
        reply.finalized_features_epoch,
    )


def update_features(
    levels: Mapping[str, int],
    upgrade_type: UpgradeType,
    validate_only: bool,
    timeout_ms: int,
    target: int | None,
) -> Flow[None]:
    """Set levels of features, all or none."""
    request = UpdateFeaturesRequest(
        timeout_ms=timeout_ms,
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=level, upgrade_type=upgrade_type
            )
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    reply = yield from ask(request, UpdateFeaturesResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "UpdateFeatures")


def describe_quorum(target: int | None) -> Flow[QuorumDescription]:
    """The controllers' quorum."""
    message = DescribeQuorumRequest
    partition = message.PartitionData(partition_index=0)
    request = message(topics=[message.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])
    reply = yield from ask(request, DescribeQuorumResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or "DescribeQuorum")
    for topic in reply.topics:
        for found in topic.partitions:
            if found.error_code != ErrorCode.NONE:
                raise error_for(found.error_code, found.error_message or "DescribeQuorum")
            return QuorumDescription(
                found.leader_id,
                found.leader_epoch,
                found.high_watermark,
                tuple(map(_replica, found.current_voters)),
                tuple(map(_replica, found.observers)),
            )
    raise RemoteProtocolError("the broker's answer leaves out the quorum")


def _replica(state: ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        state.log_end_offset,
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
    )


def unregister_broker(node_id: int, target: int | None) -> Flow[None]:
    """Have the cluster forget a broker that is gone."""
    request = UnregisterBrokerRequest(broker_id=node_id)
    reply = yield from ask(request, UnregisterBrokerResponse, target)
    if reply.error_code != ErrorCode.NONE:
        raise error_for(reply.error_code, reply.error_message or f"broker {node_id}")
