"""Bytes of keys whose order is the order of what they stand for.

A store is an ordered map of bytes, so that ranges are reads of neighbours. Numbers, text and tuples
become bytes that sort as they do; a part of a composite key is closed by a terminator, so that
everything of one record key lies together and in front of the next key.
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
    """A part of a composite key: no closed part is the beginning of another one."""
    return part.replace(b"\x00", _ZERO) + _CLOSED


def split(key: bytes) -> tuple[bytes, bytes]:
    """The first part of a composite key, and the rest behind its terminator."""
    at = key.index(b"\x00")
    while key[at + 1] != 0:  # A zero within the part has 0xff behind it.
        at = key.index(b"\x00", at + 2)
    return key[:at].replace(_ZERO, b"\x00"), key[at + 2 :]


def after(prefix: bytes) -> bytes | None:
    """The end of the range of keys that begin with a prefix; None when there is none above."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def pack_int(value: int) -> bytes:
    """Eight bytes that sort as the numbers do, from -2^63 to 2^63 - 1.

    Raises:
        StateValueError: The number is outside of these.
    """
    if not -_TOP <= value < _TOP:
        raise StateValueError(f"{value} as part of a key: must be from -2^63 to 2^63 - 1")
    return (value + _TOP).to_bytes(8)


def unpack_int(data: bytes) -> int:
    """The number of ``pack_int``."""
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
    """How keys of a type become bytes and come back.

    Args:
        kind: ``int``, ``float``, ``str`` or ``bytes``.
        what: What has the keys, for messages.

    Raises:
        DeclarationError: The type has no order of bytes here.
    """
    found = _PACKERS.get(kind)
    if found is None:
        raise DeclarationError(f"{what}: keys of type {kind!r}; use int, float, str or bytes")
    wanted, pack, unpack = found

    def checked(value: object) -> bytes:
        if type(value) is not wanted:
            raise StateValueError(f"{what}: {value!r} as key: must be {wanted.__name__}")
        return pack(value)

    return checked, unpack
