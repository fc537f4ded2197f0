"""Pydantic models within values and states: what msgspec leaves to hooks.

pydantic is not imported: a model is known by its methods.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping

from onceflow.sdk.serde import to_json


class _Model(typing.Protocol):
    model_fields: Mapping[str, typing.Any]

    @classmethod
    def model_validate(cls, value: object) -> object: ...

    @classmethod
    def model_validate_json(cls, data: bytes) -> object: ...


def is_model(kind: object) -> bool:
    """Whether a type is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def model_fields(kind: type) -> dict[str, object]:
    """The types of a model's fields by the names under which they are written."""
    fields = _model(kind).model_fields
    return {str(field.alias or name): field.annotation for name, field in fields.items()}


def from_json(kind: type, value: object) -> object:
    """A value of a type that msgspec does not know, made of what it read as JSON.

    Args:
        kind: The type.
        value: Mappings, lists and plain values.

    Raises:
        ValueError: The model refuses them.
        TypeError: The type is no model.
    """
    # A strict model takes text for a date from JSON only.
    return _model(kind).model_validate_json(to_json(value))


def from_msgpack(kind: type, value: object) -> object:
    """The same for what was read as MessagePack, which has bytes and times of its own.

    Args:
        kind: The type.
        value: Mappings, lists and plain values.

    Raises:
        ValueError: The model refuses them.
        TypeError: The type is no model.
    """
    return _model(kind).model_validate(value)


def _model(kind: type) -> type[_Model]:
    if not is_model(kind):
        raise TypeError(f"{kind.__name__} is no pydantic model")
    return typing.cast("type[_Model]", kind)
