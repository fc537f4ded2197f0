"""Columns of the source and of the sink, as Spark's own Kafka source and sink have them.

Decides which columns and types are accepted and in what order a task finds them; the error for a
wrong one names the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onceflow.sdk.errors import ConfigError

SOURCE_COLUMNS = (
    "key BINARY, value {value}, topic STRING, partition INT, offset BIGINT, "
    "timestamp TIMESTAMP, timestampType INT"
)
HEADERS_COLUMN = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def source_schema(include_headers: bool, value: str = "BINARY") -> str:
    """The source's columns in Spark's DDL."""
    columns = SOURCE_COLUMNS.format(value=value)
    return f"{columns}, {HEADERS_COLUMN}" if include_headers else columns


ALLOWED: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType, BinaryType),
    "value": (StringType, BinaryType),
    "topic": (StringType,),
    "partition": (IntegerType, LongType, ShortType, ByteType),
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
}
"""Types of the sink's columns, the one to cast to first."""
_NESTED: Final = (StructType, MapType, ArrayType)


def _remedy(name: str, kind: DataType) -> str:
    """What to write instead of a column of the wrong type."""
    if name == "headers":
        return "make it array<struct<key:string,value:binary>>"
    if name in ("key", "value") and isinstance(kind, _NESTED):
        return f'write it as JSON: to_json(col("{name}")).alias("{name}")'
    wanted = ALLOWED[name][0]().simpleString()
    return f'cast it: col("{name}").cast("{wanted}")'


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

    Names are found in any case, as Spark finds them.

    Attributes:
        value: Required; string or binary; null is a tombstone.
        key: String or binary; null is a record without a key.
        topic: String; required unless the option ``topic`` is set.
        partition: Whole number; null or absent lets the key decide.
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
    def of(
        schema: StructType,
        topic_option: str | None,
        *,
        is_strict: bool = False,
        any_value: bool = False,
    ) -> SinkColumns:
        """Check a schema against the sink's contract.

        Args:
            schema: Columns of the rows.
            topic_option: The option ``topic``.
            is_strict: Whether columns that the sink does not write are an error; else they are
                ignored, as by Spark's own sink.
            any_value: Whether the column ``value`` may have any type, as with ``valueFormat``.

        Raises:
            ConfigError: A column is missing, there twice, of another type, or unknown where that
                is an error; the message names it.
        """
        found: dict[str, int] = {}
        for position, column in enumerate(schema.fields):
            name = column.name.lower()
            if name not in ALLOWED:
                if is_strict:
                    raise ConfigError(
                        "column", column.name, f"the sink writes only {', '.join(ALLOWED)}"
                    )
                continue
            if name in found:
                raise ConfigError(
                    "column", column.name, f"there are two columns `{name}`; drop or rename one"
                )
            kind = column.dataType
            if any_value and name == "value":
                found[name] = position
                continue
            if not isinstance(kind, ALLOWED[name]) or (
                name == "headers" and not _holds_headers(kind)
            ):
                raise ConfigError(f"column {name}", kind.simpleString(), _remedy(name, kind))
            found[name] = position
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

    def positions(self) -> list[int]:
        """Positions of the columns that are there."""
        every = (self.key, self.value, self.topic, self.partition, self.headers, self.timestamp)
        return [position for position in every if position is not None]
