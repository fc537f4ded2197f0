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

from collections.abc import Callable
from typing import Any, Protocol

from onceflow.broker_lite.guards.access import Access, Guard, Verdict, guards, split
from onceflow.broker_lite.guards.topics import DENIED, cluster_bits
from onceflow.broker_lite.guards.transactions import CLUSTER_DENIED
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.model.admin import ResourceType
from onceflow.sdk.protocol.api.admin import (
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
    NOT_REQUESTED,
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
from onceflow.sdk.protocol.schema import Request, Response

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
        if response.cluster_authorized_operations != NOT_REQUESTED:
            response.cluster_authorized_operations = cluster_bits(access)

    return edit


@guards(CreateTopicsRequest)
def create_topics(access: Access, request: CreateTopicsRequest) -> Verdict:
    """CREATE on the cluster, or on each topic."""
    refused = []
    if not access.cluster(AclOperation.CREATE):
        request.topics, denied = split(
            request.topics, lambda each: access.topic(AclOperation.CREATE, each.name)
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
            if not each.error_code and not access.topic(AclOperation.DESCRIBE_CONFIGS, each.name):
                each.topic_config_error_code = DENIED
                each.num_partitions = each.replication_factor = -1
                each.configs = []
        response.topics.extend(refused)

    return edit


@guards(DeleteTopicsRequest)
def delete_topics(access: Access, request: DeleteTopicsRequest) -> Verdict:
    """DELETE on each topic; the answer names it only to clients that may describe it."""
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
            elif topic.name or access.topic(AclOperation.DESCRIBE, name):
                found = access.state.topics.get(name)
                knows = access.topic(AclOperation.DESCRIBE, name) and found is not None
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
    """Whether the client may delete the topic, or learn that it does not exist."""
    return access.topic(AclOperation.DELETE, name) or (
        access.topic(AclOperation.DESCRIBE, name) and access.state.topics.get(name) is None
    )


def _refused_deletion(name: str | None) -> DeleteTopicsResponse.DeletableTopicResult:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, error_code=DENIED, error_message=TOPIC_MESSAGE
    )


@guards(CreatePartitionsRequest)
def create_partitions(access: Access, request: CreatePartitionsRequest) -> Verdict:
    """ALTER on each topic."""
    request.topics, denied = split(
        request.topics, lambda each: access.topic(AclOperation.ALTER, each.name)
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
    if kind == ResourceType.TOPIC:
        allowed, code = access.topic(operation, name), DENIED
    elif kind == ResourceType.GROUP:
        allowed, code = access.group(operation, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        allowed, code = access.cluster(operation), CLUSTER_DENIED
    what = {DENIED: TOPIC_MESSAGE, CLUSTER_DENIED: CLUSTER_MESSAGE}
    return (
        (ErrorCode.NONE, "") if allowed else (code, what.get(code, "Group authorization failed."))
    )


class Configured(Protocol):
    """A part of a request that names a resource with settings."""

    resource_type: int
    resource_name: str


def _each_resource(
    operation: AclOperation,
    refused: Callable[[Configured, ErrorCode, str], object],
    answered: str,
) -> Guard[Any]:
    """Make a guard that takes out the resources whose settings the client may not touch.

    Args:
        operation: What the client needs on each resource.
        refused: Makes the part of the answer that refuses a resource.
        answered: Array of the answer that the part goes to.
    """

    def guard(access: Access, request: Any) -> Verdict:
        refusals = []
        allowed = []
        for wish in request.resources:
            code, message = _refusal_of(access, operation, wish.resource_type, wish.resource_name)
            if code:
                refusals.append(refused(wish, code, message))
            else:
                allowed.append(wish)
        request.resources = allowed
        if not refusals:
            return None
        return lambda response: getattr(response, answered).extend(refusals)

    return guard


guards(DescribeConfigsRequest)(
    _each_resource(
        AclOperation.DESCRIBE_CONFIGS,
        lambda wish, code, message: DescribeConfigsResponse.DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=wish.resource_type,
            resource_name=wish.resource_name,
            configs=[],
        ),
        "results",
    )
)
guards(IncrementalAlterConfigsRequest)(
    _each_resource(
        AclOperation.ALTER_CONFIGS,
        lambda wish, code, message: IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
            error_code=code,
            error_message=message,
            resource_type=wish.resource_type,
            resource_name=wish.resource_name,
        ),
        "responses",
    )
)
guards(AlterConfigsRequest)(
    _each_resource(
        AclOperation.ALTER_CONFIGS,
        lambda wish, code, message: AlterConfigsResponse.AlterConfigsResourceResponse(
            error_code=code,
            error_message=message,
            resource_type=wish.resource_type,
            resource_name=wish.resource_name,
        ),
        "responses",
    )
)


# --- the cluster as a whole

WHOLE: dict[str, Any] = {"error_code": CLUSTER_DENIED, "error_message": CLUSTER_MESSAGE}
"""How an answer, or a part of one, refuses."""


def _quota_entries(request: AlterClientQuotasRequest) -> Response:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                **WHOLE,
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


def _acl_creations(request: CreateAclsRequest) -> Response:
    refused = CreateAclsResponse.AclCreationResult(**WHOLE)
    return CreateAclsResponse(results=[refused for _ in request.creations])


def _acl_filters(request: DeleteAclsRequest) -> Response:
    refused = DeleteAclsResponse.DeleteAclsFilterResult(**WHOLE)
    return DeleteAclsResponse(filter_results=[refused for _ in request.filters])


def _scram_users(request: DescribeUserScramCredentialsRequest) -> Response:
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    hidden = result(user="", **WHOLE)
    return DescribeUserScramCredentialsResponse(
        **WHOLE, results=[hidden for _ in request.users or ()]
    )


def _scram_changes(request: AlterUserScramCredentialsRequest) -> Response:
    result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    names = [each.name for each in request.deletions] + [each.name for each in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[result(user=name, **WHOLE) for name in dict.fromkeys(names)]
    )


def _moves_of_replicas(request: AlterReplicaLogDirsRequest) -> Response:
    result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    partition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
    return AlterReplicaLogDirsResponse(
        results=[
            result(
                topic_name=topic.name,
                partitions=[
                    partition(partition_index=index, error_code=CLUSTER_DENIED)
                    for index in topic.partitions
                ],
            )
            for folder in request.dirs
            for topic in folder.topics
        ]
    )


def _elections(request: ElectLeadersRequest) -> Response:
    partition = ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        error_code=CLUSTER_DENIED,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    partition(partition_id=index, **WHOLE) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


ON_THE_CLUSTER: dict[type[Request], tuple[AclOperation, Callable[[Any], Response]]] = {
    ListConfigResourcesRequest: (
        AclOperation.DESCRIBE_CONFIGS,
        lambda _: ListConfigResourcesResponse(error_code=CLUSTER_DENIED, config_resources=[]),
    ),
    DescribeClientQuotasRequest: (
        AclOperation.DESCRIBE_CONFIGS,
        lambda _: DescribeClientQuotasResponse(**WHOLE, entries=None),
    ),
    AlterClientQuotasRequest: (AclOperation.ALTER_CONFIGS, _quota_entries),
    DescribeAclsRequest: (AclOperation.DESCRIBE, lambda _: DescribeAclsResponse(**WHOLE)),
    CreateAclsRequest: (AclOperation.ALTER, _acl_creations),
    DeleteAclsRequest: (AclOperation.ALTER, _acl_filters),
    DescribeUserScramCredentialsRequest: (AclOperation.DESCRIBE, _scram_users),
    AlterUserScramCredentialsRequest: (AclOperation.ALTER, _scram_changes),
    DescribeLogDirsRequest: (
        AclOperation.DESCRIBE,
        lambda _: DescribeLogDirsResponse(error_code=CLUSTER_DENIED, results=[]),
    ),
    AlterReplicaLogDirsRequest: (AclOperation.ALTER, _moves_of_replicas),
    ElectLeadersRequest: (AclOperation.ALTER, _elections),
    AlterPartitionReassignmentsRequest: (
        AclOperation.ALTER,
        lambda _: AlterPartitionReassignmentsResponse(**WHOLE, responses=[]),
    ),
    ListPartitionReassignmentsRequest: (
        AclOperation.DESCRIBE,
        lambda _: ListPartitionReassignmentsResponse(**WHOLE, topics=[]),
    ),
    DescribeQuorumRequest: (
        AclOperation.DESCRIBE,
        lambda _: DescribeQuorumResponse(**WHOLE, topics=[], nodes=[]),
    ),
    UpdateFeaturesRequest: (
        AclOperation.ALTER,
        lambda _: UpdateFeaturesResponse(**WHOLE, results=[]),
    ),
    UnregisterBrokerRequest: (AclOperation.ALTER, lambda _: UnregisterBrokerResponse(**WHOLE)),
}
"""Requests that need a right on the cluster and nothing else: the right, and the refusal."""


def _on_the_cluster(operation: AclOperation, refused: Callable[[Any], Response]) -> Guard[Any]:
    def guard(access: Access, request: Request) -> Verdict:
        return None if access.cluster(operation) else refused(request)

    return guard


for _request_type, (_operation, _refused) in ON_THE_CLUSTER.items():
    guards(_request_type)(_on_the_cluster(_operation, _refused))
