"""Random Avro schemas with values that fit them, and evolved schemas to read them by.

Everything comes from one ``random.Random``, so that a seed replays it. Values are Python's types;
those of unions are pairs of the branch's name and the value, as `avro_serde` takes them.
"""

from __future__ import annotations

import datetime
import decimal
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any

Schema = Any

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


class Shapes:
    """Makes schemas and values.

    Args:
        rng: Where all choices come from.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._names = 0
        self._defined: dict[str, Schema] = {}

    # schemas

    def record(self, depth: int = 2) -> Schema:
        """A record with one to four fields, some with defaults."""
        name = self._name("R")
        space = self.rng.choice(["", "a.b", "c"])
        found: dict[str, Any] = {"type": "record", "name": name, "namespace": space}
        found["fields"] = [
            self._field(f"f{number}", self.type(depth - 1))
            for number in range(self.rng.randint(1, 4))
        ]
        self._defined[f"{space}.{name}".lstrip(".")] = found
        return found

    def _field(self, name: str, kind: Schema) -> dict[str, Any]:
        found = {"name": name, "type": kind}
        if self.rng.random() < 0.4:
            found["default"] = self.default(kind)
        return found

    def type(self, depth: int) -> Schema:
        """Any type."""
        rng = self.rng
        roll = rng.random()
        if depth <= 0 or roll < 0.5:
            return self._simple()
        if roll < 0.6:
            return {"type": "array", "items": self._sized(depth - 1)}
        if roll < 0.7:
            return {"type": "map", "values": self.type(depth - 1)}
        if roll < 0.85:
            return self.record(depth)
        return self._union(depth)

    def _sized(self, depth: int) -> Schema:
        found = self.type(depth)
        return found if takes_bytes(found) else "string"

    def _simple(self) -> Schema:
        rng = self.rng
        logical = lambda kind, name, **more: {"type": kind, "logicalType": name, **more}  # noqa: E731
        size = rng.randint(1, 6)
        precision = rng.randint(1, int(0.301 * (8 * size - 1)))
        enum = {"type": "enum", "symbols": ["A", "B", "C"]}
        return rng.choice([
            "null", "boolean", "int", "long", "float", "double", "bytes", "string",
            {"type": "string", "avro.java.string": "String"},
            {**enum, "name": self._name("E")},
            {"type": "fixed", "name": self._name("F"), "size": size},
            logical("bytes", "decimal", precision=12, scale=rng.randint(0, 4)),
            {**logical("fixed", "decimal", precision=precision, scale=rng.randint(0, precision)),
             "name": self._name("D"), "size": size},
            logical("string", "uuid"), logical("int", "date"), logical("int", "time-millis"),
            logical("long", "time-micros"), logical("long", "timestamp-millis"),
            logical("long", "timestamp-micros"), logical("long", "local-timestamp-millis"),
            logical("long", "local-timestamp-micros"),
            logical("int", "timestamp-micros"), logical("bytes", "decimal", precision=1, scale=2),
            logical("string", "date"), logical("bytes", "unheard-of"),
        ])  # fmt: skip

    def _union(self, depth: int) -> Schema:
        found: list[Schema] = []
        for _ in range(self.rng.randint(1, 4)):
            each = self.type(depth - 1)
            if isinstance(each, list) or label(each) in map(label, found):
                continue
            # Python has one type for both of these, so which was read cannot be told.
            if {label(each), *map(label, found)} >= {"int", "long"}:
                continue
            if {label(each), *map(label, found)} >= {"float", "double"}:
                continue
            found.append(each)
        return found or ["null"]

    def _name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    # values

    def value(self, schema: Schema) -> Any:
        """A value of a type."""
        rng = self.rng
        if isinstance(schema, list):
            branch = rng.choice(schema)
            return (full_name(branch), self.value(branch)) if branch != "null" else None
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            return {
                field["name"]: self.value(field["type"])
                for field in schema["fields"]
                if "default" not in field or rng.random() < 0.7
            }
        if kind == "array":
            return [self.value(schema["items"]) for _ in range(rng.randint(0, 3))]
        if kind == "map":
            return {rng.choice("xyzü"): self.value(schema["values"]) for _ in range(2)}
        if kind == "enum":
            return rng.choice(schema["symbols"])
        return self._plain(schema, kind)

    def _plain(self, schema: Schema, kind: str) -> Any:
        rng = self.rng
        made = LOGICAL.get((kind, meaning(schema)))
        if made is not None:
            return made(rng, schema)
        return {
            "null": lambda: None,
            "boolean": lambda: rng.random() < 0.5,
            "int": lambda: rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randrange(1000)]),
            "long": lambda: rng.choice([0, 2**63 - 1, -(2**63), rng.randrange(10**12)]),
            "float": lambda: struct.unpack("<f", struct.pack("<f", rng.uniform(-9, 9)))[0],
            "double": lambda: rng.choice([0.5, -0.0, 1e308, rng.random()]),
            "bytes": lambda: rng.randbytes(rng.randint(0, 5)),
            "string": lambda: "".join(rng.choices("aäb\0𝄞 ", k=rng.randint(0, 5))),
            "fixed": lambda: rng.randbytes(schema["size"]),
        }[kind]()

    def default(self, schema: Schema) -> Any:
        """A default of a type, as it stands in a schema's JSON."""
        rng = self.rng
        if isinstance(schema, list):
            return self.default(schema[0])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            return {field["name"]: self.default(field["type"]) for field in schema["fields"]}
        if kind == "array":
            return [self.default(schema["items"]) for _ in range(rng.randint(0, 2))]
        if kind == "map":
            return {"k": self.default(schema["values"])}
        if kind in ("bytes", "fixed"):
            size = schema["size"] if kind == "fixed" else rng.randint(1, 3)
            if meaning(schema) == "decimal":  # small enough for any precision
                return "\0" * (size if kind == "fixed" else 1)
            return rng.randbytes(size).decode("latin-1")
        if meaning(schema) == "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128)))
        return {
            "null": None, "boolean": True, "int": rng.randrange(10_000),
            "long": rng.randrange(10_000), "float": 0.5, "double": rng.choice([1, 2.5]),
            "string": rng.choice(["", "é"]),
            "enum": schema["symbols"][0] if kind == "enum" else None,
        }[kind]  # fmt: skip

    # evolution

    def evolved(self, schema: Schema) -> Schema:
        """A schema that may or may not read what another wrote."""
        rng = self.rng
        if isinstance(schema, list):
            found = [self.evolved(each) for each in schema]
            if rng.random() < 0.3:
                rng.shuffle(found)
            if rng.random() < 0.2:
                found.pop()
            if rng.random() < 0.3 and "null" not in found:
                found.insert(0, "null")
            flat = [each for each in found if not isinstance(each, list)]
            kept = [each for i, each in enumerate(flat) if label(each) not in map(label, flat[:i])]
            return kept or "null"
        if rng.random() < 0.05 and label(schema) != "null":
            return ["null", schema]
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            return {**schema, "fields": self._evolved_fields(schema["fields"])}
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {**schema, part: self.evolved(schema[part])}
        if kind == "enum":
            return {**schema, "symbols": rng.choice([["C", "B", "A"], ["A", "B"], ["A", "B", "D"]]),
                    **({"default": "A"} if rng.random() < 0.6 else {})}  # fmt: skip
        wider = {"int": ["long", "float", "double"], "long": ["double"], "float": ["double"],
                 "string": ["bytes"], "bytes": ["string"]}  # fmt: skip
        if isinstance(schema, str) and schema in wider and rng.random() < 0.2:
            return rng.choice(wider[schema])
        return schema

    def _evolved_fields(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rng = self.rng
        found = []
        for field in fields:
            if rng.random() < 0.15:
                continue
            each = {**field, "type": self.evolved(field["type"])}
            if "default" in each and each["type"] != field["type"]:
                each["default"] = self.default(each["type"])
            if rng.random() < 0.15:
                each = {**each, "name": f"n{field['name']}", "aliases": [field["name"]]}
            found.append(each)
        if rng.random() < 0.5:
            kind = self.type(1)
            found.append({"name": "added", "type": kind, "default": self.default(kind)})
        rng.shuffle(found)
        return found


def meaning(schema: Schema) -> str:
    """The logical type of a schema, empty for none or one that does not fit."""
    if not isinstance(schema, dict):
        return ""
    found = schema.get("logicalType", "")
    if found == "decimal" and schema["scale"] > schema["precision"]:
        return ""
    return found if (schema["type"], found) in LOGICAL else ""


def takes_bytes(schema: Schema) -> bool:
    """Whether every value of a type takes at least one byte."""
    if isinstance(schema, list):
        return True
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return any(takes_bytes(field["type"]) for field in schema["fields"])
    return bool(kind != "null")


def label(schema: Schema) -> str:
    """What tells types of a union apart."""
    if isinstance(schema, list):
        return "union"
    return full_name(schema)


def full_name(schema: Schema) -> str:
    """The full name of a named type, else its kind."""
    if isinstance(schema, str):
        return schema
    if "name" not in schema:
        return str(schema["type"])
    space = schema.get("namespace", "")
    return f"{space}.{schema['name']}" if space else str(schema["name"])


def _decimal(rng: random.Random, schema: Schema) -> decimal.Decimal:
    number = rng.randrange(-(10 ** schema["precision"]) + 1, 10 ** schema["precision"])
    return decimal.Decimal(number).scaleb(-schema["scale"])


def _timestamp(millis: bool, zone: bool) -> Callable[[random.Random, Schema], Any]:
    def make(rng: random.Random, schema: Schema) -> datetime.datetime:
        micros = rng.randrange(-(10**15), 4 * 10**15)
        micros -= micros % 1000 if millis else 0
        found = EPOCH + datetime.timedelta(microseconds=micros)
        return found if zone else found.replace(tzinfo=None)

    return make


def _time(millis: bool) -> Callable[[random.Random, Schema], Any]:
    def make(rng: random.Random, schema: Schema) -> datetime.time:
        micros = rng.randrange(86_400_000_000)
        micros -= micros % 1000 if millis else 0
        return (EPOCH + datetime.timedelta(microseconds=micros)).time()

    return make


LOGICAL: dict[tuple[str, str], Callable[[random.Random, Schema], Any]] = {
    ("bytes", "decimal"): _decimal,
    ("fixed", "decimal"): _decimal,
    ("string", "uuid"): lambda rng, schema: uuid.UUID(int=rng.getrandbits(128)),
    ("int", "date"): lambda rng, schema: (
        EPOCH + datetime.timedelta(days=rng.randrange(-50_000, 50_000))
    ).date(),
    ("int", "time-millis"): _time(millis=True),
    ("long", "time-micros"): _time(millis=False),
    ("long", "timestamp-millis"): _timestamp(millis=True, zone=True),
    ("long", "timestamp-micros"): _timestamp(millis=False, zone=True),
    ("long", "local-timestamp-millis"): _timestamp(millis=True, zone=False),
    ("long", "local-timestamp-micros"): _timestamp(millis=False, zone=False),
}


def exact(value: Any) -> Any:
    """A value with the types of all its parts, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: exact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    for kind in (str, bytes, decimal.Decimal, uuid.UUID):
        if isinstance(value, kind):
            return (kind.__name__, str(value) if kind is not bytes else bytes(value))
    return (type(value).__name__, str(value))


def plain(value: Any, schema: Schema, defaults: Callable[[Any, Schema], Any]) -> Any:
    """What is read of a value: without the names of branches, with what was left out.

    Args:
        value: A value from ``Shapes.value``.
        schema: Its schema.
        defaults: Gives the typed value of a default.
    """
    if isinstance(schema, list):
        if value is None:
            return None
        name, inner = value
        return plain(inner, next(s for s in schema if full_name(s) == name), defaults)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {
            field["name"]: plain(value[field["name"]], field["type"], defaults)
            if field["name"] in value
            else defaults(field["default"], field["type"])
            for field in schema["fields"]
        }
    if kind == "array":
        return [plain(each, schema["items"], defaults) for each in value]
    if kind == "map":
        return {key: plain(each, schema["values"], defaults) for key, each in value.items()}
    return value


def typed_default(default: Any, schema: Schema) -> Any:
    """The value of a default, by the specification's words and none of the product's code."""
    if isinstance(schema, list):
        return next(typed_default(default, s) for s in schema if _may_be(default, s))
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {f["name"]: typed_default(default[f["name"]], f["type"]) for f in schema["fields"]}
    if kind == "array":
        return [typed_default(each, schema["items"]) for each in default]
    if kind == "map":
        return {key: typed_default(each, schema["values"]) for key, each in default.items()}
    data = default.encode("latin-1") if kind in ("bytes", "fixed") else default
    moment = datetime.timedelta(microseconds=1)
    match meaning(schema):
        case "decimal":
            return decimal.Decimal(int.from_bytes(data, "big", signed=True)).scaleb(
                -schema["scale"]
            )
        case "uuid":
            return uuid.UUID(data)
        case "date":
            return (EPOCH + datetime.timedelta(days=data)).date()
        case "time-millis":
            return (EPOCH + data * 1000 * moment).time()
        case "time-micros":
            return (EPOCH + data * moment).time()
        case "":
            return float(data) if kind in ("float", "double") else data
    found = EPOCH + data * (1000 if meaning(schema).endswith("millis") else 1) * moment
    return found.replace(tzinfo=None) if meaning(schema).startswith("local") else found


def _may_be(default: Any, schema: Schema) -> bool:
    """Whether a default may be of a type; by what its JSON looks like, as in Java."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "null":
        return default is None
    if kind == "boolean":
        return isinstance(default, bool)
    if kind == "array":
        return isinstance(default, list) and all(_may_be(d, schema["items"]) for d in default)
    if kind == "map":
        return isinstance(default, dict) and all(
            _may_be(each, schema["values"]) for each in default.values()
        )
    if kind == "record":
        return isinstance(default, dict) and all(
            _may_be(default.get(f["name"]), f["type"]) for f in schema["fields"]
        )
    if kind in ("int", "long"):
        return type(default) is int
    if kind in ("float", "double"):
        return type(default) in (int, float)
    if kind == "enum":
        return default in schema["symbols"] if isinstance(default, str) else False
    if kind == "fixed":
        return isinstance(default, str) and len(default) == schema["size"]
    return isinstance(default, str)
