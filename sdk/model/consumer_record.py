"""The record that consumers return, in a separate module, as its library takes time to load.

Users import it from `onceflow.sdk`.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, cast

import msgspec

from onceflow.sdk.model.partitions import Headers, TimestampType, TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co


class ConsumerRecord(msgspec.Struct, Generic[KeyT_co, ValueT_co], gc=False):
    """One record as a consumer received it; the types of key and value are its parameters.

    Without a deserializer both are ``bytes | None``, and so they are in ``ConsumerRecord`` without
    parameters.

    Records are made by the million, so they are not tracked by the garbage collector (its work was
    a third of the time of reading). One that is made part of a reference cycle, by storing it in
    its own value for example, is therefore never freed.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Position in the partition.
        timestamp_ms: Milliseconds since 1970-01-01 UTC, -1 when the record has none.
        timestamp_type: Who set the timestamp (a `TimestampType`).
        key: Key after deserialization (bytes without a deserializer), or None.
        value: Value after deserialization, or None (a tombstone).
        headers: Pairs of name and value in the order in which they were sent.
        leader_epoch: Leader epoch of the batch that held the record, -1 if unknown.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = -1
    timestamp_type: int = TimestampType.CREATE_TIME
    key: KeyT_co = cast("KeyT_co", None)
    value: ValueT_co = cast("ValueT_co", None)
    headers: Headers = ()
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record came from."""
        return TopicPartition(self.topic, self.partition)

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord({self.topic}-{self.partition} @ {self.offset}, "
            f"key={self.key!r}, value={self.value!r})"
        )


AnyRecord: TypeAlias = ConsumerRecord[object, object]
"""A record of whatever types, as those who only hand it on take it."""
