"""Fetched batches that wait for the application, and the decoding of their records.

One `FetchedData` is one partition's part of one fetch answer. It leaves out control batches,
aborted transactions, and records before the requested offset, which come along because brokers send
whole batches. It does not know whether the consumer still owns the partition.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable

from onceflow.sdk.core.consume.aborted_transactions import AbortedTransactions
from onceflow.sdk.errors import SerializationError
from onceflow.sdk.model.columns import AnyColumns, RecordColumns
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_batch_header,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.records import (
    consumer_columns,
    consumer_records,
    extend_columns,
    parse_control_batch,
)
from onceflow.sdk.serde import LookupNeeded, TopicDeserializer

OFFSET_MAX = 2**63 - 1

Deserializer = Callable[..., object]
"""Converts the bytes of a key or value to an object; not called for None."""

RunDeserializer = Callable[[list[AnyRecord]], list[AnyRecord]]
"""Made by `make_deserializer`."""


class FetchedData:
    """A run of batches of one partition, read from front to back.

    Attributes:
        topic_partition: Where the batches come from.
        stamp: The partition's stamp at the request.
        next_offset: Offset after the last complete batch, to be fetched next.
        leader_epoch: Leader epoch of the last complete batch.
        position: Offset after the records that were taken so far.
        position_epoch: Leader epoch of the batch before that offset, -1 if none was read.
    """

    __slots__ = (
        "_aborted",
        "_check_crcs",
        "_columns",
        "_data",
        "_deserialize",
        "_end",
        "_header",
        "_index",
        "_offset",
        "_records",
        "leader_epoch",
        "next_offset",
        "position",
        "position_epoch",
        "stamp",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        stamp: int,
        fetch_offset: int,
        data: Buffer,
        aborted: AbortedTransactions | None,
        *,
        check_crcs: bool = True,
        deserialize: RunDeserializer | None = None,
    ) -> None:
        """Find the complete batches.

        Args:
            topic_partition: Where the batches come from.
            stamp: The partition's stamp at the request.
            fetch_offset: The requested offset.
            data: Batches in order; the last one may be cut.
            aborted: Aborted transactions of the range, None to show everything.
            check_crcs: Whether to compare each batch with its checksum before use.
            deserialize: From `make_deserializer`.

        Raises:
            RecordError: The bytes cannot be batches.
        """
        self.topic_partition: TopicPartition = topic_partition
        self.stamp: int = stamp
        self.position: int = fetch_offset
        self.next_offset: int = fetch_offset
        self.position_epoch: int = -1
        self.leader_epoch: int = -1
        self._data = data
        self._aborted = aborted
        self._check_crcs = check_crcs
        self._deserialize = deserialize
        self._header: BatchHeader | None = None
        self._offset = 0
        self._records: list[AnyRecord] = []
        self._columns: AnyColumns | None = None
        self._index = 0
        self._end = self._find_end()

    def _find_end(self) -> int:
        size, at = len(self._data), 0
        last: BatchHeader | None = None
        while size - at >= HEADER_SIZE:
            try:
                header = self._header_at(at)
            except InvalidBatchError:
                if last is None:
                    raise
                break  # The batches before it are good; the rest is fetched again.
            if at + header.size_bytes > size:
                break
            last = header
            at += header.size_bytes
        if last is None:
            # Brokers answer with at least one whole batch, or with nothing (KIP-74).
            raise InvalidBatchError("a record batch is cut off", ErrorCode.CORRUPT_MESSAGE)
        # A batch that is entirely below the requested offset must not move it back.
        self.next_offset = max(self.next_offset, last.next_offset)
        self.leader_epoch = last.partition_leader_epoch
        return at

    def _header_at(self, at: int) -> BatchHeader:
        header = parse_batch_header(self._data, at)
        if header.base_offset < 0 or header.next_offset > OFFSET_MAX:
            raise InvalidBatchError(
                f"a batch of {self.topic_partition} has offsets outside of 0 to 2^63 - 1: its base "
                f"offset is {header.base_offset}"
            )
        return header

    @property
    def size_bytes(self) -> int:
        """Bytes of batches that were not taken yet."""
        return self._end - self._offset

    @property
    def next_batch_offset(self) -> int | None:
        """Return the offset after the next batch; None if its header is damaged."""
        try:
            header = parse_batch_header(self._data, self._offset)
        except InvalidBatchError:
            return None
        return header.next_offset if header.next_offset > self.position else None

    def let_go(self) -> None:
        """Copy the bytes that were not taken yet, so that the whole answer can be freed."""
        if isinstance(self._data, memoryview):
            self._data = bytes(self._data[self._offset : self._end])
            self._end -= self._offset
            self._offset = 0

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken."""
        return self._offset >= self._end and self._index >= self._decoded

    @property
    def _decoded(self) -> int:
        return len(self._records) if self._columns is None else len(self._columns)

    def take_columns(
        self, limit: int, *, values_only: bool, beside: AnyColumns | None = None
    ) -> AnyColumns | None:
        """As `take`, field by field.

        Args:
            limit: Most records wanted; 0 only skips hidden batches.
            values_only: Whether offsets and values are enough.
            beside: Columns to which the records are added, if their batch allows it.

        Returns:
            A new run of one batch, or `beside` with up to `limit` more records. It has none more if
            no visible ones are left, if the limit is 0, or if the next batch differs from it.
        """
        if self._deserialize is not None or self._index < len(self._records):
            return self._take_as_columns(limit, beside)
        if self._columns is not None and self._columns.values_only != values_only:
            self._columns, self._index = None, 0
        while not self.exhausted:
            if self._columns is not None:
                if limit <= 0 or not (beside is None or _alike(self._columns, beside)):
                    return beside
                taken = self._columns[self._index : self._index + limit]
                self._move_to(self._index + len(taken), taken.offsets[-1], taken.leader_epoch)
                if beside is None:
                    return taken
                beside.extend(taken)
                limit -= len(taken)
                continue
            header = parse_batch_header(self._data, self._offset)
            if self._hides(header):
                self._finish(header)
            elif limit <= 0:
                return beside
            elif beside is not None and self._reads_into(beside, header, limit, values_only):
                self._finish(header)
                limit -= header.records_count
            else:
                self._decode_columns(header, values_only)
        return beside

    def _take_as_columns(self, limit: int, beside: AnyColumns | None) -> AnyColumns | None:
        """Take columns through records: a deserializer needs these, or they exist already."""
        while not self.exhausted:
            if self._index < len(self._records):
                first = self._records[self._index]
                if limit <= 0 or not (beside is None or _alike(first, beside)):
                    break
                taken = RecordColumns.from_records(self._take_decoded(limit))
                if beside is None:
                    return taken
                beside.extend(taken)
                limit -= len(taken)
                continue
            header = parse_batch_header(self._data, self._offset)
            if self._hides(header):
                self._finish(header)
            elif limit <= 0:
                break
            else:
                self._decode(header)
        return beside

    def take(self, limit: int, beside: list[AnyRecord] | None = None) -> list[AnyRecord]:
        """Return records for the application in order; move the position, also over hidden ones.

        Args:
            limit: Most records wanted; 0 only skips hidden batches.
            beside: List to which the records are added.

        Returns:
            A new list with records of one batch, or `beside` with up to `limit` more records. It
            has none more if no visible ones are left, or if the limit is 0.

        Raises:
            RecordError: A batch cannot be read. The position stays before it.
            SerializationError: A deserializer refused a record. The position stays before it.
        """
        found = [] if beside is None else beside
        if self._columns is not None:  # They may hold only values: decode the batch again.
            self._columns, self._index = None, 0
        # Return records before a later batch can raise an error, with which they would be lost.
        while not self.exhausted and (beside is not None or not found):
            before = len(found)
            if self._index < len(self._records):
                if limit <= 0:
                    break
                found += self._take_decoded(limit)
            else:
                header = parse_batch_header(self._data, self._offset)
                if self._hides(header):
                    self._finish(header)
                elif limit <= 0:
                    break
                elif self._deserialize is None and self._wants_all_of(header, limit):
                    self._read_records(header, found)
                    self._finish(header)
                else:
                    self._decode(header)
            limit -= len(found) - before
        return found

    def _hides(self, header: BatchHeader) -> bool:
        """Whether the application must not see the batch; note markers."""
        attributes = header.attributes
        if attributes & CONTROL_BIT:
            # Compaction may keep the header of a marker without its record.
            if self._aborted is not None and header.records_count > 0:
                marker = parse_control_batch(self._data, self._offset)
                if marker.is_abort:
                    self._aborted.end_with_abort(header.producer_id, header.base_offset)
            return True
        if header.next_offset <= self.position:
            return True
        return (
            self._aborted is not None
            and bool(attributes & TRANSACTIONAL_BIT)
            and self._aborted.hides(header.producer_id, header.base_offset)
        )

    def _wants_all_of(self, header: BatchHeader, limit: int) -> bool:
        """Whether the application gets every record of a batch now."""
        return header.base_offset >= self.position and header.records_count <= limit

    def _read_records(
        self, header: BatchHeader, into: list[AnyRecord] | None = None
    ) -> list[AnyRecord]:
        topic, partition = self.topic_partition
        return consumer_records(
            self._data,
            header,
            self._offset,
            topic,
            partition,
            into=into,
            verify_crc=self._check_crcs,
        )

    def _reads_into(
        self, columns: AnyColumns, header: BatchHeader, limit: int, values_only: bool
    ) -> bool:
        """Decode a whole batch into the list of records before it, if it has the same form."""
        return (
            self._wants_all_of(header, limit)
            and columns.values_only == values_only
            and columns.leader_epoch == header.partition_leader_epoch
            and columns.timestamp_type << 3 == header.attributes & LOG_APPEND_TIME_BIT
            and extend_columns(
                columns, self._data, header, self._offset, verify_crc=self._check_crcs
            )
        )

    def _decode(self, header: BatchHeader) -> None:
        records = self._read_records(header)
        if records and records[0].offset < self.position:
            first = self.position
            records = [record for record in records if record.offset >= first]
        self._header = header
        self._records = records
        self._index = 0
        if not records:  # Compaction left no record in it.
            self._finish(header)

    def _decode_columns(self, header: BatchHeader, values_only: bool) -> None:
        topic, partition = self.topic_partition
        columns = consumer_columns(
            self._data,
            header,
            self._offset,
            topic,
            partition,
            values_only=values_only,
            verify_crc=self._check_crcs,
        )
        first = bisect_left(columns.offsets, self.position)
        self._header = header
        self._columns = columns[first:] if first else columns
        self._index = 0
        if not self._columns:  # Compaction left no record in it.
            self._finish(header)

    def _take_decoded(self, limit: int) -> list[AnyRecord]:
        records, index = self._records, self._index
        whole = index == 0 and len(records) <= limit
        taken = records if whole else records[index : index + limit]
        if self._deserialize is not None:
            taken = self._deserialize(taken)
        self._move_to(index + len(taken), taken[-1].offset, taken[-1].leader_epoch)
        return taken

    def _move_to(self, index: int, last_offset: int, leader_epoch: int) -> None:
        """Move the position after the records that were taken of the current batch."""
        self._index = index
        self.position = last_offset + 1
        self.position_epoch = leader_epoch
        if index >= self._decoded:
            assert self._header is not None, "records come from a batch"
            self._finish(self._header)

    def _finish(self, header: BatchHeader) -> None:
        """Move the position after a batch."""
        self._offset += header.size_bytes
        self._records = []
        self._columns = None
        self._index = 0
        if header.next_offset > self.position:
            # Compaction may have removed the last records of a batch, or the last one is a marker.
            self.position = header.next_offset
        self.position_epoch = header.partition_leader_epoch


def _alike(more: AnyColumns | AnyRecord, beside: AnyColumns) -> bool:
    values_only = isinstance(more, RecordColumns) and more.values_only
    return (
        more.leader_epoch == beside.leader_epoch
        and values_only == beside.values_only
        and more.timestamp_type == beside.timestamp_type
    )


def take_records(
    data: FetchedData, limit: int, found: list[AnyRecord] | None
) -> list[AnyRecord] | None:
    """Add records of one partition's data to those found; return None if there are none."""
    return data.take(limit, found) or None


def take_columns(data: FetchedData, limit: int, found: AnyColumns | None) -> AnyColumns | None:
    """The same with columns."""
    return data.take_columns(limit, values_only=False, beside=found)


def take_values(data: FetchedData, limit: int, found: AnyColumns | None) -> AnyColumns | None:
    """The same with columns of offsets and values."""
    return data.take_columns(limit, values_only=True, beside=found)


def make_deserializer(
    key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> RunDeserializer | None:
    """Combine a consumer's deserializers into one function over a run of records.

    The function takes records of one topic and changes them in place. It returns the records before
    the first refused one. If the very first one is refused, it raises `SerializationError`. So the
    records before a broken one are delivered, and every later call meets the broken one again.

    Returns:
        The function, or None if there are no deserializers.
    """
    if key_deserializer is None and value_deserializer is None:
        return None

    def deserialize(records: list[AnyRecord]) -> list[AnyRecord]:
        topic = records[0].topic
        read_key = _for_topic(key_deserializer, topic, "key")
        read_value = _for_topic(value_deserializer, topic, "value")
        for index, record in enumerate(records):
            # The record held bytes; from here on it may hold any object.
            key, value = record.key, record.value
            try:
                if read_key is not None and isinstance(key, bytes):
                    key = read_key(key)
                if read_value is not None and isinstance(value, bytes):
                    value = read_value(value)
            except LookupNeeded as needed:
                if index:
                    return records[:index]
                needed.where = f"offset {record.offset} of {record.topic}-{record.partition}"
                raise
            except Exception as error:
                if index:
                    return records[:index]
                raise SerializationError(
                    f"cannot deserialize the record at offset {record.offset} of "
                    f"{record.topic}-{record.partition}: {error}; seek to "
                    f"{record.offset + 1} to go on without it"
                ) from error
            record.key, record.value = key, value
        return records

    return deserialize


def _for_topic(
    deserializer: Deserializer | None, topic: str, field: str
) -> Callable[[bytes], object] | None:
    if isinstance(deserializer, TopicDeserializer):
        return functools.partial(deserializer.deserialize, topic=topic, field=field)
    return deserializer
