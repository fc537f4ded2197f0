"""What requests of administration ask for, as Apache Kafka 4.4 asks.

| request | needs |
| --- | --- |
| ApiVersions, SaslHandshake, SaslAuthenticate, DescribeCluster | nothing |
| CreateTopics | CREATE on the cluster or each topic; DESCRIBE_CONFIGS to be told its settings |
| DeleteTopics | DELETE on each topic |
| CreatePartitions | ALTER on each topic |
| DescribeConfigs | DESCRIBE_CONFIGS on the topic, the group, or the cluster |
| AlterConfigs, IncrementalAlterConfigs | ALTER_CONFIGS on the same |
| DescribeClientQuotas, ListConfigResources | DESCRIBE_CONFIGS on the cluster |
| AlterClientQuotas | ALTER_CONFIGS on the cluster |
| DescribeAcls, DescribeUserScramCredentials, DescribeLogDirs | DESCRIBE on the cluster |
| DescribeQuorum, ListPartitionReassignments | the same |
| CreateAcls, DeleteAcls, AlterUserScramCredentials | ALTER on the cluster |
| AlterReplicaLogDirs, ElectLeaders, AlterPartitionReassignments | the same |
| UpdateFeatures, UnregisterBroker | the same |
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from onceflow.broker_lite.guards.access import NO_BITS, Access, Verdict, guards, split
from onceflow.broker_lite.guards.topics import DENIED, cluster_bits
from onceflow.broker_lite.guards.transactions import CLUSTER_DENIED
from onceflow.broker_lite.security.acl_model import Operation
from onceflow.sdk.protocol.api.admin import (
    ConfigResourceType,
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
from onceflow.sdk.protocol.api.admin_cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from onceflow.sdk.protocol.api.admin_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from onceflow.sdk.protocol.api.admin_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
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
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from onceflow.sdk.protocol.api.security import SaslAuthenticateRequest, SaslHandshakeRequest
from onceflow.sdk.protocol.api.security_admin import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Response

CLUSTER_MESSAGE = "Cluster authorization failed."
TOPIC_MESSAGE = "Topic authorization failed."


def _open(access: Access, request: object) -> Verdict:
    """Nothing is needed."""
    return None


guards(ApiVersionsRequest)(_open)
guards(SaslHandshakeRequest)(_open)
guards(SaslAuthenticateRequest)(_open)


@guards(DescribeClusterRequest)
def describe_cluster(access: Access, request: DescribeClusterRequest) -> Verdict:
    """Everybody may; the operations told are the client's own."""

    def edit(response: Response) -> None:
        assert isinstance(response, DescribeClusterResponse)
        if response.cluster_authorized_operations != NO_BITS:
            response.cluster_authorized_operations = cluster_bits(access)

    return edit


@guards(CreateTopicsRequest)
def create_topics(access: Access, request: CreateTopicsRequest) -> Verdict:
    """CREATE on the cluster, or on each topic."""
    refused = []
    if not access.cluster(Operation.CREATE):
        request.topics, denied = split(
            request.topics, lambda each: access.topic(Operation.CREATE, each.name)
        )
        refused = [
            CreateTopicsResponse.CreatableTopicResult(
                name=name, error_code=DENIED, error_message="Authorization failed."
            )
            for name in dict.fromkeys(each.name for each in denied)
        ]

    def edit(response: Response) -> None:
        assert isinstance(response, CreateTopicsResponse)
        for each in response.topics:
            if not each.error_code and not access.topic(Operation.DESCRIBE_CONFIGS, each.name):
                each.topic_config_error_code = DENIED
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        response.topics.extend(refused)

    return edit


@guards(DeleteTopicsRequest)
def delete_topics(access: Access, request: DeleteTopicsRequest) -> Verdict:
    """DELETE on each topic; its name is told only to those who may describe it."""
    refused = []
    if access.api_version < 6:
        request.topic_names, denied = split(
            request.topic_names, lambda name: _may_delete(access, name)
        )
        refused = [_refused_deletion(name) for name in denied]
    else:
        allowed = []
        for topic in request.topics:
            name = access.name_of(topic.name, topic.topic_id)
            if name is None or _may_delete(access, name):
                allowed.append(topic)
            elif topic.name or access.topic(Operation.DESCRIBE, name):
                found = access.state.topics.get(name)
                knows = access.topic(Operation.DESCRIBE, name) and found is not None
                answer = _refused_deletion(name)
                answer.topic_id = found.topic_id if knows and found is not None else ZERO_UUID
                refused.append(answer)
            else:
                answer = _refused_deletion(None)
                answer.topic_id = topic.topic_id
                refused.append(answer)
        request.topics = allowed

    def add(response: Response) -> None:
        assert isinstance(response, DeleteTopicsResponse)
        response.responses.extend(refused)

    return add if refused else None


def _may_delete(access: Access, name: str) -> bool:
    """Also one that is not there, for a client that may know that."""
    return access.topic(Operation.DELETE, name) or (
        access.topic(Operation.DESCRIBE, name) and access.state.topics.get(name) is None
    )


def _refused_deletion(name: str | None) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, error_code=DENIED, error_message=TOPIC_MESSAGE
    )


@guards(CreatePartitionsRequest)
def create_partitions(access: Access, request: CreatePartitionsRequest) -> Verdict:
    """ALTER on each topic."""
    request.topics, denied = split(
        request.topics, lambda each: access.topic(Operation.ALTER, each.name)
    )
    refused = [
        CreatePartitionsResponse.CreatePartitionsTopicResult(
            name=each.name, error_code=DENIED, error_message=TOPIC_MESSAGE
        )
        for each in denied
    ]

    def add(response: Response) -> None:
        assert isinstance(response, CreatePartitionsResponse)
        response.results.extend(refused)

    return add if refused else None


# --- settings


def _refusal_of(access: Access, operation: int, kind: int, name: str) -> tuple[ErrorCode, str]:
    """Why settings of a resource may not be looked at or changed; NONE if they may."""
    if kind == ConfigResourceType.TOPIC:
        allowed, code = access.topic(operation, name), DENIED
    elif kind == ConfigResourceType.GROUP:
        allowed, code = access.group(operation, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        allowed, code = access.cluster(operation), CLUSTER_DENIED
    what = {DENIED: TOPIC_MESSAGE, CLUSTER_DENIED: CLUSTER_MESSAGE}
    return (
        (ErrorCode.NONE, "") if allowed else (code, what.get(code, "Group authorization failed."))
    )


Wish = TypeVar("Wish", bound="Configured")


class Configured(Protocol):
    """A part of a request that names a resource with settings."""

    resource_type: int
    resource_name: str


def _part_by_right(
    access: Access, operation: int, wishes: list[Wish]
) -> tuple[list[Wish], list[tuple[Wish, ErrorCode, str]]]:
    """Resources whose settings the client may touch, and the others with the reason."""
    allowed: list[Wish] = []
    refused: list[tuple[Wish, ErrorCode, str]] = []
    for wish in wishes:
        code, message = _refusal_of(access, operation, wish.resource_type, wish.resource_name)
        if code:
            refused.append((wish, code, message))
        else:
            allowed.append(wish)
    return allowed, refused


@guards(DescribeConfigsRequest)
def describe_configs(access: Access, request: DescribeConfigsRequest) -> Verdict:
    """DESCRIBE_CONFIGS on each resource."""
    request.resources, refused = _part_by_right(
        access, Operation.DESCRIBE_CONFIGS, request.resources
    )

    def add(response: Response) -> None:
        assert isinstance(response, DescribeConfigsResponse)
        response.results.extend(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=wish.resource_type,
                resource_name=wish.resource_name,
                configs=[],
            )
            for wish, code, message in refused
        )

    return add if refused else None


@guards(IncrementalAlterConfigsRequest)
def incremental_alter_configs(access: Access, request: IncrementalAlterConfigsRequest) -> Verdict:
    """ALTER_CONFIGS on each resource."""
    request.resources, refused = _part_by_right(access, Operation.ALTER_CONFIGS, request.resources)

    def add(response: Response) -> None:
        assert isinstance(response, IncrementalAlterConfigsResponse)
        response.responses.extend(
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=wish.resource_type,
                resource_name=wish.resource_name,
            )
            for wish, code, message in refused
        )

    return add if refused else None


@guards(AlterConfigsRequest)
def alter_configs(access: Access, request: AlterConfigsRequest) -> Verdict:
    """ALTER_CONFIGS on each resource."""
    request.resources, refused = _part_by_right(access, Operation.ALTER_CONFIGS, request.resources)

    def add(response: Response) -> None:
        assert isinstance(response, AlterConfigsResponse)
        response.responses.extend(
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=wish.resource_type,
                resource_name=wish.resource_name,
            )
            for wish, code, message in refused
        )

    return add if refused else None


# --- the cluster as a whole


@guards(ListConfigResourcesRequest)
def list_config_resources(access: Access, request: ListConfigResourcesRequest) -> Verdict:
    """DESCRIBE_CONFIGS on the cluster."""
    if access.cluster(Operation.DESCRIBE_CONFIGS):
        return None
    return ListConfigResourcesResponse(error_code=CLUSTER_DENIED, config_resources=[])


@guards(DescribeClientQuotasRequest)
def describe_client_quotas(access: Access, request: DescribeClientQuotasRequest) -> Verdict:
    """DESCRIBE_CONFIGS on the cluster."""
    if access.cluster(Operation.DESCRIBE_CONFIGS):
        return None
    return DescribeClientQuotasResponse(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE, entries=None
    )


@guards(AlterClientQuotasRequest)
def alter_client_quotas(access: Access, request: AlterClientQuotasRequest) -> Verdict:
    """ALTER_CONFIGS on the cluster."""
    if access.cluster(Operation.ALTER_CONFIGS):
        return None
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=CLUSTER_DENIED,
                error_message=CLUSTER_MESSAGE,
                entity=[
                    AlterClientQuotasResponse.EntityData(
                        entity_type=part.entity_type, entity_name=part.entity_name
                    )
                    for part in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


@guards(DescribeAclsRequest)
def describe_acls(access: Access, request: DescribeAclsRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.cluster(Operation.DESCRIBE):
        return None
    return DescribeAclsResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE)


@guards(CreateAclsRequest)
def create_acls(access: Access, request: CreateAclsRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    refused = CreateAclsResponse.AclCreationResult(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE
    )
    return CreateAclsResponse(results=[refused for _ in request.creations])


@guards(DeleteAclsRequest)
def delete_acls(access: Access, request: DeleteAclsRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE
    )
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


@guards(DescribeUserScramCredentialsRequest)
def describe_scram_users(access: Access, request: DescribeUserScramCredentialsRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.cluster(Operation.DESCRIBE):
        return None
    hidden = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user="", error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE
    )
    return DescribeUserScramCredentialsResponse(
        error_code=CLUSTER_DENIED,
        error_message=CLUSTER_MESSAGE,
        results=[hidden for _ in request.users or ()],
    )


@guards(AlterUserScramCredentialsRequest)
def alter_scram_users(access: Access, request: AlterUserScramCredentialsRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=name, error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE
            )
            for name in dict.fromkeys(names)
        ]
    )


@guards(DescribeLogDirsRequest)
def describe_log_dirs(access: Access, request: DescribeLogDirsRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.cluster(Operation.DESCRIBE):
        return None
    return DescribeLogDirsResponse(error_code=CLUSTER_DENIED, results=[])


@guards(AlterReplicaLogDirsRequest)
def alter_replica_log_dirs(access: Access, request: AlterReplicaLogDirsRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=CLUSTER_DENIED
                    )
                    for index in topic.partitions
                ],
            )
            for folder in request.dirs
            for topic in folder.topics
        ]
    )


@guards(ElectLeadersRequest)
def elect_leaders(access: Access, request: ElectLeadersRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    return ElectLeadersResponse(
        error_code=CLUSTER_DENIED,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    ElectLeadersResponse.PartitionResult(
                        partition_id=index,
                        error_code=CLUSTER_DENIED,
                        error_message=CLUSTER_MESSAGE,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


@guards(AlterPartitionReassignmentsRequest)
def alter_reassignments(access: Access, request: AlterPartitionReassignmentsRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    return AlterPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE, responses=[]
    )


@guards(ListPartitionReassignmentsRequest)
def list_reassignments(access: Access, request: ListPartitionReassignmentsRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.cluster(Operation.DESCRIBE):
        return None
    return ListPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE, topics=[]
    )


@guards(DescribeQuorumRequest)
def describe_quorum(access: Access, request: DescribeQuorumRequest) -> Verdict:
    """DESCRIBE on the cluster."""
    if access.cluster(Operation.DESCRIBE):
        return None
    return DescribeQuorumResponse(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE, topics=[], nodes=[]
    )


@guards(UpdateFeaturesRequest)
def update_features(access: Access, request: UpdateFeaturesRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    return UpdateFeaturesResponse(
        error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE, results=[]
    )


@guards(UnregisterBrokerRequest)
def unregister_broker(access: Access, request: UnregisterBrokerRequest) -> Verdict:
    """ALTER on the cluster."""
    if access.cluster(Operation.ALTER):
        return None
    return UnregisterBrokerResponse(error_code=CLUSTER_DENIED, error_message=CLUSTER_MESSAGE)
