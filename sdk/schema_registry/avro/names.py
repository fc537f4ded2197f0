"""Names of Avro types: as fastavro gets them, and as values of unions carry them.

Two records of a union may look the same, and a symbol looks like text. A value that is read from
such a union carries the name of its type, so that the application can see it and writing it again
gives the same branch.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from onceflow.sdk.schema_registry.avro.schemas import Type


class _NamedRecord(dict[str, object]):
    """A record that knows its type; equal to any mapping with the same fields."""

    __slots__ = ("avro_type",)


class _NamedText(str):
    """A symbol of an enum that knows its type."""

    __slots__ = ("avro_type",)


class _NamedBytes(bytes):
    """Bytes of a fixed that know their type."""


class _NamedDecimal(decimal.Decimal):
    """A decimal of a fixed that knows its type."""

    __slots__ = ("avro_type",)
    avro_type: str

    def __reduce__(self) -> Any:  # Decimal's own forgets the type
        return with_name, (decimal.Decimal(self), self.avro_type)

    def __deepcopy__(self, memo: object) -> _NamedDecimal:
        return self


class _NamedUuid(uuid.UUID):
    """A UUID of a fixed that knows its type."""

    __slots__ = ("avro_type",)
    avro_type: str

    def __init__(self, value: uuid.UUID) -> None:
        super().__init__(int=value.int)

    def __reduce__(self) -> tuple[object, ...]:  # UUID's own forgets the type
        return with_name, (uuid.UUID(int=self.int), self.avro_type)


_NAMED: Final[Mapping[type, Callable[[Any], object]]] = {
    dict: _NamedRecord,
    str: _NamedText,
    bytes: _NamedBytes,
    decimal.Decimal: _NamedDecimal,
    uuid.UUID: _NamedUuid,
}
_NAMED_TYPES: Final = frozenset(_NAMED.values())


def avro_type_name(value: object) -> str | None:
    """The full name of the Avro type of a value that was read from a union.

    Args:
        value: A record, symbol or fixed that ``avro_serde`` read from a union of which several
            types look like it.

    Returns:
        Such as ``shop.Order``, or "map" for a map beside records; None for any other value.
    """
    return getattr(value, "avro_type", None) if type(value) in _NAMED_TYPES else None


def with_name(value: object, name: str) -> object:
    """The value so that it knows its type.

    Args:
        value: A record, symbol or fixed.
        name: Full name of its type.
    """
    found = _NAMED[type(value)](value)
    object.__setattr__(found, "avro_type", name)  # a UUID refuses its own way of setting
    return found


def code_name(type_: Type) -> str:
    """What fastavro calls a type: with a namespace, so that none is looked up around it."""
    if not type_.name:
        return type_.kind
    return type_.name if "." in type_.name else f"_.{type_.name}"
