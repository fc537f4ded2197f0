"""``Output`` and ``Context``: outputs to any topic, and the record that a handler processes.

A ``Context`` belongs to one attempt at one record. It refuses to send after the handler has
returned, so that a forgotten task cannot write into the transaction of a later record. ``lanes``
collects outputs, and ``ledger`` sends them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from onceflow.processors.errors import OutputRefusedError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, TopicPartition


class Inherit(enum.Enum):
    """Marks fields of an output that are taken from the processed record."""

    KEY = "the record's key"


@dataclass(frozen=True, slots=True)
class Output:
    """One output record.

    Attributes:
        value: Encoded like a returned value; None writes a tombstone.
        topic: Target, the processor's ``to`` topic by default.
        branch: Target by its name in ``branches=`` of the processor.
        key: Encoded like a value; the record's key by default, None for no key.
        headers: Headers of the output.
        partition: Partition, chosen by key by default.
        timestamp_ms: Timestamp, the record's by default.
    """

    value: object = None
    topic: str | None = field(default=None, kw_only=True)
    branch: str | None = field(default=None, kw_only=True)
    key: object = field(default=Inherit.KEY, kw_only=True)
    headers: Headers = field(default=(), kw_only=True)
    partition: int | None = field(default=None, kw_only=True)
    timestamp_ms: int | None = field(default=None, kw_only=True)


class Context:
    """One attempt at one record.

    Attributes:
        record: The record as it was read, with bytes as key and value.
        attempt: Number of the attempt since this process read the record, 1 for the first.
        processor: Name of the processor.
    """

    __slots__ = ("_open", "_outputs", "attempt", "processor", "record")

    def __init__(self, record: ConsumerRecord, attempt: int, processor: str) -> None:
        self.record: ConsumerRecord = record
        self.attempt: int = attempt
        self.processor: str = processor
        self._outputs: list[Output] = []
        self._open = True

    @property
    def topic_partition(self) -> TopicPartition:
        """Partition of the record."""
        return TopicPartition(self.record.topic, self.record.partition)

    @property
    def record_id(self) -> str:
        """``topic-partition-offset``: the same in every attempt.

        Pass it to systems outside of Kafka as an idempotency key: their effects are not part of the
        transaction, and the record is processed again after an abort.
        """
        return f"{self.record.topic}-{self.record.partition}-{self.record.offset}"

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = Inherit.KEY,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send to a topic within the record's transaction, like returning an ``Output``.

        Args:
            topic: Topic name.
            value: Value; None is a tombstone.
            key: Key, the input record's by default; all records of a key go to one partition.
            headers: Pairs of name and bytes.
            partition: Partition number; default by key.
            timestamp_ms: Milliseconds since 1970; default the input record's.

        Raises:
            OutputRefusedError: The handler has returned already (a task was not awaited).
        """
        if not self._open:
            raise OutputRefusedError(
                f"output to {topic!r} after record {self.record_id} was finished; "
                "await the task in the handler"
            )
        self._outputs.append(
            Output(
                value,
                topic=topic,
                key=key,
                headers=headers,
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
        )

    def _finish(self) -> list[Output]:
        """End the call: return its outputs, and refuse further ones."""
        self._open = False
        return self._outputs
