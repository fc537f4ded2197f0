"""Names of Avro types: those that fastavro gets, and those that values of unions carry.

Two records of a union may have the same fields, and an enum symbol is a ``str`` as a string is. A
value that is read from such a union carries the name of its type: the application can read it, and
writing the value again chooses the same branch.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from onceflow.sdk.schema_registry.avro.schemas import Type


class _NamedRecord(dict[str, object]):
    """A record that carries its type's name; equal to any dictionary with the same fields."""

    __slots__ = ("avro_type",)


class _NamedText(str):
    """An enum symbol that carries its type's name."""

    __slots__ = ("avro_type",)


class _NamedBytes(bytes):
    """A fixed value that carries its type's name."""


class _NamedDecimal(decimal.Decimal):
    """A decimal of a fixed type that carries the type's name."""

    __slots__ = ("avro_type",)
    avro_type: str

    def __reduce__(self) -> Any:  # Decimal's __reduce__ loses the name
        return with_name, (decimal.Decimal(self), self.avro_type)

    def __deepcopy__(self, memo: object) -> _NamedDecimal:
        return self


class _NamedUuid(uuid.UUID):
    """A UUID of a fixed type that carries the type's name."""

    __slots__ = ("avro_type",)
    avro_type: str

    def __init__(self, value: uuid.UUID) -> None:
        super().__init__(int=value.int)

    def __reduce__(self) -> tuple[object, ...]:  # UUID's __reduce__ loses the name
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
    """Return the full name of the Avro type of a value that was read from a union.

    Args:
        value: A record, symbol or fixed that ``avro_serde`` read from a union in which several
            types have the same Python type.

    Returns:
        Name such as ``shop.Order``, or "map" for a map beside records; None for any other value.
    """
    return getattr(value, "avro_type", None) if type(value) in _NAMED_TYPES else None


def with_name(value: object, name: str) -> object:
    """Return a copy of a record, symbol or fixed that carries its type's full name."""
    found = _NAMED[type(value)](value)
    object.__setattr__(found, "avro_type", name)  # UUID.__setattr__ refuses every name
    return found


def code_name(type_: Type) -> str:
    """Return fastavro's name of a type: always with a namespace, so that fastavro inherits none."""
    if not type_.name:
        return type_.kind
    return type_.name if "." in type_.name else f"_.{type_.name}"
