"""Describes the structure of a type as text, to notice a changed type whatever its name.

The text is stored with the state. A dataclass that moved to another module keeps its text; one
whose field changed its type gets another. Class names count only if values carry them (tagged
structs and enums).
"""

from __future__ import annotations

import inspect
import typing

from msgspec import inspect as shapes

from onceflow.processors.errors import DeclarationError
from onceflow.processors.models import is_model, model_fields

_FIELDED = (shapes.DataclassType, shapes.NamedTupleType, shapes.StructType, shapes.TypedDictType)
_ITEMS = (shapes.ListType, shapes.SetType, shapes.FrozenSetType, shapes.VarTupleType)


def type_text(kind: object, what: str) -> str:
    """Return the structure of a type as text.

    Args:
        kind: An annotation that msgspec supports.
        what: Name of the argument or state, for messages.

    Raises:
        DeclarationError: Neither msgspec nor pydantic can decode the type.
    """
    try:
        shape = shapes.type_info(typing.cast(type, kind))
    except (TypeError, RuntimeError) as error:
        shown = inspect.formatannotation(kind)
        raise DeclarationError(f"{what}: msgspec cannot decode {shown}: {error}") from error
    try:
        return _text(shape, ())
    except _NoCodecError as error:
        raise DeclarationError(
            f"{what}: cannot decode {error}; make it a dataclass, a msgspec.Struct or a pydantic "
            "model, or annotate bytes"
        ) from None


class _NoCodecError(Exception):
    """A class that neither msgspec nor pydantic can decode; the message is its name."""


def _text(shape: shapes.Type, within: tuple[object, ...]) -> str:
    if isinstance(shape, shapes.Metadata):
        return _text(shape.type, within)
    if isinstance(shape, _FIELDED):
        return _fields(shape, within)
    if isinstance(shape, _ITEMS):
        return f"{_name(shape)}[{_text(shape.item_type, within)}]"
    if isinstance(shape, shapes.TupleType):
        return f"tuple[{', '.join(_text(item, within) for item in shape.item_types)}]"
    if isinstance(shape, shapes.DictType):
        return f"dict[{_text(shape.key_type, within)}, {_text(shape.value_type, within)}]"
    if isinstance(shape, shapes.UnionType):
        return " | ".join(sorted(_text(item, within) for item in shape.types))
    if isinstance(shape, shapes.LiteralType):
        return f"literal[{', '.join(sorted(map(repr, shape.values)))}]"
    if isinstance(shape, shapes.EnumType):
        return f"enum[{', '.join(sorted(repr(member.value) for member in shape.cls))}]"
    if isinstance(shape, shapes.CustomType):
        return _model(shape.cls, within)
    return _name(shape)


def _model(kind: type, within: tuple[object, ...]) -> str:
    if not is_model(kind):
        raise _NoCodecError(kind.__qualname__)
    if kind in within:
        return f"ring[{len(within) - within.index(kind)}]"
    fields = model_fields(kind).items()
    texts = sorted(
        f"{name}: {_text(shapes.type_info(typing.cast(type, part)), (*within, kind))}"
        for name, part in fields
    )
    return f"object{{{', '.join(texts)}}}"


def _fields(
    shape: shapes.DataclassType | shapes.NamedTupleType | shapes.StructType | shapes.TypedDictType,
    within: tuple[object, ...],
) -> str:
    if shape.cls in within:
        return f"ring[{len(within) - within.index(shape.cls)}]"
    inner = (*within, shape.cls)
    # The order of fields counts only if values are written as arrays.
    ordered = isinstance(shape, shapes.NamedTupleType) or getattr(shape, "array_like", False)
    fields = [f"{field.encode_name}: {_text(field.type, inner)}" for field in shape.fields]
    kind = "array" if ordered else "object"
    tag = getattr(shape, "tag", None)
    lead = [] if tag is None else [f"{getattr(shape, 'tag_field', None)}={tag!r}"]
    return f"{kind}{{{', '.join(lead + (fields if ordered else sorted(fields)))}}}"


def _name(shape: shapes.Type) -> str:
    return type(shape).__name__.removesuffix("Type").lower()
