"""UpdateFeatures, DescribeQuorum and UnregisterBroker.

Every node counts as a controller, and the first running one leads. ``features`` has the levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.features import FeatureUpdate
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
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
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

QUORUM_EPOCH = 1
ONE_OUTCOME_MIN_VERSION = 2


@handles(UpdateFeaturesRequest)
def update_features(
    state: Services, context: RequestContext, request: UpdateFeaturesRequest, now_ms: int
) -> UpdateFeaturesResponse:
    """Set levels, all or none of them (KIP-584, KIP-1022)."""
    updates = [
        FeatureUpdate(
            update.feature,
            update.max_version_level,
            UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else update.upgrade_type,
        )
        for update in request.feature_updates
    ]
    refusal = next(filter(None, map(state.features.refusal, updates)), None)
    code, message = ErrorCode.NONE, None
    if refusal is not None:
        code, message = ErrorCode.INVALID_UPDATE_VERSION, refusal
    elif not request.validate_only:
        try:
            state.features.update({update.name: update.level for update in updates})
        except OSError as error:
            code, message = ErrorCode.KAFKA_STORAGE_ERROR, f"Levels cannot be stored: {error}."
    results = []
    if context.api_version < ONE_OUTCOME_MIN_VERSION and not code:
        results = [
            UpdateFeaturesResponse.UpdatableFeatureResult(feature=name)
            for name in dict.fromkeys(update.name for update in updates)
        ]
    return UpdateFeaturesResponse(error_code=code, error_message=message, results=results)


@handles(DescribeQuorumRequest)
def describe_quorum(
    state: Services, context: RequestContext, request: DescribeQuorumRequest, now_ms: int
) -> DescribeQuorumResponse:
    """Describe the nodes as controllers; a running one has the whole metadata log (KIP-595)."""
    nodes = []
    for node_id in state.placement.nodes if context.api_version >= 2 else ():
        host, port = state.advertised(context, node_id)
        listener = DescribeQuorumResponse.Listener(name=context.listener, host=host, port=port)
        nodes.append(DescribeQuorumResponse.Node(node_id=node_id, listeners=[listener]))
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _quorum(state, topic.topic_name, partition.partition_index, now_ms)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=nodes,
    )


def _quorum(
    state: Services, topic: str, index: int, now_ms: int
) -> DescribeQuorumResponse.PartitionData:
    if topic != METADATA_TOPIC or index:
        return DescribeQuorumResponse.PartitionData(
            partition_index=index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"Only partition 0 of {METADATA_TOPIC} has a quorum.",
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
    # Without a metadata log there is no number of changes to report.
    voters = [
        ReplicaState(
            replica_id=node.node_id,
            log_end_offset=0 if node.running else -1,
            last_fetch_timestamp=now_ms if node.running else -1,
            last_caught_up_timestamp=now_ms if node.running else -1,
        )
        for node in state.placement.nodes.values()
    ]
    return DescribeQuorumResponse.PartitionData(
        partition_index=index,
        leader_id=state.placement.controller_id,
        leader_epoch=QUORUM_EPOCH,
        high_watermark=0,
        current_voters=voters,
        observers=[],
    )


@handles(UnregisterBrokerRequest)
def unregister_broker(
    state: Services, context: RequestContext, request: UnregisterBrokerRequest, now_ms: int
) -> UnregisterBrokerResponse:
    """Leave a stopped node out of answers until it runs again; refuse a running one."""
    node = state.placement.nodes.get(request.broker_id)
    if node is not None and node.running:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"Broker {request.broker_id} is running; stop it instead.",
        )
    if node is None or not node.registered:
        known = [each.node_id for each in state.placement.nodes.values() if each.registered]
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"Unknown broker {request.broker_id}; the brokers are {known}.",
        )
    node.registered = False
    return UnregisterBrokerResponse()
