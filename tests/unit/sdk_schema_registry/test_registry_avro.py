"""Goal: Avro values reach the application typed and whole, and what does not fit is refused: types,
branches of unions, defaults and logical types, as Java's library has them.

Method: random schemas with values that fit, from printed seeds, against expectations that share no
code with the product; single cases for each rule of names, unions, defaults and resolution.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pickle
import random
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest
from avro_shapes import Shapes, exact, plain, typed_default
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistry,
    avro_serde,
    avro_type_name,
)
from onceflow.sdk.serde import JSON

UTC = datetime.UTC


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with FakeRegistry(level="NONE") as fake:
        yield SchemaRegistry(fake.url, retries_wait_ms=1)


def write(registry: SchemaRegistry, schema: Any, value: object) -> bytes:
    """The bytes behind the schema's id."""
    data = avro_serde(registry, schema).serialize(value, "t")
    assert data is not None
    return data[5:]


def through(registry: SchemaRegistry, schema: Any, value: object, reader: Any = None) -> Any:
    data = avro_serde(registry, schema).serialize(value, "t")
    assert data is not None
    return avro_serde(registry, reader_schema=reader).deserialize(data, "t")


def record(*fields: Any, name: str = "R", space: str = "") -> dict[str, Any]:
    """A record of fields given as (name, type) or (name, type, default)."""
    found = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "namespace": space, "fields": found}


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def test_every_shape_comes_back_and_is_written_the_same_again(registry: SchemaRegistry) -> None:
    start = random.randrange(2**32)
    print(f"seed {start}")
    for seed in range(start, start + 150):
        shapes = Shapes(random.Random(seed))
        schema = shapes.type(3)
        serde = avro_serde(registry, Schema(json.dumps(schema))).bind(f"s{seed}")
        for _ in range(2):
            value = shapes.value(schema)
            data = serde.serialize(value)
            found = serde.deserialize(data)
            assert exact(found) == exact(plain(value, schema, typed_default)), (seed, schema)
            assert serde.serialize(found) == data, (seed, schema)


# --- names


A = record(("u", "string"), name="A", space="io.x")
B = record(("i", "string"), name="B", space="io.x")


def used(registry: SchemaRegistry, *schemas: Any) -> tuple[SchemaReference, ...]:
    """References to schemas, which are registered under their names."""
    found = []
    for each in schemas:
        name = ".".join(filter(None, (each.get("namespace"), each["name"])))
        registry.register(name, Schema(json.dumps(each)))
        version = registry.lookup(name, Schema(json.dumps(each))).version
        found.append(SchemaReference(name, name, version))
    return tuple(found)


@pytest.mark.parametrize(
    ("text", "value", "data"),
    [
        ('["io.x.A", "io.x.B"]', {"i": "x"}, b"\x02\x02x"),
        ('["null", "io.x.A", "io.x.B"]', {"u": "x"}, b"\x02\x02x"),
        ('"io.x.B"', {"i": "x"}, b"\x02x"),
        ('{"type": "io.x.B"}', {"i": "x"}, b"\x02x"),
        ('{"type": "array", "items": "io.x.B"}', [{"i": "x"}], b"\x02\x02x\x00"),
        ('{"type": "map", "values": ["io.x.A", "io.x.B"]}', {"k": {"i": "x"}},
         b"\x02\x02k\x02\x02x\x00"),
        (json.dumps(record(("a", "A"), ("b", "io.x.B"), ("c", "B"), name="C", space="io.x")),
         {"a": {"u": "1"}, "b": {"i": "2"}, "c": {"i": "3"}}, b"\x021\x022\x023"),
    ],
)  # fmt: skip
def test_types_of_referenced_schemas_are_known_by_name(
    registry: SchemaRegistry, text: str, value: object, data: bytes
) -> None:
    """Bytes are those that Java's library writes."""
    schema = Schema(text, "AVRO", used(registry, A, B))
    assert write(registry, schema, value) == data
    assert through(registry, schema, value) == value


def test_names_without_a_namespace_are_known_within_one(registry: SchemaRegistry) -> None:
    plain_type = record(("i", "int"), name="Plain")
    inner = record(("own", "Plain"), ("both", {"type": "array", "items": "Plain"}), space="a.b")
    schema = Schema(json.dumps(inner), "AVRO", used(registry, plain_type))
    value = {"own": {"i": 1}, "both": [{"i": 2}]}
    assert through(registry, schema, value) == value
    shadowed = record(("i", "string"), name="Plain", space="a.b")
    both = Schema(json.dumps(inner), "AVRO", used(registry, plain_type, shadowed))
    value = {"own": {"i": "one"}, "both": []}
    assert through(registry, both, value) == value


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('"io.x.Unknown"', "add the schema that defines it to the references"),
        ('["int", "int"]', "has a type twice"),
        ('["int", ["string"]]', "directly within a union"),
        (record(("a", "int"), ("a", "int")), "two fields 'a'"),
        (record(("a", A), ("b", A)), "'io.x.A' is defined twice"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "has a symbol twice"),
        ({"type": "fixed", "name": "F", "size": -1}, "size"),
        ({"type": "record", "name": "R"}, "no 'fields'"),
        ({"type": "array"}, "no 'items'"),
        ('{"type": 5}', "no 'type'"),
        ("5", "unknown type '5'"),
    ],
)
def test_schemas_that_are_none_say_why(registry: SchemaRegistry, schema: Any, said: str) -> None:
    with pytest.raises(SerializationError, match=said):
        avro_serde(registry, schema)


# --- values that do not fit


F2 = {"type": "fixed", "name": "F", "size": 2}
E = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
MONEY = logical("bytes", "decimal", precision=5, scale=2)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("int", [2**31, -(2**31) - 1, 1.0, True, "1", None, Decimal(1)]),
        ("long", [2**63, -(2**63) - 1, 1.5, False]),
        ("float", [1e39, "1", True, 2**24 + 1, Decimal(1), None]),
        ("double", [2**53 + 1, 10**400, "nan", Decimal("0.1"), False]),
        ("boolean", [0, 1, "true", None]),
        ("string", [b"a", 1, None, "\ud800", ["a"]]),
        ("bytes", ["a", [1], 5, None]),
        ("null", [0, "", False]),
        (F2, [b"a", b"abc", "ab", None]),
        (E, ["Z", 0, b"X", None]),
        ({"type": "array", "items": "int"}, [None, "ab", {"a": 1}, 5, [1, "2"]]),
        ({"type": "map", "values": "int"}, [[("a", 1)], {1: 1}, {"a": "1"}, None]),
        (record(("a", "int")), [{"a": 1, "b": 2}, {}, {1: 1}, [1], "a", None]),
        (MONEY, [Decimal("0.001"), Decimal("1000"), Decimal("NaN"), Decimal("Infinity"), 1.5, 1,
                 "1", Decimal("1e5"), Decimal("1e999999999"), Decimal("1e-999999999")]),
        (logical("int", "date"), [datetime.datetime(2026, 1, 1), "2026-01-01", 2**31]),
        (logical("int", "time-millis"), [datetime.time(1, 2, 3, 4567), "01:00",
                                         datetime.time(1, tzinfo=UTC)]),
        (logical("long", "timestamp-millis"),
         [datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime.datetime(2026, 1, 1),
          datetime.date(2026, 1, 1), 1.5]),
        (logical("long", "local-timestamp-micros"), [datetime.datetime(2026, 1, 1, tzinfo=UTC)]),
        (logical("string", "uuid"), ["no uuid", "{12345678123456781234567812345678}", b"a"]),
        (["null", "int"], ["a", 1.5, 2**31]),
        (["int", "string"], [None, 1.5, b"a"]),
    ],
)  # fmt: skip
def test_what_a_type_cannot_hold_is_refused(
    registry: SchemaRegistry, schema: Any, values: list[object]
) -> None:
    serde = avro_serde(registry, schema if isinstance(schema, dict) else json.dumps(schema))
    for value in values:
        with pytest.raises(SerializationError, match="t-value"):
            serde.serialize(value, "t")


@pytest.mark.parametrize(
    ("schema", "given", "read"),
    [
        ("long", enum.IntEnum("Number", {"ONE": 1}).ONE, 1),  # type: ignore[attr-defined]
        ("double", 7, 7.0),
        ("float", 0.1, 0.10000000149011612),
        ("float", math.inf, math.inf),
        ("bytes", bytearray(b"a"), b"a"),
        ("bytes", memoryview(b"a"), b"a"),
        (E, enum.StrEnum("Letter", {"x": "X"}).x, "X"),  # type: ignore[attr-defined]
        ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
        ({"type": "array", "items": "int"}, frozenset({3}), [3]),
        (MONEY, Decimal("1.5"), Decimal("1.50")),
        (MONEY, Decimal("1e2"), Decimal("100.00")),
        (MONEY, Decimal("1.500"), Decimal("1.50")),
        (MONEY, b"\x00\x80", Decimal("1.28")),
        (MONEY, Decimal("-0.00"), Decimal("0.00")),
        (logical("int", "date"), 10, datetime.date(1970, 1, 11)),
        (logical("long", "timestamp-micros"), 1, datetime.datetime(1970, 1, 1, microsecond=1,
                                                                   tzinfo=UTC)),
        (logical("long", "timestamp-millis"),
         datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
         datetime.datetime(2026, 1, 1, tzinfo=UTC)),
        (logical("string", "uuid"), "12345678-1234-5678-1234-567812345678",
         uuid.UUID(int=0x12345678123456781234567812345678)),
        (logical("long", "timestamp-nanos"), 5, 5),
        (logical("bytes", "decimal"), b"\x01", b"\x01"),
        (logical("bytes", "big-decimal"), Decimal("-12345.678"), Decimal("-12345.678")),
        ({**logical("fixed", "uuid"), "name": "U", "size": 16}, uuid.UUID(int=5), uuid.UUID(int=5)),
        ({**logical("fixed", "decimal", precision=3, scale=1), "name": "D", "size": 2},
         Decimal("-99.9"), Decimal("-99.9")),
    ],
)  # fmt: skip
def test_what_means_the_same_is_taken(
    registry: SchemaRegistry, schema: Any, given: object, read: object
) -> None:
    serde_schema = schema if isinstance(schema, dict) else json.dumps(schema)
    assert exact(through(registry, serde_schema, given)) == exact(read)


def test_the_place_of_a_misfit_is_told(registry: SchemaRegistry) -> None:
    inner = record(("m", {"type": "map", "values": ["null", "int"]}), name="I")
    schema = record(("list", {"type": "array", "items": inner}))
    with pytest.raises(SerializationError, match=r"list\[1\]\.m\['k'\]: int expected, got str 'x'"):
        write(registry, schema, {"list": [{"m": {}}, {"m": {"k": "x"}}]})
    with pytest.raises(SerializationError, match=r"list\[0\]\.m: the field is missing"):
        write(registry, schema, {"list": [{}]})
    with pytest.raises(
        SerializationError, match=r"unknown fields of the schema's record R: 'lits'"
    ):
        write(registry, schema, {"list": [], "lits": []})


def test_a_decimal_of_any_precision_is_read_exactly(registry: SchemaRegistry) -> None:
    schema = logical("bytes", "decimal", precision=100, scale=50)
    with decimal.localcontext(prec=5):
        value = Decimal("1234567890" * 5 + ".5")
        assert through(registry, schema, value) == value
    long = logical("bytes", "decimal", precision=9_000, scale=4_500)
    value = Decimal((1, (7,) * 8_000, -4_500))
    assert through(registry, long, value) == value
    beyond = json.dumps({"type": "bytes"})
    data = avro_serde(registry, beyond).serialize(b"\x01\x00\x00", "t")
    assert data is not None
    found = avro_serde(registry, reader_schema=MONEY).deserialize(data, "t")
    assert found == Decimal("655.36")


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        (MONEY, b"\x7f" * 1_000_000),
        (logical("bytes", "big-decimal"), b"\x90\x4e" + b"\x7f" * 5_000 + b"\x00"),
        (logical("bytes", "big-decimal"), b"\x02\x01\x80\x89\x7a"),
        (logical("bytes", "big-decimal"), b"\x04\x01"),
        (logical("bytes", "big-decimal"), b"\xff" * 30),
    ],
)
def test_hostile_decimals_cost_nothing(registry: SchemaRegistry, schema: Any, raw: bytes) -> None:
    """A megabyte would be worked on for minutes."""
    data = avro_serde(registry, '"bytes"').serialize(raw, "t")
    assert data is not None
    with pytest.raises(SerializationError, match=r"decimal|number"):
        avro_serde(registry, reader_schema=schema).deserialize(data, "t")


def test_hostile_values_are_refused_or_read(registry: SchemaRegistry) -> None:
    """Bytes that are cut, changed or made up, by schemas of every shape."""
    start = random.randrange(2**32)
    print(f"seed {start}")
    for seed in range(start, start + 60):
        shapes = Shapes(random.Random(seed))
        schema = shapes.type(3)
        serde = avro_serde(registry, Schema(json.dumps(schema))).bind(f"h{seed}")
        data = serde.serialize(shapes.value(schema))
        cases = [data[:length] for length in range(5, len(data))]
        for _ in range(20):
            changed = bytearray(data + b"\0")
            changed[shapes.rng.randrange(5, len(changed))] = shapes.rng.randrange(256)
            cases += [bytes(changed[:-1]), data[:5] + shapes.rng.randbytes(20)]
        for case in cases:
            with contextlib.suppress(SerializationError):
                serde.deserialize(case)


# --- unions


@dataclasses.dataclass
class Left:
    """A record of a union whose other record looks the same."""

    x: int


class Right(msgspec.Struct):
    """The other one."""

    x: int


class Model(pydantic.BaseModel):
    """One more."""

    x: int


TWINS = [record(("x", "int"), name=n, space="io") for n in ("Left", "Right", "Model")]


def test_a_union_takes_the_branch_that_a_value_says(registry: SchemaRegistry) -> None:
    serde = avro_serde(registry, TWINS).bind("twins")
    for place, (name, made) in enumerate(
        (("io.Left", Left(1)), ("io.Right", Right(1)), ("io.Model", Model(x=1)))
    ):
        data = serde.serialize(made)
        assert data[5:] == bytes([2 * place, 2])
        assert serde.serialize((name, {"x": 1})) == data
        assert serde.serialize((name.removeprefix("io."), {"x": 1})) == data
        found = serde.deserialize(data)
        assert found == {"x": 1}
        assert avro_type_name(found) == name
        assert serde.serialize(found) == data
    with pytest.raises(SerializationError, match=r"several types.*io.Left, io.Right.*give a pair"):
        serde.serialize({"x": 1})
    assert avro_type_name({"x": 1}) is None


@pytest.mark.parametrize(
    ("union", "value", "branch"),
    [
        (["string", "bytes"], "a", 0),
        (["string", "bytes"], b"a", 1),
        (["bytes", F2], b"ab", 0),
        (["bytes", F2], ("F", b"ab"), 1),
        (["null", F2], b"ab", 1),
        ([E, "string"], "X", 1),
        ([E, "string"], ("E", "X"), 0),
        ([E, "null"], "X", 0),
        (["int", "long"], 5, 0),
        (["int", "long"], 2**40, 1),
        (["long", "int"], 5, 0),
        (["int", "long"], ("long", 5), 1),
        (["double", "long"], 5, 1),
        (["double", "string"], 5, 0),
        (["float", "double"], 0.1, 1),
        (["float", "double"], ("float", 0.5), 0),
        (["int", "boolean"], True, 1),
        (["boolean", "double"], 1.0, 1),
        ([logical("long", "timestamp-millis"), "string"],
         datetime.datetime(2026, 1, 1, tzinfo=UTC), 0),
        (["int", {"type": "array", "items": "string"}], ["a"], 1),
        ([{"type": "array", "items": "string"}, "string"], ("a", "b", "c"), 0),
        ([{"type": "map", "values": "int"}, record(("a", "int"), ("b", "int", 0))], {"c": 1}, 0),
        ([record(("a", "int")), record(("a", "int"), ("b", "int", 0), name="S")], {"a": 1}, 0),
        ([record(("a", "int"), ("b", "int", 0)), record(("b", "int"), name="S")], {"a": 1}, 0),
    ],
)  # fmt: skip
def test_a_plain_value_means_one_branch(
    registry: SchemaRegistry, union: list[Any], value: object, branch: int
) -> None:
    assert write(registry, union, value)[0] == 2 * branch


@pytest.mark.parametrize(
    ("union", "value"),
    [
        ([{"type": "map", "values": "int"}, record(("a", "int"))], {"a": 1}),
        ([F2, {**F2, "name": "G"}], b"ab"),
        ([E, {**E, "name": "G"}], "X"),
        ([record(("a", "int", 0)), record(("b", "int", 0), name="S")], {}),
    ],
)
def test_a_value_of_several_branches_is_refused(
    registry: SchemaRegistry, union: list[Any], value: object
) -> None:
    with pytest.raises(SerializationError, match="fits several types of the union"):
        write(registry, union, value)


@pytest.mark.parametrize(
    ("union", "pair"),
    [
        ([E, "string"], ("E", "X")),
        ([E, "string"], ("string", "X")),
        (["bytes", F2], ("F", b"ab")),
        (["bytes", F2], ("bytes", b"ab")),
        ([{"type": "map", "values": "int"}, record(("a", "int"))], ("R", {"a": 1})),
        ([{"type": "map", "values": "int"}, record(("a", "int"))], ("map", {"a": 1})),
        ([{**MONEY, "type": "fixed", "name": "M", "size": 3}, "bytes"], ("M", Decimal("1.00"))),
        ([MONEY, {**MONEY, "type": "fixed", "name": "M", "size": 3}], ("M", Decimal("1.00"))),
        ([MONEY, {**MONEY, "type": "fixed", "name": "M", "size": 3}], ("bytes", Decimal("1.00"))),
        ([logical("string", "uuid"), {**logical("fixed", "uuid"), "name": "U", "size": 16}],
         ("U", uuid.UUID(int=7))),
    ],
)  # fmt: skip
def test_the_branch_that_was_read_is_written_again(
    registry: SchemaRegistry, union: list[Any], pair: tuple[str, object]
) -> None:
    outer = record(("v", {"type": "array", "items": union}), name="Outer")
    serde = avro_serde(registry, outer).bind("again")
    data = serde.serialize({"v": [pair]})
    found: Any = serde.deserialize(data)
    assert found == {"v": [pair[1]]}
    assert type(pair[1]) in type(found["v"][0]).__mro__
    assert serde.serialize(found) == data


class Color(enum.Enum):
    """An enum of a union with text."""

    RED = "RED"


@dataclasses.dataclass
class Doc:
    """A type to read into, with unions whose values would know their type."""

    twin: Left | None
    color: Color
    price: Decimal
    data: bytes


class DocModel(pydantic.BaseModel):
    """The same in pydantic."""

    twin: Left | None
    color: Color
    price: Decimal
    data: bytes


PRICE = {**logical("fixed", "decimal", precision=5, scale=2), "name": "Price", "size": 4}
DOC = record(
    ("twin", ["null", *TWINS]),
    ("color", ["string", {"type": "enum", "name": "Color", "symbols": ["RED"]}]),
    ("price", [MONEY, PRICE]),
    ("data", ["bytes", F2]),
    name="Doc",
)


@pytest.mark.parametrize("kind", [Doc, DocModel])
def test_unions_are_read_into_a_type(registry: SchemaRegistry, kind: Any) -> None:
    value = kind(twin=Left(1), color=Color.RED, price=Decimal("1.00"), data=b"ab")
    serde = avro_serde(registry, DOC, kind=kind).bind("doc")
    assert serde.deserialize(serde.serialize(value)) == value
    named = {"twin": ("Left", {"x": 1}), "color": ("Color", "RED"),
             "price": ("Price", Decimal(1)), "data": ("F", b"ab")}  # fmt: skip
    assert serde.deserialize(serde.serialize(named)) == value


def test_what_knows_its_type_can_be_copied_sent_and_shown(registry: SchemaRegistry) -> None:
    names = {"twin": "io.Left", "color": "Color", "price": "Price", "data": "F"}
    value = {"twin": ("Left", {"x": 1}), "color": ("Color", "RED"),
             "price": ("Price", Decimal(1)), "data": ("F", b"ab")}  # fmt: skip
    found: Any = through(registry, DOC, value)
    for each in (found, copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert each == found
        assert {name: avro_type_name(part) for name, part in each.items()} == names
    assert JSON.deserialize(JSON.serialize(found)) == {
        "twin": {"x": 1}, "color": "RED", "price": "1.00", "data": "YWI=",
    }  # fmt: skip
    unique = [logical("string", "uuid"), {**logical("fixed", "uuid"), "name": "U", "size": 16}]
    read = through(registry, unique, ("U", uuid.UUID(int=7)))
    for each in (copy.copy(read), copy.deepcopy(read), pickle.loads(pickle.dumps(read))):
        assert (each, avro_type_name(each)) == (uuid.UUID(int=7), "U")


# --- defaults


def test_defaults_are_typed_and_each_record_has_its_own(registry: SchemaRegistry) -> None:
    point = record(("at", logical("int", "date"), 1), name="P")
    added = record(
        ("i", "int"),
        ("raw", "bytes", "\u00ff"),
        ("whole", "double", 3),
        ("nan", "float", "NaN"),
        ("list", {"type": "array", "items": logical("long", "timestamp-micros")}, [1]),
        ("map", {"type": "map", "values": MONEY}, {"a": "\u0001"}),
        ("point", point, {"at": 2}),
        ("partial", "P", {}),
        ("union", ["null", "int"], 5),  # any branch since Avro 1.9
        ("twin", TWINS, {"x": 1}),
    )
    expected = {
        "i": 1, "raw": b"\xff", "whole": 3.0,
        "list": [datetime.datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)],
        "map": {"a": Decimal("0.01")}, "point": {"at": datetime.date(1970, 1, 3)},
        "partial": {"at": datetime.date(1970, 1, 2)}, "union": 5, "twin": {"x": 1},
    }  # fmt: skip
    data = avro_serde(registry, record(("i", "int"))).serialize({"i": 1}, "old")
    assert data is not None
    reader = avro_serde(registry, reader_schema=added)
    written = avro_serde(registry, added)
    for _ in range(2):
        found: Any = reader.deserialize(data, "old")
        again: Any = written.deserialize(written.serialize({"i": 1}, "new") or b"", "new")
        for each in (found, again):
            assert math.isnan(each.pop("nan"))
            assert exact(each) == exact(expected)
            assert avro_type_name(each["twin"]) == "io.Left"
        found["list"].append("mine")
        found["map"]["b"] = found["point"]["at"] = "mine"


def test_a_default_that_does_not_fit_is_told(registry: SchemaRegistry) -> None:
    data = avro_serde(registry, record(("i", "int"))).serialize({"i": 1}, "t")
    assert data is not None
    wrong = record(("i", "int"), ("s", "string", 5))
    with pytest.raises(SerializationError, match="default 5 of the field 's' does not fit"):
        avro_serde(registry, reader_schema=wrong).deserialize(data, "t")
    with pytest.raises(SerializationError, match="default 5 of the field 's' does not fit"):
        avro_serde(registry, wrong).serialize({"i": 1}, "t")


# --- a reader's schema


@pytest.mark.parametrize(
    ("writer", "value", "reader", "read"),
    [
        ("int", 10, logical("int", "date"), datetime.date(1970, 1, 11)),
        (logical("int", "date"), datetime.date(1970, 1, 11), "int", 10),
        ("int", 1, logical("long", "timestamp-millis"),
         datetime.datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)),
        ("int", 5, ["double", "int"], 5),
        ("int", 5, ["string", "double"], 5.0),
        ("long", 2**53 + 1, "double", 2.0**53),
        ("int", 2**24 + 3, "float", 2.0**24 + 4),
        ("string", "ä", "bytes", b"\xc3\xa4"),
        ("bytes", b"\xc3\xa4", "string", "ä"),
        (["null", "int"], 5, "long", 5),
        (["int", "string"], "a", ["bytes", "string", "null"], "a"),
        (E, "Y", {**E, "symbols": ["Y"]}, "Y"),
        (E, "X", {**E, "symbols": ["Y", "Q"], "default": "Q"}, "Q"),
        (E, "X", {**E, "name": "Other", "aliases": ["E"]}, "X"),
        (F2, b"ab", {**F2, "namespace": "elsewhere"}, b"ab"),
        (record(("a", "int"), ("b", "int")), {"a": 1, "b": 2}, record(("b", "long")), {"b": 2}),
        (record(("a", "int")), {"a": 1},
         {**record(), "fields": [{"name": "n", "type": "int", "aliases": ["a"]}]}, {"n": 1}),
        (record(("a", "int"), name="Old"), {"a": 1},
         ["null", {**record(("a", "int"), name="New"), "aliases": ["Old"]}], {"a": 1}),
        (record(("a", "int"), name="Old"), {"a": 1},
         [record(("b", "int"), name="No"), record(("a", "long"), name="Yes")], {"a": 1}),
        ({"type": "map", "values": "int"}, {"k": 1},
         {"type": "map", "values": "double"}, {"k": 1.0}),
    ],
)  # fmt: skip
def test_a_readers_schema_says_what_is_read(
    registry: SchemaRegistry, writer: Any, value: object, reader: Any, read: object
) -> None:
    texts = [each if isinstance(each, dict) else json.dumps(each) for each in (writer, reader)]
    assert exact(through(registry, texts[0], value, texts[1])) == exact(read)


@pytest.mark.parametrize(
    ("writer", "value", "reader", "said"),
    [
        ("string", "a", "int", "schema has string where the reader's schema has int"),
        ("long", 1, "int", "has long where .* has int"),
        (MONEY, Decimal("1"), {**MONEY, "scale": 3}, "scale 2 where .*scale 3"),
        (
            logical("long", "timestamp-millis"),
            1,
            logical("long", "timestamp-micros"),
            "millis where",
        ),
        (E, "X", {**E, "symbols": ["Y"]}, "no symbol 'X' and no default"),
        (E, "X", {**E, "name": "Other"}, "has E where .* has Other"),
        (F2, b"ab", {**F2, "size": 3}, "of 2 bytes where .* one of 3 bytes"),
        (["int", "string"], "a", "long", "has string where .* has long"),
        ("string", "a", ["int", "null"], "union has no branch for the writer's type string"),
        (record(("a", "int")), {"a": 1}, record(("b", "int")), "'b' of the reader's R"),
    ],
)
def test_what_a_readers_schema_cannot_read_is_refused(
    registry: SchemaRegistry, writer: Any, value: object, reader: Any, said: str
) -> None:
    texts = [each if isinstance(each, dict) else json.dumps(each) for each in (writer, reader)]
    with pytest.raises(SerializationError, match=said):
        through(registry, texts[0], value, texts[1])


def test_types_within_themselves(registry: SchemaRegistry) -> None:
    day = logical("int", "date")
    node = record(("day", day), ("next", ["null", "Node"], None), name="Node", space="deep")
    wider = record(("n", "int", 0), ("day", day), ("next", ["null", "Node"]), name="Node")
    value: Any = None
    expected: Any = None
    for number in range(100):
        value = {"day": datetime.date.fromordinal(number + 1), "next": value}
        expected = {"n": 0, "day": datetime.date.fromordinal(number + 1), "next": expected}
    assert through(registry, node, value) == value
    assert through(registry, node, value, wider) == expected
    for _ in range(5_000):
        value = {"day": 1, "next": value}
    with pytest.raises(SerializationError, match="recursion"):
        write(registry, node, value)
    looped: dict[str, Any] = {"l": []}
    looped["l"].append(looped)
    with pytest.raises(SerializationError, match="recursion"):
        write(registry, record(("l", {"type": "array", "items": "L"}), name="L"), looped)


def test_a_schema_costs_no_more_than_its_size(registry: SchemaRegistry) -> None:
    """Each record names the one before twice: paths double, types do not."""
    schemas: list[Any] = [record(("x", "null"), name="N0")]
    for number in range(1, 60):
        fields = [(side, f"N{number - 1}") for side in ("a", "b")]
        schemas.append(record(*fields, name=f"N{number}"))
    registry.register("lie", Schema(json.dumps([*schemas, {"type": "array", "items": "N59"}])))
    schema_id = registry.latest("lie").schema_id
    with pytest.raises(SerializationError, match="take no bytes"):
        avro_serde(registry).deserialize(b"\0" + schema_id.to_bytes(4, "big") + b"\0", "t")
