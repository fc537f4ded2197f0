"""Columns of the source and of the sink, as Spark's own Kafka source and sink have them.

Decides which columns and types are accepted and in what order a task finds them; the error for a
wrong one names the column.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from onceflow.sdk.errors import ConfigError

SOURCE_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT"
)
HEADERS_COLUMN = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def source_schema(include_headers: bool) -> str:
    """The source's columns in Spark's DDL."""
    return f"{SOURCE_COLUMNS}, {HEADERS_COLUMN}" if include_headers else SOURCE_COLUMNS


def _holds_headers(kind: DataType) -> bool:
    """Whether it is an array of structs (key string, value binary)."""
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(pair, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in pair.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Where the sink finds what it writes: column positions, None where a column is absent.

    Attributes:
        value: Required; string or binary; null is a tombstone.
        key: String or binary; null is a record without a key.
        topic: String; required unless the option ``topic`` is set.
        partition: Integer; null or absent lets the key decide.
        headers: Array of structs (key string, value binary).
        timestamp: Timestamp; null or absent takes the time of writing.
    """

    value: int
    key: int | None
    topic: int | None
    partition: int | None
    headers: int | None
    timestamp: int | None

    @staticmethod
    def of(schema: StructType, topic_option: str | None) -> SinkColumns:
        """Check a schema against the sink's contract.

        Raises:
            ConfigError: A column is missing, unknown or of another type; the message names it.
        """
        allowed: dict[str, tuple[type[DataType], ...]] = {
            "key": (StringType, BinaryType),
            "value": (StringType, BinaryType),
            "topic": (StringType,),
            "partition": (IntegerType,),
            "headers": (ArrayType,),
            "timestamp": (TimestampType,),
        }
        found: dict[str, int] = {}
        for position, column in enumerate(schema.fields):
            if column.name not in allowed:
                raise ConfigError(
                    "column", column.name, f"the sink writes only {', '.join(allowed)}"
                )
            if not isinstance(column.dataType, allowed[column.name]):
                wanted = " or ".join(t.typeName() for t in allowed[column.name])
                raise ConfigError(
                    f"column {column.name}", column.dataType.simpleString(), f"cast it to {wanted}"
                )
            if column.name == "headers" and not _holds_headers(column.dataType):
                raise ConfigError(
                    "column headers",
                    column.dataType.simpleString(),
                    "make it array<struct<key:string,value:binary>>",
                )
            found[column.name] = position
        if "value" not in found:
            raise ConfigError("column value", "missing", "select a string or binary column `value`")
        if "topic" not in found and topic_option is None:
            raise ConfigError("topic", "missing", "set the option topic or give a column `topic`")
        return SinkColumns(
            value=found["value"],
            key=found.get("key"),
            topic=found.get("topic") if topic_option is None else None,
            partition=found.get("partition"),
            headers=found.get("headers"),
            timestamp=found.get("timestamp"),
        )
