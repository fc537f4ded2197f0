"""Transaction markers: the control batches that end a transaction in each of its partitions.

It writes one marker to one partition, and informs the group coordinator if that partition holds
committed offsets. ``decided`` chooses the partitions and repeats failed writes. The WriteTxnMarkers
handler uses this module too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from onceflow.broker_lite.coordinators.state_log import TransactionMarker
from onceflow.broker_lite.log import AppendError
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.markers")


class ProducerView(Protocol):
    """What a partition knows of one producer, as far as markers need it."""

    @property
    def producer_id(self) -> int:
        """The producer."""

    @property
    def producer_epoch(self) -> int:
        """Newest epoch seen in the partition."""

    @property
    def coordinator_epoch(self) -> int:
        """Coordinator epoch of the newest marker."""


class MarkerPartition(Protocol):
    """A partition that can hold transactional records; ``PartitionLog`` is one."""

    def append_control(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        now_ms: int,
    ) -> object:
        """Append a marker and end the producer's transaction in this partition."""

    def has_open_transaction(self, producer_id: int) -> bool:
        """True between the first transactional batch of the producer and its marker."""

    def producers(self) -> Iterable[ProducerView]:
        """Return the producers that the partition knows."""


class OffsetsListener(Protocol):
    """Keeps the pending offsets of ``__consumer_offsets``: the group coordinator."""

    def on_transaction_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """Keep or drop the producer's pending offsets in this partition."""


class TransactionMarkers:
    """Writes markers to partitions."""

    __slots__ = ("_listener", "_lookup")

    def __init__(
        self,
        lookup: Callable[[str, int], MarkerPartition | None],
        listener: OffsetsListener,
    ) -> None:
        self._lookup = lookup
        self._listener = listener

    def exists(self, partition: TopicPartition) -> bool:
        """Whether the broker has that partition."""
        return self._lookup(partition.topic, partition.partition) is not None

    def write(self, partition: TopicPartition, marker: TransactionMarker, now_ms: int) -> ErrorCode:
        """Write one marker.

        Returns:
            NONE; UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR if storage failed and the caller
            must repeat the write; or the log's refusal, such as INVALID_PRODUCER_EPOCH if the log
            knows a newer epoch.
        """
        log = self._lookup(partition.topic, partition.partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self.append(partition, log, marker, now_ms)
        except AppendError as error:
            logger.warning("%s: marker %s was refused: %s", partition, marker, error)
            return error.code
        except OSError as error:
            logger.error("%s: marker %s could not be written: %s", partition, marker, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def append(
        self,
        partition: TopicPartition,
        log: MarkerPartition,
        marker: TransactionMarker,
        now_ms: int,
    ) -> None:
        """Write one marker to a partition's log.

        Raises:
            AppendError: The log refuses it.
            OSError: Storage failed.
        """
        log.append_control(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.committed,
            now_ms,
        )
        if partition.topic == OFFSETS_TOPIC:
            self._listener.on_transaction_marker(
                partition.partition, marker.producer_id, marker.committed
            )

    def already_written(self, partition: TopicPartition, marker: TransactionMarker) -> bool:
        """Whether a partition already holds a marker that was decided before a restart.

        A second marker would end nothing. But it would take an offset, and strict readers fail at
        an abort marker without a transaction. The marker is there if the partition has no open
        transaction, and knows the marker's epoch or a later one.
        """
        log = self._lookup(partition.topic, partition.partition)
        if log is None or log.has_open_transaction(marker.producer_id):
            return False
        for producer in log.producers():
            if producer.producer_id == marker.producer_id:
                return producer.producer_epoch >= marker.producer_epoch
        return False

    def is_fenced_off(self, partition: TopicPartition, marker: TransactionMarker) -> bool:
        """Whether a partition knows a later epoch of the producer and has nothing open.

        After a crash, a start aborts transactions unknown to the coordinator under the next epoch.
        """
        log = self._lookup(partition.topic, partition.partition)
        if log is None or log.has_open_transaction(marker.producer_id):
            return False
        return any(
            producer.producer_epoch > marker.producer_epoch
            for producer in log.producers()
            if producer.producer_id == marker.producer_id
        )

    def coordinator_epoch(self, partition: TopicPartition, producer_id: int) -> int:
        """Coordinator epoch of a producer's newest marker in a partition, -1 for none."""
        log = self._lookup(partition.topic, partition.partition)
        return max(
            (each.coordinator_epoch for each in log.producers() if each.producer_id == producer_id)
            if log is not None
            else (),
            default=-1,
        )
