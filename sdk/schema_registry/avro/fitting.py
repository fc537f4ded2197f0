"""Checks values against an Avro schema and prepares them for fastavro.

A value that its type cannot hold is refused and never changed; a missing field gets its default.
Each value of a union becomes a pair of branch name and value, so that fastavro never guesses: the
branch is the one that the value names, or else the only one that it fits.
"""

from __future__ import annotations

import decimal
import enum
import numbers
import operator
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final, cast

import msgspec

from onceflow.sdk.schema_registry.avro.logical import Misfit, raw_of, shown
from onceflow.sdk.schema_registry.avro.names import avro_type_name, code_name
from onceflow.sdk.schema_registry.avro.schemas import MISSING, Field, Type
from onceflow.sdk.serde import is_structure, model_to_mapping

Fit = Callable[[object], object]

_RANGES: Final = {"int": 31, "long": 63}
_NULL: Final = ("null", None)
_PREFERRED: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (bool, ("boolean",)),
    (int, ("int", "long")),
    (float, ("double",)),
    (str, ("string",)),
    (bytes, ("bytes",)),
    (decimal.Decimal, ("bytes",)),
    (uuid.UUID, ("string",)),
)
"""Branches of a union that a Python type prefers when it fits several."""


class Fitter:
    """Prepares values for one schema.

    Args:
        root: The schema.
    """

    def __init__(self, root: Type) -> None:
        self._made: dict[int, Fit] = {}
        self._fit = self._of(root)

    def fit(self, value: object) -> object:
        """Return the value in the form that fastavro writes.

        Raises:
            Misfit: The value does not fit the schema; the message says where and why.
        """
        return self._fit(value)

    def _of(self, type_: Type) -> Fit:
        made = self._made.get(id(type_))
        if made is None:
            made = self._made[id(type_)] = self._make(type_)
        return made

    def _make(self, type_: Type) -> Fit:
        simple = _SIMPLE.get(type_.kind)
        if simple is not None:
            return _logical(type_, simple)
        match type_.kind:
            case "fixed":
                return _logical(type_, lambda value: _fixed(value, type_))
            case "enum":
                return lambda value: _symbol(value, type_)
            case "array":
                items = self._of(type_.inner)
                return lambda value: _array(value, items)
            case "map":
                values = self._of(type_.inner)
                return lambda value: _map(value, values)
            case "union":
                return self._union(type_)
        return self._record(type_)

    def _record(self, type_: Type) -> Fit:
        fields: list[tuple[str, Fit, Callable[[], object]]] = []

        def fit(value: object) -> object:
            if not fields:  # filled at the first value, as a record may contain itself
                fields.extend(
                    (each.name, self._of(each.type), self._default(each)) for each in type_.fields
                )
            given = value if type(value) is dict else fields_of(value)
            if given is None:
                raise Misfit(f"record {type_.name} expected, got {shown(value)}")
            out, left, name = {}, len(given), ""
            try:
                for name, inner, default in fields:
                    if name in given:
                        out[name] = inner(given[name])
                        left -= 1
                    else:
                        out[name] = default()
            except Misfit as error:
                error.path.append(f".{name}")
                raise
            if left:
                extra = ", ".join(repr(name) for name in given if name not in out)
                raise Misfit(f"unknown fields of the schema's record {type_.name}: {extra}")
            return out

        return fit

    def _default(self, each: Field) -> Callable[[], object]:
        if each.default is MISSING:
            return lambda: _refuse("the field is missing and has no default in the schema")
        made: list[object] = []  # filled at the first use, when the types that it names exist

        def default() -> object:
            if not made:
                made.append(raw_default(each.type, each.default, each.name))
            return made[0]

        return default

    def _union(self, type_: Type) -> Fit:
        branches = [(each, code_name(each), self._of(each)) for each in type_.branches]
        by_label = {each.label: (code, fit) for each, code, fit in branches}
        rest = [entry for entry in branches if entry[0].kind != "null"]
        nullable = len(rest) < len(branches)
        single = rest[0] if len(rest) == 1 else None

        def fit(value: object) -> object:
            if value is None and nullable:
                return _NULL
            if single is not None and type(value) is not tuple:
                return single[1], single[2](value)
            label = _named_label(value, by_label, type_)
            if label is not None:
                if type(value) is tuple:
                    value = value[1]
                code, inner = by_label[label]
                return code, inner(value)
            return _only_branch(value, rest)

        return fit


def _named_label(value: object, by_label: Mapping[str, object], union: Type) -> str | None:
    """Return the branch that a value names: in a pair, as a read value, or by its class."""
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], str):
        if value[0] in by_label:
            return value[0]
        ends = [label for label in by_label if label.rpartition(".")[2] == value[0]]
        return ends[0] if len(ends) == 1 else None
    named = avro_type_name(value)
    if named is not None:
        return named if named in by_label else None
    if isinstance(value, dict | str | bytes | int | float | list) and not isinstance(
        value, enum.Enum
    ):
        return None
    called = type(value).__name__
    ends = [each.name for each in union.branches if each.name.rpartition(".")[2] == called]
    return ends[0] if len(ends) == 1 else None


def _only_branch(value: object, branches: list[tuple[Type, str, Fit]]) -> tuple[str, object]:
    """Return the one branch that a value fits, with the prepared value."""
    fitting: list[tuple[Type, str, object]] = []
    reasons = []
    for type_, code, fit in branches:
        try:
            fitting.append((type_, code, fit(value)))
        except Misfit as error:
            reasons.append(f"{type_.label}: {error}")
    if len(fitting) > 1:
        fitting = _narrowed(value, fitting)
    if not fitting:
        raise Misfit(f"{shown(value)} fits no type of the union ({'; '.join(reasons)})")
    if len(fitting) > 1:
        labels = ", ".join(type_.label for type_, _, _ in fitting)
        raise Misfit(
            f"{shown(value)} fits several types of the union ({labels}): give a pair of the name "
            f"and the value, as ({fitting[0][0].label!r}, ...), or an object of a class of that "
            "name"
        )
    return fitting[0][1], fitting[0][2]


def _narrowed(
    value: object, fitting: list[tuple[Type, str, object]]
) -> list[tuple[Type, str, object]]:
    for kind, preferred in _PREFERRED:
        if isinstance(value, kind):
            # A raw value is written with a logical type only if no other branch takes it.
            fitting = [entry for entry in fitting if not entry[0].logical] or fitting
            best = [entry for entry in fitting if entry[0].kind in preferred]
            return best[:1] or fitting
    given = fields_of(value)
    if given is not None and all(entry[0].kind == "record" for entry in fitting):
        exact = [entry for entry in fitting if len(entry[0].fields) == len(given)]
        return exact or fitting
    return fitting


def fields_of(value: object) -> Mapping[object, object] | None:
    """Return a value's fields by name, without converting them; None if it has no fields."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        found: dict[object, object] = {
            each.encode_name: getattr(value, each.name) for each in msgspec.structs.fields(value)
        }
        config = value.__struct_config__
        return found if config.tag is None else {config.tag_field: config.tag, **found}
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if hasattr(kind, "model_dump"):
        return _model_fields(value)
    return None


def _model_fields(value: Any) -> dict[object, object]:
    """Dump a pydantic model, but keep nested objects: their class names a branch of a union."""
    dumped: Any = model_to_mapping(value)
    for name, info in type(value).model_fields.items():
        written = info.serialization_alias or info.alias or name
        held = getattr(value, name)
        if isinstance(dumped.get(written), dict | list) and _holds_objects(held):
            dumped[written] = held
    return cast("dict[object, object]", dumped)


def _holds_objects(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_objects, value))
    if isinstance(value, dict):
        return any(map(_holds_objects, value.values()))
    return is_structure(value)


# --- simple types


def _logical(type_: Type, fit: Fit) -> Fit:
    if not type_.logical:
        return fit
    raw = raw_of(type_)
    return lambda value: fit(raw(value))


def _refuse(reason: str) -> object:
    raise Misfit(reason)


def _null(value: object) -> object:
    return value if value is None else _refuse(f"null expected, got {shown(value)}")


def _boolean(value: object) -> object:
    return value if isinstance(value, bool) else _refuse(f"boolean expected, got {shown(value)}")


def _integer(kind: str) -> Fit:
    bits = _RANGES[kind]
    least, most = -(2**bits), 2**bits - 1

    def fit(value: object) -> object:
        if type(value) is not int:
            value = _as_int(value, kind)
        if not least <= value <= most:
            raise Misfit(f"{value} is out of the range of {kind}")
        return value

    return fit


def _as_int(value: object, kind: str) -> int:
    if isinstance(value, bool):
        raise Misfit(f"{kind} expected, got {shown(value)}")
    try:
        return operator.index(_unwrapped(value))  # type: ignore[arg-type]
    except TypeError:
        raise Misfit(f"{kind} expected, got {shown(value)}") from None


def _double(value: object) -> object:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise Misfit(f"number expected, got {shown(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = float("inf")
    if found != value and value == value:
        raise Misfit(f"{shown(value)} has no exact floating-point value; convert it to float")
    return found


def _float(value: object) -> object:
    found = _double(value)
    assert isinstance(found, float)
    try:
        (held,) = struct.unpack("<f", struct.pack("<f", found))
    except OverflowError:
        raise Misfit(f"{shown(value)} is out of the range of float; use double") from None
    if held != found and not isinstance(value, float):
        raise Misfit(f"{shown(value)} has no exact value of type float; use double")
    return found


def _bytes(value: object) -> object:
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Misfit(f"bytes expected, got {shown(value)}")


def _string(value: object) -> object:
    value = _unwrapped(value)
    return value if isinstance(value, str) else _refuse(f"string expected, got {shown(value)}")


def _unwrapped(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


_SIMPLE: Final[Mapping[str, Fit]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("int"),
    "long": _integer("long"),
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(value: object, type_: Type) -> object:
    data = _bytes(value)
    assert isinstance(data, bytes)
    if len(data) != type_.size:
        raise Misfit(f"{type_.size} bytes expected for {type_.name}, got {len(data)}")
    return data


def _symbol(value: object, type_: Type) -> object:
    symbol = _unwrapped(value)
    if not isinstance(symbol, str) or symbol not in type_.symbols:
        raise Misfit(f"symbol of {type_.name} expected, got {shown(value)}")
    return str(symbol)


def _array(value: object, items: Fit) -> object:
    if not isinstance(value, list | tuple | Set):
        raise Misfit(f"list expected, got {shown(value)}")
    out: list[object] = []
    try:
        for each in value:
            out.append(items(each))
    except Misfit as error:
        error.path.append(f"[{len(out)}]")
        raise
    return out


def _map(value: object, values: Fit) -> object:
    if not isinstance(value, Mapping):
        raise Misfit(f"mapping expected, got {shown(value)}")
    out, key = {}, None
    try:
        for key, each in value.items():
            if not isinstance(key, str):
                raise Misfit(f"key must be a string, got {shown(key)}")
            out[key] = values(each)
    except Misfit as error:
        error.path.append(f"[{key!r}]")
        raise
    return out


# --- defaults


def raw_default(type_: Type, default: object, name: str) -> object:
    """Return a default from a schema's JSON in the form that fastavro writes.

    Args:
        type_: Type of the field.
        default: Default in the schema's JSON.
        name: Name of the field, for the message.

    Raises:
        Misfit: The default does not fit the type.
    """
    found = _raw_default(type_, default)
    if found is MISSING:
        raise Misfit(f"the default {default!r} of the field {name!r} does not fit its type")
    return found


def _raw_default(type_: Type, default: object) -> object:
    """Do the same, but return MISSING for a default that does not fit."""
    kind = type_.kind
    if kind == "union":
        for branch in type_.branches:  # the first that fits, as in Java's library since 1.9
            found = _raw_default(branch, default)
            if found is not MISSING:
                return code_name(branch), found
        return MISSING
    if kind == "array" and isinstance(default, list):
        return _all_fit([_raw_default(type_.inner, each) for each in default])
    if kind == "map" and isinstance(default, dict):
        found = {key: _raw_default(type_.inner, each) for key, each in default.items()}
        return found if _all_fit(found.values()) is not MISSING else MISSING
    if kind == "record" and isinstance(default, dict):
        members = {
            each.name: _raw_default(each.type, default.get(each.name, each.default))
            for each in type_.fields
        }
        return members if _all_fit(members.values()) is not MISSING else MISSING
    if kind in ("bytes", "fixed"):
        return _default_bytes(type_, default)
    if kind in ("float", "double"):
        default = _WORDS.get(default, default) if isinstance(default, str) else default
    try:
        return _symbol(default, type_) if kind == "enum" else _SIMPLE[kind](default)
    except (Misfit, KeyError):
        return MISSING


_WORDS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _all_fit(values: Iterable[object]) -> object:
    found = list(values)
    return MISSING if any(each is MISSING for each in found) else found


def _default_bytes(type_: Type, default: object) -> object:
    """Convert JSON's form of bytes, a string with one character (U+0000 to U+00FF) a byte."""
    if not isinstance(default, str):
        return MISSING
    try:
        data = default.encode("latin-1")
    except UnicodeEncodeError:
        return MISSING
    return MISSING if type_.kind == "fixed" and len(data) != type_.size else data
