"""Goal: what is written with a registered schema is read by confluent-kafka's serdes, and theirs
by ours.

Method: both over one served registry, each direction, for each schema language; bytes and ids are
the same, since both register the same schema under the same subject.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from protobuf_shapes import Label, Line, Money, Order, Parcel, Refund
from schema_registry_fake import FakeRegistry

from onceflow.sdk.schema_registry import (
    SchemaRegistry,
    avro_serde,
    json_schema_serde,
    protobuf_serde,
)

confluent = pytest.importorskip("confluent_kafka.schema_registry")
pytestmark = pytest.mark.foreign

AVRO = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "boss", "type": ["null", "User"], "default": None},
        {"name": "born", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "User",
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def theirs(fake: FakeRegistry) -> Any:
    return confluent.SchemaRegistryClient({"url": fake.url})


@pytest.fixture
def ours(fake: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(fake.url)


def context(topic: str = "users") -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.parametrize("ours_first", [True, False])
def test_avro(theirs: Any, ours: SchemaRegistry, ours_first: bool) -> None:
    from datetime import UTC, datetime

    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    boss = {"name": "bo", "tags": [], "boss": None, "born": datetime(1970, 1, 2, tzinfo=UTC)}
    value = {**boss, "name": "ann", "tags": ["a", "b"], "boss": boss}
    serde = avro_serde(ours, AVRO)
    their_serializer = AvroSerializer(theirs, json.dumps(AVRO))
    writers = [lambda: serde.serialize(value, "users"), lambda: their_serializer(value, context())]
    written = [write() for write in (writers if ours_first else writers[::-1])]
    assert written[0] == written[1]
    assert written[0] is not None
    assert ours.subjects() == ["users-value"]
    assert AvroDeserializer(theirs)(written[0], context()) == value
    assert avro_serde(ours).deserialize(written[1], "users") == value


@pytest.mark.parametrize("ours_first", [True, False])
def test_json_schema(theirs: Any, ours: SchemaRegistry, ours_first: bool) -> None:
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    value = {"name": "ann"}
    serde = json_schema_serde(ours, JSON)
    their_serializer = JSONSerializer(json.dumps(JSON), theirs)
    writers = [lambda: serde.serialize(value, "users"), lambda: their_serializer(value, context())]
    ours_bytes, their_bytes = (
        (w() for w in writers) if ours_first else reversed([w() for w in writers[::-1]])
    )
    assert ours_bytes[:5] == their_bytes[:5]
    assert JSONDeserializer(json.dumps(JSON))(ours_bytes, context()) == value
    assert serde.deserialize(their_bytes, "users") == value


@pytest.mark.parametrize(
    "message",
    [
        Order(id=7, price=Money(cents=5)),
        Refund(reason="r"),
        Line(text="t"),
        Label(text="l"),
        Parcel(sizes={"a": 1}),
    ],
)
@pytest.mark.parametrize("ours_first", [True, False])
def test_protobuf(theirs: Any, ours: SchemaRegistry, message: Any, ours_first: bool) -> None:
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    kind = type(message)
    serde = protobuf_serde(ours, kind)
    their_serializer = ProtobufSerializer(kind, theirs)
    writers = [
        lambda: serde.serialize(message, "users"),
        lambda: their_serializer(message, context()),
    ]
    written = [write() for write in (writers if ours_first else writers[::-1])]
    assert written[0] == written[1]
    imported = [each.name for each in kind.DESCRIPTOR.file.dependencies]
    assert set(ours.subjects()) == {"users-value", *imported} - {"google/protobuf/timestamp.proto"}
    assert ProtobufDeserializer(kind, {}, theirs)(written[0], context()) == message
    assert serde.deserialize(written[1], "users") == message
    assert str(protobuf_serde(ours).deserialize(written[1], "users")) == str(message)


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        ("record", "record_subject_name_strategy"),
        ("topic-record", "topic_record_subject_name_strategy"),
        ("topic", "topic_subject_name_strategy"),
    ],
)
def test_subjects_are_the_same(theirs: Any, ours: SchemaRegistry, strategy: Any, name: str) -> None:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    schema = {"type": "record", "name": "E", "namespace": "n", "fields": []}
    chosen = getattr(confluent, name)
    AvroSerializer(theirs, json.dumps(schema), conf={"subject.name.strategy": chosen})(
        {}, context()
    )
    before = ours.subjects()
    avro_serde(ours, schema, subject_name_strategy=strategy).serialize({}, "users")
    assert ours.subjects() == before
    assert len(before) == 1
