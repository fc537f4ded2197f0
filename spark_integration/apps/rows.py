"""Records of a micro-batch on their way: Spark's rows, Arrow batches, records, runs of outputs.

Records travel to the task that owns their partition as Arrow batches in one binary value each, so
that Spark moves a few large rows. Its shuffle keeps no order, so the task sorts what it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.processors.lanes import Run
from onceflow.processors.task import TaskId
from onceflow.sdk import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.spark_integration.encoding import filled

PACKED: Final = "task STRING, data BINARY"
"""Columns of packed records in Spark's DDL."""
_PACKED_SCHEMA: Final = pa.schema([("task", pa.string()), ("data", pa.binary())])
OUTPUT: Final = (
    "topic STRING, key BINARY, value BINARY, partition INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP"
)
"""Columns of outputs in Spark's DDL: those that the sink takes."""
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_OUTPUT_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("headers", _HEADERS),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs the rows of the source by the task that processes them, for ``mapInArrow``.

    Attributes:
        parts: Name of the sub-topology by input topic.
    """

    parts: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows of ``PACKED``."""
        for batch in filled(batches):
            made = [
                (str(TaskId(self.parts[tp.topic], tp.partition)), _to_bytes(rows))
                for tp, rows in by_partition(batch)
            ]
            columns = {"task": [task for task, _ in made], "data": [data for _, data in made]}
            yield pa.RecordBatch.from_pydict(columns, _PACKED_SCHEMA)


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Split rows of the source by topic and partition; a range of the source has one of each."""
    topics, numbers = batch.column("topic"), batch.column("partition")
    for topic in pc.unique(topics).to_pylist():
        for number in pc.unique(numbers).to_pylist():
            here = pc.and_(pc.equal(topics, topic), pc.equal(numbers, number))
            rows = batch.filter(here)
            if rows.num_rows:
                yield TopicPartition(topic, number), rows


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _from_bytes(data: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        return list(reader)


def unpacked_records(packed: Iterable[bytes]) -> dict[TopicPartition, list[ConsumerRecord]]:
    """Return the records of one task by partition, in order of their offsets.

    Args:
        packed: What ``Packing`` made, in any order.
    """
    batches: dict[TopicPartition, list[tuple[int, pa.RecordBatch]]] = {}
    for data in packed:
        for batch in _from_bytes(data):
            topic, number, offset = (
                batch.column(name)[0].as_py() for name in ("topic", "partition", "offset")
            )
            batches.setdefault(TopicPartition(topic, number), []).append((offset, batch))
    return {
        tp: [
            record
            for _, batch in sorted(found, key=lambda pair: pair[0])
            for record in records_of(tp, batch)
        ]
        for tp, found in batches.items()
    }


def records_of(tp: TopicPartition, batch: pa.RecordBatch) -> list[ConsumerRecord]:
    """Return rows of the source as records.

    Args:
        tp: Where all of them come from.
        batch: The rows, with headers.
    """
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    columns = (
        batch.column("offset").to_pylist(),
        times,
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        batch.column("headers").to_pylist(),
    )
    return [
        ConsumerRecord(
            tp.topic,
            tp.partition,
            offset,
            -1 if time_us is None else time_us // 1000,
            key=key,
            value=value,
            headers=tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, time_us, key, value, headers in zip(*columns, strict=True)
    ]


def output_batch(runs: Sequence[Run]) -> pa.RecordBatch:
    """Return outputs as rows of ``OUTPUT``; a null timestamp is the time of writing."""
    columns: list[list[object]] = [[] for _ in _OUTPUT_SCHEMA]
    for run in runs:
        count = len(run.values)
        headers = [{"key": name, "value": value} for name, value in run.headers] or None
        times = run.timestamps_ms
        added: tuple[Iterable[object], ...] = (
            [run.topic] * count,
            run.keys,
            run.values,
            [run.partition] * count,
            [headers] * count,
            [None] * count if times is None else [time_ms * 1000 for time_ms in times],
        )
        for column, values in zip(columns, added, strict=True):
            column.extend(values)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _OUTPUT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_OUTPUT_SCHEMA)


def packed_outputs(runs: Sequence[Run]) -> bytes:
    """Return outputs as one binary value, for ``unpacked_outputs``."""
    return _to_bytes(output_batch(runs))


def unpacked_outputs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of ``OUTPUT`` from a column of what ``packed_outputs`` gave."""
    for batch in filled(batches):
        for data in batch.column(0).to_pylist():
            yield from _from_bytes(data)
