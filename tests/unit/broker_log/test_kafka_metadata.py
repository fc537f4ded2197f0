"""Goal: a folder that was Apache Kafka's keeps what its topics were told, and its metadata log.

Method: records that Apache Kafka wrote (``vectors/kafka_metadata_records.json``) are laid out as
its log and its snapshots, whole and torn, and a broker is started on them.
"""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import NOW_MS

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.log import DataFolderError, MemoryStorage
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import control_batch, encode_batch

VECTORS = Path(__file__).parents[2] / "vectors" / "kafka_metadata_records.json"
RECORDS = [bytes.fromhex(text) for text in json.loads(VECTORS.read_text())]
FOLDER = "__cluster_metadata-0"
LOG = f"{FOLDER}/00000000000000000000.log"
TOLD = {
    "kept": {"cleanup.policy": "compact", "compression.type": "zstd"},
    "gone": {"retention.ms": "9"},  # The second topic of that name.
    "tiered": {"retention.bytes": "7"},
}


def batches(records: list[bytes], base_offset: int = 0) -> bytes:
    """Each record in a batch of its own, with a control batch in front, as Kafka's are."""
    parts = [bytes(control_batch(-1, -1, 0, True, base_offset=base_offset, timestamp_ms=NOW_MS,
                                 leader_epoch=1))]  # fmt: skip
    for number, value in enumerate(records, base_offset + 1):
        parts.append(bytes(encode_batch([(NOW_MS, None, value, [])], base_offset=number)))
    return b"".join(parts)


def folder(files: dict[str, bytes]) -> MemoryStorage:
    storage = MemoryStorage()
    storage.make_directory(FOLDER)
    for path, data in files.items():
        storage.replace(path, data)
    return storage


def opened(storage: MemoryStorage) -> BrokerState:
    return open_broker(storage, BrokerConfig(), random.Random(7), NOW_MS)


def told(state: BrokerState) -> dict[str, dict[str, str]]:
    names = [*TOLD, "plain"]
    found = {name: state.log_manager.topic_overrides(name) for name in names}
    return {name: settings for name, settings in found.items() if settings}


@pytest.mark.parametrize("cut", [0, 5, len(RECORDS)])
def test_settings_of_topics_are_taken_over_from_log_and_snapshot(cut: int) -> None:
    end = cut + 1
    files = {
        f"{FOLDER}/{0:020}-{0:010}.checkpoint": batches([]),
        f"{FOLDER}/{end:020}-{1:010}.checkpoint": batches(RECORDS[:cut]),
        f"{FOLDER}/{end + 9:020}-{1:010}.checkpoint.part": b"not whole",
        f"{FOLDER}/notes.checkpoint": b"somebody else's",
        # What the snapshot holds is still there too; it must not be taken twice.
        LOG: batches(RECORDS[:cut]),
        f"{FOLDER}/{end:020}.log": batches(RECORDS[cut:], end),
    }
    assert told(opened(folder(files))) == TOLD


def test_the_metadata_log_is_no_topic_and_is_left_as_it_was() -> None:
    storage = folder({LOG: batches(RECORDS)})
    state = opened(storage)
    assert state.topics.get("__cluster_metadata") is None
    with pytest.raises(TopicError) as refused:
        state.topics.create("__cluster_metadata", 1, {}, NOW_MS)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    state.log_manager.apply_retention(NOW_MS * 2)
    state.close(NOW_MS)
    assert storage.names(FOLDER) == {LOG.rpartition("/")[2]}
    assert storage.read_bytes(LOG) == batches(RECORDS)


def test_they_are_taken_over_once() -> None:
    storage = folder({LOG: batches(RECORDS)})
    state = opened(storage)
    state.log_manager.set_topic_overrides("kept", {"retention.ms": "1"})
    state.close(NOW_MS)
    assert told(opened(storage)) == {**TOLD, "kept": {"retention.ms": "1"}}


@given(damage=st.data())
def test_damaged_bytes_are_told_or_cut_and_never_anything_else(damage: st.DataObject) -> None:
    """Where the checksum holds the broken record is told; elsewhere the log ends there."""
    records = [bytearray(record) for record in RECORDS]
    for _ in range(damage.draw(st.integers(0, 2))):
        record = damage.draw(st.sampled_from(records))
        del record[damage.draw(st.integers(0, len(record))) :]
    log = bytearray(batches([bytes(record) for record in records]))
    for _ in range(damage.draw(st.integers(0, 3))):
        log[damage.draw(st.integers(0, len(log) - 1))] = damage.draw(st.integers(0, 255))
    with contextlib.suppress(DataFolderError):
        opened(folder({LOG: bytes(log)}))


def test_a_torn_end_is_left_out_and_a_malformed_record_is_told() -> None:
    whole = batches(RECORDS)
    for torn in (whole[:-3], whole + bytes(200), whole + b"\x07" * 200):
        assert set(told(opened(folder({LOG: torn})))) == set(TOLD)
    for record in (b"\x01\x04\x00\x02\x30ab", b"\x01\x02\x00\x02a123", b"\x01", b"\x01\x04\x00"):
        with pytest.raises(DataFolderError, match=r"__cluster_metadata-0.*topic-configs\.json"):
            opened(folder({LOG: batches([*RECORDS, record])}))
