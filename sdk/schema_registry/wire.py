"""The bytes before a value that was written with a registered schema.

A zero byte, the schema's id in four bytes, and for Protobuf the place of the message in its file:
a count and that many indexes as zigzag varints, where the one index 0 is written as a single 0.
The layout is Confluent's, so that other clients read what is written here and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceflow.sdk.errors import SerializationError

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
SCHEMA_ID_MAX: Final = 2**31 - 1
INDEXES_MAX: Final = 64
"""Deeper nesting of Protobuf messages is not believed."""
_VARINT_BYTES_MAX: Final = 5


def write_prefix(schema_id: int) -> bytes:
    """The five bytes that name a schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def read_schema_id(data: bytes) -> int:
    """The id of the schema that a value was written with.

    Args:
        data: A key or value.

    Raises:
        SerializationError: The bytes do not begin as those of a registered schema do.
    """
    if len(data) < PREFIX_BYTES:
        raise SerializationError(
            f"{len(data)} bytes are too few for a value with a schema id, which begins with "
            f"{PREFIX_BYTES}; was it written without a schema registry?"
        )
    if data[0] != MAGIC:
        raise SerializationError(
            f"the first byte is {data[0]}, not 0: it was written without a schema registry, or "
            "with the schema id in its headers, which is not read here"
        )
    schema_id = int.from_bytes(data[1:PREFIX_BYTES], "big")
    if not 0 < schema_id <= SCHEMA_ID_MAX:
        raise SerializationError(f"{schema_id} cannot be a schema id")
    return schema_id


def write_indexes(indexes: Sequence[int]) -> bytes:
    """The place of a Protobuf message: index of the outermost message, then of each nested one."""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(_write_varint(number) for number in (len(indexes), *indexes))


def read_indexes(data: bytes, offset: int = PREFIX_BYTES) -> tuple[tuple[int, ...], int]:
    """The place of a Protobuf message, and where its own bytes begin.

    Args:
        data: A key or value.
        offset: Where the indexes begin.

    Raises:
        SerializationError: The indexes are cut off or cannot be indexes.
    """
    count, offset = _read_varint(data, offset)
    if count == 0:
        return (0,), offset
    if not 0 < count <= INDEXES_MAX:
        raise SerializationError(f"{count} message indexes; at most {INDEXES_MAX} are accepted")
    indexes = []
    for _ in range(count):
        index, offset = _read_varint(data, offset)
        if index < 0:
            raise SerializationError(f"a message index of {index}")
        indexes.append(index)
    return tuple(indexes), offset


def _write_varint(value: int) -> bytes:
    value <<= 1  # zigzag; indexes are never negative
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[offset : offset + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), offset + index + 1
    raise SerializationError("the message indexes are cut off or too long")
