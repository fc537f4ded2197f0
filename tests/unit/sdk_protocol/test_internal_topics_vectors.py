"""Goal: records of `__consumer_offsets` and `__transaction_state` are byte for byte Kafka's.

Method: every layout and version that Kafka 4.4.0's classes wrote (`tests/vectors`) is decoded, its
values compared, and encoded again.
"""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.internal_topics import (
    VERSION_SIZE,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    encode_with_version,
    read_version,
)
from onceflow.sdk.protocol.schema import Message

VECTORS = {
    name: bytes.fromhex(text)
    for name, text in json.loads(
        (Path(__file__).parents[2] / "vectors" / "kafka_records.json").read_text()
    ).items()
}
T = 1700000000000


def offset_value(version: int) -> Message:
    value = OffsetCommitValue(offset=42, metadata="méta", commit_timestamp=T)
    if version >= 3:
        value.leader_epoch = 6
    if version == 1:
        value.expire_timestamp = T + 99999
    if version >= 4:
        value.topic_id = UUID("01234567-89ab-cdef-1122-334455667788")
    return value


def group_value(version: int) -> Message:
    member = GroupMetadataValue.MemberMetadata(
        member_id="member-1",
        client_id="client",
        client_host="/127.0.0.1",
        session_timeout=45000,
        subscription=b"\x00\x01\x02",
        assignment=b"\x03",
    )
    if version >= 1:
        member.rebalance_timeout = 300000
    if version >= 3:
        member.group_instance_id = "instance"
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=8,
        protocol="range",
        leader="member-1",
        members=[member],
    )
    if version >= 2:
        value.current_state_timestamp = T
    return value


def transaction_value(version: int) -> Message:
    value = TransactionLogValue(
        producer_id=4000,
        producer_epoch=7,
        transaction_timeout_ms=60000,
        transaction_status=1,
        transaction_partitions=[
            TransactionLogValue.PartitionsSchema(topic="topic", partition_ids=[0, 5])
        ],
        transaction_last_update_timestamp_ms=T,
        transaction_start_timestamp_ms=T - 1000,
    )
    if version >= 1:
        value.previous_producer_id = 3999
        value.next_producer_id = 4001
        value.client_transaction_version = 2
    return value


def expected() -> dict[str, tuple[Message, int]]:
    messages: dict[str, tuple[Message, int]] = {
        "OffsetCommitKey v1": (OffsetCommitKey(group="group", topic="topic", partition=3), 1),
        "GroupMetadataKey v2": (GroupMetadataKey(group="group"), 2),
        "TransactionLogKey v0": (TransactionLogKey(transactional_id="tx-1"), 0),
        "GroupMetadataValue empty v3": (
            GroupMetadataValue(
                protocol_type="consumer",
                generation=9,
                protocol=None,
                leader=None,
                current_state_timestamp=1,
                members=[],
            ),
            3,
        ),
    }
    for version in range(5):
        messages[f"OffsetCommitValue v{version}"] = (offset_value(version), version)
        messages[f"GroupMetadataValue v{version}"] = (group_value(version), version)
    for version in range(2):
        messages[f"TransactionLogValue v{version}"] = (transaction_value(version), version)
        empty = TransactionLogValue(
            producer_id=4000,
            producer_epoch=0,
            transaction_timeout_ms=60000,
            transaction_status=0,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=T,
            transaction_start_timestamp_ms=-1,
        )
        messages[f"TransactionLogValue empty v{version}"] = (empty, version)
    return messages


def test_every_vector_has_its_message() -> None:
    names = {n for n in VECTORS if n.startswith(("OffsetCommit", "GroupMeta", "TransactionLog"))}
    assert names == set(expected())


@pytest.mark.parametrize("name", expected())
def test_a_record_is_written_and_read_as_kafka_does(name: str) -> None:
    message, version = expected()[name]
    data = VECTORS[name]
    assert read_version(data) == version
    assert type(message).decode(data, version, VERSION_SIZE) == (message, len(data))
    assert encode_with_version(message, version) == data


def test_a_record_shorter_than_its_version_is_refused() -> None:
    for data in (b"", b"\x00"):
        with pytest.raises(RemoteProtocolError, match="shorter"):
            read_version(data)
