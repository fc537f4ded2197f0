"""Goal: what a serde writes it reads back, and what it cannot write or read is told as such.

Method: round trips of each pair, and values and bytes that do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import pytest

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.serde import BYTES, JSON, MSGPACK, STRING, Serde, struct_serde


@dataclass
class Point:
    """A typed value."""

    x: int
    name: str = "p"


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
