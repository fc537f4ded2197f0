"""Interceptors: code of the application that sees every record on its way.

The base classes do nothing; override what is wanted. An interceptor that raises is logged and
counted (``interceptor_error_total``), and the record goes on as if it had not been asked: none can
lose a record, a result or a commit. Interceptors make every record cost a few calls more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import Headers, OffsetAndMetadata, RecordMetadata, TopicPartition

__all__ = ["ConsumerInterceptor", "ProducerInterceptor", "ProducerRecord"]


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record as the application handed it over, before serializers.

    Attributes:
        topic: Topic name.
        value: Value.
        key: Key.
        headers: Pairs of name and bytes.
        partition: Partition asked for, None for the partitioner's choice.
        timestamp_ms: Timestamp asked for, None for now.
    """

    topic: str
    value: object = None
    key: object = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Sees what a producer sends (Kafka's ``ProducerInterceptor``)."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """A record is handed over; called in the thread that sends.

        Args:
            record: The record, as the interceptors before this one left it.

        Returns:
            The record to send: the same, or one made by ``dataclasses.replace``. The topic must
            stay.
        """
        return record

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        """A record was stored; called in the client's loop, so it must not block.

        Args:
            record: The record as it was sent.
            metadata: Where it is.
        """

    def on_error(self, record: ProducerRecord, error: KafkaError) -> None:
        """A record was given up, or could not be taken; must not block.

        Args:
            record: The record as it was sent.
            error: Why.
        """

    def close(self) -> None:
        """The producer is closed."""


class ConsumerInterceptor:
    """Sees what a consumer receives and commits (Kafka's ``ConsumerInterceptor``)."""

    def on_records(self, records: Mapping[TopicPartition, Sequence[AnyRecord]]) -> None:
        """Records are given to the application; called in the thread that polls.

        They may be changed in place, headers included, but none can be taken out: what the
        application passes over it decides itself.

        Args:
            records: Records by partition.
        """

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed; called in the client's loop, so it must not block.

        Args:
            offsets: Offset of the next record by partition.
        """

    def close(self) -> None:
        """The consumer is closed."""
