"""Goal: values come back through each schema language, under the right subject, and what does not
fit, or is hostile, is refused with a reason.

Method: the serdes over a served fake registry; bytes that are cut, changed or nested deeply.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from protobuf_shapes import Line, Money, Order, Refund
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import (
    ConfigError,
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SerializationError,
)
from onceflow.sdk.schema_registry import (
    RegistrySerde,
    Schema,
    SchemaReference,
    SchemaRegistry,
    avro_serde,
    json_schema_serde,
    protobuf_serde,
)
from onceflow.sdk.serde import LookupNeeded

USER = {
    "type": "record",
    "name": "User",
    "namespace": "shop",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": "int", "default": 0}],
}
USER_JSON = {
    "title": "User",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@dataclass
class User:
    """A value of the schema."""

    name: str
    age: int = 0


class Model(pydantic.BaseModel):
    """The same in pydantic."""

    name: str
    age: int = 0


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def registry(fake: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(fake.url, retries_wait_ms=1)


def through(serde: RegistrySerde, value: object) -> object:
    data = serde.serialize(value, "topic", "value")
    assert isinstance(data, bytes)
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    return serde.deserialize(data, "topic", "value")


@pytest.mark.parametrize(
    "value", [User("ann", 3), Model(name="ann", age=3), {"name": "ann", "age": 3}]
)
def test_typed_values_come_back(registry: SchemaRegistry, value: object) -> None:
    kind = None if isinstance(value, dict) else type(value)
    assert through(avro_serde(registry, USER, kind=kind), value) == value
    serde = json_schema_serde(registry, USER_JSON, kind=kind, subject_name_strategy="record")
    data = serde.serialize(value, "topic", "value")
    assert data is not None
    assert serde.deserialize(data, "topic", "value") == value
    assert sorted(registry.subjects()) == ["User", "topic-value"]


@pytest.mark.parametrize("kind", [User, Model])
def test_a_json_schema_is_made_of_the_type(registry: SchemaRegistry, kind: Any) -> None:
    serde = json_schema_serde(registry, kind=kind, subject_name_strategy="topic-record")
    assert through(serde, kind(name="ann")) == kind(name="ann")
    assert registry.subjects() == [f"topic-{kind.__name__}"]


def test_messages_come_back_with_what_they_import(registry: SchemaRegistry) -> None:
    order = Order(id=7, price=Money(cents=5))
    order.at.seconds = 9
    typed = protobuf_serde(registry, Order)
    data = typed.serialize(order, "topic", "value")
    assert data is not None
    assert typed.deserialize(data, "topic", "value") == order
    unknown = protobuf_serde(registry).deserialize(data, "topic", "value")
    assert str(unknown) == str(order)
    assert registry.subjects() == ["shop/money.proto", "topic-value"]
    reference = registry.latest("topic-value").schema.references
    assert reference == (SchemaReference("shop/money.proto", "shop/money.proto", 1),)


@pytest.mark.parametrize(
    ("message", "indexes"),
    [(Order(id=1), b"\x00"), (Refund(reason="r"), b"\x02\x02"), (Line(text="t"), b"\x04\x00\x00")],
)
def test_a_message_is_found_by_its_place(
    registry: SchemaRegistry, message: Any, indexes: bytes
) -> None:
    data = protobuf_serde(registry).serialize(message, "topic", "value")
    assert data is not None
    assert data[5 : 5 + len(indexes)] == indexes
    assert str(protobuf_serde(registry).deserialize(data, "t", "value")) == str(message)
    other = Order if isinstance(message, Refund) else Refund
    with pytest.raises(SerializationError, match=f"message_type is shop.{other.__name__}"):
        protobuf_serde(registry, other).deserialize(data, "t", "value")


def test_dates_and_decimals_keep_their_types(registry: SchemaRegistry) -> None:
    schema = {
        "type": "record",
        "name": "Day",
        "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}],
    }

    @dataclass
    class Day:
        day: datetime.date

    assert through(avro_serde(registry, schema, kind=Day), Day(datetime.date(2024, 2, 29))) == Day(
        datetime.date(2024, 2, 29)
    )


def test_a_schema_costs_one_request(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    serde = avro_serde(registry, USER)
    with pytest.raises(LookupNeeded):
        serde.serialize.serialize({"name": "a"}, "topic", "value")
    assert fake.requests == []
    for _ in range(5):
        assert through(serde, {"name": "a"}) == {"name": "a", "age": 0}
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "topic-key"),
        ("record", "shop.User"),
        ("topic-record", "topic-shop.User"),
        (lambda topic, field, name: f"{name}/{field}@{topic}", "shop.User/key@topic"),
    ],
)
def test_subjects_follow_the_strategy(
    registry: SchemaRegistry, strategy: Any, subject: str
) -> None:
    serde = avro_serde(registry, USER, subject_name_strategy=strategy)
    bound = serde.bind("topic", "key")
    assert bound.deserialize(bound.serialize({"name": "a"})) == {"name": "a", "age": 0}
    assert registry.subjects() == [subject]


def test_without_registering_an_unknown_schema_is_refused(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    serde = avro_serde(registry, USER, auto_register=False)
    with pytest.raises(SchemaNotFoundError, match="'topic-value'"):
        serde.serialize({"name": "a"}, "topic")
    registry.register("topic-value", Schema(json.dumps(USER)))
    assert through(serde, {"name": "a"}) == {"name": "a", "age": 0}
    assert all("versions" not in path for _, path in fake.requests[2:])


def test_the_newest_version_is_written_on_demand(registry: SchemaRegistry) -> None:
    serde = avro_serde(registry, use_latest_version=True)
    with pytest.raises(SchemaNotFoundError):
        serde.serialize({"name": "a"}, "topic")
    registry.register("topic-value", Schema(json.dumps(USER)))
    assert through(serde, {"name": "a"}) == {"name": "a", "age": 0}
    with pytest.raises(ConfigError, match="auto_register"):
        avro_serde(registry, USER, use_latest_version=True, auto_register=True)
    with pytest.raises(ConfigError, match="use_latest_version"):
        avro_serde(registry).serialize({}, "topic")
    with pytest.raises(ConfigError, match="topic-record"):
        avro_serde(registry, USER, subject_name_strategy="reocrd")  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="has no name"):
        avro_serde(registry, '"long"', subject_name_strategy="record").serialize(1, "topic")


def test_schemas_evolve(registry: SchemaRegistry) -> None:
    old = avro_serde(registry, USER)
    data = old.serialize({"name": "a", "age": 4}, "topic")
    assert data is not None
    newer = json.loads(json.dumps(USER))
    newer["fields"].append({"name": "city", "type": "string", "default": "?"})
    reader = avro_serde(registry, reader_schema=newer)
    assert reader.deserialize(data, "topic") == {"name": "a", "age": 4, "city": "?"}
    newer["fields"][-1].pop("default")
    with pytest.raises(IncompatibleSchemaError, match="'topic-value'"):
        avro_serde(registry, newer).serialize({"name": "a", "city": "x"}, "topic")


def test_avro_and_json_schemas_use_others(registry: SchemaRegistry) -> None:
    registry.register("shop.User", Schema(json.dumps(USER)))
    pair = Schema(
        json.dumps(
            {
                "type": "record",
                "name": "Pair",
                "fields": [{"name": n, "type": "shop.User"} for n in ("one", "two")],
            }
        ),
        references=(SchemaReference("shop.User", "shop.User", 1),),
    )
    value = {"one": {"name": "a", "age": 1}, "two": {"name": "b", "age": 2}}
    serde = avro_serde(registry, pair)
    data = serde.serialize(value, "pairs")
    assert data is not None
    assert avro_serde(registry).deserialize(data, "pairs") == value
    registry.register("user.json", Schema(json.dumps(USER_JSON), "JSON"))
    team = Schema(
        json.dumps({"type": "array", "items": {"$ref": "user.json"}}),
        "JSON",
        (SchemaReference("user.json", "user.json", 1),),
    )
    teams = json_schema_serde(registry, team)
    data = teams.serialize([{"name": "a"}], "teams")
    assert data is not None
    assert teams.deserialize(data, "teams") == [{"name": "a"}]
    with pytest.raises(SerializationError, match="is a required property"):
        teams.serialize([{}], "teams")


def test_a_schema_by_address_is_never_fetched(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    serde = json_schema_serde(registry, {"$ref": f"{fake.url}/subjects"})
    with pytest.raises(SerializationError, match=r"PointerToNowhere|Unresolvable|unresolvable"):
        serde.serialize({}, "topic")
    assert fake.requests == [("POST", "/subjects/topic-value/versions")]


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda r: avro_serde(r, USER), {"name": 1}),
        (lambda r: avro_serde(r, USER), {"name": "a", "aeg": 1}),
        (lambda r: avro_serde(r, USER), {}),
        (lambda r: avro_serde(r, USER), object()),
        (lambda r: json_schema_serde(r, USER_JSON), {"name": 1}),
        (lambda r: json_schema_serde(r, USER_JSON), {"name": "a", "age": {1, 2}}),
        (lambda r: json_schema_serde(r, {"type": "number"}), float("nan")),
        (protobuf_serde, b"bytes"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    registry: SchemaRegistry, make: Any, value: Any
) -> None:
    with pytest.raises(SerializationError):
        make(registry).serialize(value, "topic")


@pytest.mark.parametrize(
    ("make", "schema"),
    [(avro_serde, '{"type": "recrod"}'), (avro_serde, "{"), (json_schema_serde, '{"type": 5}')],
)
def test_a_schema_that_cannot_be_read_is_refused_at_once(
    registry: SchemaRegistry, make: Any, schema: str
) -> None:
    with pytest.raises(SerializationError, match="schema cannot be used"):
        make(registry, schema)


def test_a_reader_of_another_language_says_so(registry: SchemaRegistry) -> None:
    serdes = [
        avro_serde(registry, USER),
        json_schema_serde(registry, USER_JSON),
        protobuf_serde(registry),
    ]
    values: list[Any] = [{"name": "a"}, {"name": "a"}, Money(cents=1)]
    written = [s.serialize(v, f"t{i}") for i, (s, v) in enumerate(zip(serdes, values, strict=True))]
    for i, data in enumerate(written):
        for j, serde in enumerate(serdes):
            assert data is not None
            if i != j:
                with pytest.raises(SerializationError, match="the serde of that type"):
                    serde.deserialize(data, "t")


def test_hostile_bytes_are_refused(registry: SchemaRegistry) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    values: list[tuple[RegistrySerde, Any]] = [
        (avro_serde(registry, USER, kind=User), User("a name", 77)),
        (json_schema_serde(registry, USER_JSON, kind=User), User("a name", 77)),
        (protobuf_serde(registry, Order), Order(id=300, price=Money(cents=5))),
    ]
    for number, (serde, value) in enumerate(values):
        data = serde.serialize(value, f"topic-{number}")
        assert data is not None
        cases = [data[:length] for length in range(len(data))]
        for _ in range(300):
            changed = bytearray(data)
            changed[dice.randrange(5, len(data))] = dice.randrange(256)
            cases.append(bytes(changed[:5]) + dice.randbytes(dice.randrange(40)))
            cases.append(bytes(changed))
        for case in cases:
            try:
                serde.deserialize(case, "topic")
            except SerializationError:
                continue
    with pytest.raises(SchemaNotFoundError, match="id 1000"):
        avro_serde(registry).deserialize(b"\x00\x00\x00\x03\xe8x", "topic")
    with pytest.raises(SerializationError, match="1 bytes follow the value"):
        avro_serde(registry).deserialize(b"\x00\x00\x00\x00\x01\x02a\x00\x00", "topic")


NOTHING = {"type": "record", "name": "Nothing", "namespace": "n", "fields": []}


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        NOTHING,
        {"type": "fixed", "name": "None", "size": 0},
        {"type": "record", "name": "Two", "fields": [{"name": "a", "type": NOTHING}]},
    ],
)
def test_an_array_of_items_without_bytes_is_not_read(fake: FakeRegistry, items: object) -> None:
    """Six bytes of a value would tell of a billion of them, by a schema of whoever wrote it."""
    registry = SchemaRegistry(fake.url, retries_wait_ms=1)
    registry.register("lie", Schema(json.dumps({"type": "array", "items": items})))
    value = b"\x00\x00\x00\x00\x01" + b"\xfe\xff\xff\xff\x0f" + b"\x00"
    with pytest.raises(SerializationError, match="take no bytes"):
        avro_serde(registry).deserialize(value, "t")


@pytest.mark.parametrize("served", ["{", "[]", '{"type": "record"}', '"nobody-knows"', "{}", "5"])
def test_a_lying_registry_is_an_error_of_the_record(fake: FakeRegistry, served: str) -> None:
    """The schema of an id is none, or of another kind of value than the bytes."""
    fake.faults.append(json.dumps({"schema": served}).encode())
    with pytest.raises(SerializationError, match="schema id 1"):
        avro_serde(SchemaRegistry(fake.url)).deserialize(b"\x00\x00\x00\x00\x01abc", "t")


def test_a_deeply_nested_value_does_not_end_the_process(registry: SchemaRegistry) -> None:
    schema = {
        "type": "record",
        "name": "Node",
        "namespace": "deep",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    serde = avro_serde(registry, schema)
    assert through(serde, {"next": {"next": None}}) == {"next": {"next": None}}
    prefix = b"\x00\x00\x00\x00\x01"
    assert serde.deserialize(prefix + b"\x02" * 500 + b"\x00", "topic")
    with pytest.raises(SerializationError, match="recursion"):
        serde.deserialize(prefix + b"\x02" * 1_000_000 + b"\x00", "topic")
    text = json_schema_serde(registry, {"type": "array"}).bind("deep")
    text.serialize([])
    with pytest.raises(SerializationError, match="recursion"):
        text.deserialize(b"\x00\x00\x00\x00\x02" + b"[" * 1_000_000)
