"""Goal: what a serde writes it reads back, and what it cannot write or read is told as such.

Method: round trips of each pair, and values and bytes that do not fit.
"""

from __future__ import annotations

import datetime
import decimal
import ipaddress
from dataclasses import dataclass
from typing import TypedDict

import pydantic
import pytest

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.serde import BYTES, JSON, MSGPACK, STRING, Serde, struct_serde


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
        (JSON, {1, 2}),
        (JSON, float("nan")),
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
