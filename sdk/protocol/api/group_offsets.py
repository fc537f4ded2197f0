"""Messages that commit a group's offsets, also within a transaction, read them and delete them.

`groups` and `transactions` export these messages too.

OffsetCommit (key 8), versions 2-10, flexible from 8:
    3 throttle time
    5 retention time dropped
    6 leader epoch (KIP-320)
    7 static members (KIP-345)
    9 member epochs (KIP-848)
    10 topic ids
OffsetFetch (key 9), versions 1-10, flexible from 6:
    2 null for all topics, error of the whole answer
    3 throttle time
    5 leader epoch
    7 stable offsets only (KIP-447)
    8 several groups (KIP-709)
    9 member epochs (KIP-848)
    10 topic ids
TxnOffsetCommit (key 28), versions 0-5, flexible from 3:
    2 leader epoch
    3 member id and generation of the committing member (KIP-447)
    4 TRANSACTION_ABORTABLE and 5 adding the group implicitly (KIP-890)
OffsetDelete (key 47), version 0, not flexible
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uuid,
)


class OffsetCommitRequest(Request, api_key=8, versions="2-10", flexible="8+"):
    """Store the offsets of a group."""

    class OffsetCommitRequestTopic(Struct):
        class OffsetCommitRequestPartition(Struct):
            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable="0+")

        name: str = string("2-9", default="", ignorable=True)
        topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
        partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)

    OffsetCommitRequestPartition: TypeAlias = OffsetCommitRequestTopic.OffsetCommitRequestPartition

    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponse(Response, api_key=8, versions="2-10", flexible="8+"):
    """The outcome for each partition."""

    class OffsetCommitResponseTopic(Struct):
        class OffsetCommitResponsePartition(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)

        name: str = string("2-9", default="", ignorable=True)
        topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
        partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)

    OffsetCommitResponsePartition: TypeAlias = (
        OffsetCommitResponseTopic.OffsetCommitResponsePartition
    )

    throttle_time_ms: int = int32("3+", default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


class OffsetFetchRequest(Request, api_key=9, versions="1-10", flexible="6+"):
    """Ask for the offsets of a group, from version 8 on of several; null asks for all topics."""

    class OffsetFetchRequestTopic(Struct):
        """Partitions of one topic (up to version 7)."""

        name: str = string()
        partition_indexes: list[int] = array(int32)

    class OffsetFetchRequestGroup(Struct):
        class OffsetFetchRequestTopics(Struct):
            name: str = string("8-9", default="", ignorable=True)
            topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
            partition_indexes: list[int] = array(int32)

        group_id: str = string()
        member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int = int32("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequestTopics] | None = array(
            OffsetFetchRequestTopics, nullable="0+"
        )

    OffsetFetchRequestTopics: TypeAlias = OffsetFetchRequestGroup.OffsetFetchRequestTopics

    group_id: str = string("1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, "1-7", nullable="2-7", default=[]
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+", default=[])
    require_stable: bool = boolean("7+", default=False)


class OffsetFetchResponse(Response, api_key=9, versions="1-10", flexible="6+"):
    """The committed offsets; -1 for none."""

    class OffsetFetchResponseTopic(Struct):
        """Offsets in one topic (up to version 7)."""

        class OffsetFetchResponsePartition(Struct):
            """The offset in one partition (up to version 7)."""

            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
            metadata: str | None = string(nullable="0+")
            error_code: int = int16(default=0)

        name: str = string()
        partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)

    class OffsetFetchResponseGroup(Struct):
        class OffsetFetchResponseTopics(Struct):
            class OffsetFetchResponsePartitions(Struct):
                partition_index: int = int32()
                committed_offset: int = int64()
                committed_leader_epoch: int = int32(default=-1)
                metadata: str | None = string(nullable="0+")
                error_code: int = int16(default=0)

            name: str = string("8-9", default="", ignorable=True)
            topic_id: UUID = uuid("10+", default=ZERO_UUID, ignorable=True)
            partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)

        group_id: str = string()
        topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, default=[])
        error_code: int = int16(default=0)

    OffsetFetchResponsePartition: TypeAlias = OffsetFetchResponseTopic.OffsetFetchResponsePartition
    OffsetFetchResponseTopics: TypeAlias = OffsetFetchResponseGroup.OffsetFetchResponseTopics
    OffsetFetchResponsePartitions: TypeAlias = (
        OffsetFetchResponseGroup.OffsetFetchResponseTopics.OffsetFetchResponsePartitions
    )

    throttle_time_ms: int = int32("3+", default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "1-7", default=[])
    error_code: int = int16("2-7", default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+", default=[])


class TxnOffsetCommitRequest(Request, api_key=28, versions="0-5", flexible="3+"):
    """Store the offsets of a group as part of a transaction."""

    class TxnOffsetCommitRequestTopic(Struct):
        class TxnOffsetCommitRequestPartition(Struct):
            partition_index: int = int32()
            committed_offset: int = int64()
            committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
            committed_metadata: str | None = string(nullable="0+")

        name: str = string()
        partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)

    TxnOffsetCommitRequestPartition: TypeAlias = (
        TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
    )

    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+", default="")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-5", flexible="3+"):
    """The outcome for each partition."""

    class TxnOffsetCommitResponseTopic(Struct):
        class TxnOffsetCommitResponsePartition(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)

        name: str = string()
        partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)

    TxnOffsetCommitResponsePartition: TypeAlias = (
        TxnOffsetCommitResponseTopic.TxnOffsetCommitResponsePartition
    )

    throttle_time_ms: int = int32(default=0)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


class OffsetDeleteRequest(Request, api_key=47, versions="0"):
    """Delete a group's offsets of topics to which the group is no longer subscribed."""

    class OffsetDeleteRequestTopic(Struct):
        class OffsetDeleteRequestPartition(Struct):
            partition_index: int = int32()

        name: str = string()
        partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)

    OffsetDeleteRequestPartition: TypeAlias = OffsetDeleteRequestTopic.OffsetDeleteRequestPartition

    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


class OffsetDeleteResponse(Response, api_key=47, versions="0"):
    """One error for the whole request, or an outcome for each partition."""

    class OffsetDeleteResponseTopic(Struct):
        class OffsetDeleteResponsePartition(Struct):
            partition_index: int = int32()
            error_code: int = int16(default=0)

        name: str = string()
        partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)

    OffsetDeleteResponsePartition: TypeAlias = (
        OffsetDeleteResponseTopic.OffsetDeleteResponsePartition
    )

    error_code: int = int16(default=0)
    throttle_time_ms: int = int32(default=0)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, default=[])
