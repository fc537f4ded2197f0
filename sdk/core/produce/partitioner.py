"""Which partition a record goes to: murmur2 of the key as in Kafka's own clients, else sticky.

Kafka's hash matters: records of one key must meet in one partition whichever client wrote them.
Records without a key stay with one partition for a batch's worth of bytes (KIP-480, KIP-794).
Randomness is an argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from onceflow.sdk.protocol.record_engine import kernel_in_use

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2.

    Args:
        data: The key.

    Returns:
        The hash as an unsigned number.
    """
    if kernel_in_use():
        from onceflow.sdk.protocol import record_kernel

        return record_kernel.murmur2(data)
    length = len(data)
    h = (_SEED ^ length) & _MASK
    words = length >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    tail = data[words << 2 :]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h = ((h ^ (h >> 13)) * _M) & _MASK
    return h ^ (h >> 15)


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """The partition that Kafka's own clients choose for a key.

    Args:
        key: The key's bytes.
        partition_count: Partitions of the topic, with or without a leader.

    Returns:
        A partition number.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def murmur2_partitions(
    keys: list[bytes | None], partition_count: int, keyless: int
) -> list[int] | None:
    """``murmur2_partition`` of many keys in machine code.

    Args:
        keys: The keys' bytes.
        partition_count: Partitions of the topic.
        keyless: What stands for the partition of records without a key.

    Returns:
        None where nothing was compiled: remembering keys is cheaper than their hashes then.
    """
    if not kernel_in_use():
        return None
    from onceflow.sdk.protocol import record_kernel

    return record_kernel.partitions_of(keys, partition_count, keyless)


class StickyPartition:
    """The partition that takes records without a key at the moment.

    Attributes:
        current: Its number.
    """

    __slots__ = ("_available", "_random", "current")

    def __init__(self, available: Sequence[int], random: Callable[[], float]) -> None:
        self._random = random
        self._available = tuple(available)
        self.current: int = self._pick(None)

    def update(self, available: Sequence[int]) -> None:
        """Take over the partitions that have a leader now."""
        self._available = tuple(available)
        if self.current not in self._available:
            self.current = self._pick(None)

    def switch(self) -> int:
        """Go to another partition if there is one, and return it."""
        self.current = self._pick(self.current)
        return self.current

    def _pick(self, unwanted: int | None) -> int:
        choice = [p for p in self._available if p != unwanted] or list(self._available)
        return choice[int(self._random() * len(choice))] if choice else 0
