"""Encodes keys as bytes that sort like the keys.

A store is an ordered map of bytes, so that a range reads neighbours. Numbers and text become bytes
that sort as they do. A terminator ends each part of a composite key, so that all rows of one record
key are neighbours.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, cast

from onceflow.processors.errors import DeclarationError, StateValueError

_CLOSED: Final = b"\x00\x00"
_ZERO: Final = b"\x00\xff"
_TOP: Final = 1 << 63

Packer = Callable[[object], bytes]
Unpacker = Callable[[bytes], object]


def close(part: bytes) -> bytes:
    """Terminate a part of a composite key, so that no part is the prefix of another one."""
    return part.replace(b"\x00", _ZERO) + _CLOSED


def split(key: bytes) -> tuple[bytes, bytes]:
    """Return the first part of a composite key, and the rest after its terminator."""
    at = key.index(b"\x00")
    while key[at + 1] != 0:  # a zero byte within the part is followed by 0xff
        at = key.index(b"\x00", at + 2)
    return key[:at].replace(_ZERO, b"\x00"), key[at + 2 :]


def after(prefix: bytes) -> bytes | None:
    """Return the end of the range of keys with a prefix; None if no key sorts after them."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def pack_int(value: int) -> bytes:
    """Encode an integer from -2^63 to 2^63 - 1 in eight bytes that sort as the integers do.

    Raises:
        StateValueError: The integer is out of range.
    """
    if not -_TOP <= value < _TOP:
        raise StateValueError(f"{value} in a key: must be a whole number from -2^63 to 2^63 - 1")
    return (value + _TOP).to_bytes(8)


def unpack_int(data: bytes) -> int:
    """Decode the result of ``pack_int``."""
    return int.from_bytes(data) - _TOP


def _pack_float(value: float) -> bytes:
    bits: int = struct.unpack(">Q", struct.pack(">d", value))[0]
    return ((~bits if bits & _TOP else bits | _TOP) & (2**64 - 1)).to_bytes(8)


def _unpack_float(data: bytes) -> float:
    bits = int.from_bytes(data)
    raw = bits & ~_TOP if bits & _TOP else ~bits & (2**64 - 1)
    return cast(float, struct.unpack(">d", raw.to_bytes(8))[0])


_PACKERS: dict[object, tuple[type, Packer, Unpacker]] = {
    int: (int, lambda v: pack_int(cast(int, v)), unpack_int),
    float: (float, lambda v: _pack_float(cast(float, v)), _unpack_float),
    str: (str, lambda v: cast(str, v).encode(), lambda data: data.decode()),
    bytes: (bytes, lambda v: cast(bytes, v), lambda data: data),
}


def key_packing(kind: object, what: str) -> tuple[Packer, Unpacker]:
    """Return the encoder and the decoder of keys of a type.

    Args:
        kind: ``int``, ``float``, ``str`` or ``bytes``.
        what: Name of the state, for messages.

    Raises:
        DeclarationError: Keys cannot have this type.
    """
    found = _PACKERS.get(kind)
    if found is None:
        raise DeclarationError(f"{what}: keys cannot be {kind!r}; use int, float, str or bytes")
    wanted, pack, unpack = found

    def checked(value: object) -> bytes:
        if type(value) is not wanted:
            raise StateValueError(f"{what}: key {value!r} must be {wanted.__name__}")
        return pack(value)

    return checked, unpack
