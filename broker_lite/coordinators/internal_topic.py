"""Stores the coordinators' state on partition logs: internal topics, markers, producer ids.

No other module of the coordinators uses record batches and logs. It converts keys and values to
batches and back, and the log's errors to the codes that a coordinator's clients expect. The first
record creates an internal topic, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.state_log import (
    KeyValue,
    StateLogError,
    StoredBatch,
    StoredRecord,
)
from onceflow.broker_lite.log import AppendError, DataFolderError, ReadError
from onceflow.broker_lite.log.start_notes import LEADER_EPOCH_MAX
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    decode_batch,
    encode_batch,
    iter_batch_headers,
    parse_control_batch,
)

if TYPE_CHECKING:
    from onceflow.broker_lite.log import LogManager, PartitionLog
    from onceflow.broker_lite.topics import TopicRegistry

LOAD_READ_BYTES = 1024 * 1024
"""Bytes of one read while an internal topic is reloaded."""

_CLIENT_CODES = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""Error codes of the log for which a coordinator's clients expect another code."""


class InternalTopicLog:
    """A :class:`StateLog` on the logs of one internal topic."""

    __slots__ = ("_default_partition_count", "_name", "_topics")

    def __init__(self, topics: TopicRegistry, name: str, default_partition_count: int) -> None:
        """Make the access.

        Args:
            topics: Topics of the broker.
            name: Name of the internal topic.
            default_partition_count: Its partition count, if it does not exist yet.
        """
        self._topics = topics
        self._name = name
        self._default_partition_count = default_partition_count

    @property
    def partition_count(self) -> int:
        """Partition count of the topic, or the one that it will be created with."""
        topic = self._topics.get(self._name)
        return self._default_partition_count if topic is None else len(topic.partitions)

    def prepare(self, now_ms: int) -> None:
        """Make the missing partitions of a topic without records.

        The process may have died while it made them. A topic with records keeps its partition
        count, which decides the partition of each key.

        Raises:
            DataFolderError: A partition cannot be made.
        """
        topic = self._topics.get(self._name)
        if (
            topic is not None
            and len(topic.partitions) < self._default_partition_count
            and not any(log.log_end_offset for log in topic.partitions)
        ):
            try:
                self._topics.add_partitions(topic, self._default_partition_count, now_ms)
            except TopicError as error:
                raise DataFolderError(error.message) from error

    def leader_epoch(self, partition: int) -> int:
        """Leader epoch of a partition, 0 before the topic exists."""
        log = self._topics.partition(self._name, partition)
        return 0 if log is None else log.leader_epoch

    def begin_epoch_above(self, partition: int, known_epoch: int) -> None:
        """See :meth:`StateLog.begin_epoch_above`."""
        log = self._topics.partition(self._name, partition)
        if log is not None and known_epoch >= log.leader_epoch:
            log.begin_leader_epoch(min(known_epoch + 1, LEADER_EPOCH_MAX))

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        now_ms: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> int:
        """See :meth:`StateLog.append`."""
        try:
            topic = self._topics.ensure_internal(self._name, now_ms)
            batch = encode_batch(
                [(now_ms, record.key, record.value, []) for record in records],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transactional=producer_id != NO_PRODUCER_ID,
            )
            result = topic.partitions[partition].append(batch, now_ms=now_ms, from_client=False)
        except AppendError as error:
            code = _CLIENT_CODES.get(error.code, error.code)
            raise StateLogError(code, f"{self._name}-{partition}: {error}") from error
        except (OSError, TopicError) as error:
            raise StateLogError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._name}-{partition}: {error}"
            ) from error
        return result.base_offset

    def batches(self, partition: int) -> Iterator[StoredBatch]:
        """See :meth:`StateLog.batches`."""
        log = self._topics.partition(self._name, partition)
        if log is None:
            return
        try:
            yield from _stored_batches(log)
        except (InvalidBatchError, ReadError) as error:
            raise InvalidBatchError(
                f"{self._name}-{partition} cannot be read: {error}; restore its folder, or "
                "delete it and lose its state",
                error.code,
            ) from error


def _stored_batches(log: PartitionLog) -> Iterator[StoredBatch]:
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        begin = offset
        data = log.read(
            offset, LOAD_READ_BYTES, isolation_level=IsolationLevel.READ_UNCOMMITTED
        ).records
        for position, header in iter_batch_headers(data):
            offset = header.next_offset
            if header.is_control:
                yield StoredBatch(
                    header.producer_id,
                    header.producer_epoch,
                    True,
                    parse_control_batch(data, position).is_commit,
                    (),
                )
                continue
            yield StoredBatch(
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                None,
                [
                    StoredRecord(record.offset, record.key or b"", record.value)
                    for record in decode_batch(data, position, header=header)
                ],
            )
        if not len(data):
            break
        if offset == begin:
            raise InvalidBatchError(f"no whole batch at offset {offset}")


class FileBlockStore:
    """A :class:`BlockStore` in one small file of the log root."""

    __slots__ = ("_log_manager", "_name")

    def __init__(self, log_manager: LogManager, name: str) -> None:
        self._log_manager = log_manager
        self._name = name

    def read(self) -> bytes | None:
        """See :meth:`BlockStore.read`."""
        return self._log_manager.read_small_file(self._name)

    def write(self, data: bytes) -> None:
        """See :meth:`BlockStore.write`."""
        self._log_manager.write_small_file(self._name, data)
