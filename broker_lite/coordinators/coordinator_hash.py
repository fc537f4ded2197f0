"""Finds the partition of an internal topic for a group or a transactional id.

The rule is Kafka's, and tools that read the internal topics rely on it: Java's ``String.hashCode``
(multiplier 31 over UTF-16 code units, 32-bit wrap), its absolute value with ``abs(MIN_INT) == 0``,
modulo the number of partitions.
"""

from __future__ import annotations

import struct
from functools import lru_cache


def java_string_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of a text as a signed 32-bit number.

    Args:
        text: Any string; characters above U+FFFF count as two UTF-16 code units (trap 51).
    """
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (value * 31 + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(maxsize=4096)
def coordinator_partition(key: str, partition_count: int) -> int:
    """Return the partition of the internal topic for a key.

    Args:
        key: Group id or transactional id.
        partition_count: Partitions of the internal topic, at least 1.
    """
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
