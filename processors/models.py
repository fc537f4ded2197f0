"""msgspec's hooks for pydantic models within values and states.

This module does not import pydantic: it recognizes a model by its methods.
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
    """Return the types of a model's fields by the names in its serialized form."""
    fields = _model(kind).model_fields
    return {str(field.alias or name): field.annotation for name, field in fields.items()}


def from_json(kind: type, value: object) -> object:
    """Convert decoded JSON to a pydantic model.

    Raises:
        ValueError: The model refuses the value.
        TypeError: The type is not a model.
    """
    # A strict model accepts a string as a date only from JSON.
    return _model(kind).model_validate_json(to_json(value))


def from_msgpack(kind: type, value: object) -> object:
    """Convert decoded MessagePack, which has types for bytes and times, to a pydantic model.

    Raises:
        ValueError: The model refuses the value.
        TypeError: The type is not a model.
    """
    return _model(kind).model_validate(value)


def _model(kind: type) -> type[_Model]:
    if not is_model(kind):
        raise TypeError(f"{kind.__name__} is not a pydantic model")
    return typing.cast("type[_Model]", kind)
