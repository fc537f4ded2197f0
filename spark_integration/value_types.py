"""Where the type of structured values comes from: the option, the schema registry, or a sample.

Asked once a query, where Spark plans it; the tasks get the type that Spark made of it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
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
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from onceflow.sdk import Admin, ClientSettings, Consumer
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.client_options import read_options
from onceflow.spark_integration.options import GROUP_ID, NO_EFFECT, SourceOptions, SourceSettings
from onceflow.spark_integration.positions import PositionFinder

SAMPLE_WAIT_S: Final = 30.0
"""Longest time for which a sample of records is read."""
_NESTED: Final = re.compile(r"\s*(struct|array|map)\s*<", re.I)
_AVRO_TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "enum": StringType(),
    "bytes": BinaryType(),
    "fixed": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
}
_AVRO_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}


def value_type(options: Mapping[str, str], client: ClientSettings | None) -> str:
    """Return the type of the values in Spark's DDL.

    Args:
        options: The source's options.
        client: Settings of the clients that are no options.

    Raises:
        ConfigError: Nothing tells the type.
        SchemaRegistryError: The registry does not answer, or has no schema of the topic.
    """
    aside = (GROUP_ID, NO_EFFECT.lower())
    known = {name: value for name, value in options.items() if name.lower() not in aside}
    found = read_options(SourceSettings, known)
    if found.value_schema is not None:
        return declared(found.value_schema)
    # Where a query starts does not matter for what its values are.
    bounds = ("starting", "ending", "minoffsets", "maxtrigger", "maxoffsets")
    plain = {n: v for n, v in options.items() if not n.lower().startswith(bounds)}
    source = SourceOptions.parse(plain, streaming=False, client=client)
    if found.value_format != "avro":
        values = sample(source, found.value_sample)
        return inferred(str(found.value_format), values).simpleString()
    topics = _topics(source)
    kinds = {of_registry(found.value_registry, topic).simpleString() for topic in topics}
    if len(kinds) != 1:
        raise ConfigError(
            "valueSchema",
            "",
            f"the schemas of {', '.join(topics)} differ: give the type that all can be read as",
        )
    return kinds.pop()


def _topics(options: SourceOptions) -> list[str]:
    with Admin(config=options.admin) as admin:
        return sorted({tp.topic for tp in PositionFinder(options, admin).partitions()})


def declared(text: str) -> str:
    """Return the type of the column ``value`` in Spark's DDL, from ``valueSchema``.

    Args:
        text: Columns, such as ``id BIGINT, name STRING``, or a type, such as ``array<bigint>``.
    """
    return text if _NESTED.match(text) else f"STRUCT<{text}>"


def inferred(format: str, values: Sequence[bytes]) -> DataType:
    """Infer the type of values from a sample.

    Args:
        format: ``json`` or ``msgpack``.
        values: The sample.

    Raises:
        ConfigError: There is none, or the values have no common type.
    """
    decode = msgspec.json.decode if format == "json" else msgspec.msgpack.decode
    remedy = "give valueSchema, such as `id BIGINT, name STRING`"
    if not values:
        told = "the topics hold no record to infer it from"
        raise ConfigError("valueSchema", "", f"{told}; {remedy}")
    try:
        found = pa.array([decode(value) for value in values])
        return from_arrow_type(found.type)
    except (msgspec.MsgspecError, pa.ArrowException, PySparkException, TypeError) as error:
        raise ConfigError(
            "valueSchema", "", f"the sample of records has no common type ({error}); {remedy}"
        ) from None


def sample(options: SourceOptions, count: int) -> list[bytes]:
    """Read values from the beginnings of the topics.

    Args:
        options: The source's options.
        count: How many at most.
    """
    with Admin(config=options.admin) as admin:
        finder = PositionFinder(options, admin)
        partitions = finder.partitions()
        starts, ends = finder.earliest(partitions), finder.latest(partitions)
    filled = [tp for tp in partitions if starts[tp] < ends[tp]]
    found: list[bytes] = []
    deadline_s = time.monotonic() + SAMPLE_WAIT_S
    # Without deserializers, as no option sets one.
    reader = cast("Consumer[bytes | None, bytes | None]", Consumer(config=options.consumer))
    with reader as consumer:
        consumer.assign(filled)
        for tp in filled:
            consumer.seek(tp, starts[tp])
        while filled and len(found) < count and time.monotonic() < deadline_s:
            for records in consumer.poll(timeout_ms=200, max_records=count).values():
                found += [record.value for record in records if record.value is not None]
            filled = [tp for tp in filled if consumer.position(tp) < ends[tp]]
    return found[:count]


def of_registry(registry: str | None, topic: str) -> DataType:
    """Return the type of a topic's newest registered Avro schema.

    Args:
        registry: Address of the registry.
        topic: The topic; the subject is ``<topic>-value``.

    Raises:
        ConfigError: The schema has something that Spark cannot hold.
        SchemaRegistryError: The registry does not answer, or has no such subject.
    """
    from onceflow.sdk.schema_registry import SchemaRegistry

    assert registry is not None, "checked with the options"
    with SchemaRegistry(url=registry) as client:
        text = client.latest(f"{topic}-value").schema.text
    return avro_type(json.loads(text))


def avro_type(schema: object) -> DataType:
    """Return Spark's type for an Avro schema.

    Args:
        schema: The schema as JSON gives it.

    Raises:
        ConfigError: Spark has no such type.
    """
    if isinstance(schema, list):
        kinds = [part for part in schema if part != "null"]
        if len(kinds) == 1:
            return avro_type(kinds[0])
    elif isinstance(schema, str) and schema in _AVRO_TYPES:
        return _AVRO_TYPES[schema]
    elif isinstance(schema, dict):
        name = schema.get("type")
        logical = schema.get("logicalType")
        if logical == "decimal":
            return DecimalType(schema["precision"], schema.get("scale", 0))
        if logical in _AVRO_LOGICAL:
            return _AVRO_LOGICAL[logical]
        if name == "record":
            fields = schema["fields"]
            return StructType([StructField(f["name"], avro_type(f["type"])) for f in fields])
        if name == "array":
            return ArrayType(avro_type(schema["items"]))
        if name == "map":
            return MapType(StringType(), avro_type(schema["values"]))
        return avro_type(name)
    raise ConfigError(
        "valueSchema",
        json.dumps(schema, allow_nan=False),
        "Spark has no type for this Avro schema; give the type",
    )
