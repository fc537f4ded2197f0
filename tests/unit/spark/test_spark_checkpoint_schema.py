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
from onceflow.spark_integration.checkpoint import CheckpointError, query_id, source_offsets
from onceflow.spark_integration.schema import SinkColumns, source_schema
from onceflow.spark_integration.transaction import BatchWriteError, TaskReport, check_reports


def schema_of(**columns: str) -> StructType:
    """Columns by name; the types in Spark's short words."""
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return schema


def lay(folder: Path, batch_id: int, *lines: str) -> None:
    """Write an offsets file."""
    (folder / "offsets").mkdir(exist_ok=True)
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', *lines])
    (folder / "offsets" / str(batch_id)).write_text(text)


def test_offsets_of_every_kafka_source_are_read(tmp_path: Path) -> None:
    lay(tmp_path, 3, '{"a":{"0":10,"1":0}}', "-", '{"b":{"0":7}}', '{"logOffset":4}', "17")
    expected = {("a", 0): 10, ("a", 1): 0, ("b", 0): 7}
    assert source_offsets(str(tmp_path), 3) == expected
    assert source_offsets(tmp_path.as_uri(), 3) == expected


def test_missing_batch_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="offsets/9"):
        source_offsets(str(tmp_path), 9)


def test_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("hello")
    with pytest.raises(CheckpointError, match="not an offsets file"):
        source_offsets(str(tmp_path), 0)


def test_query_id_is_read_from_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    assert query_id(str(tmp_path)) == "abc"
    with pytest.raises(CheckpointError, match="metadata"):
        query_id(str(tmp_path / "elsewhere"))


def test_columns_are_found_in_any_order() -> None:
    columns = SinkColumns.of(schema_of(value="string", partition="integer", key="binary"), "t")
    assert (columns.value, columns.partition, columns.key) == (0, 1, 2)
    assert columns.topic is columns.headers is columns.timestamp is None


HEADER_PAIRS = ArrayType(StructType().add("key", "string").add("value", "string"))


@pytest.mark.parametrize(
    ("schema", "topic", "message"),
    [
        (schema_of(key="string"), "t", "column value"),
        (schema_of(value="integer"), "t", "column value"),
        (schema_of(value="string"), None, "topic"),
        (schema_of(value="string", valeu="string"), "t", "valeu"),
        (schema_of(value="string", partition="string"), "t", "column partition"),
        (schema_of(value="string").add("headers", HEADER_PAIRS), "t", "column headers"),
    ],
)
def test_wrong_column_is_named(schema: StructType, topic: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SinkColumns.of(schema, topic)


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
