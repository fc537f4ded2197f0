"""Goal: our record batches and Apache Kafka's are the same bytes with the same meaning.

Method: batches that Kafka 4.4.0's own classes wrote (`tests/vectors/kafka_records.json`) are read
with every codec; those without compression, and transaction markers, are also rebuilt byte by byte.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.records import (
    Codec,
    ControlType,
    consumer_records,
    control_batch,
    decode_batch,
    decode_values,
    encode_batch,
    parse_batch_header,
    parse_control_batch,
    validate_batch,
)

VECTORS = {
    name: bytes.fromhex(text)
    for name, text in json.loads(
        (Path(__file__).parents[2] / "vectors" / "kafka_records.json").read_text()
    ).items()
}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (1700000000000, b"key", b"value", []),
    (1700000000005, None, "ünïcode ✓".encode(), [("trace", b"abc"), ("none", None)]),
    (1699999999999, b"gone", None, []),
    (1700000000100, b"", b"", [("", b"")]),
]


@pytest.mark.parametrize("codec", CODECS)
def test_kafkas_batches_are_read_with_every_codec(codec: str) -> None:
    data = VECTORS[f"batch {codec}"]
    found = [(r.timestamp, r.key, r.value, r.headers) for r in decode_batch(data)]
    assert found == RECORDS
    assert decode_values(data) == [value for _, _, value, _ in RECORDS]
    assert parse_batch_header(data).codec == Codec[codec.upper()]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_kafkas_batches_of_several_compressed_blocks_are_read(codec: str) -> None:
    records = decode_batch(VECTORS[f"large {codec}"])
    assert [record.offset for record in records] == list(range(300))
    assert [record.key for record in records] == [b"key-%d" % i for i in range(300)]
    assert [record.value for record in records] == [b"%d" % (i % 7) * 300 for i in range(300)]


@pytest.mark.parametrize("name", [n for n in VECTORS if n.startswith(("batch", "large"))])
def test_kafkas_batches_pass_our_validation(name: str) -> None:
    valid = validate_batch(VECTORS[name])
    assert valid.max_timestamp == valid.header.max_timestamp


def test_a_plain_batch_is_written_as_kafka_writes_it() -> None:
    assert encode_batch(RECORDS) == VECTORS["batch none"]


def test_a_transactional_batch_is_written_as_kafka_writes_it() -> None:
    ours = encode_batch(
        RECORDS,
        producer_id=4000,
        producer_epoch=7,
        base_sequence=2147483646,
        transactional=True,
    )
    assert ours == VECTORS["batch transactional"]
    header = parse_batch_header(ours)
    assert header.is_transactional
    assert header.last_sequence == 1  # 2147483646, 2147483647, 0, 1


@pytest.mark.parametrize("outcome", list(ControlType))
def test_a_marker_is_written_as_kafka_writes_it(outcome: ControlType) -> None:
    marker = control_batch(
        4000,
        7,
        9,
        outcome is ControlType.COMMIT,
        base_offset=1234,
        timestamp_ms=1700000000000,
        leader_epoch=5,
    )
    assert len(marker) == 78
    assert marker == VECTORS[f"marker {outcome.name.lower()}"]


@pytest.mark.parametrize("outcome", list(ControlType))
def test_kafkas_markers_are_read(outcome: ControlType) -> None:
    control = parse_control_batch(VECTORS[f"marker {outcome.name.lower()}"])
    assert (control.type, control.coordinator_epoch) == (outcome, 9)
    assert control.is_commit is (outcome is ControlType.COMMIT)
    assert control.is_abort is (outcome is ControlType.ABORT)


def test_a_consumer_gets_every_attribute_of_a_record() -> None:
    data = bytearray(encode_batch(RECORDS, base_offset=100, leader_epoch=6))
    records = consumer_records(data, parse_batch_header(data), 0, "topic", 2)
    second = records[1]
    assert [record.offset for record in records] == [100, 101, 102, 103]
    assert (second.topic, second.partition, second.leader_epoch) == ("topic", 2, 6)
    assert (second.key, second.value) == (None, "ünïcode ✓".encode())
    assert list(second.headers) == [("trace", b"abc"), ("none", None)]
    assert second.timestamp_ms == 1700000000005
    assert second.timestamp_type is TimestampType.CREATE_TIME
