"""Goal: a task reads exactly the records of its range, whatever else lies in the log.

Method: ranges of a log with transactions, aborted records, tombstones, headers and a change of
timestamps are read as a task reads them, without a JVM; the rows are compared with the records that
a consumer returns.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from spark_world import fill, read_topic

from onceflow.broker_lite import Broker
from onceflow.spark_integration.options import SourceOptions
from onceflow.spark_integration.planning import OffsetRange
from onceflow.spark_integration.reader import read_range
from onceflow.spark_integration.values import ValueFormatError

SPANS = [(0, 52), (3, 17), (15, 25), (22, 28), (25, 45), (51, 52)]


def rows(servers: str, start: int, end: int, **options: str) -> list[dict[str, object]]:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "log", **options}
    found = SourceOptions.parse(given, streaming=True)
    batches = list(read_range(found, OffsetRange("log", 0, start, end)))
    table = pa.Table.from_batches(batches) if batches else None
    return [] if table is None else table.to_pylist()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """A log of 50 records and some markers; offsets 20 to 29 are of an aborted transaction."""
    with Broker() as broker:
        broker.create_topic("log")
        address = broker.bootstrap_servers
        values = [b"v%d" % number for number in range(10)]
        fill(address, "log", values, keys=[None, *values[1:]], timestamp_ms=5)
        fill(address, "log", [None, *values[1:]], headers=(("h", b"1"), ("h", None)))
        fill(address, "log", values, transactional_id="a", commit=False)
        fill(address, "log", values, transactional_id="b")
        fill(address, "log", values)
        yield address


@pytest.mark.parametrize(
    ("start", "end"), [(0, 52), (3, 17), (15, 25), (22, 28), (25, 45), (51, 52)]
)
def test_a_range_has_the_committed_records_between_its_offsets(
    servers: str, start: int, end: int
) -> None:
    wanted = [r for r in read_topic(servers, "log") if start <= r.offset < end]
    found = rows(servers, start, end, includeHeaders="true")
    assert [row["offset"] for row in found] == [r.offset for r in wanted]
    for row, record in zip(found, wanted, strict=True):
        assert (row["key"], row["value"]) == (record.key, record.value)
        assert (row["topic"], row["partition"]) == ("log", 0)
        assert row["timestampType"] == int(record.timestamp_type)
        assert round(row["timestamp"].timestamp() * 1000) == record.timestamp_ms  # type: ignore[attr-defined]
        headers = [{"key": name, "value": value} for name, value in record.headers] or None
        assert row["headers"] == headers


def test_uncommitted_records_are_read_where_that_is_asked_for(servers: str) -> None:
    level = {"kafka.isolation.level": "read_uncommitted"}
    assert [row["offset"] for row in rows(servers, 18, 26, **level)] == list(range(18, 26))
    assert "headers" not in rows(servers, 0, 1)[0]


def test_values_of_a_format_are_decoded(servers: str) -> None:
    given = {"kafka.bootstrap.servers": servers, "subscribe": "log", "valueFormat": "json"}
    schema = StructType([StructField("value", StructType([StructField("a", LongType())]))])
    options = SourceOptions.parse(given, streaming=True).with_schema(schema)
    with pytest.raises(ValueFormatError, match="log-0@0: the value is not json"):
        list(read_range(options, OffsetRange("log", 0, 0, 5)))
