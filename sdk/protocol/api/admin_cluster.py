"""Messages about the controllers' quorum, feature levels, and brokers to unregister.

DescribeQuorum (key 55), versions 0-2, all flexible:
    1 times of the last fetch (KIP-836)
    2 directory ids and listeners of the controllers (KIP-853)
UpdateFeatures (key 57), versions 0-2, all flexible:
    1 upgrade types and validation only (KIP-778)
    2 one outcome for all features (KIP-1022)
UnregisterBroker (key 64), version 0, flexible
"""

from __future__ import annotations

import enum
from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class UpgradeType(enum.IntEnum):
    """The change of a feature's level that UpdateFeatures allows."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class DescribeQuorumRequest(Request, api_key=55, versions="0-2", flexible="0+"):
    """Ask for the leader, voters and observers of the metadata log."""

    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: int = int32()

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    PartitionData: TypeAlias = TopicData.PartitionData

    topics: list[TopicData] = array(TopicData)


class ReplicaState(Struct):
    """How far one node has read the log."""

    replica_id: int = int32()
    replica_directory_id: UUID = uuid("2+", default=ZERO_UUID)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    """Leader, voters and observers, and the voters' addresses."""

    class TopicData(Struct):
        class PartitionData(Struct):
            """One partition, or the error about it."""

            partition_index: int = int32()
            error_code: int = int16(default=0)
            error_message: str | None = string("2+", nullable="2+", default=None, ignorable=True)
            leader_id: int = int32()
            leader_epoch: int = int32()
            high_watermark: int = int64()
            current_voters: list[ReplicaState] = array(ReplicaState)
            observers: list[ReplicaState] = array(ReplicaState)

        topic_name: str = string()
        partitions: list[PartitionData] = array(PartitionData)

    PartitionData: TypeAlias = TopicData.PartitionData

    class Node(Struct):
        class Listener(Struct):
            """An address of the controller."""

            name: str = string()
            host: str = string()
            port: int = uint16()

        node_id: int = int32()
        listeners: list[Listener] = array(Listener)

    Listener: TypeAlias = Node.Listener

    error_code: int = int16(default=0)
    error_message: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, "2+", default=[])


class UpdateFeaturesRequest(Request, api_key=57, versions="0-2", flexible="0+"):
    """Set the levels of features, or only validate the request."""

    class FeatureUpdateKey(Struct):
        """One feature and its new level; 0 disables it."""

        feature: str = string()
        max_version_level: int = int16()
        allow_downgrade: bool = boolean("0", default=False)
        upgrade_type: int = int8("1+", default=1)

    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean("1+", default=False)


class UpdateFeaturesResponse(Response, api_key=57, versions="0-2", flexible="0+"):
    """The outcome; below version 2 one for each feature."""

    class UpdatableFeatureResult(Struct):
        feature: str = string()
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    results: list[UpdatableFeatureResult] = array(
        UpdatableFeatureResult, "0-1", default=[], ignorable=True
    )


class UnregisterBrokerRequest(Request, api_key=64, versions="0", flexible="0+"):
    """Remove a stopped broker from the cluster."""

    broker_id: int = int32()


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    """The outcome."""

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
