"""Records of one partition field by field, for code that works on whole batches.

A list per field costs a fraction of an object per record, and is what numerical libraries take.
This module holds the data and turns it into records, or into an Arrow table where pyarrow is
installed; it reads nothing from the wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, cast, overload

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, TimestampType, TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")


class ArrowLike(Protocol):
    """An array or chunked array of pyarrow."""

    def to_pylist(self) -> list[Any]:
        """Its elements as Python objects."""
        ...

    def __len__(self) -> int: ...


class NumpyLike(Protocol):
    """A one-dimensional array of numpy, or a series of pandas."""

    def tolist(self) -> list[Any]:
        """Its elements as Python objects."""
        ...

    def __len__(self) -> int: ...


Column: TypeAlias = "Sequence[T] | ArrowLike | NumpyLike"
"""What a bulk call takes for a field: a sequence, or a column of Arrow, numpy or pandas."""


def as_sequence(column: Column[T], field: str = "values") -> Sequence[T]:
    """Return the elements of a column; a foreign column is converted in one call.

    Args:
        column: What was given.
        field: Name of the argument, for the message.

    Raises:
        ConfigError: It is not a sequence, or a single string or bytes value.
    """
    if isinstance(column, str | bytes | bytearray | memoryview):
        raise ConfigError(
            field,
            f"one {type(column).__name__}",
            "must be a list with one element for each record; send() is for one record",
        )
    if isinstance(column, Sequence):
        return column
    convert = getattr(column, "to_pylist", None) or getattr(column, "tolist", None)
    elements: object = None if convert is None else convert()
    if not isinstance(elements, list):
        raise ConfigError(
            field,
            type(column).__name__,
            "must be a sequence, or an array of Arrow or numpy",
        )
    return elements


class RecordColumns(Sequence[ConsumerRecord[KeyT_co, ValueT_co]], Generic[KeyT_co, ValueT_co]):
    """A run of records of one partition; element `i` of every column belongs to record `i`.

    It is also a sequence of `ConsumerRecord`, made as they are asked for. After a poll for values
    only, ``timestamps_ms``, ``keys`` and ``headers`` are empty and its records lack these fields.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offsets: Offset of each record; a range where none is missing in between.
        timestamps_ms: Timestamp of each in milliseconds, -1 for none.
        timestamp_type: Who set the timestamps.
        keys: Key of each, or None.
        values: Value of each, or None (a tombstone).
        headers: Headers of the records that have some, by number of the record here.
        leader_epoch: Leader epoch of the batches they came in, -1 if unknown.
    """

    __slots__ = (
        "headers",
        "keys",
        "leader_epoch",
        "offsets",
        "partition",
        "timestamp_type",
        "timestamps_ms",
        "topic",
        "values",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        values: list[ValueT_co],
        *,
        keys: list[KeyT_co] | None = None,
        timestamps_ms: list[int] | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        headers: dict[int, Headers] | None = None,
        leader_epoch: int = -1,
    ) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.offsets: Sequence[int] = offsets
        self.values: list[ValueT_co] = values
        self.keys: list[KeyT_co] = [] if keys is None else keys
        self.timestamps_ms: list[int] = [] if timestamps_ms is None else timestamps_ms
        self.timestamp_type: TimestampType = timestamp_type
        self.headers: dict[int, Headers] = {} if headers is None else headers
        self.leader_epoch: int = leader_epoch

    @classmethod
    def from_records(
        cls, records: Sequence[ConsumerRecord[KeyT_co, ValueT_co]]
    ) -> RecordColumns[KeyT_co, ValueT_co]:
        """The columns of records of one partition, of which there is at least one.

        Args:
            records: Records of one partition in order, at least one.
        """
        first = records[0]
        return cls(
            first.topic,
            first.partition,
            [record.offset for record in records],
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps_ms=[record.timestamp_ms for record in records],
            timestamp_type=TimestampType(first.timestamp_type),
            headers={i: record.headers for i, record in enumerate(records) if record.headers},
            leader_epoch=first.leader_epoch,
        )

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the records came from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def values_only(self) -> bool:
        """Whether nothing but offsets and values was read."""
        return len(self.values) > len(self.keys)

    def only_values(self) -> RecordColumns[KeyT_co, ValueT_co]:
        """The same offsets and values without the rest, as a poll for values only returns them."""
        if not self.keys:
            return self
        return RecordColumns(
            self.topic,
            self.partition,
            self.offsets,
            self.values,
            timestamp_type=self.timestamp_type,
            leader_epoch=self.leader_epoch,
        )

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[KeyT_co, ValueT_co]: ...
    @overload
    def __getitem__(self, index: slice) -> RecordColumns[KeyT_co, ValueT_co]: ...
    def __getitem__(
        self, index: int | slice
    ) -> ConsumerRecord[KeyT_co, ValueT_co] | RecordColumns[KeyT_co, ValueT_co]:
        if isinstance(index, slice):
            return self._part(index)
        number = range(len(self))[index]
        return ConsumerRecord(
            self.topic,
            self.partition,
            self.offsets[number],
            self.timestamps_ms[number] if self.timestamps_ms else -1,
            self.timestamp_type,
            self.keys[number] if self.keys else cast("KeyT_co", None),
            self.values[number],
            self.headers.get(number, ()),
            self.leader_epoch,
        )

    def __iter__(self) -> Iterator[ConsumerRecord[KeyT_co, ValueT_co]]:
        headers: Iterator[Headers] = repeat(())
        if self.headers:
            headers = iter([self.headers.get(number, ()) for number in range(len(self))])
        return map(
            ConsumerRecord,
            repeat(self.topic),
            repeat(self.partition),
            self.offsets,
            self.timestamps_ms or repeat(-1),
            repeat(self.timestamp_type),
            self.keys or repeat(cast("KeyT_co", None)),
            self.values,
            headers,
            repeat(self.leader_epoch),
        )

    def extend(self, other: RecordColumns[KeyT_co, ValueT_co]) -> None:
        """Append later records of the same partition.

        Args:
            other: The later records.
        """
        count = len(self)
        self.add_offsets(other.offsets)
        self.values += other.values
        self.keys += other.keys
        self.timestamps_ms += other.timestamps_ms
        self.headers.update((count + at, headers) for at, headers in other.headers.items())

    def add_offsets(self, others: Sequence[int]) -> None:
        """Append later offsets; without a gap in between they stay a range.

        Args:
            others: The later offsets.
        """
        mine = self.offsets
        if (
            isinstance(mine, range)
            and isinstance(others, range)
            and mine.step == others.step == 1
            and mine.stop == others.start
        ):
            self.offsets = range(mine.start, others.stop)
        elif isinstance(mine, list):
            mine.extend(others)  # A copy for each of many small batches would cost their square.
        else:
            self.offsets = [*mine, *others]

    def __repr__(self) -> str:
        ends = f", offsets {self.offsets[0]} to {self.offsets[-1]}" if self.values else ""
        return f"RecordColumns({self.topic}-{self.partition}, {len(self)} records{ends})"

    def _part(self, part: slice) -> RecordColumns[KeyT_co, ValueT_co]:
        numbers = range(len(self))[part]
        if numbers == range(len(self)):
            return self
        headers = {}
        if self.headers:
            found = ((at, self.headers.get(number)) for at, number in enumerate(numbers))
            headers = {at: item for at, item in found if item is not None}
        return RecordColumns(
            self.topic,
            self.partition,
            self.offsets[part],
            self.values[part],
            keys=self.keys[part],
            timestamps_ms=self.timestamps_ms[part],
            timestamp_type=self.timestamp_type,
            headers=headers,
            leader_epoch=self.leader_epoch,
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The columns as an Arrow record batch; needs pyarrow.

        Returns:
            ``offset`` (int64), ``timestamp`` (milliseconds, UTC), ``key`` and ``value`` (binary,
            nullable); without ``timestamp`` and ``key`` after a poll for values only.

        Raises:
            ImportError: pyarrow is not installed.
            TypeError: A deserializer made something else than bytes of keys or values.
        """
        try:
            import pyarrow
        except ImportError as error:
            raise ImportError("to_arrow() needs pyarrow: pip install pyarrow") from error
        columns = {"offset": pyarrow.array(self.offsets, pyarrow.int64())}
        if self.timestamps_ms:
            stamps = [None if stamp < 0 else stamp for stamp in self.timestamps_ms]
            columns["timestamp"] = pyarrow.array(stamps, pyarrow.timestamp("ms", "UTC"))
        if self.keys:
            columns["key"] = pyarrow.array(self.keys, pyarrow.binary())
        columns["value"] = pyarrow.array(self.values, pyarrow.binary())
        return pyarrow.RecordBatch.from_pydict(columns)


AnyColumns: TypeAlias = RecordColumns[object, object]
"""Columns of whatever types, as those who only hand them on take them."""
