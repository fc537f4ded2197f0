"""Layouts of the records in `__consumer_offsets` and `__transaction_state`.

A broker keeps groups and transactions in these topics, and Kafka's own tools read them. Keys and
values begin with an int16: in a key it is the kind of record (and for offsets the layout), in a
value the layout's version. The broker's coordinators decide which version they write, and what a
missing value (a tombstone) removes.

OffsetCommitKey (record types 0 and 1, the same layout), OffsetCommitValue 0-4, flexible from 4:
    1 expiry, which later versions dropped
    3 leader epoch (KIP-320)
    4 topic id
GroupMetadataKey (record type 2), GroupMetadataValue 0-4, flexible from 4:
    1 rebalance timeout
    2 time of the last change
    3 static members (KIP-345)
TransactionLogKey (record type 0), TransactionLogValue 0-1, flexible from 1:
    1 neighbouring producer ids and the client's transaction version (KIP-890)
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.primitives import ZERO_UUID, Buffer
from onceflow.sdk.protocol.schema import (
    Message,
    Struct,
    array,
    bytes_,
    int8,
    int16,
    int32,
    int64,
    string,
    uuid,
)

VERSION_SIZE: Final = 2
"""Bytes of the record type or version that begins each key and value."""

_VERSION = struct.Struct(">h")


class OffsetCommitKey(Message, versions="0-1"):
    """Whose offset a record holds."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """A committed offset."""

    offset: int = int64()
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: UUID = uuid(default=ZERO_UUID, tag=0, tagged="4+", ignorable=True)


class GroupMetadataKey(Message, versions="2"):
    """Which classic group a record describes."""

    group: str = string()


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A classic group's generation, with the assignment of each member."""

    class MemberMetadata(Struct):
        """A member of the group."""

        member_id: str = string()
        group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
        client_id: str = string()
        client_host: str = string()
        rebalance_timeout: int = int32("1+", default=0, ignorable=True)
        session_timeout: int = int32()
        subscription: bytes = bytes_()
        assignment: bytes = bytes_()

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable="0+")
    leader: str | None = string(nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class TransactionLogKey(Message, versions="0"):
    """Which transactional id a record describes."""

    transactional_id: str = string()


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """The state of a transactional id; `transaction_partitions` is None while it is Empty."""

    class PartitionsSchema(Struct):
        topic: str = string()
        partition_ids: list[int] = array(int32)

    producer_id: int = int64()
    previous_producer_id: int = int64(default=-1, tag=0, tagged="1+")
    next_producer_id: int = int64(default=-1, tag=1, tagged="1+")
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(default=-1, tag=3, tagged="1+")
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(default=0, tag=2, tagged="1+")


def encode_with_version(message: Message, version: int) -> bytes:
    """Write a key or a value with its record type or version in front.

    Raises:
        LocalProtocolError: A field holds what this version cannot carry.
    """
    return _VERSION.pack(version) + message.encode(version)


def read_version(data: Buffer) -> int:
    """Read the record type or version that begins a key or a value.

    The rest is read with `decode(data, version, VERSION_SIZE)` of the layout.

    Raises:
        RemoteProtocolError: There are fewer than two bytes.
    """
    if len(data) < VERSION_SIZE:
        raise RemoteProtocolError("a record of an internal topic is shorter than its version")
    version: int = _VERSION.unpack_from(data)[0]
    return version
