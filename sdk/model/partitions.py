"""Value types for users of the SDK: partitions, records, offsets, memberships.

They are plain values: they do no I/O and do not change after they were made.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Never, Self, TypeVar

T = TypeVar("T")

Headers = Sequence[tuple[str, bytes | None]]
"""Record headers in order; names may repeat, values may be None."""


class TopicPartition(NamedTuple):
    """One partition of one topic.

    Attributes:
        topic: Topic name.
        partition: Partition number, from 0.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Group partitions, or other pairs of a topic and a value, by topic in their order."""
    found: dict[str, list[T]] = {}
    for topic, value in pairs:
        found.setdefault(topic, []).append(value)
    return found


class IsolationLevel(enum.IntEnum):
    """Which records a consumer returns (Kafka property ``isolation.level``, KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TimestampType(enum.IntEnum):
    """Who set a record's timestamp (topic property ``message.timestamp.type``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class RecordMetadata(NamedTuple):
    """Where an acknowledged record was stored.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Offset of the record; -1 with ``acks=0``, where the broker tells nothing.
        timestamp_ms: The record's timestamp (the broker's with LogAppendTime).
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that holds the record."""
        return TopicPartition(self.topic, self.partition)


class OffsetAndMetadata(NamedTuple):
    """A committed offset, or one to be committed.

    Attributes:
        offset: Offset of the next record to read (last processed record + 1).
        metadata: Free text kept with the offset, at most 4,096 bytes by Kafka's default.
        leader_epoch: Leader epoch of the last processed record, -1 if unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """Answer of a look-up by time: the first record at or after the time asked for."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class ConsumerGroupMetadata(NamedTuple):
    """Membership of a consumer at one moment; fences zombies in a transaction (KIP-447).

    Attributes:
        group_id: Group name.
        generation_id: Generation (classic protocol) or member epoch (KIP-848); -1 if no member.
        member_id: Member id, empty if no member.
        group_instance_id: Static member id or None.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class ProducerIdentity(NamedTuple):
    """Identity of a transactional producer (KIP-98).

    Attributes:
        transactional_id: The stable name.
        producer_id: Number that the coordinator gave to that name.
        producer_epoch: Incarnation; a newer one fences older ones.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int


class PartitionInfo(NamedTuple):
    """A partition as the cluster describes it."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class _NewTopic(NamedTuple):
    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] | None = None


class NewTopic(_NewTopic):
    """A topic to be created.

    Attributes:
        name: Topic name, 1 to 249 characters of ``[a-zA-Z0-9._-]``.
        partitions: Number of partitions; -1 takes the broker's ``num.partitions``.
        replication_factor: Number of replicas; -1 takes the broker's default.
        configs: Topic configuration by Kafka's property names.

    Raises:
        ConfigError: It has no such argument; the nearest one is named.
    """

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        **others: Never,
    ) -> Self:
        """Refuse what other clients call otherwise."""
        for other in others:
            from onceflow.sdk.settings.names import reject_unknown  # Late: only for the message.

            reject_unknown("NewTopic", cls._fields, [other])
        return super().__new__(cls, name, partitions, replication_factor, configs)
