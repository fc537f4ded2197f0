"""The client SDK: producers, consumers and admin clients, blocking and for asyncio.

Names are loaded at their first use, so that importing the package costs next to nothing and a
program that only produces never loads the consumer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.sdk import errors
    from onceflow.sdk import serde as serde
    from onceflow.sdk.aio.admin.admin import AsyncAdmin as AsyncAdmin
    from onceflow.sdk.aio.consume.consumer import AsyncConsumer as AsyncConsumer
    from onceflow.sdk.aio.produce.delivery import AsyncDeliveries as AsyncDeliveries
    from onceflow.sdk.aio.produce.delivery import AsyncDelivery as AsyncDelivery
    from onceflow.sdk.aio.produce.producer import AsyncProducer as AsyncProducer
    from onceflow.sdk.aio.produce.producer import AsyncTransaction as AsyncTransaction
    from onceflow.sdk.core.group.assignors import Assignor as Assignor
    from onceflow.sdk.core.group.assignors import (
        CooperativeStickyAssignor as CooperativeStickyAssignor,
    )
    from onceflow.sdk.core.group.assignors import MemberSubscription as MemberSubscription
    from onceflow.sdk.core.produce.encoding import BatchEncoder as BatchEncoder
    from onceflow.sdk.core.produce.encoding import EncodedBatch as EncodedBatch
    from onceflow.sdk.core.produce.key_hash import murmur2_partition as murmur2_partition
    from onceflow.sdk.errors import KafkaError as KafkaError
    from onceflow.sdk.model.admin import BrokerNode as BrokerNode
    from onceflow.sdk.model.admin import ClusterDescription as ClusterDescription
    from onceflow.sdk.model.admin import ConfigEntry as ConfigEntry
    from onceflow.sdk.model.admin import ConfigResource as ConfigResource
    from onceflow.sdk.model.admin import GroupDescription as GroupDescription
    from onceflow.sdk.model.admin import GroupListing as GroupListing
    from onceflow.sdk.model.admin import HangingTransaction as HangingTransaction
    from onceflow.sdk.model.admin import MemberDescription as MemberDescription
    from onceflow.sdk.model.admin import ProducerState as ProducerState
    from onceflow.sdk.model.admin import ResourceType as ResourceType
    from onceflow.sdk.model.admin import TopicDescription as TopicDescription
    from onceflow.sdk.model.admin import TransactionDescription as TransactionDescription
    from onceflow.sdk.model.admin import TransactionListing as TransactionListing
    from onceflow.sdk.model.admin_cluster import AclBinding as AclBinding
    from onceflow.sdk.model.admin_cluster import AclFilter as AclFilter
    from onceflow.sdk.model.admin_cluster import AclOperation as AclOperation
    from onceflow.sdk.model.admin_cluster import AclPatternType as AclPatternType
    from onceflow.sdk.model.admin_cluster import AclPermission as AclPermission
    from onceflow.sdk.model.admin_cluster import AclResourceType as AclResourceType
    from onceflow.sdk.model.admin_cluster import AnyName as AnyName
    from onceflow.sdk.model.admin_cluster import ClientQuota as ClientQuota
    from onceflow.sdk.model.admin_cluster import FeatureMetadata as FeatureMetadata
    from onceflow.sdk.model.admin_cluster import LogDirDescription as LogDirDescription
    from onceflow.sdk.model.admin_cluster import OffsetReset as OffsetReset
    from onceflow.sdk.model.admin_cluster import PartitionReassignment as PartitionReassignment
    from onceflow.sdk.model.admin_cluster import QuorumDescription as QuorumDescription
    from onceflow.sdk.model.admin_cluster import QuorumReplica as QuorumReplica
    from onceflow.sdk.model.admin_cluster import ReplicaInfo as ReplicaInfo
    from onceflow.sdk.model.admin_cluster import ScramDeletion as ScramDeletion
    from onceflow.sdk.model.admin_cluster import ScramUpsertion as ScramUpsertion
    from onceflow.sdk.model.columns import RecordColumns as RecordColumns
    from onceflow.sdk.model.consumer_record import ConsumerRecord as ConsumerRecord
    from onceflow.sdk.model.partitions import ConsumerGroupMetadata as ConsumerGroupMetadata
    from onceflow.sdk.model.partitions import Headers as Headers
    from onceflow.sdk.model.partitions import IsolationLevel as IsolationLevel
    from onceflow.sdk.model.partitions import NewTopic as NewTopic
    from onceflow.sdk.model.partitions import OffsetAndMetadata as OffsetAndMetadata
    from onceflow.sdk.model.partitions import OffsetAndTimestamp as OffsetAndTimestamp
    from onceflow.sdk.model.partitions import PartitionInfo as PartitionInfo
    from onceflow.sdk.model.partitions import ProducerIdentity as ProducerIdentity
    from onceflow.sdk.model.partitions import RecordMetadata as RecordMetadata
    from onceflow.sdk.model.partitions import TimestampType as TimestampType
    from onceflow.sdk.model.partitions import TopicPartition as TopicPartition
    from onceflow.sdk.observe.interceptors import ConsumerInterceptor as ConsumerInterceptor
    from onceflow.sdk.observe.interceptors import ProducerInterceptor as ProducerInterceptor
    from onceflow.sdk.observe.interceptors import ProducerRecord as ProducerRecord
    from onceflow.sdk.observe.metrics import ConnectionMetrics as ConnectionMetrics
    from onceflow.sdk.observe.metrics import ConsumerMetrics as ConsumerMetrics
    from onceflow.sdk.observe.metrics import ConsumerTopicMetrics as ConsumerTopicMetrics
    from onceflow.sdk.observe.metrics import ProducerMetrics as ProducerMetrics
    from onceflow.sdk.observe.metrics import ProducerTopicMetrics as ProducerTopicMetrics
    from onceflow.sdk.serde import Serde as Serde
    from onceflow.sdk.settings.config import AdminConfig as AdminConfig
    from onceflow.sdk.settings.config import ConsumerConfig as ConsumerConfig
    from onceflow.sdk.settings.config import ProducerConfig as ProducerConfig
    from onceflow.sdk.settings.oauth import ClientCredentials as ClientCredentials
    from onceflow.sdk.settings.security import OAuthToken as OAuthToken
    from onceflow.sdk.settings.security import SecurityConfig as SecurityConfig
    from onceflow.sdk.settings.sources import ClientSettings as ClientSettings
    from onceflow.sdk.sync.admin import Admin as Admin
    from onceflow.sdk.sync.consumer import Consumer as Consumer
    from onceflow.sdk.sync.delivery import Deliveries as Deliveries
    from onceflow.sdk.sync.delivery import Delivery as Delivery
    from onceflow.sdk.sync.producer import Producer as Producer
    from onceflow.sdk.sync.producer import Transaction as Transaction

_HOMES = {
    "Admin": "sync.admin",
    "AdminConfig": "settings.config",
    "AsyncAdmin": "aio.admin.admin",
    "AsyncConsumer": "aio.consume.consumer",
    "AsyncDeliveries": "aio.produce.delivery",
    "AsyncDelivery": "aio.produce.delivery",
    "AsyncProducer": "aio.produce.producer",
    "AsyncTransaction": "aio.produce.producer",
    "BrokerNode": "model.admin",
    "AclBinding": "model.admin_cluster",
    "AclFilter": "model.admin_cluster",
    "AclOperation": "model.admin_cluster",
    "AclPatternType": "model.admin_cluster",
    "AclPermission": "model.admin_cluster",
    "AclResourceType": "model.admin_cluster",
    "AnyName": "model.admin_cluster",
    "ClientQuota": "model.admin_cluster",
    "FeatureMetadata": "model.admin_cluster",
    "LogDirDescription": "model.admin_cluster",
    "OffsetReset": "model.admin_cluster",
    "PartitionReassignment": "model.admin_cluster",
    "QuorumDescription": "model.admin_cluster",
    "QuorumReplica": "model.admin_cluster",
    "ReplicaInfo": "model.admin_cluster",
    "ScramDeletion": "model.admin_cluster",
    "ScramUpsertion": "model.admin_cluster",
    "ClusterDescription": "model.admin",
    "ConfigEntry": "model.admin",
    "ConfigResource": "model.admin",
    "ConnectionMetrics": "observe.metrics",
    "Consumer": "sync.consumer",
    "ConsumerConfig": "settings.config",
    "ConsumerGroupMetadata": "model.partitions",
    "ConsumerInterceptor": "observe.interceptors",
    "ConsumerMetrics": "observe.metrics",
    "ConsumerRecord": "model.consumer_record",
    "ConsumerTopicMetrics": "observe.metrics",
    "Deliveries": "sync.delivery",
    "Delivery": "sync.delivery",
    "GroupDescription": "model.admin",
    "GroupListing": "model.admin",
    "Headers": "model.partitions",
    "IsolationLevel": "model.partitions",
    "KafkaError": "errors",
    "MemberDescription": "model.admin",
    "NewTopic": "model.partitions",
    "OffsetAndMetadata": "model.partitions",
    "OffsetAndTimestamp": "model.partitions",
    "PartitionInfo": "model.partitions",
    "Producer": "sync.producer",
    "ProducerConfig": "settings.config",
    "ProducerIdentity": "model.partitions",
    "ProducerInterceptor": "observe.interceptors",
    "ProducerMetrics": "observe.metrics",
    "ProducerRecord": "observe.interceptors",
    "HangingTransaction": "model.admin",
    "ProducerState": "model.admin",
    "ProducerTopicMetrics": "observe.metrics",
    "RecordColumns": "model.columns",
    "RecordMetadata": "model.partitions",
    "ResourceType": "model.admin",
    "ClientCredentials": "settings.oauth",
    "ClientSettings": "settings.sources",
    "OAuthToken": "settings.security",
    "SecurityConfig": "settings.security",
    "Serde": "serde",
    "TimestampType": "model.partitions",
    "TopicDescription": "model.admin",
    "TopicPartition": "model.partitions",
    "Transaction": "sync.producer",
    "TransactionDescription": "model.admin",
    "TransactionListing": "model.admin",
    "Assignor": "core.group.assignors",
    "CooperativeStickyAssignor": "core.group.assignors",
    "MemberSubscription": "core.group.assignors",
    "BatchEncoder": "core.produce.encoding",
    "EncodedBatch": "core.produce.encoding",
    "murmur2_partition": "core.produce.key_hash",
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
    # batches that are encoded away from a producer
    "BatchEncoder",
    "EncodedBatch",
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
    "HangingTransaction",
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
    "ClientSettings",
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
    "Assignor",
    "CooperativeStickyAssignor",
    "MemberSubscription",
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
