"""Serializers and deserializers: how keys and values become bytes and come back.

A serde is a pair of functions, to be given to a client by ``value_serializer=JSON.serialize``.
Clients never call them for None: a null value is a tombstone whatever the serde. Schemas that are
kept in a registry are the business of ``onceflow.sdk.schema_registry``, which builds on the two
base classes at the end.
"""

from __future__ import annotations

import decimal
import functools
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.model.record_types import DataT_co

T = TypeVar("T")

__all__ = [
    "BYTES",
    "JSON",
    "MSGPACK",
    "STRING",
    "LookupNeeded",
    "Serde",
    "TopicDeserializer",
    "TopicSerializer",
    "struct_serde",
]

LOOKUPS_MAX = 10_000
"""How often one call looks something up: once for each schema that it meets, and never for ever."""


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
        f"must be bytes, not {type(value).__name__}; set a serializer such as JSON.serialize"
    )


def _text_to_bytes(value: str) -> bytes:
    if not isinstance(value, str):
        raise SerializationError(f"must be a string, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(f"text cannot be written as UTF-8: {error}") from error


def _bytes_to_text(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise SerializationError(f"not UTF-8: {error}") from error


_NON_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""NaN and infinities as MessagePack writes them: a double whose exponent bits are all set."""
_strict_json = json.JSONEncoder(allow_nan=False).encode


def to_json(value: object) -> bytes:
    """Write a value as JSON; every JSON that onceflow writes comes from here.

    Dates, UUIDs, decimals and enums become text as ``msgspec`` and pydantic write them, bytes
    become base64, sets and tuples lists, and mapping keys text.

    Args:
        value: Plain values, lists, mappings, dataclasses, ``msgspec`` structs, pydantic models.

    Raises:
        SerializationError: JSON has no form for it. That includes NaN and the infinities
            (RFC 8259, section 6), which other writers turn into null or into no JSON at all.
    """
    try:
        data = msgspec.json.encode(value, enc_hook=_model_to_json)
        if b"null" in data and _may_hold_nan(value):
            try:
                _strict_json(msgspec.to_builtins(value, enc_hook=_model_to_json, str_keys=True))
            except ValueError:
                raise SerializationError(
                    "JSON has no NaN and no infinity: write None or text, or use MessagePack"
                ) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SerializationError(f"cannot be written as JSON: {error}") from error
    return data


def _may_hold_nan(value: object) -> bool:
    """Rule out cheaply that a null stands for NaN: the strict encoder takes ten times as long."""
    try:
        packed = msgspec.msgpack.encode(value, enc_hook=model_to_mapping)
    except (TypeError, OverflowError):  # such as an integer of more than 64 bits
        return True
    return _NON_FINITE.search(packed) is not None


def _json_to_object(data: bytes) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"not JSON: {error}{format_remark(data, 'json')}") from error
    return found


def to_msgpack(value: object) -> bytes:
    """Write a value as MessagePack.

    Args:
        value: Plain values, lists, mappings, dataclasses, ``msgspec`` structs, pydantic models.

    Raises:
        SerializationError: MessagePack has no form for it.
    """
    try:
        try:
            return msgspec.msgpack.encode(value, enc_hook=model_to_mapping)
        except TypeError:  # a pydantic model may hold what only JSON's text can tell
            return msgspec.msgpack.encode(value, enc_hook=_model_to_json)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SerializationError(f"cannot be written as MessagePack: {error}") from error


def is_structure(value: object) -> bool:
    """Whether a value is a mapping, list, dataclass, ``msgspec`` struct or pydantic model."""
    if isinstance(value, dict | list | tuple):
        return True
    kind = type(value)
    marks = ("__dataclass_fields__", "__struct_fields__", "model_dump")
    return any(hasattr(kind, mark) for mark in marks)


_PLAIN: tuple[Any, ...] = (str, bytes, int, float, decimal.Decimal)


def model_to_mapping(value: object, *, as_json: bool = False) -> object:
    """What msgspec does not know itself: pydantic models, and classes derived from plain ones.

    Args:
        value: A pydantic model, which becomes a mapping by its aliases (pydantic is not imported
            for it), or a value of a class derived from ``str``, ``float`` and the like.
        as_json: Whether everything in it shall be what JSON has.

    Raises:
        TypeError: It is neither.
    """
    dump: Callable[..., object] | None = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json" if as_json else "python", by_alias=True)
    if isinstance(value, uuid.UUID):
        return uuid.UUID(int=value.int)
    for plain in _PLAIN:
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"{type(value).__name__} cannot be serialized")


_model_to_json = functools.partial(model_to_mapping, as_json=True)


def _msgpack_to_object(data: bytes) -> object:
    try:
        found: object = msgspec.msgpack.decode(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"not MessagePack: {error}{format_remark(data, 'msgpack')}"
        ) from error
    return found


BYTES: Serde[bytes] = Serde("bytes", _bytes_to_bytes, bytes)
"""Bytes as they are."""
STRING: Serde[str] = Serde("string", _text_to_bytes, _bytes_to_text)
"""Text as UTF-8."""
JSON: Serde[Any] = Serde("json", to_json, _json_to_object)
"""JSON; tuples come back as lists, mapping keys as text and bytes as base64 text."""
MSGPACK: Serde[Any] = Serde("msgpack", to_msgpack, _msgpack_to_object)
"""MessagePack, which keeps bytes, integers as keys, and the difference of int and float."""


def struct_serde(kind: type[T], encoding: Literal["json", "msgpack"] = "json") -> Serde[T]:
    """A serde for a typed value: a dataclass, ``msgspec.Struct``, pydantic model, TypedDict ...

    Args:
        kind: The type that values have; what comes in is checked against it. Anything that
            ``msgspec`` reads, or a pydantic model.
        encoding: How the bytes look.

    Returns:
        The serde; its functions raise SerializationError for what does not fit the type.
    """
    encode = to_json if encoding == "json" else to_msgpack
    codec = msgspec.json if encoding == "json" else msgspec.msgpack
    decode = _model_decoder(kind, encoding) or codec.Decoder(kind).decode
    name = getattr(kind, "__name__", str(kind))

    def serialize(value: T) -> bytes:
        if isinstance(kind, type) and not _may_be(value, kind):
            raise SerializationError(f"must be a {name}, not {type(value).__name__}")
        return encode(value)

    def deserialize(data: bytes) -> T:
        try:
            return decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SerializationError(
                f"not a {name} in {encoding}: {error}{format_remark(data, encoding)}"
            ) from error

    return Serde(f"{encoding} of {name}", serialize, deserialize)


def _model_decoder(kind: type[T], encoding: str) -> Callable[[bytes], T] | None:
    """A pydantic model validates by itself; None for other types."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        return None
    if encoding == "json":
        validate_json: Callable[[bytes], T] | None = getattr(kind, "model_validate_json", None)
        return validate_json

    def decode(data: bytes) -> T:
        found: T = validate(_msgpack_to_object(data))
        return found

    return decode


def format_remark(data: bytes, expected: str, switch: str = "read them as such") -> str:
    """Name the format of bytes that could not be read as expected, and the remedy.

    Args:
        data: Bytes of a key or value.
        expected: "json" or "msgpack".
        switch: How the reader is set to the other of the two.

    Returns:
        A clause for the end of a message; empty where no other format is recognised.
    """
    if data[:1] == b"\x00" and len(data) > REGISTRY_PREFIX_BYTES:
        return (
            "; the bytes begin like a value with a schema id: read them with a serde of "
            "onceflow.sdk.schema_registry"
        )
    for name, decode in (("json", msgspec.json.decode), ("msgpack", msgspec.msgpack.decode)):
        if name == expected or data[:1] not in _FIRST_BYTES[name]:
            continue
        try:
            decode(data)
        except (ValueError, RecursionError):
            continue
        return f"; the bytes are {_CALLED[name]}: {switch}, or write them as {_CALLED[expected]}"
    return ""


REGISTRY_PREFIX_BYTES = 5
"""A zero byte and the number of a schema, before a value that names its schema (Confluent)."""
_CALLED = {"json": "JSON", "msgpack": "MessagePack"}
_FIRST_BYTES = {
    "json": [bytes([byte]) for byte in b'{["'],
    "msgpack": [bytes([byte]) for byte in (*range(0x80, 0xC0), *range(0xC4, 0xE0))],
}
"""How structures and texts begin. Numbers are left out: one byte is a number in both."""


def _may_be(value: object, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a TypedDict cannot be asked
        return isinstance(value, dict)


class LookupNeeded(Exception):
    """Serializing or deserializing needs something that has to be asked for over the network.

    Whoever calls a `TopicSerializer` or `TopicDeserializer` runs ``load``, where it may wait, and
    calls again.

    Attributes:
        load: Gets what is missing; blocks.
        where: Which record it was met at, where that is known.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        """Say what is missing.

        Args:
            load: Gets it and remembers it; blocks; raises KafkaError where that fails.
        """
        super().__init__(load)
        self.load = load
        self.where = ""


class TopicSerializer(ABC):
    """A serializer that is told the topic, and that may have to look something up."""

    @abstractmethod
    def serialize(self, value: object, topic: str, field: str) -> bytes | None:
        """The bytes of a value; never waits.

        Args:
            value: Key or value, not None.
            topic: Topic that it is written to.
            field: "key" or "value".

        Raises:
            LookupNeeded: Something must be loaded first.
            SerializationError: The value cannot be written.
        """

    def __call__(self, value: object, topic: str, field: str = "value") -> bytes | None:
        """The bytes of a value, waiting for what must be looked up.

        Args:
            value: Key or value, not None.
            topic: Topic that it is written to.
            field: "key" or "value".

        Raises:
            SerializationError: The value cannot be written.
            KafkaError: What is needed for it could not be looked up.
        """
        return after_lookups(lambda: self.serialize(value, topic, field))


class TopicDeserializer(ABC, Generic[DataT_co]):
    """A deserializer that is told the topic, and that may have to look something up.

    What it gives is the parameter: ``TopicDeserializer[Order]`` gives orders.
    """

    @abstractmethod
    def deserialize(self, data: bytes, topic: str, field: str) -> DataT_co:
        """The value of bytes; never waits.

        Args:
            data: Bytes of a key or value.
            topic: Topic that they come from.
            field: "key" or "value".

        Raises:
            LookupNeeded: Something must be loaded first.
            SerializationError: The bytes are no such value.
        """

    def __call__(self, data: bytes, topic: str, field: str = "value") -> DataT_co:
        """The value of bytes, waiting for what must be looked up.

        Args:
            data: Bytes of a key or value.
            topic: Topic that they come from.
            field: "key" or "value".

        Raises:
            SerializationError: The bytes are no such value.
            KafkaError: What is needed for it could not be looked up.
        """
        return after_lookups(lambda: self.deserialize(data, topic, field))


Deserializer: TypeAlias = Callable[[bytes], T] | TopicDeserializer[T]
"""What consumers take as ``key_deserializer`` and ``value_deserializer``."""


def after_lookups(work: Callable[[], T]) -> T:
    """Do something that may need look-ups, blocking for them.

    Args:
        work: Raises LookupNeeded for what must be loaded first.

    Raises:
        KafkaError: What the work or a look-up raised.
    """
    for _ in range(LOOKUPS_MAX):
        try:
            return work()
        except LookupNeeded as needed:
            load = needed.load
        load()
    raise SerializationError(f"gave up after {LOOKUPS_MAX} look-ups for one call")
