"""Avro's JSON encoding: values as JSON, by a schema, without loss.

The form is that of the specification: a value of a union stands behind the name of its branch, as
``{"string": "x"}``, bytes are text of the characters 0 to 255, logical types are their raw values.
NaN and the infinities, which JSON does not have, are the text that Java's library writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from onceflow.sdk.schema_registry.avro.fitting import Fitter
from onceflow.sdk.schema_registry.avro.logical import Misfit, shown
from onceflow.sdk.schema_registry.avro.names import code_name
from onceflow.sdk.schema_registry.avro.schemas import Type

_NOT_IN_JSON: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(root: Type, value: object) -> object:
    """Return what JSON has for a value.

    Args:
        root: The value's schema.
        value: A value that was read with that schema, or that it takes.

    Raises:
        Misfit: The value does not fit the schema.
    """
    return _shown(root, Fitter(root).fit(value))


def _shown(type_: Type, raw: object) -> object:
    """The same of a value that is ready for writing: raw, each union's branch named."""
    match type_.kind:
        case "union":
            code, inner = cast("tuple[str, object]", raw)
            if code == "null":
                return None
            branch = next(each for each in type_.branches if code_name(each) == code)
            return {branch.label: _shown(branch, inner)}
        case "record":
            given = cast("Mapping[str, object]", raw)
            return {each.name: _shown(each.type, given[each.name]) for each in type_.fields}
        case "map":
            entries = cast("Mapping[str, object]", raw)
            return {key: _shown(type_.inner, each) for key, each in entries.items()}
        case "array":
            return [_shown(type_.inner, each) for each in cast("list[object]", raw)]
        case "bytes" | "fixed":
            return cast("bytes", raw).decode("latin-1")
        case "float" | "double":
            number = cast("float", raw)
            if math.isfinite(number):
                return number
            return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return raw


def from_json(type_: Type, found: object) -> object:
    """Return the value that a serializer of the schema takes.

    Args:
        type_: The schema.
        found: What JSON has, in Avro's JSON encoding.

    Raises:
        Misfit: It has not the form of the schema; says where.
    """
    match type_.kind:
        case "union":
            return _of_union(type_, found)
        case "record" | "map":
            if not isinstance(found, dict):
                raise Misfit(f"{type_.label} expected, got {shown(found)}")
            inner = {each.name: each.type for each in type_.fields}
            return {
                key: _within(f".{key}", inner.get(key, type_.items), each)
                for key, each in found.items()
            }
        case "array":
            if not isinstance(found, list):
                raise Misfit(f"array expected, got {shown(found)}")
            return [_within(f"[{place}]", type_.inner, each) for place, each in enumerate(found)]
        case "bytes" | "fixed" if isinstance(found, str):
            try:
                return found.encode("latin-1")
            except UnicodeEncodeError:
                raise Misfit(f"bytes are characters up to \\u00ff, got {shown(found)}") from None
        case "float" | "double" if isinstance(found, str):
            return _NOT_IN_JSON.get(found, found)
    return found


def _within(step: str, type_: Type | None, found: object) -> object:
    """The same one level further in; a field that is not in the schema is the serializer's."""
    if type_ is None:
        return found
    try:
        return from_json(type_, found)
    except Misfit as error:
        error.path.append(step)
        raise


def _of_union(type_: Type, found: object) -> object:
    branches = {each.label: each for each in type_.branches}
    if found is None and "null" in branches:
        return None
    if isinstance(found, dict) and len(found) == 1:
        ((label, inner),) = found.items()
        if label in branches:
            return label, _within(f".{label}", branches[label], inner)
    names = ", ".join(f'{{"{label}": ...}}' for label in branches if label != "null")
    raise Misfit(f"a union is null or one of {names}, got {shown(found)}")
