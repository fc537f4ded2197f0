"""Records of ``__consumer_offsets`` in Kafka's layout: offset commits and group metadata.

Offset values are written as version 3 (version 1 if the client gave an expiry), group values as
version 3. All versions that Kafka ever wrote are read; records of other kinds of groups are
skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup, GroupProtocol, Member
from onceflow.broker_lite.coordinators.consumer.records import (
    GROUP_KINDS,
    NAMED_KINDS,
    ConsumerKey,
    decode_consumer_key,
)
from onceflow.broker_lite.coordinators.offsets import CommittedOffset
from onceflow.broker_lite.coordinators.state_log import KeyValue
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.internal_topics import (
    VERSION_SIZE,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_with_version,
    read_version,
)
from onceflow.sdk.protocol.primitives import ZERO_UUID

OFFSET_KEY_TYPES = (0, 1)
GROUP_KEY_TYPE = 2

_OFFSET_KEY_TYPE = 1
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITHOUT_ID = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
_GROUP_VALUE_VERSION = 3


class OffsetKey(NamedTuple):
    """Key of an offset record."""

    group_id: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    """Key of a group metadata record."""

    group_id: str


def _value_version(data: bytes, known: tuple[int, int], what: str) -> int:
    version = read_version(data)
    if not known[0] <= version <= known[1]:
        raise RemoteProtocolError(f"{what} has unknown version {version}")
    return version


def decode_key(data: bytes) -> OffsetKey | GroupKey | ConsumerKey | None:
    """Return the key of a record; None for record types of other kinds of groups.

    Raises:
        RemoteProtocolError: The bytes do not fit the record type.
    """
    record_type = read_version(data)
    if record_type in OFFSET_KEY_TYPES:
        key, _ = OffsetCommitKey.decode(data, record_type, VERSION_SIZE)
        return OffsetKey(key.group, TopicPartition(key.topic, key.partition))
    if record_type == GROUP_KEY_TYPE:
        group_key, _ = GroupMetadataKey.decode(data, record_type, VERSION_SIZE)
        return GroupKey(group_key.group)
    if record_type in GROUP_KINDS or record_type in NAMED_KINDS:
        return decode_consumer_key(data, record_type)
    return None


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
    return encode_with_version(key, _OFFSET_KEY_TYPE)


def _group_key(group_id: str) -> bytes:
    return encode_with_version(GroupMetadataKey(group=group_id), GROUP_KEY_TYPE)


def offset_record(group_id: str, partition: TopicPartition, offset: CommittedOffset) -> KeyValue:
    """Return the record of one committed offset."""
    value = OffsetCommitValue(
        offset=offset.committed_offset,
        metadata=offset.committed_metadata,
        commit_timestamp=offset.commit_timestamp_ms,
    )
    version = _OFFSET_VALUE_VERSION
    if offset.expire_timestamp_ms >= 0:
        version = _OFFSET_VALUE_VERSION_WITH_EXPIRY
        value.expire_timestamp = offset.expire_timestamp_ms
    else:
        value.leader_epoch = offset.committed_leader_epoch
        value.topic_id = offset.topic_id
        if offset.topic_id == ZERO_UUID:
            version = _OFFSET_VALUE_VERSION_WITHOUT_ID
    return KeyValue(_offset_key(group_id, partition), encode_with_version(value, version))


def offset_tombstone(group_id: str, partition: TopicPartition) -> KeyValue:
    """Return the tombstone of an offset."""
    return KeyValue(_offset_key(group_id, partition), None)


def decode_offset(data: bytes, log_offset: int) -> CommittedOffset:
    """Return the offset in a record's value.

    Args:
        data: The value.
        log_offset: Offset of the record in the log.

    Raises:
        RemoteProtocolError: The bytes are no offset value of a known version.
    """
    version = _value_version(data, OffsetCommitValue.versions, "offset commit value")
    value, _ = OffsetCommitValue.decode(data, version, VERSION_SIZE)
    return CommittedOffset(
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        committed_metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=value.expire_timestamp,
        log_offset=log_offset,
        topic_id=value.topic_id,
    )


def group_record(group: ClassicGroup, assignments: dict[str, bytes] | None = None) -> KeyValue:
    """Return the record of a group's generation.

    Args:
        group: The group; its members are written with the current strategy's subscription.
        assignments: By member id, in place of the members' own assignments.
    """
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation_id,
        protocol=group.protocol_name,
        leader=group.leader,
        current_state_timestamp=-1
        if group.state_timestamp_ms is None
        else group.state_timestamp_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=member.assignment
                if assignments is None
                else assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ],
    )
    return KeyValue(_group_key(group.group_id), encode_with_version(value, _GROUP_VALUE_VERSION))


def group_tombstone(group_id: str) -> KeyValue:
    """Return the tombstone of a group."""
    return KeyValue(_group_key(group_id), None)


class StoredGroup(NamedTuple):
    """A group's generation as it was stored."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int | None
    members: list[Member]


def decode_group(data: bytes) -> StoredGroup:
    """Return the generation in a record's value.

    Raises:
        RemoteProtocolError: The bytes are not a group value of a known version.
    """
    version = _value_version(data, GroupMetadataValue.versions, "group metadata value")
    value, _ = GroupMetadataValue.decode(data, version, VERSION_SIZE)
    members = []
    for stored in value.members:
        members.append(
            Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.rebalance_timeout if version >= 1 else stored.session_timeout,
                stored.session_timeout,
                (GroupProtocol(value.protocol or "", bytes(stored.subscription)),),
                bytes(stored.assignment),
            )
        )
    timestamp = value.current_state_timestamp
    return StoredGroup(
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        None if timestamp < 0 else timestamp,
        members,
    )
