"""Layouts of the records of consumer groups (KIP-848) in `__consumer_offsets`.

The kind of a record is the int16 at the begin of its key, as in `internal_topics`, whose functions
read and write these too. The broker's coordinator decides which records a change writes.

Kind 3 ConsumerGroupMetadata: the group's epoch, raised by each change that asks for an assignment
Kind 4: partitions of the subscribed topics, which Apache Kafka writes no more; only the key is read
Kind 5 ConsumerGroupMemberMetadata: what a member subscribes to
Kind 6 ConsumerGroupTargetAssignmentMetadata: the epoch of the last assignment
Kind 7 ConsumerGroupTargetAssignmentMember: the target assignment of a member
Kind 8 ConsumerGroupCurrentMemberAssignment: the current assignment of a member
Kind 16 ConsumerGroupRegularExpression: the topics that a pattern selected
"""

from __future__ import annotations

from typing import Literal, TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.schema import (
    Message,
    Struct,
    array,
    bytes_,
    int8,
    int32,
    int64,
    string,
    struct,
    uuid,
)


class ConsumerGroupKey(Message, versions="0-16"):
    """Key of the kinds 3, 4 and 6: the group."""

    group_id: str = string()


class ConsumerGroupMemberKey(Message, versions="0-16"):
    """Key of the kinds 5, 7 and 8: a member of a group; of kind 16: a pattern of a group."""

    group_id: str = string()
    name: str = string()


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """Kind 3."""

    epoch: int = int32()
    metadata_hash: int = int64(default=0, tag=0, tagged="0+")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """Kind 5; `classic_member_metadata` is there for members that speak the classic protocol.

    Apache Kafka writes it for the others too, as null, so its default is neither.
    """

    class ClassicMemberMetadata(Struct):
        """What the classic protocol knows of the member."""

        class ClassicProtocol(Struct):
            """A strategy that it offers."""

            name: str = string()
            metadata: bytes = bytes_()

        session_timeout_ms: int = int32()
        supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)

    ClassicProtocol: TypeAlias = ClassicMemberMetadata.ClassicProtocol

    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | Literal[False] | None = struct(
        ClassicMemberMetadata, nullable="0+", default=False, tag=0, tagged="0+"
    )


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """Kind 6."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(default=0, tag=0, tagged="0+")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """Kind 7."""

    class TopicPartition(Struct):
        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)

    topic_partitions: list[TopicPartition] = array(TopicPartition)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """Kind 8; partitions carry the epochs in which the member got them (KIP-1251)."""

    class TopicPartitions(Struct):
        topic_id: UUID = uuid()
        partitions: list[int] = array(int32)
        assignment_epochs: list[int] | None = array(
            int32, nullable="0+", default=None, tag=0, tagged="0+"
        )

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+"):
    """Kind 16."""

    topics: list[str] = array(string)
    version: int = int64()
    timestamp: int = int64()
