"""The reading side of a partition's log.

It decides up to where a reader may see the log: to the high watermark, or for a committed reader to
the last stable offset. ``log_reader`` finds batches and records; ``partition_log`` moves these
positions.
"""

from __future__ import annotations

from onceflow.broker_lite.log import log_reader
from onceflow.broker_lite.log.leader_epochs import LeaderEpochs
from onceflow.broker_lite.log.log_errors import ReadError
from onceflow.broker_lite.log.log_results import ReadResult
from onceflow.broker_lite.log.producer_state import ProducerSnapshot, ProducerState
from onceflow.broker_lite.log.segment_list import SegmentList
from onceflow.broker_lite.log.storage import Buffer
from onceflow.sdk.model.partitions import IsolationLevel, OffsetAndTimestamp, TopicPartition
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    NO_TIMESTAMP,
)
from onceflow.sdk.protocol.error_codes import ErrorCode


class LogView:
    """The reading side of a partition's log.

    Args:
        topic_partition: Which partition it is.
        segments: Its segments.
        producers: Its producers.
        epochs: Its leader epochs.
        log_start_offset: First offset that may be read.
        log_end_offset: Offset of the next record.

    Attributes:
        topic_partition: Which partition it is.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: SegmentList,
        producers: ProducerState,
        epochs: LeaderEpochs,
        log_start_offset: int,
        log_end_offset: int,
    ) -> None:
        self.topic_partition = topic_partition
        self._directory = str(topic_partition)
        self._segments = segments
        self._producers = producers
        self._epochs = epochs
        self._log_start_offset = log_start_offset
        self._log_end_offset = log_end_offset
        self._high_watermark = log_end_offset
        self._last_stable_offset = log_end_offset

    @property
    def log_start_offset(self) -> int:
        """First offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """End of what may be read."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of what a committed reader may read: no open transaction begins below it."""
        return self._last_stable_offset

    @property
    def leader_epoch(self) -> int:
        """Epoch that new batches carry."""
        return self._epochs.latest

    @property
    def size_bytes(self) -> int:
        """Bytes in the log files."""
        return self._segments.size_bytes

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the greatest known epoch up to a given one, and its end (KIP-320).

        Returns:
            Epoch and end offset; (-1, -1) when the epoch is unknown here.
        """
        return self._epochs.end_offset_for(leader_epoch, self._log_end_offset)

    # Reading

    def read(
        self,
        fetch_offset: int,
        max_bytes: int,
        *,
        isolation_level: int = IsolationLevel.READ_UNCOMMITTED,
        minimum_one_batch: bool = True,
    ) -> ReadResult:
        """Read whole batches from an offset on.

        Args:
            fetch_offset: Where to begin; inside of a batch gives the whole batch.
            max_bytes: Most bytes to give.
            isolation_level: Read up to the high watermark, or to the last stable offset.
            minimum_one_batch: Give the first batch also when it is larger than ``max_bytes``.

        Raises:
            ReadError: OFFSET_OUT_OF_RANGE; KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE when the file
                cannot be read as a log.
        """
        if not self._log_start_offset <= fetch_offset <= self._log_end_offset:
            raise ReadError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {fetch_offset} of {self._directory} is outside of "
                f"{self._log_start_offset} to {self._log_end_offset}",
            )
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        upper_bound = self._last_stable_offset if committed else self._high_watermark
        records: Buffer = b""
        aborted: list[tuple[int, int]] | None = [] if committed else None
        if fetch_offset < upper_bound:
            try:
                records, end_offset = log_reader.read_batches(
                    self._segments,
                    fetch_offset,
                    max_bytes,
                    upper_bound,
                    self._log_end_offset,
                    minimum_one_batch=minimum_one_batch,
                )
                if committed and records:
                    aborted = log_reader.aborted_transactions(
                        self._segments, fetch_offset, end_offset
                    )
            except OSError as error:
                raise ReadError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self._directory}: {error}"
                ) from error
            except InvalidBatchError as error:
                raise ReadError(error.code, f"{self._directory}: {error}") from error
        return ReadResult(
            records,
            self._high_watermark,
            self._last_stable_offset,
            self._log_start_offset,
            aborted,
        )

    def earliest(self) -> OffsetAndTimestamp:
        """The log start, as ListOffsets answers it."""
        offset = self._log_start_offset
        return OffsetAndTimestamp(offset, NO_TIMESTAMP, self._epochs.epoch_at(offset))

    def latest(self, isolation_level: int = IsolationLevel.READ_UNCOMMITTED) -> OffsetAndTimestamp:
        """The end of what may be read, as ListOffsets answers it."""
        return OffsetAndTimestamp(
            self._upper_bound(isolation_level), NO_TIMESTAMP, self._epochs.latest
        )

    def max_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record with the greatest timestamp (KIP-734), or None in an empty log."""
        found = log_reader.greatest_timestamp(self._segments, self._log_start_offset)
        return None if found is None else OffsetAndTimestamp(*found)

    def offset_for_timestamp(
        self, timestamp_ms: int, isolation_level: int = IsolationLevel.READ_UNCOMMITTED
    ) -> OffsetAndTimestamp | None:
        """The first record at or after a time, within what may be read.

        Args:
            timestamp_ms: Milliseconds since 1970.
            isolation_level: What may be read.

        Returns:
            Offset, timestamp and leader epoch of the record, or None.
        """
        found = log_reader.first_at_or_after(self._segments, timestamp_ms, self._log_start_offset)
        if found is None or found[0] >= self._upper_bound(isolation_level):
            return None
        return OffsetAndTimestamp(*found)

    def _upper_bound(self, isolation_level: int) -> int:
        if isolation_level == IsolationLevel.READ_COMMITTED:
            return self._last_stable_offset
        return self._high_watermark

    # Producers

    def producers(self) -> list[ProducerSnapshot]:
        """Producers that the partition remembers (DescribeProducers)."""
        return self._producers.snapshots()

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """Whether a producer has a transaction open here, in that epoch if one is given."""
        return self._producers.has_open_transaction(producer_id, producer_epoch)
