"""Protocols for what the coordinators need of storage: append to internal topics, and reload.

With them the coordinators run on partition logs in the broker, and on a list in memory in unit
tests. The implementations decide how records are stored and made durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from onceflow.sdk.protocol.error_codes import ErrorCode


class KeyValue(NamedTuple):
    """One record to be written to an internal topic; a None value is a tombstone."""

    key: bytes
    value: bytes | None


class StoredRecord(NamedTuple):
    """One record of an internal topic as it is read back."""

    offset: int
    key: bytes
    value: bytes | None


class StoredBatch(NamedTuple):
    """One batch of an internal topic as it is read back.

    Attributes:
        producer_id: Producer of a transactional batch or marker, else -1.
        producer_epoch: Its epoch, else -1.
        transactional: True when the records wait for a marker.
        committed: Result of a transaction marker; None when the batch holds data.
        records: In offset order; empty for markers.
    """

    producer_id: int
    producer_epoch: int
    transactional: bool
    committed: bool | None
    records: Sequence[StoredRecord]


class StateLogError(Exception):
    """An append to an internal topic failed; nothing of it is visible.

    Attributes:
        code: The error code for the client.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[1]) or self.code.name


class StateLog(Protocol):
    """One internal topic."""

    @property
    def partition_count(self) -> int:
        """Partition count of the topic, from which the partition of each key follows."""

    def prepare(self, now_ms: int) -> None:
        """Prepare for loading: complete a creation that the end of the process interrupted."""

    def leader_epoch(self, partition: int) -> int:
        """Leader epoch of a partition, which is the coordinator epoch in markers."""

    def begin_epoch_above(self, partition: int, known_epoch: int) -> None:
        """Begin a leader epoch above a known one, unless the current one is above it already."""

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        now_ms: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> int:
        """Append one batch, so that it survives the end of the process.

        Args:
            partition: Partition of the topic.
            records: At least one record.
            now_ms: Timestamp of the records.
            producer_id: Set to make the batch transactional: it waits for a marker.
            producer_epoch: Epoch that goes with ``producer_id``.

        Returns:
            Base offset of the batch.

        Raises:
            StateLogError: Nothing was appended.
        """

    def batches(self, partition: int) -> Iterator[StoredBatch]:
        """Return all batches of a partition in offset order; none if it does not exist yet."""


class TransactionMarker(NamedTuple):
    """A marker to be written (KIP-98).

    Attributes:
        producer_id: Whose transaction ends.
        producer_epoch: Epoch in the marker; under transaction version 2 already the next one.
        committed: True is commit.
        coordinator_epoch: Leader epoch of the coordinator's partition.
        transaction_version: 2 when the epoch was bumped for this marker, otherwise 0 or 1.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int = 0
    transaction_version: int = 0
