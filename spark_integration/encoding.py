"""Turning a task's rows into finished Kafka batches, before Spark moves or collects them.

A shuffle then moves a few large values instead of all rows, and who writes has only to number the
batches. What is wrong with a row travels in a row of its own: a raised error would make Spark run
the task again, which cannot help.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext

from onceflow.sdk import BatchEncoder, EncodedBatch
from onceflow.sdk.errors import ConfigError, KafkaError, UnknownTopicOrPartitionError
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA: Final = "topic STRING, partition INT, records INT, data BINARY, error BINARY"
"""Columns of encoded batches in Spark's DDL."""
ARROW_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int32()),
        ("data", pa.binary()),
        ("error", pa.binary()),
    ]
)
DATA_AT: Final = 3
"""Position of the column of finished batches."""
_MARK: Final = "onceflow.encoding"
"""Metadata of that column: by which options the batches were encoded."""
OPEN_BYTES_MAX = 32 * 2**20
"""Most bytes of rows that a task holds in batches that are not full."""


def sink_columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    """Where rows hold what the sink writes.

    Args:
        schema: Columns of the rows.
        options: The sink's options.

    Raises:
        ConfigError: A column is missing or of a wrong type.
    """
    return SinkColumns.of(
        schema,
        options.topic,
        is_strict=options.strict_columns,
        any_value=options.value_format is not None,
    )


def marked(options: SinkOptions) -> dict[str, str]:
    """Metadata of encoded batches: what the sink must agree on.

    Args:
        options: The sink's options.
    """
    settings = {**options.encoding.values(), "value_format": options.value_format}
    text = repr(sorted((name, str(value)) for name, value in settings.items()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {_MARK: f"{options.topic or ''} {digest}"}


def are_encoded(schema: StructType, options: SinkOptions) -> bool:
    """Whether a frame holds finished batches of ``route(options=...)``.

    Args:
        schema: Columns of the frame.
        options: The sink's options.

    Raises:
        ConfigError: They were encoded by other options.
    """
    if [field.name for field in schema.fields] != ARROW_SCHEMA.names:
        return False
    found = schema.fields[DATA_AT].metadata
    if _MARK not in found:
        return False
    if found != marked(options):
        raise ConfigError(
            "route",
            "options",
            "the rows were encoded by other options than the sink has; give both the same topic "
            "and kafka.* options",
        )
    return True


class TooManyRowsError(Exception):
    """A task has more rows than the driver takes."""


class RowEncoder:
    """Encodes the rows of one task.

    Args:
        options: The sink's options.
        columns: Where the rows hold what.
        counts: Counts of partitions.
        first: Partition where rows without a key begin, counted over the topic's.
        moves_on: Whether each full batch moves them on to the next partition.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: SinkColumns,
        counts: CountsLookup,
        first: int,
        *,
        moves_on: bool = True,
    ) -> None:
        self._topic = options.topic
        self._config = options.encoding
        self._format = options.value_format
        self._columns = columns
        self._counts = counts
        self._first = first
        self._moves_on = moves_on
        self._encoders: dict[str, BatchEncoder] = {}
        self._open_bytes = 0

    def encode(
        self, batch: pa.RecordBatch, partition: int | None = None
    ) -> list[tuple[str, EncodedBatch]]:
        """Take rows, and return topic and batch of what became full.

        Args:
            batch: The rows.
            partition: Where all of them go; by default each goes where it says, or its key.

        Raises:
            ConfigError: A row has no topic, or names a partition that does not exist.
            UnknownTopicOrPartitionError: A topic does not exist.
            RecordTooLargeError: A row is larger than ``kafka.max.request.size``.
        """
        made: list[tuple[str, EncodedBatch]] = []
        for topic, rows in self._by_topic(batch):
            made += [(topic, full) for full in self._encode(topic, rows, partition)]
        self._open_bytes += batch.nbytes
        if self._open_bytes > OPEN_BYTES_MAX:
            made += self.finish()
        return made

    def finish(self) -> list[tuple[str, EncodedBatch]]:
        """Return topic and batch of what is not full."""
        self._open_bytes = 0
        return [(topic, b) for topic, encoder in self._encoders.items() for b in encoder.finish()]

    def _encode(
        self, topic: str, rows: pa.RecordBatch, partition: int | None
    ) -> list[EncodedBatch]:
        at, encoder = self._columns, self._encoder(topic)
        keys = None if at.key is None else as_bytes(rows, at.key)
        partitions: list[int | None] | None = None
        if partition is not None:
            partitions = [partition] * rows.num_rows
        elif at.partition is not None:
            partitions = rows.column(at.partition).to_pylist()
        if not self._moves_on and (partitions is None or None in partitions):
            partitions = self._homed(partitions, keys, rows.num_rows, encoder.partition_count)
        form = self._format
        values = (
            as_bytes(rows, at.value) if form is None else form.encoded(rows.column(at.value), topic)
        )
        try:
            return encoder.encode(
                values,
                keys,
                partitions=partitions,
                timestamps_ms=now_ms() if at.timestamp is None else as_ms(rows, at.timestamp),
                headers=None if at.headers is None else as_headers(rows, at.headers),
            )
        except ConfigError as error:
            if error.field != "partition":
                raise
            raise ConfigError("column partition", error.value, error.remedy) from None

    def _homed(
        self,
        partitions: Sequence[int | None] | None,
        keys: Sequence[bytes | None] | None,
        size: int,
        count: int,
    ) -> list[int | None]:
        """Send rows that have neither a partition nor a key to the one partition of the task."""
        nothing: list[None] = [None] * size
        pairs = zip(partitions or nothing, keys or nothing, strict=True)
        home = self._first % count
        return [home if wanted is None and key is None else wanted for wanted, key in pairs]

    def _encoder(self, topic: str) -> BatchEncoder:
        found = self._encoders.get(topic)
        if found is None:
            count = self._counts.of([topic]).get(topic)
            if count is None:
                raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")
            found = BatchEncoder(topic, count, self._config, self._first)
            self._encoders[topic] = found
        return found

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        at = self._columns.topic
        if at is None:
            assert self._topic is not None, "checked with the columns"
            yield self._topic, batch
            return
        rows_by_topic: dict[str | None, list[int]] = {}
        for row, topic in enumerate(batch.column(at).to_pylist()):
            rows_by_topic.setdefault(topic, []).append(row)
        for topic, rows in rows_by_topic.items():
            if topic is None:
                raise ConfigError("column topic", None, "give every row a topic")
            yield topic, batch if len(rows) == batch.num_rows else batch.take(rows)


@dataclass(frozen=True, slots=True)
class EncodingTask:
    """A task that encodes rows, as a function for ``mapInArrow``.

    Attributes:
        options: The sink's options.
        columns: Where the rows hold what.
        counts: Counts of partitions.
        shift: Added to the number of the task, where rows without a key begin.
        bytes_max: Most bytes of rows that it takes; with more it gives up. None without a limit.
    """

    options: SinkOptions
    columns: SinkColumns
    counts: CountsLookup
    shift: int = 0
    bytes_max: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of ``SCHEMA``; what goes wrong is the last one."""
        context = TaskContext.get()
        assert context is not None, "called in a Spark task"
        first = context.partitionId() + self.shift
        encoder = RowEncoder(self.options, self.columns, self.counts, first)
        taken = 0
        for batch in filled(batches):
            taken += batch.nbytes
            try:
                if self.bytes_max is not None and taken > self.bytes_max:
                    raise TooManyRowsError(f"{taken} bytes")
                made = encoder.encode(batch)
            except (KafkaError, TooManyRowsError) as error:
                yield _error_row(error)
                return
            if made:
                yield _rows(made)
        made = encoder.finish()
        if made:
            yield _rows(made)


def filled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out batches without rows."""
    return (batch for batch in batches if batch.num_rows)


def _rows(made: list[tuple[str, EncodedBatch]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic for topic, _ in made],
            "partition": [batch.partition for _, batch in made],
            "records": [batch.records_count for _, batch in made],
            "data": [batch.data for _, batch in made],
            "error": [None] * len(made),
        },
        ARROW_SCHEMA,
    )


def _error_row(error: Exception) -> pa.RecordBatch:
    columns = {"topic": [""], "partition": [0], "records": [0], "data": [b""]}
    return pa.RecordBatch.from_pydict({**columns, "error": [pickle.dumps(error)]}, ARROW_SCHEMA)


def records_in(batch: pa.RecordBatch) -> int:
    """How many records the finished batches of an Arrow batch hold.

    Args:
        batch: Rows of ``SCHEMA``.
    """
    return sum(batch.column(ARROW_SCHEMA.get_field_index("records")).to_pylist())


def decoded(batch: pa.RecordBatch) -> Iterator[tuple[str, EncodedBatch]]:
    """Topic and batch of each row of ``SCHEMA``.

    Raises:
        KafkaError: What went wrong where the rows were encoded.
        TooManyRowsError: There were more than ``bytes_max`` allows.
    """
    columns = (column.to_pylist() for column in batch.columns)
    for topic, partition, records, data, error in zip(*columns, strict=True):
        if error is not None:
            raise pickle.loads(error)
        yield topic, EncodedBatch(partition, records, data)


def as_bytes(batch: pa.RecordBatch, position: int) -> list[bytes | None]:
    """A column of text or bytes, as bytes; text is UTF-8 in Arrow already."""
    values: list[bytes | None] = batch.column(position).cast("large_binary").to_pylist()
    return values


def now_ms() -> int:
    """The time, in milliseconds since 1970."""
    return int(time.time() * 1000)


def as_ms(batch: pa.RecordBatch, position: int) -> list[int]:
    """A column of timestamps in milliseconds; null is now."""
    microseconds = batch.column(position).cast("int64").to_pylist()
    now = now_ms()
    return [now if us is None else us // 1000 for us in microseconds]


def as_headers(batch: pa.RecordBatch, position: int) -> list[list[tuple[str, bytes | None]]]:
    """A column of headers."""
    return [
        [(header["key"], header["value"]) for header in headers or ()]
        for headers in batch.column(position).to_pylist()
    ]
