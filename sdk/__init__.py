"""The client SDK: producers, consumers and admin clients, blocking and for asyncio.

Names are loaded at their first use, so that importing the package costs next to nothing and a
program that only produces never loads the consumer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.sdk import errors as errors
    from onceflow.sdk import serde as serde
    from onceflow.sdk.admin_cluster_model import AclBinding as AclBinding
    from onceflow.sdk.admin_cluster_model import AclFilter as AclFilter
    from onceflow.sdk.admin_cluster_model import AclOperation as AclOperation
    from onceflow.sdk.admin_cluster_model import AclPatternType as AclPatternType
    from onceflow.sdk.admin_cluster_model import AclPermission as AclPermission
    from onceflow.sdk.admin_cluster_model import AclResourceType as AclResourceType
    from onceflow.sdk.admin_cluster_model import AnyName as AnyName
    from onceflow.sdk.admin_cluster_model import ClientQuota as ClientQuota
    from onceflow.sdk.admin_cluster_model import FeatureMetadata as FeatureMetadata
    from onceflow.sdk.admin_cluster_model import LogDirDescription as LogDirDescription
    from onceflow.sdk.admin_cluster_model import OffsetReset as OffsetReset
    from onceflow.sdk.admin_cluster_model import PartitionReassignment as PartitionReassignment
    from onceflow.sdk.admin_cluster_model import QuorumDescription as QuorumDescription
    from onceflow.sdk.admin_cluster_model import QuorumReplica as QuorumReplica
    from onceflow.sdk.admin_cluster_model import ReplicaInfo as ReplicaInfo
    from onceflow.sdk.admin_cluster_model import ScramDeletion as ScramDeletion
    from onceflow.sdk.admin_cluster_model import ScramUpsertion as ScramUpsertion
    from onceflow.sdk.admin_model import BrokerNode as BrokerNode
    from onceflow.sdk.admin_model import ClusterDescription as ClusterDescription
    from onceflow.sdk.admin_model import ConfigEntry as ConfigEntry
    from onceflow.sdk.admin_model import ConfigResource as ConfigResource
    from onceflow.sdk.admin_model import GroupDescription as GroupDescription
    from onceflow.sdk.admin_model import GroupListing as GroupListing
    from onceflow.sdk.admin_model import MemberDescription as MemberDescription
    from onceflow.sdk.admin_model import ProducerState as ProducerState
    from onceflow.sdk.admin_model import ResourceType as ResourceType
    from onceflow.sdk.admin_model import TopicDescription as TopicDescription
    from onceflow.sdk.admin_model import TransactionDescription as TransactionDescription
    from onceflow.sdk.admin_model import TransactionListing as TransactionListing
    from onceflow.sdk.aio.admin import AsyncAdmin as AsyncAdmin
    from onceflow.sdk.aio.consumer import AsyncConsumer as AsyncConsumer
    from onceflow.sdk.aio.delivery import AsyncDeliveries as AsyncDeliveries
    from onceflow.sdk.aio.delivery import AsyncDelivery as AsyncDelivery
    from onceflow.sdk.aio.producer import AsyncProducer as AsyncProducer
    from onceflow.sdk.aio.producer import AsyncTransaction as AsyncTransaction
    from onceflow.sdk.columns import RecordColumns as RecordColumns
    from onceflow.sdk.config import AdminConfig as AdminConfig
    from onceflow.sdk.config import ConsumerConfig as ConsumerConfig
    from onceflow.sdk.config import ProducerConfig as ProducerConfig
    from onceflow.sdk.core.partitioner import murmur2_partition as murmur2_partition
    from onceflow.sdk.errors import KafkaError as KafkaError
    from onceflow.sdk.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from onceflow.sdk.interceptors import ProducerInterceptor as ProducerInterceptor
    from onceflow.sdk.interceptors import ProducerRecord as ProducerRecord
    from onceflow.sdk.metrics import ConnectionMetrics as ConnectionMetrics
    from onceflow.sdk.metrics import ConsumerMetrics as ConsumerMetrics
    from onceflow.sdk.metrics import ConsumerTopicMetrics as ConsumerTopicMetrics
    from onceflow.sdk.metrics import ProducerMetrics as ProducerMetrics
    from onceflow.sdk.metrics import ProducerTopicMetrics as ProducerTopicMetrics
    from onceflow.sdk.model import ConsumerGroupMetadata as ConsumerGroupMetadata
    from onceflow.sdk.model import ConsumerRecord as ConsumerRecord
    from onceflow.sdk.model import Headers as Headers
    from onceflow.sdk.model import IsolationLevel as IsolationLevel
    from onceflow.sdk.model import NewTopic as NewTopic
    from onceflow.sdk.model import OffsetAndMetadata as OffsetAndMetadata
    from onceflow.sdk.model import OffsetAndTimestamp as OffsetAndTimestamp
    from onceflow.sdk.model import PartitionInfo as PartitionInfo
    from onceflow.sdk.model import ProducerIdentity as ProducerIdentity
    from onceflow.sdk.model import RecordMetadata as RecordMetadata
    from onceflow.sdk.model import TimestampType as TimestampType
    from onceflow.sdk.model import TopicPartition as TopicPartition
    from onceflow.sdk.oauth import ClientCredentials as ClientCredentials
    from onceflow.sdk.security import OAuthToken as OAuthToken
    from onceflow.sdk.security import SecurityConfig as SecurityConfig
    from onceflow.sdk.serde import Serde as Serde
    from onceflow.sdk.sync.admin import Admin as Admin
    from onceflow.sdk.sync.consumer import Consumer as Consumer
    from onceflow.sdk.sync.delivery import Deliveries as Deliveries
    from onceflow.sdk.sync.delivery import Delivery as Delivery
    from onceflow.sdk.sync.producer import Producer as Producer
    from onceflow.sdk.sync.producer import Transaction as Transaction

_HOMES = {
    "Admin": "sync.admin",
    "AdminConfig": "config",
    "AsyncAdmin": "aio.admin",
    "AsyncConsumer": "aio.consumer",
    "AsyncDeliveries": "aio.delivery",
    "AsyncDelivery": "aio.delivery",
    "AsyncProducer": "aio.producer",
    "AsyncTransaction": "aio.producer",
    "BrokerNode": "admin_model",
    "AclBinding": "admin_cluster_model",
    "AclFilter": "admin_cluster_model",
    "AclOperation": "admin_cluster_model",
    "AclPatternType": "admin_cluster_model",
    "AclPermission": "admin_cluster_model",
    "AclResourceType": "admin_cluster_model",
    "AnyName": "admin_cluster_model",
    "ClientQuota": "admin_cluster_model",
    "FeatureMetadata": "admin_cluster_model",
    "LogDirDescription": "admin_cluster_model",
    "OffsetReset": "admin_cluster_model",
    "PartitionReassignment": "admin_cluster_model",
    "QuorumDescription": "admin_cluster_model",
    "QuorumReplica": "admin_cluster_model",
    "ReplicaInfo": "admin_cluster_model",
    "ScramDeletion": "admin_cluster_model",
    "ScramUpsertion": "admin_cluster_model",
    "ClusterDescription": "admin_model",
    "ConfigEntry": "admin_model",
    "ConfigResource": "admin_model",
    "ConnectionMetrics": "metrics",
    "Consumer": "sync.consumer",
    "ConsumerConfig": "config",
    "ConsumerGroupMetadata": "model",
    "ConsumerInterceptor": "interceptors",
    "ConsumerMetrics": "metrics",
    "ConsumerRecord": "model",
    "ConsumerTopicMetrics": "metrics",
    "Deliveries": "sync.delivery",
    "Delivery": "sync.delivery",
    "GroupDescription": "admin_model",
    "GroupListing": "admin_model",
    "Headers": "model",
    "IsolationLevel": "model",
    "KafkaError": "errors",
    "MemberDescription": "admin_model",
    "NewTopic": "model",
    "OffsetAndMetadata": "model",
    "OffsetAndTimestamp": "model",
    "PartitionInfo": "model",
    "Producer": "sync.producer",
    "ProducerConfig": "config",
    "ProducerIdentity": "model",
    "ProducerInterceptor": "interceptors",
    "ProducerMetrics": "metrics",
    "ProducerRecord": "interceptors",
    "ProducerState": "admin_model",
    "ProducerTopicMetrics": "metrics",
    "RecordColumns": "columns",
    "RecordMetadata": "model",
    "ResourceType": "admin_model",
    "ClientCredentials": "oauth",
    "OAuthToken": "security",
    "SecurityConfig": "security",
    "Serde": "serde",
    "TimestampType": "model",
    "TopicDescription": "admin_model",
    "TopicPartition": "model",
    "Transaction": "sync.producer",
    "TransactionDescription": "admin_model",
    "TransactionListing": "admin_model",
    "murmur2_partition": "core.partitioner",
}
_MODULES = ("errors", "serde")

__all__ = [
    # clients
    "Producer",
    "AsyncProducer",
    "Consumer",
    "AsyncConsumer",
    "Admin",
    "AsyncAdmin",
    # what producers hand out
    "Delivery",
    "AsyncDelivery",
    "Deliveries",
    "AsyncDeliveries",
    "Transaction",
    "AsyncTransaction",
    # values
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "Headers",
    "IsolationLevel",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "ProducerIdentity",
    "RecordColumns",
    "RecordMetadata",
    "TimestampType",
    "TopicPartition",
    # what an admin client is told
    "BrokerNode",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "GroupDescription",
    "GroupListing",
    "MemberDescription",
    "ProducerState",
    "ResourceType",
    "TopicDescription",
    "TransactionDescription",
    "AclBinding",
    "AclFilter",
    "AclOperation",
    "AclPatternType",
    "AclPermission",
    "AclResourceType",
    "AnyName",
    "ClientQuota",
    "FeatureMetadata",
    "LogDirDescription",
    "OffsetReset",
    "PartitionReassignment",
    "QuorumDescription",
    "QuorumReplica",
    "ReplicaInfo",
    "ScramDeletion",
    "ScramUpsertion",
    "TransactionListing",
    # configuration
    "AdminConfig",
    "ConsumerConfig",
    "ProducerConfig",
    "SecurityConfig",
    "OAuthToken",
    "ClientCredentials",
    # what sees records and tells figures
    "ProducerInterceptor",
    "ConsumerInterceptor",
    "ProducerRecord",
    "ProducerMetrics",
    "ConsumerMetrics",
    "ProducerTopicMetrics",
    "ConsumerTopicMetrics",
    "ConnectionMetrics",
    # functions
    "murmur2_partition",
    # errors and serdes
    "KafkaError",
    "Serde",
    "errors",
    "serde",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"onceflow.sdk.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"onceflow.sdk.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
