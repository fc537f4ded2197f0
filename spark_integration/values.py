"""Structured values of source and sink: JSON, MessagePack and Avro as Spark's own types.

The source decodes values in its tasks, straight to Arrow, so that the column ``value`` has the type
of the schema; the sink encodes such columns.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.serde import to_json, to_msgpack

if TYPE_CHECKING:
    from onceflow.sdk.model.columns import RecordColumns
    from onceflow.sdk.schema_registry import RegistrySerde

FORMATS: Final = ("json", "msgpack", "avro")
_PYTHON_TYPES: Final[dict[type[DataType], Any]] = {
    StringType: str,
    BinaryType: bytes,
    BooleanType: bool,
    ShortType: int,
    IntegerType: int,
    LongType: int,
    FloatType: float,
    DoubleType: float,
    DateType: datetime.date,
    TimestampType: datetime.datetime,
    DecimalType: decimal.Decimal,
}


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values become columns, and columns values.

    Attributes:
        format: ``json``, ``msgpack`` or ``avro``.
        schema: Their type; None for the sink, which takes that of the column.
        registry: Address of the schema registry, for ``avro``.
        bad_values_are_null: Whether the source gives null for a value that does not fit, instead
            of failing.
    """

    format: str
    schema: DataType | None = None
    registry: str | None = None
    bad_values_are_null: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of the source's values for Arrow."""
        assert self.schema is not None, "the source has a schema"
        return to_arrow_type(self.schema, timezone="UTC")

    def decoded(self, found: RecordColumns[bytes | None, bytes | None]) -> pa.Array:
        """Decode the values of a run of records.

        Args:
            found: The records.

        Raises:
            ValueFormatError: A value does not fit; the error names its record.
        """
        kind = self.arrow_type
        decode = self._decoder(found.topic)
        values = [self._one(found, number, decode, kind) for number in range(len(found))]
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Say which one it is.
            numbers = range(len(found))
            return pa.array([self._one(found, n, decode, kind, checks=True) for n in numbers], kind)

    def _one(
        self,
        found: RecordColumns[bytes | None, bytes | None],
        number: int,
        decode: Callable[[bytes], object],
        kind: pa.DataType,
        *,
        checks: bool = False,
    ) -> object:
        """Decode one value; with ``checks`` see whether Arrow takes it too."""
        data = found.values[number]
        if data is None:
            return None
        try:
            value = decode(data)
            if checks:
                pa.scalar(value, kind)
        except Exception as error:
            if self.bad_values_are_null:
                return None
            assert self.schema is not None
            raise ValueFormatError(
                f"{found.topic_partition}@{found.offsets[number]}: the value is not "
                f"{self.format} of type {self.schema.simpleString()}: {error}. Set "
                "valueErrors=null to read null in its place"
            ) from error
        return value

    def _decoder(self, topic: str) -> Callable[[bytes], object]:
        assert self.schema is not None
        if self.format == "avro":
            return _avro(self.registry).bind(topic).deserialize
        kind = python_type(self.schema)
        if self.format == "json":
            return msgspec.json.Decoder(kind).decode
        return msgspec.msgpack.Decoder(kind).decode

    def encoded(self, values: pa.Array, topic: str) -> list[bytes | None]:
        """Encode a column for one topic; null is a tombstone.

        Args:
            values: The column.
            topic: Where the values go.

        Raises:
            SerializationError: A value cannot be encoded, or does not fit the registered schema.
        """
        encode = self._encoder(topic)
        found = values.to_pylist()
        if "map<" in str(values.type):
            found = [_with_mappings(value, values.type) for value in found]
        return [None if value is None else encode(value) for value in found]

    def _encoder(self, topic: str) -> Callable[[object], bytes]:
        if self.format == "avro":
            return _avro(self.registry, latest=True).bind(topic).serialize
        return to_json if self.format == "json" else to_msgpack


class ValueFormatError(Exception):
    """A value that the source read does not have the format and schema of the options."""


_SERDES: Final[dict[tuple[str | None, bool], RegistrySerde]] = {}


def _avro(registry: str | None, *, latest: bool = False) -> RegistrySerde:
    """The serde of this process, which caches what it asked the registry."""
    found = _SERDES.get((registry, latest))
    if found is None:
        from onceflow.sdk.schema_registry import SchemaRegistry, avro_serde

        assert registry is not None, "checked with the options"
        client = SchemaRegistry(url=registry)
        found = _SERDES[registry, latest] = avro_serde(client, use_latest_version=latest)
    return found


def _with_mappings(value: Any, kind: pa.DataType) -> Any:
    """A value with dictionaries where Arrow gives lists of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _with_mappings(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _with_mappings(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_with_mappings(item, kind.value_type) for item in value]
    return value


def python_type(kind: DataType) -> Any:
    """Return the type by which msgspec decodes values; fields may be missing or null.

    Args:
        kind: Spark's type.

    Raises:
        ConfigError: Values of that type cannot be decoded.
    """
    if isinstance(kind, StructType):
        fields = {field.name: python_type(field.dataType) | None for field in kind.fields}
        return TypedDict("Value", fields, total=False)  # type: ignore[operator]
    if isinstance(kind, ArrayType):
        return list[python_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, MapType):
        return dict[str, python_type(kind.valueType) | None]  # type: ignore[misc]
    found = _PYTHON_TYPES.get(type(kind))
    if found is None:
        raise ConfigError(
            "valueSchema", kind.simpleString(), "this type cannot be read; read it as a string"
        )
    return found
