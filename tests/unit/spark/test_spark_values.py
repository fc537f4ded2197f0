"""Goal: structured values keep what they hold on their way to Spark's columns and back, and one
that does not fit is told with its place.

Method: decoder, encoder and the choice of the type are called as source and sink call them, without
Spark; Avro against a registry in this process.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import ConfigError, SerializationError
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.schema_registry import SchemaRegistry, avro_serde
from onceflow.spark_integration.options import SinkOptions, SourceOptions
from onceflow.spark_integration.value_types import (
    avro_type,
    declared,
    inferred,
    of_registry,
    value_type,
)
from onceflow.spark_integration.values import ValueFormat, ValueFormatError, python_type

SERVERS = {"kafka.bootstrap.servers": "b:9092", "subscribe": "t"}
ROW = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("at", TimestampType()),
        StructField("day", DateType()),
        StructField("price", DecimalType(9, 2)),
        StructField("tags", ArrayType(StringType())),
        StructField("counts", MapType(StringType(), IntegerType())),
        StructField("inner", StructType([StructField("x", DoubleType())])),
        StructField("raw", BinaryType()),
    ]
)
VALUE = {
    "id": 2**40,
    "name": "tea",
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 1, 2),
    "price": decimal.Decimal("12.50"),
    "tags": ["a", None],
    "counts": {"x": 1},
    "inner": {"x": 0.5},
    "raw": b"\0\1",
}


def records(*values: bytes | None) -> RecordColumns[bytes | None, bytes | None]:
    return RecordColumns("t", 3, range(len(values)), list(values), keys=[None] * len(values))


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_all_types_go_both_ways(format: str) -> None:
    form = ValueFormat(format, ROW)
    column = pa.array([VALUE, None], form.arrow_type)
    encoded = form.encoded(column, "t")
    assert encoded[1] is None
    again = form.decoded(records(*encoded))
    assert again.equals(column)


def test_other_fields_are_passed_over_and_missing_ones_are_null() -> None:
    kind = StructType([StructField("a", LongType()), StructField("b", StringType())])
    found = ValueFormat("json", kind).decoded(records(b'{"a":1,"z":[1]}', b'{"b":"x"}', None))
    assert found.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}, None]


@pytest.mark.parametrize("bad", [b"no json", b'{"a":"text"}', b'{"a":99999999999999999999}'])
def test_a_value_that_does_not_fit_is_named_or_null(bad: bytes) -> None:
    kind = StructType([StructField("a", IntegerType())])
    given = records(b'{"a":1}', bad)
    with pytest.raises(
        ValueFormatError, match=r"^t-3@1: the value is not json of type struct<a:int>"
    ):
        ValueFormat("json", kind).decoded(given)
    lenient = ValueFormat("json", kind, bad_values_are_null=True)
    assert lenient.decoded(given).to_pylist() == [{"a": 1}, None]


def test_what_json_cannot_hold_is_refused() -> None:
    column = pa.array([{"x": float("nan")}])
    with pytest.raises(SerializationError, match="NaN"):
        ValueFormat("json").encoded(column, "t")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id BIGINT, name STRING", "STRUCT<id BIGINT, name STRING>"),
        ("array<bigint>", "array<bigint>"),
        ("Struct<a: INT>", "Struct<a: INT>"),
    ],
)
def test_a_schema_is_given_as_columns_or_as_a_type(text: str, wanted: str) -> None:
    assert declared(text) == wanted
    assert value_type({**SERVERS, "valueFormat": "json", "valueSchema": text}, None) == wanted


def test_a_type_is_inferred_from_a_sample() -> None:
    sample = [b'{"id":1,"tags":["a"]}', b'{"id":2,"price":1.5}']
    assert (
        inferred("json", sample).simpleString()
        == "struct<id:bigint,tags:array<string>,price:double>"
    )
    packed = [msgspec.msgpack.encode({"raw": b"x"})]
    assert inferred("msgpack", packed).simpleString() == "struct<raw:binary>"
    with pytest.raises(ConfigError, match="hold no record to infer it from"):
        inferred("json", [])
    with pytest.raises(ConfigError, match="no common type"):
        inferred("json", [b'{"a":1}', b'{"a":"x"}'])


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


@pytest.fixture
def registry() -> Iterator[str]:
    with FakeRegistry() as running:
        yield running.url


def test_avro_goes_both_ways_by_the_registered_schema(registry: str) -> None:
    with SchemaRegistry(url=registry) as client:
        order = {
            "id": 7, "note": None, "price": decimal.Decimal("1.25"), "day": VALUE["day"],
            "at": VALUE["at"], "counts": {"x": 1}, "tags": ["a"],
        }  # fmt: skip
        written = avro_serde(client, AVRO).bind("t").serialize(order)
    kind = of_registry(registry, "t")
    assert kind.simpleString() == (
        "struct<id:bigint,note:string,price:decimal(9,2),day:date,at:timestamp,"
        "counts:map<string,int>,tags:array<string>>"
    )
    form = ValueFormat("avro", kind, registry)
    column = form.decoded(records(written))
    assert form.encoded(column, "t") == [written]
    with pytest.raises(ValueFormatError, match=r"t-3@0: the value is not avro"):
        form.decoded(records(b"\0\0"))


def test_an_avro_type_that_spark_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="Spark has no type"):
        avro_type(
            {"type": "record", "name": "A", "fields": [{"name": "x", "type": ["int", "string"]}]}
        )


def test_a_type_that_values_cannot_have_is_refused() -> None:
    from pyspark.sql.types import VariantType

    with pytest.raises(ConfigError, match="cannot be read"):
        python_type(VariantType())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"valueFormat": "xml"}, "valueFormat"),
        ({"valueFormat": "avro"}, "valueRegistry"),
        ({"valueSchema": "a INT"}, "valueSchema"),
        ({"valueRegistry": "http://r"}, "valueRegistry"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({**SERVERS, **options}, streaming=True)
    assert caught.value.field in (field, field.replace("value", "value_").lower())
    if field != "valueSchema":
        sink = {"kafka.bootstrap.servers": "b:9092", "topic": "t", **options}
        with pytest.raises(ConfigError):
            SinkOptions.parse(sink)
