"""Protocols of the two clients of a session, which blocking and asyncio clients satisfy.

Every method returns its result or an awaitable of it, so that the same code drives blocking and
asyncio clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    Headers,
    OffsetAndMetadata,
    ProducerIdentity,
    RecordMetadata,
    TopicPartition,
)
from onceflow.transactions.colour import Maybe

Records: TypeAlias = dict[TopicPartition, list[AnyRecord]]


class SentRun(Protocol):
    """Tells where the last record of a run was stored, once it is acknowledged."""

    def last(self) -> RecordMetadata: ...


class Sending(Protocol):
    """Sends records; producers and sessions do."""

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object: ...
    def send_many(
        self,
        topic: str,
        values: Sequence[object],
        keys: Sequence[object] | None = None,
        *,
        partition: int | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> object: ...
    def flush(self, timeout_ms: int | None = None) -> Maybe[None]: ...


class SessionProducer(Sending, Protocol):
    """The transactional producer of a session."""

    @property
    def identity(self) -> ProducerIdentity | None: ...
    def begin_transaction(self) -> Maybe[None]: ...
    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> Maybe[None]: ...
    def commit_transaction(self, timeout_ms: int | None = None) -> Maybe[None]: ...
    def abort_transaction(self, timeout_ms: int | None = None) -> Maybe[None]: ...
    def close(self, timeout_ms: int = ...) -> Maybe[None]: ...


class SessionConsumer(Protocol):
    """The group consumer of a session."""

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> Maybe[Records]: ...
    def assignment(self) -> set[TopicPartition] | frozenset[TopicPartition]: ...
    def group_metadata(self) -> ConsumerGroupMetadata: ...
    def ensure_membership(self) -> Maybe[None]: ...
    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Maybe[Mapping[TopicPartition, OffsetAndMetadata | None]]: ...
    def position(self, partition: TopicPartition) -> Maybe[int]: ...
    def lag(self, partition: TopicPartition) -> int | None: ...
    def seek(self, partition: TopicPartition, offset: int) -> Maybe[None]: ...
    def seek_to_beginning(self, partitions: Sequence[TopicPartition]) -> Maybe[None]: ...
    def seek_to_end(self, partitions: Sequence[TopicPartition]) -> Maybe[None]: ...
    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...
    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...
    def wakeup(self) -> None: ...
    def close(self, timeout_ms: int = ..., *, leave_group: bool | None = None) -> Maybe[None]: ...
