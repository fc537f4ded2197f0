"""Goal: Avro's JSON encoding loses nothing, and JSON of another form is refused with its place.

Method: values of every kind of type go to JSON and back, and are compared as Avro bytes; fastavro's
own JSON encoder writes the same for types that it encodes by the specification.
"""

from __future__ import annotations

import io
import json
import math
from typing import Any

import fastavro
import pytest

from onceflow.sdk.schema_registry.avro.fitting import Fitter
from onceflow.sdk.schema_registry.avro.json_encoding import from_json, to_json
from onceflow.sdk.schema_registry.avro.logical import Misfit
from onceflow.sdk.schema_registry.avro.schemas import read_schema

RECORD = {
    "type": "record",
    "name": "a.R",
    "fields": [
        {"name": "b", "type": "bytes"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "u", "type": ["null", "long", "string", "a.E"]},
        {"name": "next", "type": ["null", "a.R"]},
    ],
}
VALUE = {
    "b": b"\x00\xff",
    "f": b"ab",
    "e": "Y",
    "m": {"k": [1, 2]},
    "u": ("a.E", "X"),
    "next": {
        "b": b"",
        "f": b"cd",
        "e": "X",
        "m": {},
        "u": ("string", "X"),
        "next": None,
    },
}


def test_a_value_comes_back_as_it_was() -> None:
    root = read_schema(json.dumps(RECORD))
    shown = to_json(root, VALUE)
    again = from_json(root, json.loads(json.dumps(shown)))
    assert Fitter(root).fit(again) == Fitter(root).fit(VALUE)


def test_the_form_is_that_of_another_encoder() -> None:
    out = io.StringIO()
    fastavro.json_writer(out, fastavro.parse_schema(RECORD), [VALUE])
    assert to_json(read_schema(json.dumps(RECORD)), VALUE) == json.loads(out.getvalue())


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.5])
def test_numbers_that_json_does_not_have(number: float) -> None:
    root = read_schema('"double"')
    found: Any = from_json(root, json.loads(json.dumps(to_json(root, number), allow_nan=False)))
    assert found == number or (math.isnan(found) and math.isnan(number))


@pytest.mark.parametrize(
    ("schema", "found", "told"),
    [
        (["null", "long"], 7, 'null or one of {"long": ...}'),
        (["null", "long"], {"int": 7}, 'null or one of {"long": ...}'),
        ({"type": "array", "items": ["null", "long"]}, [None, 7], "[1]: a union"),
        ({"type": "map", "values": ["null", "long"]}, {"k": 7}, "k: a union"),
        (RECORD, [], "a.R expected, got list"),
        (RECORD, {"m": {"k": {}}}, "m.k: array expected"),
        ("bytes", "\u0100", "characters up to"),
    ],
)
def test_json_of_another_form(schema: object, found: object, told: str) -> None:
    with pytest.raises(Misfit) as caught:
        from_json(read_schema(json.dumps(schema)), found)
    assert told in str(caught.value)
