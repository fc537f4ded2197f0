"""Goal: records of consumer groups are Apache Kafka's, byte for byte, and a restart reads them.

Method: every record that Apache Kafka 4.4 wrote in some conversations (vectors) is read and written
again; what it left in the log is loaded as after a restart.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coordinator_bench import Bench, Disk

from onceflow.broker_lite.coordinators.consumer.records import (
    ConsumerKey,
    decode_change,
    encode_change,
)
from onceflow.broker_lite.coordinators.group_records import decode_key
from onceflow.broker_lite.coordinators.state_log import KeyValue
from onceflow.sdk.errors import RemoteProtocolError

VECTORS = Path(__file__).parents[2] / "vectors" / "kafka_group_records.jsonl"
RECORDS = [
    KeyValue(
        bytes.fromhex(line["key"]), None if line["value"] is None else bytes.fromhex(line["value"])
    )
    for line in map(json.loads, VECTORS.read_text().splitlines())
]


def test_records_are_written_as_apache_kafka_writes_them() -> None:
    kinds: set[int] = set()
    count = same = 0
    for record in RECORDS:
        key = decode_key(record.key)
        if isinstance(key, ConsumerKey):
            kinds.add(key.kind)
            change = decode_change(key, record.value)
            written = encode_change(key.group_id, change)
            assert written.key == record.key
            assert decode_change(key, written.value) == change
            # Of several topics Apache Kafka writes none first by any rule.
            assert sorted(written.value or b"") == sorted(record.value or b"")
            same += written.value == record.value
            count += 1
    assert count - same <= 3
    assert kinds == {3, 4, 5, 6, 7, 8, 16}


def load(records: list[KeyValue]) -> Bench:
    disk = Disk(1)
    for record in records:
        disk.offsets.append(0, [record], 0)
    return Bench(disk=disk)


def test_group_of_both_protocols_is_loaded() -> None:
    """Up to the moment when the new member was about to leave."""
    of_group = [r for r in RECORDS if b"GROUPS-p2" in r.key]
    end = next(n for n, r in enumerate(of_group) if r.value is None)
    bench = load(of_group[:end])
    found = bench.groups.admin.describe_consumer("GROUPS-p2")
    assert found is not None
    group = found.group
    assert (group.group_epoch, group.assignment_epoch, group.state.value) == (3, 3, "Stable")
    assert sorted(m.classic is None for m in group.members.values()) == [False, True]
    assert sorted(
        p for m in group.members.values() for parts in m.assigned.values() for p in parts
    ) == [0, 1, 2]
    assert len(group.offsets.committed) == 3


def test_groups_that_ended_are_gone_after_loading() -> None:
    bench = load(RECORDS)
    assert bench.groups.admin.list_groups() == []


@pytest.mark.parametrize("kind", [3, 5, 6, 7, 8, 16])
def test_values_that_are_none_are_refused(kind: int) -> None:
    for value in (b"\0\x63", b"\0\0\xff\xff", b"\0"):
        with pytest.raises(RemoteProtocolError):
            decode_change(ConsumerKey(kind, "g", "m"), value)
