"""Kafka's hash of a key, murmur2: plain Python that mypyc may compile.

All clients must choose the same partition for a key, so the hash is that of Kafka's own clients.
`partitioner` chooses the partition of records without a key.

Compiled code computes a hash faster than a look-up in a cache, so it has none. Plain Python takes
ten times as long, so it caches a bounded number of short keys.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import read_i32_le
from mypy_extensions import i64

COMPILED: Final = not __file__.endswith(".py")
"""Whether this module is compiled."""

REMEMBERED_KEYS_MAX: Final = 16_384
"""Most keys whose hash plain Python caches in a process: some megabytes."""
REMEMBERED_BYTES_MAX: Final = 64
"""Longest key whose hash is cached."""
_SEED: Final = 0x9747_B28C
_FACTOR: Final = 0x5BD1_E995
_MASK: Final = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of a key.

    Args:
        data: The key.

    Returns:
        The hash as an unsigned number.
    """
    return _murmur2(data) if COMPILED else _murmur2_remembered(data)


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """Return the partition that Kafka's own clients choose for a key.

    Args:
        key: The key's bytes.
        partition_count: Partitions of the topic, with or without a leader.

    Returns:
        A partition number.
    """
    if COMPILED:
        hashed: i64 = _murmur2(key)
        return (hashed & 0x7FFF_FFFF) % partition_count
    found = _remembered.get(key)
    if found is None:
        found = _murmur2_remembered(key)
    return (found & 0x7FFF_FFFF) % partition_count


def murmur2_partitions(keys: list[bytes | None], partition_count: i64, keyless: i64) -> list[int]:
    """Return the partition of each key, as `murmur2_partition` does.

    Args:
        keys: The keys' bytes.
        partition_count: Partitions of the topic.
        keyless: Number to return for records without a key.
    """
    found: list[int] = []
    if not COMPILED:
        for key, known in zip(keys, map(_remembered.get, keys), strict=True):
            if known is not None:
                found.append((known & 0x7FFF_FFFF) % partition_count)
            elif key is None:
                found.append(keyless)
            else:
                found.append((_murmur2_remembered(key) & 0x7FFF_FFFF) % partition_count)
        return found
    for key in keys:
        if key is None:
            found.append(keyless)
        else:
            hashed: i64 = _murmur2(key)
            found.append((hashed & 0x7FFF_FFFF) % partition_count)
    return found


def _murmur2(data: bytes) -> i64:
    """Read the key word by word, without making objects."""
    length: i64 = len(data)
    mask: i64 = _MASK
    factor: i64 = _FACTOR
    h: i64 = _SEED ^ length
    at: i64 = 0
    while at + 4 <= length:
        k: i64 = i64(read_i32_le(data, at)) & mask
        k = (k * factor) & mask
        k = ((k ^ (k >> 24)) * factor) & mask
        h = ((h * factor) & mask) ^ k
        at += 4
    if at < length:
        tail: i64 = 0
        shift: i64 = 0
        while at < length:
            byte: i64 = data[at]
            tail |= byte << shift
            shift += 8
            at += 1
        h = ((h ^ tail) * factor) & mask
    h = ((h ^ (h >> 13)) * factor) & mask
    return h ^ (h >> 15)


_remembered: dict[bytes | None, int] = {}


def _murmur2_remembered(data: bytes) -> int:
    """Return the hash by plain Python, cached for a short key."""
    found = _remembered.get(data)
    if found is None:
        found = _murmur2_plain(data)
        if len(data) <= REMEMBERED_BYTES_MAX:
            if len(_remembered) >= REMEMBERED_KEYS_MAX:
                _remembered.clear()
            _remembered[data] = found
    return found


def _murmur2_plain(data: bytes) -> int:
    """Unpack all words at once, which takes the interpreter fewer steps."""
    h = _SEED ^ len(data)
    words = len(data) >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _FACTOR) & _MASK
        k = ((k ^ (k >> 24)) * _FACTOR) & _MASK
        h = ((h * _FACTOR) & _MASK) ^ k
    tail = data[words << 2 :]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _FACTOR) & _MASK
    h = ((h ^ (h >> 13)) * _FACTOR) & _MASK
    return h ^ (h >> 15)
