"""Goal: what a serde writes it reads back, and what it cannot write or read is told as such.

Method: round trips of each pair, and values and bytes that do not fit.
"""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import math
import uuid
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.serde import (
    BYTES,
    JSON,
    MSGPACK,
    STRING,
    Serde,
    format_remark,
    struct_serde,
    to_json,
)


@dataclass
class Point:
    """A typed value."""

    x: int
    name: str = "p"


class Everything(pydantic.BaseModel):
    """What pydantic writes in its own way."""

    number: int = pydantic.Field(alias="No")
    data: bytes = b"\x01a"
    when: datetime.datetime | None = None
    price: decimal.Decimal = decimal.Decimal("1.50")
    tags: set[str] = {"a"}
    home: pydantic.AnyUrl = pydantic.AnyUrl("https://example.com/")
    address: ipaddress.IPv4Address = ipaddress.IPv4Address("127.0.0.1")
    point: Point = Point(1)
    wait: datetime.timedelta = datetime.timedelta(seconds=90)


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


class Row(TypedDict):
    """A typed mapping."""

    id: int


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (BYTES, b"\x00a"),
        (STRING, "tēxt"),
        (JSON, {"a": [1, None, "ü"]}),
        (MSGPACK, {1: b"x", "f": 1.5}),
        (struct_serde(Point), Point(3)),
        (struct_serde(Point, "msgpack"), Point(3, "q")),
        (struct_serde(Row), {"id": 4}),
        (struct_serde(Everything, "json"), Everything(No=3, when=NOON)),
        (struct_serde(Everything, "msgpack"), Everything(No=3, when=NOON)),
    ],
)
def test_a_value_comes_back(serde: Serde[object], value: object) -> None:
    assert serde.deserialize(serde.serialize(value)) == value


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (BYTES, "text"),
        (STRING, b"bytes"),
        (STRING, "\ud800"),
        (JSON, object()),
        (JSON, {(1, 2): 3}),
        (JSON, "\ud800"),
        (struct_serde(Everything), Point(1)),
        (MSGPACK, object()),
        (struct_serde(Point), {"x": 1}),
    ],
)
def test_a_value_that_does_not_fit_is_refused(serde: Serde[object], value: object) -> None:
    with pytest.raises(SerializationError):
        serde.serialize(value)


@pytest.mark.parametrize(
    ("serde", "data"),
    [
        (STRING, b"\xff"),
        (JSON, b"{"),
        (MSGPACK, b"\xc1"),
        (struct_serde(Point), b'{"x": "no"}'),
        (struct_serde(Point, "msgpack"), b"\xc1"),
    ],
)
def test_bytes_that_are_none_of_it_are_refused(serde: Serde[object], data: bytes) -> None:
    with pytest.raises(SerializationError):
        serde.deserialize(data)


def test_bytes_like_values_are_copied() -> None:
    assert BYTES.serialize(bytearray(b"a")) == b"a"  # type: ignore[arg-type]


class Reading(msgspec.Struct):
    """A struct with a number."""

    value: float
    note: str | None = None


class Measured(pydantic.BaseModel):
    """A model with a number; pydantic itself writes NaN as null."""

    value: float


@dataclass
class Mean:
    """A dataclass with a number."""

    value: float
    parent: Mean | None = None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: {"a": [None, {"b": (x,)}]},
        lambda x: [2**70, x],
        Reading,
        lambda x: Measured(value=x),
        lambda x: Mean(1.0, Mean(x)),
        lambda x: {"m": Measured(value=x), "r": Reading(x)},
    ],
)
def test_json_refuses_what_it_has_no_number_for(shape: object, number: float) -> None:
    """RFC 8259, 6: other writers give null, or text that no JSON reader takes."""
    value = shape(number)  # type: ignore[operator]
    with pytest.raises(SerializationError, match="JSON has no NaN"):
        JSON.serialize(value)
    with pytest.raises(SerializationError, match="JSON has no NaN"):
        struct_serde(type(value), "json").serialize(value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return all(map(finite, value)) if isinstance(value, list) else True


@given(PLAIN)
def test_json_never_turns_a_number_into_null(value: object) -> None:
    """Nulls beside bytes and text that look like packed NaNs are no reason to refuse."""
    try:
        data = to_json(value)
    except SerializationError:
        assert not finite(value)
    else:
        assert finite(value)
        json.loads(data, parse_constant=lambda word: pytest.fail(word))


class Text(str):
    """Text of a class of its own, as libraries give it."""


class Number(float):
    """A number likewise."""


@pytest.mark.parametrize("serde", [JSON, MSGPACK])
def test_derived_classes_are_written_as_what_they_derive_from(serde: Serde[object]) -> None:
    value = {"text": Text("a"), "number": Number(1.5), "list": [Text("b")]}
    assert serde.deserialize(serde.serialize(value)) == value
    with pytest.raises(SerializationError, match="JSON has no NaN"):
        JSON.serialize([Number("inf")])


def test_json_takes_nulls_beside_what_looks_like_nan() -> None:
    value = {"none": None, "bytes": b"\xcb\x7f\xf8\0\0\0\0\0\0", "id": uuid.UUID(int=0xCB7FF8 << 8)}
    assert json.loads(to_json(value))["none"] is None


@pytest.mark.parametrize(
    ("reader", "written", "told"),
    [
        (JSON, MSGPACK.serialize({"a": 1}), "the bytes are MessagePack: read them as such, or"),
        (JSON, MSGPACK.serialize([1] * 20), "the bytes are MessagePack"),
        (MSGPACK, JSON.serialize({"a": 1}), "the bytes are JSON: read them as such, or write"),
        (struct_serde(Point), MSGPACK.serialize(Point(1)), "or write them as JSON"),
        (struct_serde(Point, "msgpack"), JSON.serialize(Point(1)), "or write them as MessagePack"),
        (JSON, b"\x00\x00\x00\x00\x07\x02a", "onceflow.sdk.schema_registry"),
    ],
)
def test_a_mismatch_of_formats_is_named(reader: Serde[object], written: bytes, told: str) -> None:
    with pytest.raises(SerializationError, match=told):
        reader.deserialize(written)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"\x00", b"text", b"\x81\xa1"])
@pytest.mark.parametrize("expected", ["json", "msgpack"])
def test_bytes_of_no_format_are_not_called_one(data: bytes, expected: str) -> None:
    assert format_remark(data, expected) == ""
