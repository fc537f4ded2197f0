"""Arguments and results of admin clients: descriptions of topics, groups, producers, settings.

These are plain values; the modules of ``core.admin`` make them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple
from uuid import UUID

from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.model.partitions import PartitionInfo, TopicPartition

__all__ = [
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
    "HangingTransaction",
    "TransactionDescription",
    "TransactionListing",
]


class ResourceType(enum.IntEnum):
    """What settings belong to."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A thing that has settings.

    Attributes:
        type: What it is.
        name: Topic name, node id as text, or group id.
    """

    type: ResourceType
    name: str


class ConfigEntry(NamedTuple):
    """One setting of a resource.

    Attributes:
        name: Kafka's property name.
        value: Its value as text; None for secrets and for unset ones.
        is_default: Whether it is not set for this resource.
        is_read_only: Whether it can only be changed in the broker's own configuration.
        is_sensitive: Whether its value is hidden.
        source: Kafka's number for where the value comes from (1 topic, 5 default, ...).
    """

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: int


class TopicDescription(NamedTuple):
    """A topic with its partitions.

    Attributes:
        name: Topic name.
        topic_id: The topic's id; a topic that is deleted and made again gets a new one.
        partitions: Its partitions in ascending order.
        is_internal: Whether it is one of Kafka's own.
        authorized_operations: What this client may do with it (KIP-430); None unless asked for.
    """

    name: str
    topic_id: UUID
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False
    authorized_operations: frozenset[AclOperation] | None = None

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return len(self.partitions)


class BrokerNode(NamedTuple):
    """A broker and the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ClusterDescription(NamedTuple):
    """The cluster: its id, its brokers, and which of them counts as controller (-1: none)."""

    cluster_id: str
    controller_id: int
    nodes: tuple[BrokerNode, ...]


class GroupListing(NamedTuple):
    """A group as its coordinator lists it.

    Attributes:
        group_id: Group name.
        protocol_type: "consumer" for consumer groups, empty for groups that only hold offsets.
        state: Kafka's name of the state, empty from brokers that do not tell.
        type: "Classic", "Consumer", "Share", or empty from brokers that do not tell.
    """

    group_id: str
    protocol_type: str
    state: str = ""
    type: str = ""


class MemberDescription(NamedTuple):
    """A member of a group and the partitions that it was given."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: frozenset[TopicPartition]


class GroupDescription(NamedTuple):
    """A group: state, assignment protocol or assignor, members.

    `type` is "Classic", or "Consumer" for the protocol of KIP-848. `authorized_operations` is what
    this client may do with the group (KIP-430), None unless asked for.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberDescription, ...]
    type: str = "Classic"
    authorized_operations: frozenset[AclOperation] | None = None


class ProducerState(NamedTuple):
    """A producer as a partition's leader knows it.

    Attributes:
        producer_id: Its number.
        producer_epoch: Its epoch.
        last_sequence: Sequence of its last record, -1 after a marker.
        last_timestamp_ms: Timestamp of its last batch.
        coordinator_epoch: Epoch of the transaction coordinator that wrote the last marker, or -1.
        transaction_start_offset: Where its open transaction begins, None without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition and that no coordinator is going to end.

    Attributes:
        partition: Where it hangs.
        producer: Its producer; `transaction_start_offset` tells where it begins there.
    """

    partition: TopicPartition
    producer: ProducerState


class TransactionListing(NamedTuple):
    """A transactional id as its coordinator lists it; `state` is Kafka's name."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """A transactional id: who holds it, and what its transaction covers.

    Attributes:
        transactional_id: The name.
        state: Kafka's name of the coordinator's state, such as "Ongoing".
        producer_id: Number of the producer that holds it.
        producer_epoch: Its epoch.
        transaction_timeout_ms: After that long the coordinator aborts.
        transaction_start_time_ms: When the transaction began, None without one.
        partitions: Partitions registered in it.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_start_time_ms: int | None
    partitions: frozenset[TopicPartition]
