"""Values that the fetcher and the drivers of its plans exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from onceflow.sdk.core.consume.fetch_buffer import RunDeserializer
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchRequest


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to fetch; names and defaults as Kafka's consumer properties.

    Attributes:
        isolation_level: ``isolation.level``.
        min_bytes: ``fetch.min.bytes``.
        max_wait_ms: ``fetch.max.wait.ms``.
        max_bytes: ``fetch.max.bytes``; also the most that is read ahead over all partitions.
        partition_max_bytes: ``max.partition.fetch.bytes``.
        check_crcs: ``check.crcs``.
        rack: ``client.rack``.
        retry_backoff_ms: ``retry.backoff.ms``.
        retry_backoff_max_ms: ``retry.backoff.max.ms``.
        preference_ms: How long a preferred replica is used before the leader is asked again.
        deserialize: From `onceflow.sdk.core.consume.fetch_buffer.make_deserializer`.
    """

    isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 52_428_800
    partition_max_bytes: int = 1_048_576
    check_crcs: bool = True
    rack: str = ""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    preference_ms: int = 300_000
    deserialize: RunDeserializer | None = None


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One fetch request and what its answer will be compared with.

    Attributes:
        node_id: The broker.
        request: The request.
        max_version: Highest version to use, None for no limit.
        asked: Stamp and fetch offset of every partition that the answer may hold.
        topic_names: Topics by id, for answers that name ids only.
        ahead: Whether the application still has data of this broker; then the broker must not wait.
    """

    node_id: int
    request: FetchRequest
    max_version: int | None
    asked: dict[TopicPartition, tuple[int, int]]
    topic_names: dict[UUID, str]
    ahead: bool


@dataclass(slots=True)
class FetchOutcome:
    """What the driver must do after an answer.

    Attributes:
        refresh_metadata: Whether leaders have moved.
        failure: Error for the next poll to raise, or None.
        leaders: Leader id and epoch of partitions that refusals named (KIP-951).
        topic_bytes: Bytes of received batches, by topic.
    """

    refresh_metadata: bool = False
    failure: KafkaError | None = None
    leaders: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topic_bytes: dict[str, int] = field(default_factory=dict)
