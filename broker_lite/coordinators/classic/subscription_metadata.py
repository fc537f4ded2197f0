"""Reads and writes the metadata that members of classic groups exchange (trap 60).

This is only for groups of the type ``consumer``. From a newer layout only the known fields are
read. Other groups' bytes are not looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import SUBSCRIPTION_VERSION
from onceflow.sdk.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from onceflow.sdk.protocol.schema import Message, array, string

_VERSION = struct.Struct(">h")


class _TopicsOnly(Message, versions="0"):
    topics: list[str] = array(string())


class Subscription(NamedTuple):
    """The subscription that a member sends to the leader of its group.

    Attributes:
        topics: Topics that it wants to read.
        owned: Partitions that it holds.
        rack_id: Where it runs, or None.
        version: Layout that it wrote.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    rack_id: str | None = None
    version: int = 0


def _layout(data: bytes) -> int | None:
    if len(data) < _VERSION.size:
        return None
    version: int = _VERSION.unpack_from(data)[0]
    return None if version < 0 else min(version, SUBSCRIPTION_VERSION)


def read_subscription(data: bytes) -> Subscription | None:
    """Return the subscription in a member's metadata; None if the bytes are not one."""
    version = _layout(data)
    if version is None:
        return None
    try:
        found, _ = ConsumerProtocolSubscription.decode(data, version, _VERSION.size)
    except RemoteProtocolError:
        return None
    owned = tuple(
        TopicPartition(entry.topic, partition)
        for entry in found.owned_partitions
        for partition in entry.partitions
    )
    return Subscription(tuple(found.topics), owned, found.rack_id, version)


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a subscription; None if the bytes are not one.

    Only the topics are read, so the fields after them may be of any layout.
    """
    if _layout(metadata) is None:
        return None
    try:
        found, _ = _TopicsOnly.decode(metadata, 0, _VERSION.size)
    except RemoteProtocolError:
        return None
    return set(found.topics)


def read_assignment(data: bytes) -> tuple[list[TopicPartition], bool] | None:
    """Return the partitions of an assignment, and whether it carries the assignor's user data.

    Returns:
        None if the bytes are not an assignment. Empty bytes are an empty assignment.
    """
    if not data:
        return [], False
    version = _layout(data)
    if version is None:
        return None
    try:
        found, _ = ConsumerProtocolAssignment.decode(data, version, _VERSION.size)
    except RemoteProtocolError:
        return None
    partitions = [
        TopicPartition(entry.topic, partition)
        for entry in found.assigned_partitions
        for partition in entry.partitions
    ]
    return partitions, bool(found.user_data)


def write_assignment(partitions: Mapping[str, Iterable[int]], version: int) -> bytes:
    """Return an assignment as bytes, in the version of the member's subscription."""
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=sorted(numbers))
            for topic, numbers in sorted(partitions.items())
        ]
    )
    return _VERSION.pack(version) + assignment.encode(version)
