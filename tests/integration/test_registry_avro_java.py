"""Goal: Avro values mean to us what they mean to Java's library, whatever their schema and whatever
schema they are read by.

Method: random schemas, values and evolved schemas from printed seeds; what we write is read, and
written again, by the library that comes with PySpark.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from avro_shapes import Shapes, exact
from java_avro import JavaAvro
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry import Schema, SchemaRegistry, avro_serde

pytestmark = pytest.mark.spark
SEEDS = 150


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    with JavaAvro() as library:
        yield library


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with FakeRegistry(level="NONE") as fake:
        yield SchemaRegistry(fake.url)


def comparable(value: Any) -> Any:
    """The value with its types; those of 32 bits come from Java as text with few digits."""
    if isinstance(value, float):
        try:
            return struct.pack("<f", value)
        except OverflowError:
            return repr(value)
    if isinstance(value, dict):
        return {key: comparable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return exact(value)


def can_be_written_again(schema: Any) -> bool:
    """Java's maps have no order, and a single number becomes Python's on its way here and back."""
    return '"map"' not in json.dumps(schema) and "fields" in schema


def test_java_reads_and_writes_what_we_write(java: JavaAvro, registry: SchemaRegistry) -> None:
    start = random.randrange(2**32)
    print(f"seed {start}")
    for seed in range(start, start + SEEDS):
        shapes = Shapes(random.Random(seed))
        schema = shapes.type(3)
        serde = avro_serde(registry, Schema(json.dumps(schema))).bind(f"j{seed}")
        data = serde.serialize(shapes.value(schema))
        read = java.read(data[5:], schema)
        assert comparable(serde.deserialize(data)) == comparable(read), (seed, schema)
        if can_be_written_again(schema):
            assert java.written_again(data[5:], schema) == data[5:], (seed, schema)


def test_java_resolves_schemas_as_we_do(java: JavaAvro, registry: SchemaRegistry) -> None:
    start = random.randrange(2**32)
    print(f"seed {start}")
    compared = 0
    for seed in range(start, start + SEEDS):
        shapes = Shapes(random.Random(seed))
        schema = shapes.type(3)
        evolved = shapes.evolved(schema)
        data = (
            avro_serde(registry, Schema(json.dumps(schema)))
            .bind(f"e{seed}")
            .serialize(shapes.value(schema))
        )
        ours: Any = None
        try:
            reader = avro_serde(registry, reader_schema=Schema(json.dumps(evolved)))
            ours = comparable(reader.deserialize(data, "e"))
        except SerializationError as error:
            if "utf-8" in str(error):  # Java puts a question mark for what it cannot read
                continue
            ours = "refused"
        try:
            theirs = comparable(java.read(data[5:], schema, evolved))
        except Exception as error:  # noqa: BLE001 - whatever py4j makes of Java's
            if "Invalid default" in str(error):  # Java renames fields in a schema, not in defaults
                continue
            theirs = "refused"
        assert ours == theirs, (seed, schema, evolved)
        compared += 1
    assert compared > SEEDS // 2
