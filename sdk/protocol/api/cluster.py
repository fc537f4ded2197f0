"""Messages that describe a cluster: supported requests, brokers, topics, coordinators.

Layouts only: `core.metadata` and the broker's handlers give the answers their meaning.

Metadata (key 3), versions 0-13, flexible from 9:
    1 null for all topics, racks, controller
    2 cluster id
    3 throttle time
    4 whether to create topics
    5 offline replicas
    7 leader epochs
    8 authorized operations
    10 topic ids
    11 cluster operations dropped (KIP-700)
    12 topics named by id
    13 error of the whole answer
FindCoordinator (key 10), versions 0-6, flexible from 3:
    1 key types and throttle time
    4 several keys at once (KIP-699)
    5 TRANSACTION_ABORTABLE (KIP-890)
    6 share groups (KIP-932)
ApiVersions (key 18), versions 0-4, flexible from 3, response header never:
    1 throttle time
    3 client's name and feature tags (KIP-511, KIP-584)
    4 features may start at 0 (KAFKA-17011)
DescribeCluster (key 60), versions 0-2, all flexible:
    1 endpoint type (KIP-919)
    2 fenced brokers (KIP-1073)
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias
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
    uuid,
)

NOT_REQUESTED: Final = -0x80000000
"""Value of an operations field that the request did not ask for."""


class CoordinatorType(enum.IntEnum):
    """Kind of coordinator that FindCoordinator looks for (`key_type`)."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class ApiVersionsRequest(Request, api_key=18, versions="0-4", flexible="3+"):
    """Ask which requests, versions and features a broker supports; a client's first request."""

    client_software_name: str = string("3+", default="", ignorable=True)
    client_software_version: str = string("3+", default="", ignorable=True)


class ApiVersionsResponse(Response, api_key=18, versions="0-4", flexible="3+"):
    """Supported requests and features; for a version that is too new, error 35 in version 0."""

    class ApiVersion(Struct):
        """One kind of request."""

        api_key: int = int16()
        min_version: int = int16()
        max_version: int = int16()

    class SupportedFeatureKey(Struct):
        """A feature that the broker supports."""

        name: str = string()
        min_version: int = int16()
        max_version: int = int16()

    class FinalizedFeatureKey(Struct):
        """A feature with the level that the cluster has agreed on."""

        name: str = string()
        max_version_level: int = int16()
        min_version_level: int = int16()

    error_code: int = int16(default=0)
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, default=[], tag=0, tagged="3+", ignorable=True
    )
    finalized_features_epoch: int = int64(default=-1, tag=1, tagged="3+", ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, default=[], tag=2, tagged="3+", ignorable=True
    )
    zk_migration_ready: bool = boolean(default=False, tag=3, tagged="3+", ignorable=True)


class MetadataRequest(Request, api_key=3, versions="0-13", flexible="9+"):
    """Ask for brokers and topics; null asks for all topics (in version 0 an empty list does)."""

    class MetadataRequestTopic(Struct):
        """A topic by name, or from version 12 by id."""

        topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
        name: str | None = string(nullable="10+", default=None)

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10", default=False)
    include_topic_authorized_operations: bool = boolean("8+", default=False)


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    """The brokers of the cluster and the requested topics."""

    class MetadataResponseBroker(Struct):
        """A broker under the address that it advertises."""

        node_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponseTopic(Struct):
        """A topic, or the error about it."""

        class MetadataResponsePartition(Struct):
            """A partition with its leader, -1 for none."""

            error_code: int = int16(default=0)
            partition_index: int = int32()
            leader_id: int = int32()
            leader_epoch: int = int32("7+", default=-1, ignorable=True)
            replica_nodes: list[int] = array(int32)
            isr_nodes: list[int] = array(int32)
            offline_replicas: list[int] = array(int32, "5+", default=[], ignorable=True)

        error_code: int = int16(default=0)
        name: str | None = string(nullable="12+")
        topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
        is_internal: bool = boolean("1+", default=False, ignorable=True)
        partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
        topic_authorized_operations: int = int32("8+", default=NOT_REQUESTED)

    MetadataResponsePartition: TypeAlias = MetadataResponseTopic.MetadataResponsePartition

    throttle_time_ms: int = int32("3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32("8-10", default=NOT_REQUESTED)
    error_code: int = int16("13+", default=0, ignorable=True)


class FindCoordinatorRequest(Request, api_key=10, versions="0-6", flexible="3+"):
    """Ask for the coordinator of a group or transactional id; from version 4 on of several."""

    key: str = string("0-3", default="")
    key_type: int = int8("1+", default=0)
    coordinator_keys: list[str] = array(string, "4+", default=[])


class FindCoordinatorResponse(Response, api_key=10, versions="0-6", flexible="3+"):
    """The coordinator, or from version 4 on one for each key."""

    class Coordinator(Struct):
        """The coordinator of one key."""

        key: str = string()
        node_id: int = int32()
        host: str = string()
        port: int = int32()
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)

    throttle_time_ms: int = int32("1+", default=0, ignorable=True)
    error_code: int = int16("0-3", default=0)
    error_message: str | None = string("1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = int32("0-3", default=-1)
    host: str = string("0-3", default="")
    port: int = int32("0-3", default=-1)
    coordinators: list[Coordinator] = array(Coordinator, "4+", default=[])


class DescribeClusterRequest(Request, api_key=60, versions="0-2", flexible="0+"):
    """Ask for the brokers (endpoint type 1) or the controllers (2)."""

    include_cluster_authorized_operations: bool = boolean(default=False)
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+", default=False)


class DescribeClusterResponse(Response, api_key=60, versions="0-2", flexible="0+"):
    """The nodes of the cluster."""

    class DescribeClusterBroker(Struct):
        """A node under the address that it advertises."""

        broker_id: int = int32()
        host: str = string()
        port: int = int32()
        rack: str | None = string(nullable="0+", default=None)
        is_fenced: bool = boolean("2+", default=False)

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string(default="")
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker, default=[])
    cluster_authorized_operations: int = int32(default=NOT_REQUESTED)
