"""Goal: the broker keeps its logs up by itself: topics that ask for it are compacted.

Method: a broker with a clock moved by hand, a topic of small segments, and keys that are written
again and again; readers look at what is left.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.testing import Broker, VirtualClock
from onceflow.sdk import Consumer, Producer, TopicPartition

ROUNDS = 12
KEYS = [b"a", b"b", b"c"]
STEPS_MAX = 500


def read(broker: Broker, topic: str) -> list[tuple[bytes, int]]:
    """Key and offset of every record that is there."""
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[tuple[bytes, int]] = []
        while consumer.position(partition) < end:
            for records in consumer.poll(timeout_ms=1_000).values():
                for record in records:
                    assert isinstance(record.key, bytes)
                    found.append((record.key, record.offset))
    return found


@pytest.mark.parametrize(("policy", "compacted"), [("compact", True), ("delete", False)])
def test_only_the_newest_records_of_a_compacted_topic_stay(policy: str, compacted: bool) -> None:
    clock = VirtualClock()
    with Broker(clock=clock) as broker:
        broker.create_topic(
            "table",
            configs={
                "cleanup.policy": policy,
                "segment.bytes": "1048576",
                "min.cleanable.dirty.ratio": "0.01",
            },
        )
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for _ in range(ROUNDS):
                for key in KEYS:
                    producer.send("table", bytes(100_000), key=key, timestamp_ms=clock())
                producer.flush()
        assert len(read(broker, "table")) == ROUNDS * len(KEYS)
        broker.advance(15_000)
        for _ in range(STEPS_MAX):
            broker.advance(1)
        left = read(broker, "table")
    newest = {key: max(o for k, o in left if k == key) for key in KEYS}
    assert sorted(newest.values()) == [33, 34, 35], "the newest record of each key is there"
    assert (len(left) < ROUNDS * len(KEYS) / 2) is compacted
