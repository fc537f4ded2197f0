"""The bytes that members of a classic consumer group exchange through the coordinator.

Subscriptions and assignments are opaque to the broker: a version, then a message in Kafka's
non-flexible encoding (ConsumerProtocol, versions 0-3: KIP-429 added the owned partitions, KIP-792
the generation, KIP-881 the rack). A reader reads the fields of a newer version that it knows, and
ignores the rest, so that old and new members can share a group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from onceflow.sdk.core.group.assignors import MemberSubscription
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition, by_topic
from onceflow.sdk.model.special_values import SUBSCRIPTION_VERSION
from onceflow.sdk.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from onceflow.sdk.protocol.schema import Message, Struct, array, int32, string

_VERSION: Final = struct.Struct(">h")


class StickyUserData(Message, versions="0-1"):
    """User data of Kafka's eager sticky assignor: the last assignment and its generation."""

    class TopicAssignment(Struct):
        topic: str = string()
        partitions: list[int] = array(int32())

    previous_assignment: list[TopicAssignment] = array(TopicAssignment)
    generation: int = int32("1+", default=-1, ignorable=True)


def encode_subscription(
    topics: Iterable[str],
    owned_partitions: Iterable[TopicPartition],
    generation_id: int,
    *,
    rack: str | None = None,
    sticky_memory: Iterable[TopicPartition] | None = None,
    user_data: bytes | None = None,
    version: int = SUBSCRIPTION_VERSION,
) -> bytes:
    """Return the metadata of one protocol in JoinGroup.

    Args:
        topics: Topics that the member wants to read.
        owned_partitions: Partitions that it still holds.
        generation_id: Generation in which it held them, -1 for none.
        rack: The member's rack or None.
        sticky_memory: Last assignment, for assignors that read it from the user data.
        user_data: The assignor's data for the leader.
        version: Version of the layout.

    Returns:
        Bytes for JoinGroup.
    """
    if sticky_memory is not None:
        memory = StickyUserData(
            previous_assignment=[
                StickyUserData.TopicAssignment(topic=topic, partitions=partitions)
                for topic, partitions in by_topic(sorted(sticky_memory)).items()
            ],
            generation=generation_id,
        )
        user_data = memory.encode(1)
    subscription = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(sorted(owned_partitions)).items()
        ],
        generation_id=generation_id,
        rack_id=rack,
    )
    return _VERSION.pack(version) + subscription.encode(version)


def decode_subscription(
    member_id: str, group_instance_id: str | None, data: bytes
) -> MemberSubscription:
    """Read a member's metadata, as the leader of the group must.

    Raises:
        RemoteProtocolError: The bytes are not a subscription.
    """
    version, offset = _read_version(data, "subscription")
    found, _ = ConsumerProtocolSubscription.decode(data, version, offset)
    owned = [
        TopicPartition(entry.topic, partition)
        for entry in found.owned_partitions
        for partition in entry.partitions
    ]
    generation_id = found.generation_id
    if not owned and found.user_data:
        owned, generation_id = _read_sticky_memory(found.user_data)
    return MemberSubscription(
        member_id,
        frozenset(found.topics),
        tuple(owned),
        generation_id,
        group_instance_id,
        found.user_data or b"",
    )


def encode_assignment(
    partitions: Iterable[TopicPartition],
    version: int = SUBSCRIPTION_VERSION,
    *,
    user_data: bytes | None = None,
) -> bytes:
    """Return one member's assignment in SyncGroup."""
    assignment = ConsumerProtocolAssignment(
        user_data=user_data,
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(sorted(partitions)).items()
        ],
    )
    return _VERSION.pack(version) + assignment.encode(version)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Read an assignment; empty bytes are an empty one.

    Raises:
        RemoteProtocolError: The bytes are no assignment.
    """
    if not data:
        return []
    version, offset = _read_version(data, "assignment")
    found, _ = ConsumerProtocolAssignment.decode(data, version, offset)
    return [
        TopicPartition(entry.topic, partition)
        for entry in found.assigned_partitions
        for partition in entry.partitions
    ]


def assignment_user_data(data: bytes) -> bytes:
    """Return the data of the leader's assignor in a member's assignment.

    Raises:
        RemoteProtocolError: The bytes are no assignment.
    """
    if not data:
        return b""
    version, offset = _read_version(data, "assignment")
    found, _ = ConsumerProtocolAssignment.decode(data, version, offset)
    return found.user_data or b""


def _read_version(data: bytes, what: str) -> tuple[int, int]:
    if len(data) < _VERSION.size:
        raise RemoteProtocolError(f"a consumer protocol {what} of {len(data)} bytes is too short")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise RemoteProtocolError(f"a consumer protocol {what} has the version {version}")
    return min(version, SUBSCRIPTION_VERSION), _VERSION.size


def _read_sticky_memory(user_data: bytes) -> tuple[list[TopicPartition], int]:
    """Read the sticky assignor's user data; ignore that of other assignors."""
    for version in (1, 0):
        try:
            memory, end = StickyUserData.decode(user_data, version)
        except RemoteProtocolError:
            continue
        if end == len(user_data):
            partitions = [
                TopicPartition(entry.topic, partition)
                for entry in memory.previous_assignment
                for partition in entry.partitions
            ]
            return partitions, memory.generation
    return [], -1
