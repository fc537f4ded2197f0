"""Makes decoders of annotated types, and encodes outputs.

``bytes`` stays bytes and ``str`` is UTF-8 text. Every other type (dict, list, numbers, dataclass,
msgspec Struct, TypedDict, pydantic model, ...) is JSON or MessagePack; msgspec checks values
against the annotation, pydantic models check themselves. ``nodes.binding`` makes each argument's
decoder.
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable

import msgspec

from onceflow.processors.errors import DeserializationError
from onceflow.processors.models import from_json, from_msgpack, is_model
from onceflow.processors.state.type_text import type_text
from onceflow.sdk.errors import SerializationError
from onceflow.sdk.serde import format_remark, struct_serde, to_json, to_msgpack

Decoder = Callable[[bytes | None], object]
Encoder = Callable[[object], bytes | None]


class Format(enum.Enum):
    """Format of structured values."""

    JSON = "json"
    MSGPACK = "msgpack"


def _identity(data: bytes | None) -> object:
    return data


def _split_optional(annotation: object) -> tuple[object, bool]:
    """Return the annotation without None, and whether it allows None (a tombstone)."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        arguments = typing.get_args(annotation)
        if types.NoneType in arguments:
            rest = tuple(a for a in arguments if a is not types.NoneType)
            return (rest[0] if len(rest) == 1 else annotation), True
    return annotation, annotation in (None, types.NoneType, object)


def decoder_for(annotation: object, format: Format, what: str) -> Decoder:
    """Make the decoder of an annotated argument.

    Args:
        annotation: The type; ``inspect.Parameter.empty`` passes bytes and None through.
        format: Format of structured values.
        what: Name of the argument, for messages.

    Returns:
        A function from bytes (or None, a tombstone) to the value. It raises
        ``DeserializationError``.

    Raises:
        DeclarationError: Neither msgspec nor pydantic can decode the type.
    """
    if annotation is inspect.Parameter.empty or annotation is object:
        return _identity
    inner, optional = _split_optional(annotation)
    if inner is bytes:
        decode: Callable[[bytes], object] = bytes
    elif inner is str:
        decode = _decode_text
    else:
        decode = _structured_decoder(inner, format, what)
    none_allowed = optional
    shown = inspect.formatannotation(annotation)

    def decode_value(data: bytes | None) -> object:
        if data is None:
            if none_allowed:
                return None
            raise DeserializationError(
                f"{what} is None (a tombstone) but annotated {shown}; "
                "annotate it with | None to receive tombstones"
            )
        try:
            return decode(data)
        except (msgspec.MsgspecError, ValueError) as error:
            other = "msgpack" if format is Format.JSON else "json"
            switch = f'declare the processor with format="{other}"'
            text = inner in (bytes, str)
            remark = "" if text else format_remark(bytes(data), format.value, switch)
            raise DeserializationError(f"{what} does not fit {shown}: {error}{remark}") from error
        except SerializationError as error:  # raised by struct_serde for a pydantic model
            raise DeserializationError(f"{what} does not fit {shown}: {error}") from error

    return decode_value


def _decode_text(data: bytes) -> str:
    return data.decode() if type(data) is bytes else bytes(data).decode()


def _structured_decoder(kind: object, format: Format, what: str) -> Callable[[bytes], object]:
    type_text(kind, what)  # raises DeclarationError for a class that cannot be decoded
    if is_model(kind):
        return struct_serde(typing.cast(type[object], kind), format.value).deserialize
    known = typing.cast(type[object], kind)
    if format is Format.JSON:
        return msgspec.json.Decoder(known, dec_hook=from_json).decode
    return msgspec.msgpack.Decoder(known, dec_hook=from_msgpack).decode


def encoder_for(format: Format) -> Encoder:
    """Make the encoder of outputs, which goes by a value's type, not by an annotation."""
    pack = to_json if format is Format.JSON else to_msgpack

    def encode(value: object) -> bytes | None:
        kind = type(value)
        if kind is bytes or value is None:
            return typing.cast("bytes | None", value)
        if kind is str:
            return typing.cast(str, value).encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        return pack(value)

    return encode
