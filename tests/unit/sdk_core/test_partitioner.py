"""Goal: records of one key go where Kafka's own clients send them; those without a key move on.

Method: hashes published with Kafka's client tests, a foreign implementation on random keys, and
the sticky choice with a scripted source of randomness.
"""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import murmur2 as foreign_murmur2

from onceflow.sdk import murmur2_partition
from onceflow.sdk.core.produce.key_hash import murmur2
from onceflow.sdk.core.produce.partitioner import StickyPartition

KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), KAFKA_VECTORS)
def test_murmur2_matches_kafkas_published_hashes(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_murmur2_matches_a_foreign_implementation_for_every_length() -> None:
    source = random.Random(5)
    for length in range(70):
        key = source.randbytes(length)
        assert murmur2(key) == foreign_murmur2(key) & 0xFFFFFFFF


def test_the_partition_is_the_positive_hash_modulo_the_count() -> None:
    assert murmur2_partition(b"foobar", 10) == (-790332482 & 0x7FFFFFFF) % 10


def test_sticky_switches_to_another_partition() -> None:
    sticky = StickyPartition([0, 1, 2], random=lambda: 0.0)
    assert sticky.current == 0
    assert sticky.switch() == 1
    assert sticky.switch() == 0


def test_sticky_stays_where_there_is_only_one() -> None:
    sticky = StickyPartition([4], random=lambda: 0.9)
    assert sticky.switch() == 4


def test_sticky_leaves_a_partition_that_lost_its_leader() -> None:
    sticky = StickyPartition([0, 1], random=lambda: 0.0)
    sticky.update([1])
    assert sticky.current == 1
    sticky.update([0, 1])
    assert sticky.current == 1
