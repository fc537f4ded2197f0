"""Goal: the sink reads the right offsets from a checkpoint, and names the column that is wrong.

Method: checkpoint files as Spark writes them are laid into a folder; schemas are checked.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql.types import ArrayType, StructType

from onceflow.sdk import ProducerIdentity, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.checkpoint import Checkpoint, CheckpointError, least
from onceflow.spark_integration.schema import SinkColumns, source_schema
from onceflow.spark_integration.transaction import BatchWriteError, TaskReport, check_reports


def schema_of(**columns: str) -> StructType:
    """Columns by name; the types in Spark's short words."""
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


def lay(folder: Path, batch_id: int, *lines: str, version: str = "v1") -> None:
    """Write an offsets file."""
    (folder / "offsets").mkdir(exist_ok=True)
    text = "\n".join([version, '{"batchWatermarkMs":0}', *lines])
    (folder / "offsets" / str(batch_id)).write_text(text)


def ends(folder: Path, batch_id: int) -> list[dict[TopicPartition, int]]:
    return [source.ends for source in Checkpoint(str(folder)).plan(batch_id).sources]


def test_offsets_of_every_kafka_source_are_read(tmp_path: Path) -> None:
    lay(tmp_path, 3, '{"a":{"0":10,"1":0}}', "-", '{"b":{"0":7}}', '{"logOffset":4}', "17")
    expected = [{("a", 0): 10, ("a", 1): 0}, {("b", 0): 7}]
    assert ends(tmp_path, 3) == expected
    by_uri = Checkpoint(tmp_path.as_uri()).plan()
    assert by_uri == Checkpoint(str(tmp_path)).plan(3)
    assert by_uri.batch_id == 3


def test_offset_log_of_version_2_is_read_and_a_third_is_refused_by_its_name(tmp_path: Path) -> None:
    lay(tmp_path, 0, '0:{"a":{"0":10}}', '1:{"offset":5,"timestamp":1000}', version="v2")
    lay(tmp_path, 1, '0:{"a":{"0":30}}', '1:{"offset":9,"timestamp":2000}', version="v2")
    assert ends(tmp_path, 1) == [{("a", 0): 30}]
    assert Checkpoint(str(tmp_path)).plan(1).sources[0].starts == {("a", 0): 10}
    lay(tmp_path, 2, "x", version="v3")
    with pytest.raises(CheckpointError, match=r"version 'v3'; this sink reads v1 and v2"):
        ends(tmp_path, 2)


def test_of_two_sources_on_one_topic_the_lower_offset_counts() -> None:
    one, other = {TopicPartition("a", 0): 100, TopicPartition("a", 1): 5}, {("a", 0): 40}
    assert least([one, {TopicPartition(*tp): n for tp, n in other.items()}]) == {
        ("a", 0): 40,
        ("a", 1): 5,
    }


def test_first_batch_begins_where_its_source_says(tmp_path: Path) -> None:
    """Our source keeps that with its offsets, Spark's own in a file that begins with a byte."""
    lay(
        tmp_path,
        0,
        '{"a":{"0":10},"@onceflow":{"cluster":"c","start":{"a":{"0":4}}}}',
        '{"b":{"0":7}}',
    )
    (tmp_path / "sources" / "1").mkdir(parents=True)
    (tmp_path / "sources" / "1" / "0").write_bytes(b'\x00v1\n{"b":{"0":3}}')
    ours, sparks = Checkpoint(str(tmp_path)).plan(0).sources
    assert (ours.cluster_id, ours.starts, ours.ends) == ("c", {("a", 0): 4}, {("a", 0): 10})
    assert (sparks.cluster_id, sparks.starts) == (None, {("b", 0): 3})


def test_the_same_offsets_planned_later_have_another_digest(tmp_path: Path) -> None:
    lay(tmp_path, 1, '{"a":{"0":10}}')
    first = Checkpoint(str(tmp_path)).digest(1)
    assert first == Checkpoint(str(tmp_path)).plan(1).digest
    content = (tmp_path / "offsets" / "1").read_text()
    (tmp_path / "offsets" / "1").write_text(content.replace('Ms":0', 'Ms":1'))
    assert Checkpoint(str(tmp_path)).digest(1) not in (first, None)
    assert Checkpoint(str(tmp_path)).digest(0) is None


def test_missing_batch_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="offsets/9"):
        ends(tmp_path, 9)


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("hello")
    with pytest.raises(CheckpointError, match="not an offsets file"):
        ends(tmp_path, 0)


def test_query_id_is_read_from_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    assert Checkpoint(str(tmp_path)).query_id() == "abc"
    with pytest.raises(CheckpointError, match="metadata"):
        Checkpoint(str(tmp_path / "elsewhere")).query_id()


def test_columns_are_found_in_any_order() -> None:
    columns = SinkColumns.of(schema_of(value="string", partition="integer", key="binary"), "t")
    assert (columns.value, columns.partition, columns.key) == (0, 1, 2)
    assert columns.topic is columns.headers is columns.timestamp is None


HEADER_PAIRS = ArrayType(StructType().add("key", "string").add("value", "string"))


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (schema_of(key="string"), "t", "column value"),
        (schema_of(value="integer"), "t", """column value='int': cast it: col("value").cast"""),
        (schema_of(value="string", key="double"), "t", 'col("key").cast("string")'),
        (StructType().add("value", HEADER_PAIRS), "t", 'to_json(col("value")).alias("value")'),
        (StructType().add("value", HEADER_PAIRS.elementType), "t", "to_json"),
        (schema_of(value="string", Value="string"), "t", "two columns `value`"),
        (schema_of(value="string", timestamp="string"), "t", 'cast("timestamp")'),
        (schema_of(value="string"), None, "topic"),
        (schema_of(value="string", valeu="string"), "t", "valeu"),
        (schema_of(value="string", partition="string"), "t", "column partition"),
        (schema_of(value="string").add("headers", HEADER_PAIRS), "t", "column headers"),
    ],
)
def test_wrong_column_is_named(schema: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SinkColumns.of(schema, topic, is_strict=True)


@pytest.mark.parametrize("kind", ["byte", "short", "integer", "long"])
def test_whole_frame_of_the_source_is_taken_and_partition_is_any_integer(kind: str) -> None:
    schema = schema_of(key="binary", value="binary", topic="string", partition=kind, offset="long")
    schema = schema.add("timestamp", "timestamp").add("timestampType", "integer")
    pairs = ArrayType(StructType().add("key", "string").add("value", "binary"))
    schema = schema.add("headers", pairs)
    names = [column.split()[0] for column in source_schema(include_headers=True).split(", ")][:8]
    assert schema.names == names
    columns = SinkColumns.of(schema, None)
    assert (columns.key, columns.value, columns.topic, columns.partition) == (0, 1, 2, 3)
    assert (columns.timestamp, columns.headers) == (5, 7)
    with pytest.raises(ConfigError, match="column='offset'"):
        SinkColumns.of(schema, None, is_strict=True)


def test_names_of_columns_are_found_in_any_case() -> None:
    columns = SinkColumns.of(schema_of(VALUE="string", Key="binary", Topic="string"), None)
    assert (columns.value, columns.key, columns.topic) == (0, 1, 2)


def test_headers_as_the_source_gives_them_are_taken() -> None:
    pairs = ArrayType(StructType().add("key", "string").add("value", "binary"))
    assert SinkColumns.of(schema_of(value="binary").add("headers", pairs), "t").headers == 1


def test_headers_column_is_there_only_when_asked_for() -> None:
    assert "headers" not in source_schema(False)
    assert "headers" in source_schema(True)


def test_two_tasks_on_one_partition_are_refused_with_the_remedy() -> None:
    identity = ProducerIdentity("x", 1, 0)
    tp = TopicPartition("out", 1)
    reports = [TaskReport(0, 7, identity, {tp: 3}), TaskReport(1, 7, identity, {tp: 1})]
    with pytest.raises(BatchWriteError, match=r"tasks 0 and 1 both wrote to out-1.*route"):
        check_reports(reports)
    assert check_reports(reports[:1]) == {tp: 3}
