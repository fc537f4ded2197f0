"""The smallest pieces of Kafka's wire format: variable-length integers, uuids, buffers.

Fixed-size numbers need no code of ours (`struct` packs them, big-endian). Every reader here raises
`MalformedError` or IndexError on bad input and never reads or allocates past the given bytes;
`Message.decode` turns both into `RemoteProtocolError`.
"""

from __future__ import annotations

import functools
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Anything that holds bytes; a memoryview must be one of single bytes."""

ZERO_UUID = UUID(int=0)
"""Kafka's "no topic id"."""


class MalformedError(Exception):
    """Bytes that are not Kafka's format; internal, users meet `RemoteProtocolError`."""


@functools.lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """The uuid of 16 bytes; topic ids repeat, so the last thousand are remembered."""
    return UUID(bytes=raw)


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned number, seven bits a byte, lowest first (KIP-482)."""
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: Buffer, pos: int) -> tuple[int, int]:
    """Decode an unsigned number of at most five bytes.

    Args:
        data: The bytes.
        pos: Where the number begins.

    Returns:
        The number, and the position after it.
    """
    return _decode(data, pos, 28)


def encode_varint(value: int) -> bytes:
    """Encode a signed number of 32 or 64 bits (zigzag, as in record batches)."""
    return encode_uvarint(value << 1 if value >= 0 else (~value << 1) | 1)


def decode_varint(data: Buffer, pos: int) -> tuple[int, int]:
    """Decode a signed number of at most five bytes; see `decode_uvarint`."""
    value, pos = _decode(data, pos, 28)
    return (value >> 1) ^ -(value & 1), pos


def decode_varlong(data: Buffer, pos: int) -> tuple[int, int]:
    """Decode a signed number of at most ten bytes; see `decode_uvarint`."""
    value, pos = _decode(data, pos, 63)
    return (value >> 1) ^ -(value & 1), pos


def _decode(data: Buffer, pos: int, last_shift: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        if shift == last_shift:
            raise MalformedError("a varint is too long")
        shift += 7
    if value >> (32 if last_shift == 28 else 64):
        raise MalformedError("a varint is too large")
    return value, pos


SHORT_UVARINTS = tuple(bytes((value,)) for value in range(128))
"""The encoded form of each number that fits one byte."""


__all__ = [
    "Buffer",
    "MalformedError",
    "SHORT_UVARINTS",
    "ZERO_UUID",
    "decode_uvarint",
    "decode_varint",
    "decode_varlong",
    "encode_uvarint",
    "encode_varint",
    "uuid_of",
]
