"""Layouts of what members of a classic consumer group say to each other through the coordinator.

A version as int16 goes in front; a reader takes the newest layout that it knows and ignores what
follows. Layouts only: KIP-429 added the owned partitions (1), KIP-792 the generation (2), KIP-881
the rack (3).
"""

from __future__ import annotations

from onceflow.sdk.protocol.schema import Message, Struct, array, bytes_, int32, string


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """What a member wants to read and what it holds."""

    class TopicPartition(Struct):
        topic: str = string("1+")
        partitions: list[int] = array(int32(), "1+")

    topics: list[str] = array(string())
    user_data: bytes | None = bytes_(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, "1+", default=[], ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """What a member gets."""

    class TopicPartition(Struct):
        topic: str = string()
        partitions: list[int] = array(int32())

    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = bytes_(nullable="0+", default=None)
