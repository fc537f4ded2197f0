"""Goal: the driver writes a batch only where it can be expected to be small.

Method: the choice is called with what a batch reads and what the one before was; rows are encoded
as tasks do it, with and without a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext

from onceflow.sdk.errors import ConfigError, UnknownTopicOrPartitionError
from onceflow.spark_integration.encoding import (
    EncodingTask,
    RowEncoder,
    TooManyRowsError,
    decoded,
)
from onceflow.spark_integration.options import SinkOptions
from onceflow.spark_integration.schema import SinkColumns
from onceflow.spark_integration.topics import CountsLookup
from onceflow.spark_integration.ways import DRIVER_BYTES_MAX, SeenBatch, Way, way_of

MIB = 2**20


@pytest.mark.parametrize(
    ("offsets", "seen", "way"),
    [
        (10, None, Way.BOUNDED),
        (1_000, None, Way.BOUNDED),
        (1_001, None, Way.TASKS),
        (None, None, Way.TASKS),
        (None, SeenBatch(None, 5, 500), Way.BOUNDED),
        (None, SeenBatch(None, 5_000, 500), Way.TASKS),
        (10, SeenBatch(20, 20, 2_000), Way.DRIVER),
        (1_000, SeenBatch(1_000_000, 1_000_000, 100 * MIB), Way.DRIVER),
        (1_001, SeenBatch(10, 10, 1_000), Way.TASKS),
        (100, SeenBatch(10, 200, 20_000), Way.TASKS),
        (50, SeenBatch(10, 200, 20_000), Way.DRIVER),
        (100, SeenBatch(10, 10, 10 * MIB), Way.BOUNDED),
        (10, SeenBatch(10, 10, DRIVER_BYTES_MAX), Way.DRIVER),
        (10, SeenBatch(0, 0, 0), Way.BOUNDED),
        (10, SeenBatch(10, 0, 0), Way.BOUNDED),
    ],
)
def test_way_follows_what_is_expected(
    offsets: int | None, seen: SeenBatch | None, way: Way
) -> None:
    assert way_of(offsets, seen, 1_000) is way
    assert way_of(offsets, seen, 0) is Way.TASKS


def options(topic: str | None = "t") -> SinkOptions:
    given = {"kafka.bootstrap.servers": "b:1", "kafka.batch.size": "300", "name": "n"}
    return SinkOptions.parse(given if topic is None else {**given, "topic": topic})


def columns(*names: str) -> SinkColumns:
    every = ("value", "key", "topic", "partition", "headers", "timestamp")
    at = {name: names.index(name) if name in names else None for name in every}
    return SinkColumns(**at)  # type: ignore[arg-type]


def counts(**known: int) -> CountsLookup:
    return CountsLookup(options().admin, dict(known))


def test_rows_go_where_they_say_or_their_key_or_on_to_the_next_partition() -> None:
    encoder = RowEncoder(options(), columns("value", "partition"), counts(t=3), first=1)
    rows = pa.record_batch(
        {
            "value": pa.array(["x" * 100] * 9),
            "partition": pa.array([2] + [None] * 8, pa.int64()),
        }
    )
    made = encoder.encode(rows) + encoder.finish()
    by_partition: dict[int, int] = {}
    for topic, batch in made:
        assert topic == "t"
        by_partition[batch.partition] = by_partition.get(batch.partition, 0) + batch.records_count
    assert sum(by_partition.values()) == 9
    assert set(by_partition) == {0, 1, 2}


def test_rows_of_a_task_that_must_not_move_on_stay_in_one_partition() -> None:
    encoder = RowEncoder(options(), columns("value", "key"), counts(t=3), first=7, moves_on=False)
    rows = pa.record_batch(
        {"value": pa.array(["x" * 100] * 9), "key": pa.array([None] * 9, pa.binary())}
    )
    made = encoder.encode(rows) + encoder.finish()
    assert {batch.partition for _, batch in made} == {1}


def test_each_topic_has_its_own_count_and_a_missing_one_is_named() -> None:
    encoder = RowEncoder(options(None), columns("value", "topic"), counts(a=1, b=5, gone=0), 0)
    rows = pa.record_batch({"value": ["1", "2", "3"], "topic": ["a", "b", "a"]})
    made = encoder.encode(rows) + encoder.finish()
    assert sorted((topic, batch.records_count) for topic, batch in made) == [("a", 2), ("b", 1)]
    with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
        encoder.encode(pa.record_batch({"value": ["1"], "topic": ["gone"]}))
    nameless = pa.record_batch({"value": ["1"], "topic": pa.array([None], pa.string())})
    with pytest.raises(ConfigError, match="column topic"):
        encoder.encode(nameless)


def run(
    monkeypatch: pytest.MonkeyPatch, rows: list[pa.RecordBatch], bytes_max: int | None
) -> list[pa.RecordBatch]:
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))
    task = EncodingTask(options(), columns("value", "partition"), counts(t=2), 0, bytes_max)

    def given() -> Iterator[pa.RecordBatch]:
        yield from rows

    return list(task(given()))


def rows_of(partition: int, count: int) -> pa.RecordBatch:
    numbers = pa.array([partition] * count, pa.int64())
    return pa.record_batch({"value": ["x" * 50] * count, "partition": numbers})


def all_decoded(found: list[pa.RecordBatch]) -> int:
    """How many records there are."""
    return sum(made.records_count for batch in found for _, made in decoded(batch))


def test_what_is_wrong_with_a_row_travels_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, [rows_of(1, 20), rows_of(9, 1), rows_of(1, 5)], None)
    with pytest.raises(ConfigError, match="column partition=9"):
        all_decoded(found)


def test_task_gives_up_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [rows_of(0, 10)] * 100
    taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in rows:
            taken += 1
            yield batch

    limit = 3 * rows[0].nbytes
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(partitionId=lambda: 0))
    task = EncodingTask(options(), columns("value", "partition"), counts(t=2), 0, limit)
    found = list(task(counted()))
    assert taken == 4
    with pytest.raises(TooManyRowsError):
        all_decoded(found)
    assert all_decoded(run(monkeypatch, rows[:3], limit)) == 30
