"""ApiVersions, Metadata, FindCoordinator and DescribeCluster.

Decides what is advertised: served requests (derived from the registry), features, addresses, and
topics, which Metadata may also create. ``placement`` decides on leaders and coordinators.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.security.acl_model import OPERATIONS
from onceflow.broker_lite.slices import in_slices
from onceflow.broker_lite.topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTION_TOPIC,
    Topic,
    TopicError,
    check_topic_name,
)
from onceflow.sdk.model.acl_enums import AclResourceType
from onceflow.sdk.model.special_values import METADATA_TOPIC
from onceflow.sdk.protocol.api.cluster import (
    NOT_REQUESTED,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CoordinatorType,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from onceflow.broker_lite.placement import Placement
    from onceflow.broker_lite.services import Services

SOFTWARE_NAME_MIN_VERSION = 3
_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)

TOPIC_OPERATIONS = sum(1 << each for each in OPERATIONS[AclResourceType.TOPIC])
"""Operations on a topic that are allowed without an authorizer: all."""

CLUSTER_OPERATIONS = sum(1 << each for each in OPERATIONS[AclResourceType.CLUSTER])
"""The same for the cluster."""

TOPIC_ID_MIN_VERSION = 12
"""First Metadata version that names topics by id, and answers no name for an unknown one."""

FEATURES_FROM_ZERO_MIN_VERSION = 4
"""Java clients with version 3 fail at a feature whose lowest level is 0 (KAFKA-17011)."""

KEYS_PER_STEP = 20
"""Coordinators that one step finds, if a request asks for very many."""

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


@handles(ApiVersionsRequest)
def api_versions(
    state: Services, context: RequestContext, request: ApiVersionsRequest, now_ms: int
) -> ApiVersionsResponse:
    """Return the served requests and the features (KIP-35, KIP-584)."""
    if context.api_version >= SOFTWARE_NAME_MIN_VERSION and not (
        _SOFTWARE_NAME.fullmatch(request.client_software_name)
        and _SOFTWARE_NAME.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return ApiVersionsResponse(
        error_code=0,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=api_key, min_version=served.min_version, max_version=served.max_version
            )
            for api_key, served in state.served().items()
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, low, high, _ in _features(state)
            if low > 0 or context.api_version >= FEATURES_FROM_ZERO_MIN_VERSION
        ],
        finalized_features_epoch=state.features.epoch,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, _, _, level in _features(state)
            if level > 0
        ],
    )


def _features(state: Services) -> list[tuple[str, int, int, int]]:
    """Name, lowest and highest level supported, level in force."""
    features = [
        (known.name, known.min_level, known.max_level, state.features.level(known.name))
        for known in state.features.supported()
    ]
    profile = state.profile
    if profile is None:
        return features
    return [
        (name, low, profile.level(name, high), profile.level(name, level))
        for name, low, high, level in features
        if name in profile.features
    ]


# --- Metadata

MADE_PARTITIONS_MAX = 100
"""Most partitions that one Metadata request makes; the quota ``controller_mutation_rate`` bounds
them too. Further topics are UNKNOWN_TOPIC_OR_PARTITION until the client repeats the request. Making
a partition takes a millisecond or two, in which the broker serves no other request."""


@handles(MetadataRequest)
def metadata(
    state: Services, context: RequestContext, request: MetadataRequest, now_ms: int
) -> MetadataResponse:
    """Describe the cluster and the requested topics; may create them (trap 67)."""
    api_version = context.api_version
    asked = request.topics
    if asked is None or (api_version == 0 and not asked):
        topics = [_describe_topic(state, topic, request) for topic in state.topics]
    else:
        may_create = state.config.auto_create_topics_enable and (
            api_version < 4 or request.allow_auto_topic_creation
        )
        # A topic that is named twice is described once, as in Kafka, so that a request with
        # repetitions cannot make the answer large.
        named = {(entry.name, entry.topic_id): entry for entry in asked}
        maker = _Maker(state, context, now_ms) if may_create else None
        topics = [
            _find_topic(state, request, api_version, entry, maker) for entry in named.values()
        ]
        if api_version < TOPIC_ID_MIN_VERSION:
            for topic in topics:
                topic.name = topic.name or ""
    brokers = []
    for node in state.placement.running:
        host, port = state.advertised(context, node.node_id)
        brokers.append(
            MetadataResponse.MetadataResponseBroker(
                node_id=node.node_id, host=host, port=port, rack=node.rack
            )
        )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=state.cluster_id,
        controller_id=state.placement.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def _find_topic(
    state: Services,
    request: MetadataRequest,
    api_version: int,
    entry: MetadataRequest.MetadataRequestTopic,
    maker: _Maker | None,
) -> MetadataResponse.MetadataResponseTopic:
    if entry.name is None or entry.topic_id != ZERO_UUID:
        topic = state.topics.get_by_id(entry.topic_id)
        if api_version < TOPIC_ID_MIN_VERSION or topic is None:
            return MetadataResponse.MetadataResponseTopic(
                error_code=(
                    ErrorCode.INVALID_REQUEST
                    if api_version < TOPIC_ID_MIN_VERSION
                    else ErrorCode.UNKNOWN_TOPIC_ID
                ),
                name=entry.name,
                topic_id=entry.topic_id,
                partitions=[],
            )
        return _describe_topic(state, topic, request)
    topic = state.topics.get(entry.name)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None:
        try:
            check_topic_name(entry.name)
            if maker is not None:
                topic = maker.make(entry.name)
        except TopicError as error:
            code = error.code
    if topic is None:
        return MetadataResponse.MetadataResponseTopic(
            error_code=code,
            name=entry.name,
            is_internal=entry.name in INTERNAL_TOPICS,
            partitions=[],
            topic_authorized_operations=_operations(request),
        )
    return _describe_topic(state, topic, request)


class _Maker:
    """Makes topics of one request up to the limit; the client repeats its request for the rest."""

    def __init__(self, state: Services, context: RequestContext, now_ms: int) -> None:
        self._state = state
        self._now_ms = now_ms
        self._left = MADE_PARTITIONS_MAX
        self._quota = state.quotas.mutations(context, True, now_ms)

    def make(self, name: str) -> Topic | None:
        """Make a topic; return None if the limit is reached.

        Raises:
            TopicError: The name is refused.
        """
        count = self._state.config.num_partitions
        if self._left <= 0 or not self._quota.take(count):
            return None
        self._left -= count
        return create_on_demand(self._state, name, self._now_ms)


def _operations(request: MetadataRequest) -> int:
    return TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_REQUESTED


def create_on_demand(state: Services, name: str, now_ms: int) -> Topic:
    """Create a topic that a request names, with the broker's defaults.

    Raises:
        TopicError: The name is refused.
    """
    if name in INTERNAL_TOPICS:
        return state.topics.ensure_internal(name, now_ms)
    if name == METADATA_TOPIC:
        raise TopicError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Topic '{name}' is made by Apache Kafka's controllers only.",
        )
    if state.topics.in_making(name):
        raise TopicError(ErrorCode.LEADER_NOT_AVAILABLE, f"Topic '{name}' is being created.")
    return state.topics.create(name, state.config.num_partitions, {}, now_ms)


def _describe_topic(
    state: Services, topic: Topic, request: MetadataRequest
) -> MetadataResponse.MetadataResponseTopic:
    return MetadataResponse.MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            _describe_partition(state.placement, topic.name, index, log.leader_epoch)
            for index, log in enumerate(topic.partitions)
        ],
        topic_authorized_operations=_operations(request),
    )


def _describe_partition(
    placement: Placement, topic: str, partition: int, leader_epoch: int
) -> MetadataResponse.MetadataResponsePartition:
    leader_id = placement.leader(topic, partition)
    return MetadataResponse.MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader_id >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        replica_nodes=list(placement.replicas(topic, partition)),
        isr_nodes=placement.in_sync(topic, partition),
        offline_replicas=placement.offline(topic, partition),
    )


# --- FindCoordinator, DescribeCluster


@handles(FindCoordinatorRequest)
def find_coordinator(
    state: Services, context: RequestContext, request: FindCoordinatorRequest, now_ms: int
) -> FindCoordinatorResponse | Deferred[FindCoordinatorResponse]:
    """Return the coordinators of groups and transactional ids; make their topic (trap 57)."""
    code, message = _ready_coordinator(state, request.key_type, now_ms)
    if context.api_version < 4:
        found = _coordinator(state, context, request.key_type, request.key, code, message)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    kind, keys = request.key_type, request.coordinator_keys

    def find() -> Generator[None, None, FindCoordinatorResponse]:
        found = []
        for number, key in enumerate(keys, 1):
            found.append(_coordinator(state, context, kind, key, code, message))
            if number % KEYS_PER_STEP == 0:
                yield
        return FindCoordinatorResponse(coordinators=found)

    def failed() -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(
                    key=key, node_id=-1, host="", port=-1, error_code=ErrorCode.UNKNOWN_SERVER_ERROR
                )
                for key in keys
            ]
        )

    return in_slices(state.timers, find(), failed, now_ms)


def _coordinator(
    state: Services,
    context: RequestContext,
    key_type: int,
    key: str,
    code: ErrorCode,
    message: str | None,
) -> FindCoordinatorResponse.Coordinator:
    """Return the node that leads the key's partition of the internal topic, with its address."""
    node_id = -1
    topic = state.topics.get(
        OFFSETS_TOPIC if key_type == CoordinatorType.GROUP else TRANSACTION_TOPIC
    )
    if not code and topic is not None:
        partition = coordinator_partition(key, len(topic.partitions))
        node_id = state.placement.leader(topic.name, partition)
        if node_id < 0:
            code, message = ErrorCode.COORDINATOR_NOT_AVAILABLE, "No node coordinates it now."
    host, port = ("", -1) if code else state.advertised(context, node_id)
    return FindCoordinatorResponse.Coordinator(
        key=key,
        node_id=-1 if code else node_id,
        host=host,
        port=port,
        error_code=code,
        error_message=message,
    )


def _ready_coordinator(state: Services, key_type: int, now_ms: int) -> tuple[ErrorCode, str | None]:
    try:
        if key_type == CoordinatorType.GROUP:
            state.topics.ensure_internal(OFFSETS_TOPIC, now_ms)
        elif key_type == CoordinatorType.TRANSACTION:
            state.topics.ensure_internal(TRANSACTION_TOPIC, now_ms)
        else:
            return (
                ErrorCode.INVALID_REQUEST,
                f"Coordinators of key type {key_type} are not served; 0 (group) and "
                "1 (transaction) are.",
            )
    except TopicError as error:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message
    return ErrorCode.NONE, None


@handles(DescribeClusterRequest)
def describe_cluster(
    state: Services, context: RequestContext, request: DescribeClusterRequest, now_ms: int
) -> DescribeClusterResponse:
    """Describe the nodes; the first one is the controller (KIP-700)."""
    if context.api_version >= 1 and request.endpoint_type != ENDPOINT_BROKERS:
        return DescribeClusterResponse(
            error_code=(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == ENDPOINT_CONTROLLERS
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            ),
            error_message="This is a broker's endpoint (type 1).",
            endpoint_type=ENDPOINT_BROKERS,
            cluster_id="",
            brokers=[],
        )
    brokers = []
    for node in state.placement.nodes.values():
        if node.running or (request.include_fenced_brokers and node.registered):
            host, port = state.advertised(context, node.node_id)
            brokers.append(
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=node.node_id,
                    host=host,
                    port=port,
                    rack=node.rack,
                    is_fenced=not node.running,
                )
            )
    return DescribeClusterResponse(
        error_code=0,
        endpoint_type=ENDPOINT_BROKERS,
        cluster_id=state.cluster_id,
        controller_id=state.placement.controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )
