"""Serializers and deserializers: how keys and values become bytes and come back.

A serde is a pair of functions, to be given to a client by ``value_serializer=JSON.serialize``.
Clients never call them for None: a null value is a tombstone whatever the serde. This module
does not know topics, schemas kept in a registry, or records.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from onceflow.sdk.errors import SerializationError

T = TypeVar("T")

__all__ = ["BYTES", "JSON", "MSGPACK", "STRING", "Serde", "struct_serde"]


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A serializer and the deserializer that reads what it wrote.

    Attributes:
        name: Name for messages.
        serialize: From a value to bytes; raises SerializationError.
        deserialize: From bytes to a value; raises SerializationError.
    """

    name: str
    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]


def _bytes_to_bytes(value: bytes) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SerializationError(
        f"bytes are needed, not {type(value).__name__}; give a serializer such as JSON.serialize"
    )


def _text_to_bytes(value: str) -> bytes:
    if not isinstance(value, str):
        raise SerializationError(f"text is needed, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(f"text cannot be written as UTF-8: {error}") from error


def _bytes_to_text(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise SerializationError(f"not UTF-8: {error}") from error


def _object_to_json(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"cannot be written as JSON: {error}") from error


def _json_to_object(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"not JSON: {error}") from error
    return found


def _object_to_msgpack(value: object) -> bytes:
    import msgpack  # type: ignore[import-untyped]

    try:
        packed: bytes = msgpack.packb(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SerializationError(f"cannot be written as msgpack: {error}") from error
    return packed


def _msgpack_to_object(data: bytes) -> object:
    import msgpack

    try:
        found: object = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise SerializationError(f"not msgpack: {error}") from error
    return found


BYTES: Serde[bytes] = Serde("bytes", _bytes_to_bytes, bytes)
"""Bytes as they are."""
STRING: Serde[str] = Serde("string", _text_to_bytes, _bytes_to_text)
"""Text as UTF-8."""
JSON: Serde[object] = Serde("json", _object_to_json, _json_to_object)
"""JSON; mind that tuples come back as lists and mapping keys as text."""
MSGPACK: Serde[object] = Serde("msgpack", _object_to_msgpack, _msgpack_to_object)
"""MessagePack, which keeps bytes, integers as keys, and the difference of int and float."""


def struct_serde(kind: type[T], encoding: Literal["json", "msgpack"] = "json") -> Serde[T]:
    """A serde for a typed value: a ``msgspec.Struct``, dataclass, TypedDict or NamedTuple.

    Args:
        kind: The type that values have; what comes in is checked against it.
        encoding: How the bytes look.

    Returns:
        The serde; its functions raise SerializationError for what does not fit the type.
    """
    import msgspec

    codec = msgspec.json if encoding == "json" else msgspec.msgpack
    encode: Callable[[object], bytes] = codec.Encoder().encode
    decode: Callable[[bytes], T] = codec.Decoder(kind).decode

    def serialize(value: T) -> bytes:
        if isinstance(kind, type) and not _may_be(value, kind):
            raise SerializationError(f"{kind.__name__} is needed, not {type(value).__name__}")
        try:
            return encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise SerializationError(f"cannot be written as {encoding}: {error}") from error

    def deserialize(data: bytes) -> T:
        try:
            return decode(data)
        except msgspec.MsgspecError as error:
            raise SerializationError(f"not a {kind.__name__} in {encoding}: {error}") from error

    return Serde(f"{encoding} of {kind.__name__}", serialize, deserialize)


def _may_be(value: object, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a TypedDict cannot be asked
        return isinstance(value, dict)
