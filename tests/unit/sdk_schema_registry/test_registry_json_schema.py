"""Goal: JSON Schemas mean what they mean at the registry: draft 7 unless they say otherwise, names
relative to ``$id``; values are written as they are or refused.

Method: schemas of every draft and layout over a served fake registry; values and schemas of every
shape by Hypothesis, against jsonschema itself.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistry,
    json_schema_serde,
)

TUPLE = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}
PREFIX = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with FakeRegistry(level="NONE") as fake:
        yield SchemaRegistry(fake.url, retries_wait_ms=1)


def write(registry: SchemaRegistry, schema: Any, value: object, topic: str = "t") -> bytes:
    data = json_schema_serde(registry, schema).serialize(value, topic)
    assert data is not None
    return data


@pytest.mark.parametrize(
    "dialect",
    [
        None,
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-04/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://example.com/not/known",
    ],
)
def test_items_as_a_list_are_a_tuple(registry: SchemaRegistry, dialect: str | None) -> None:
    schema = {**TUPLE, **({"$schema": dialect} if dialect else {})}
    assert write(registry, schema, [1, "a"])[5:] == b'[1,"a"]'
    with pytest.raises(SerializationError, match=r"\$\[1\]"):
        write(registry, schema, [1, 2])


def test_the_newest_draft_is_named(registry: SchemaRegistry) -> None:
    newest = {"$schema": "https://json-schema.org/draft/2020-12/schema", **PREFIX}
    assert write(registry, newest, [1, "a"])
    with pytest.raises(SerializationError, match=r"\$\[1\]"):
        write(registry, newest, [1, 2])
    assert write(registry, PREFIX, ["no", "tuple", "in", "draft", 7])
    with pytest.raises(SerializationError, match="schema cannot be used"):
        json_schema_serde(registry, {**TUPLE, "$schema": newest["$schema"]})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"dependencies": {"card": ["address"]}}, {"card": 1, "address": 2}, {"card": 1}),
        ({"definitions": {"n": {"type": "number"}}, "$ref": "#/definitions/n"}, 1.5, "a"),
        ({"if": {"const": 1}, "then": False}, 2, 1),
        ({"contains": {"const": 1}}, [1], [2]),
        ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
        ({"exclusiveMinimum": 3}, 4, 3),
        ({"additionalItems": False, "items": [{}]}, [1], [1, 2]),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "a", None),
        (True, {"any": ["thing"]}, math.nan),
        ({"type": "object"}, {}, []),
    ],
)
def test_draft_7_is_enforced(registry: SchemaRegistry, schema: Any, good: Any, bad: Any) -> None:
    text = Schema(json.dumps(schema), "JSON")
    serde = json_schema_serde(registry, text)
    assert serde.bind("d7").deserialize(serde.bind("d7").serialize(good)) == good
    with pytest.raises(SerializationError):
        serde.serialize(bad, "d7")


@dataclasses.dataclass
class Pair:
    """A type whose description uses a newer draft than 7."""

    both: tuple[int, str]


class PairModel(pydantic.BaseModel):
    """The same in pydantic."""

    both: tuple[int, str]


@pytest.mark.parametrize("kind", [Pair, PairModel])
def test_the_description_of_a_type_names_its_draft(registry: SchemaRegistry, kind: Any) -> None:
    serde = json_schema_serde(registry, kind=kind)
    data = serde.serialize(kind(both=(1, "a")), f"k{kind.__name__}")
    assert data is not None
    assert serde.deserialize(data, "k") == kind(both=(1, "a"))
    plain = json_schema_serde(registry, use_latest_version=True)
    with pytest.raises(SerializationError, match="both"):
        plain.serialize({"both": [1, 2]}, f"k{kind.__name__}")


USER: dict[str, object] = {"type": "object", "required": ["name"]}


@pytest.mark.parametrize(
    ("own", "name", "ref", "used_own"),
    [
        (None, "user.json", "user.json", None),
        ("http://a.example/team.json", "user.json", "user.json", None),
        ("http://a.example/a/team.json", "../b/user.json", "../b/user.json", None),
        ("http://a.example/a/team.json", "/b/user.json", "http://a.example/b/user.json", None),
        ("http://a.example/team.json", "http://b.example/user", "http://b.example/user", None),
        (None, "user.json", "http://a.example/user", "http://a.example/user"),
        ("http://a.example/a/", "u", "b/user", "b/user"),
        ("urn:example:team", "urn:example:user", "urn:example:user", None),
    ],
)  # fmt: skip
def test_names_resolve_against_the_id(
    registry: SchemaRegistry, own: str | None, name: str, ref: str, used_own: str | None
) -> None:
    used = {**USER, **({"$id": used_own} if used_own else {})}
    registry.register("user", Schema(json.dumps(used), "JSON"))
    version = registry.lookup("user", Schema(json.dumps(used), "JSON")).version
    team = {"type": "array", "items": {"$ref": ref}, **({"$id": own} if own else {})}
    schema = Schema(json.dumps(team), "JSON", (SchemaReference(name, "user", version),))
    serde = json_schema_serde(registry, schema)
    data = serde.serialize([{"name": "a"}], "teams")
    assert data is not None
    assert serde.deserialize(data, "teams") == [{"name": "a"}]
    with pytest.raises(SerializationError, match="required property"):
        serde.serialize([{}], "teams")


def test_each_schema_names_what_it_uses_against_its_own_id(registry: SchemaRegistry) -> None:
    """Both use a ``part.json``, and each means the one beside itself."""
    for subject, kind in (("a-part", "integer"), ("b-part", "string")):
        registry.register(subject, Schema(json.dumps({"type": kind}), "JSON"))
    inner = {"$id": "http://b.example/inner.json", "items": {"$ref": "part.json"}}
    part = SchemaReference("part.json", "b-part", 1)
    registry.register("inner", Schema(json.dumps(inner), "JSON", (part,)))
    outer = {
        "$id": "http://a.example/outer.json",
        "properties": {
            "own": {"$ref": "part.json"},
            "inner": {"$ref": "http://b.example/inner.json"},
        },
    }
    references = (
        SchemaReference("part.json", "a-part", 1),
        SchemaReference("http://b.example/inner.json", "inner", 1),
    )
    serde = json_schema_serde(registry, Schema(json.dumps(outer), "JSON", references))
    assert serde.serialize({"own": 1, "inner": ["a"]}, "outer")
    for wrong in ({"own": "a"}, {"inner": [1]}):
        with pytest.raises(SerializationError):
            serde.serialize(wrong, "outer")


@pytest.mark.parametrize(
    "value",
    [
        {1: "a"}, {"a": {None: 1}}, {"a": b"bytes"}, [{1, 2}], {"at": datetime.date(2026, 1, 1)},
        {"a": math.inf}, [-math.inf], {"a": [math.nan]}, [object()],
    ],
)  # fmt: skip
@pytest.mark.parametrize("validate", [True, False])
def test_nothing_is_changed_to_fit_json(
    registry: SchemaRegistry, value: object, validate: bool
) -> None:
    schema = Schema("{}", "JSON")
    with pytest.raises(SerializationError):
        json_schema_serde(registry, schema, validate=validate).serialize(value, "any")


@pytest.mark.parametrize("data", [b"NaN", b"[Infinity]", b'{"a": -Infinity}'])
def test_a_reader_takes_json_only(registry: SchemaRegistry, data: bytes) -> None:
    prefix = write(registry, Schema("{}", "JSON"), 1, "any")[:5]
    with pytest.raises(SerializationError, match="is not allowed in JSON"):
        json_schema_serde(registry).deserialize(prefix + data, "any")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KINDS = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
SCHEMAS = st.recursive(
    st.booleans()
    | st.builds(lambda kind: {"type": kind}, KINDS)
    | st.builds(lambda value: {"const": value}, VALUES)
    | st.builds(lambda least: {"minimum": least, "minLength": abs(least)}, st.integers(-3, 3)),
    lambda inner: (
        st.builds(lambda s: {"items": s}, inner)
        | st.builds(lambda s: {"items": s, "additionalItems": False}, st.lists(inner, min_size=1))
        | st.builds(
            lambda p: {"properties": p}, st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
        )
        | st.builds(lambda s: {"additionalProperties": s, "required": ["a"]}, inner)
        | st.builds(
            lambda word, s: {word: s},
            st.sampled_from(["anyOf", "allOf", "oneOf"]),
            st.lists(inner, min_size=1, max_size=2),
        )
        | st.builds(lambda s: {"not": s}, inner)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, VALUES)
def test_every_shape_comes_back_or_is_refused(
    registry: SchemaRegistry, schema: Any, value: Any
) -> None:
    serde = json_schema_serde(registry, Schema(json.dumps(schema), "JSON")).bind("shapes")
    if jsonschema.Draft7Validator(schema).is_valid(value):
        again = serde.deserialize(serde.serialize(value))
        assert again == value
        assert json.dumps(again) == json.dumps(value)  # tells 1 from 1.0 and from True
    else:
        with pytest.raises(SerializationError):
            serde.serialize(value)
