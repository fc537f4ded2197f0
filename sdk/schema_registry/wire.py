"""Writes and reads the prefix of values with a registered schema.

The prefix is a zero byte, the schema's id in four bytes, and for Protobuf the place of the message
in its file: a count and that many indexes as zigzag varints, or one zero byte for the place [0].
The layout is Confluent's, so that clients of other libraries read and write the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.protocol.primitives import MalformedError, decode_varint, encode_varint

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
SCHEMA_ID_MAX: Final = 2**31 - 1
INDEXES_MAX: Final = 64
"""Deepest nesting of a Protobuf message that is read: the count comes from the network."""


def write_prefix(schema_id: int) -> bytes:
    """Return the five bytes that name a schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def read_schema_id(data: bytes) -> int:
    """Return the id of the schema that a key or value was written with.

    Raises:
        SerializationError: The bytes do not begin with Confluent's prefix.
    """
    if len(data) < PREFIX_BYTES:
        raise SerializationError(
            f"{len(data)} bytes are too few: the schema id alone takes {PREFIX_BYTES}; was the "
            "value written without a schema registry?"
        )
    if data[0] != MAGIC:
        raise SerializationError(
            f"the first byte is {data[0]}, not 0: the value was written without a schema registry, "
            "or its schema id is in the record's headers, which this serde does not read"
        )
    schema_id = int.from_bytes(data[1:PREFIX_BYTES], "big")
    if not 0 < schema_id <= SCHEMA_ID_MAX:
        raise SerializationError(f"schema id {schema_id} is invalid: ids are positive")
    return schema_id


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Encode the place of a Protobuf message: the outermost index first, then each nested one."""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(encode_varint(number) for number in (len(indexes), *indexes))


def read_indexes(data: bytes, offset: int = PREFIX_BYTES) -> tuple[tuple[int, ...], int]:
    """Return the place of a Protobuf message and the offset at which its bytes begin.

    Args:
        data: A key or value.
        offset: Where the indexes begin.

    Raises:
        SerializationError: The indexes are cut off or invalid.
    """
    indexes = []
    try:
        count, offset = decode_varint(data, offset)
        if count == 0:
            return (0,), offset
        if not 0 < count <= INDEXES_MAX:
            raise SerializationError(f"{count} message indexes; at most {INDEXES_MAX} are read")
        for _ in range(count):
            index, offset = decode_varint(data, offset)
            indexes.append(index)
    except (MalformedError, IndexError):
        raise SerializationError("the message indexes are cut off or too long") from None
    if min(indexes) < 0:
        raise SerializationError(f"message index {min(indexes)} is negative")
    return tuple(indexes), offset
