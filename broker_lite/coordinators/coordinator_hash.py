"""Which partition of an internal topic a group or a transactional id belongs to.

The rule is Kafka's and is visible to tools that read the internal topics: Java's
``String.hashCode`` (31-multiplier over UTF-16 code units, 32-bit wrap), its absolute value with
``abs(MIN_INT) == 0``, modulo the number of partitions. Nothing else is decided here.
"""

from __future__ import annotations

import struct
from functools import lru_cache


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode`` of ``text`` as a signed 32-bit number.

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
    """Partition of the internal topic that holds ``key``.

    Args:
        key: Group id or transactional id.
        partition_count: Partitions of the internal topic, at least 1.
    """
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partition_count
