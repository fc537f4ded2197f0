"""Parses Avro schemas into a graph of types.

It follows Java's library: it resolves names with and without a namespace, also across referenced
schemas, and ignores a logical type that does not fit its type. ``fitting`` writes values by the
graph, ``resolving`` reads them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeGuard

PRIMITIVES: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_LOGICAL: Final = {
    "decimal": ("bytes", "fixed"),
    "big-decimal": ("bytes",),
    "uuid": ("string", "fixed"),
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
}
"""Logical types that become Python types, with the Avro types that they may annotate."""


class SchemaFault(ValueError):
    """A schema cannot be used; the message says why."""


class _Missing:
    """Marks a field without a default; None is a default (null)."""


MISSING: Final = _Missing()


@dataclass(slots=True, eq=False)
class Field:
    """A field of a record.

    Attributes:
        name: Name.
        type: Type.
        default: Default in the schema's JSON, or MISSING.
        aliases: Other names of the field in writers' schemas.
    """

    name: str
    type: Type
    default: object
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Type:
    """A type of the graph; which attributes are set depends on ``kind``.

    Attributes:
        kind: A primitive type, "record", "enum", "fixed", "array", "map" or "union".
        name: Full name of a named type.
        aliases: Other full names of the type in writers' schemas.
        logical: Logical type, empty for none.
        precision: Of a decimal.
        scale: Of a decimal.
        size: Bytes of a fixed.
        symbols: Symbols of an enum.
        default: Symbol of an enum that replaces an unknown one, empty for none.
        fields: Fields of a record.
        items: Type of an array's items or a map's values.
        branches: Types of a union.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str = ""
    fields: list[Field] = field(default_factory=list)
    items: Type | None = None
    branches: tuple[Type, ...] = ()

    @property
    def label(self) -> str:
        """Name of the type within a union."""
        return self.name or self.kind

    @property
    def inner(self) -> Type:
        """Type of an array's items or a map's values."""
        assert self.items is not None
        return self.items

    def parts(self) -> list[Type]:
        """Return the types of the fields, items, values or branches."""
        inner = [] if self.items is None else [self.items]
        return [*inner, *self.branches, *(each.type for each in self.fields)]


def load(text: str) -> object:
    """Parse a schema's JSON; a bare name such as ``string`` is returned as it is."""
    text = text.strip()
    return json.loads(text) if text[:1] in '{["' else text


def declared_name(text: str) -> str | None:
    """Return the full name of a schema's outermost type; None if it has no name."""
    schema = load(text)
    if isinstance(schema, str):
        return None if schema in PRIMITIVES else schema
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return None
    space = schema.get("namespace")
    return _full(schema["name"], space if isinstance(space, str) else "")


def read_schema(text: str, used: Iterable[str] = ()) -> Type:
    """Parse a schema into its graph.

    Args:
        text: The schema.
        used: Referenced schemas, each after those that it references itself.

    Raises:
        SchemaFault: The schema is invalid; the message says where and why.
    """
    reader = _Reader()
    for each in used:
        reader.read(load(each), "")
    return reader.read(load(text), "")


class _Reader:
    """Parses several schemas that share one set of named types."""

    def __init__(self) -> None:
        self._named: dict[str, Type] = {}

    def read(self, schema: object, space: str) -> Type:
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if isinstance(schema, list):
            return self._union([self.read(each, space) for each in schema])
        if not isinstance(schema, dict):
            raise SchemaFault(f"Avro type expected, got {_shown(schema)}")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.read(kind, space)
        if not isinstance(kind, str):
            raise SchemaFault(f"{_shown(schema)} has no 'type'")
        if kind in NAMED:
            return self._define(schema, kind, space)
        if kind == "array":
            return Type("array", items=self.read(_member(schema, "items"), space))
        if kind == "map":
            return Type("map", items=self.read(_member(schema, "values"), space))
        if kind in PRIMITIVES:
            return _with_logical(Type(kind), schema)
        return self._by_name(kind, space)

    def _by_name(self, name: str, space: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        qualified = _full(name, space)
        # As in Java's library, a name that the namespace lacks is looked up without a namespace.
        found = self._named.get(qualified) or self._named.get(name)
        if found is None:
            raise SchemaFault(
                f"unknown type {name!r}; add the schema that defines it to the references"
            )
        return found

    def _union(self, branches: list[Type]) -> Type:
        labels = [each.label for each in branches]
        if "union" in labels:
            raise SchemaFault("a union is directly within a union; merge their branches")
        if len(set(labels)) < len(labels):
            raise SchemaFault(f"a union has a type twice: {', '.join(labels)}")
        return Type("union", branches=tuple(branches))

    def _define(self, schema: dict[str, object], kind: str, space: str) -> Type:
        own = schema.get("namespace", space)
        name = _full(_text(schema, "name"), own if isinstance(own, str) else "")
        space = name.rpartition(".")[0]
        if name in self._named:
            raise SchemaFault(f"the type {name!r} is defined twice")
        found = Type("record" if kind == "error" else kind, name=name)
        found.aliases = tuple(_full(alias, space) for alias in _texts(schema.get("aliases", [])))
        self._named[name] = found
        if found.kind == "enum":
            found.symbols = tuple(_texts(_member(schema, "symbols")))
            default = schema.get("default", "")
            if len(set(found.symbols)) < len(found.symbols) or (
                default and default not in found.symbols
            ):
                raise SchemaFault(
                    f"the enum {name!r} has a symbol twice, or a default that is not a symbol"
                )
            found.default = str(default)
        elif found.kind == "fixed":
            found.size = _whole(_member(schema, "size"), "size")
            _with_logical(found, schema)
        else:
            self._fields(found, schema, space)
        return found

    def _fields(self, record: Type, schema: dict[str, object], space: str) -> None:
        for each in _list(_member(schema, "fields")):
            if not isinstance(each, dict):
                raise SchemaFault(f"field of {record.name!r} expected, got {_shown(each)}")
            name = _text(each, "name")
            if any(known.name == name for known in record.fields):
                raise SchemaFault(f"the record {record.name!r} has two fields {name!r}")
            # Some schemas put the logical type beside "type": Java's library ignores it there.
            type_ = self.read(_member(each, "type"), space)
            aliases = tuple(_texts(each.get("aliases", [])))
            record.fields.append(Field(name, type_, each.get("default", MISSING), aliases))


def check_bounded(root: Type) -> None:
    """Refuse arrays whose items take no bytes: a short value could announce any number of them.

    Raises:
        SchemaFault: The schema has such an array.
    """
    types = list(all_types(root))
    empty = {id(each) for each in types if each.kind == "null" or _is_empty_fixed(each)}
    grown = True
    while grown:
        more = {
            id(each)
            for each in types
            if each.kind == "record" and all(id(part) in empty for part in each.parts())
        }
        grown = not more <= empty
        empty |= more
    if any(each.kind == "array" and id(each.inner) in empty for each in types):
        raise SchemaFault(
            "an array has items that take no bytes; such arrays are not read, as the length of a "
            "value does not bound their number"
        )


def _is_empty_fixed(type_: Type) -> bool:
    return type_.kind == "fixed" and type_.size == 0


def affected(root: Type, own: Callable[[Type], bool]) -> set[int]:
    """Return the ids (``id()``) of the types that have a property or contain a type that has it.

    Args:
        root: The graph.
        own: Whether a type has the property itself.
    """
    users: dict[int, list[int]] = {}
    waiting = []
    for each in all_types(root):
        for part in each.parts():
            users.setdefault(id(part), []).append(id(each))
        if own(each):
            waiting.append(id(each))
    found: set[int] = set()
    while waiting:
        each_id = waiting.pop()
        if each_id not in found:
            found.add(each_id)
            waiting += users.get(each_id, [])
    return found


def all_types(root: Type) -> Iterator[Type]:
    """Yield each type of a graph once."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += each.parts()


def is_recursive(root: Type) -> bool:
    """Whether a type contains itself."""

    def contains(part: Type, outer: frozenset[int]) -> bool:
        if id(part) in outer:
            return True
        if id(part) in done:
            return False
        found = any(contains(each, outer | {id(part)}) for each in part.parts())
        done.add(id(part))
        return found

    done: set[int] = set()
    return contains(root, frozenset())


def _with_logical(found: Type, schema: dict[str, object]) -> Type:
    """Set the logical type if it fits its type; the specification says to ignore it otherwise."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str) or found.kind not in _LOGICAL.get(logical, ()):
        return found
    if logical == "uuid" and found.kind == "fixed" and found.size != 16:
        return found
    if logical == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not _is_whole(precision) or not _is_whole(scale) or not 0 <= scale <= precision:
            return found
        if precision == 0 or (found.kind == "fixed" and precision > _digits_of(found.size)):
            return found
        found.precision, found.scale = precision, scale
    found.logical = logical
    return found


def _digits_of(size: int) -> int:
    """Return how many decimal digits fit into a signed number of `size` bytes."""
    return math.floor(math.log10(2) * (8 * size - 1)) if size else 0


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name.removeprefix(".")


def _shown(value: object) -> str:
    return json.dumps(value, allow_nan=False, default=str)[:120]


def _member(schema: dict[str, object], name: str) -> object:
    if name not in schema:
        raise SchemaFault(f"{_shown(schema)} has no {name!r}")
    return schema[name]


def _text(schema: dict[str, object], name: str) -> str:
    found = _member(schema, name)
    if not isinstance(found, str) or not found:
        raise SchemaFault(f"{_shown(schema)}: {name!r} must be a string that is not empty")
    return found


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise SchemaFault(f"list expected, got {_shown(value)}")
    return value


def _texts(value: object) -> list[str]:
    found = [each for each in _list(value) if isinstance(each, str)]
    if len(found) < len(_list(value)):
        raise SchemaFault(f"list of strings expected, got {_shown(value)}")
    return found


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(value: object, name: str) -> int:
    if not _is_whole(value) or not 0 <= value <= 2**31 - 1:
        raise SchemaFault(f"{name!r} must be an integer from 0, got {_shown(value)}")
    return value
