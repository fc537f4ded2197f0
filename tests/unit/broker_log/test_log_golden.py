"""Goal: files that Apache Kafka wrote are read as Kafka reads them, and rebuilt byte for byte.

Method: ``tests/vectors/kafka_partition_folder.json`` holds a partition folder of a real broker. It
is opened as it is, and with its indexes gone as after a crash; then every file is compared.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from log_batches import NOW_MS, read_all

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition

VECTOR = Path(__file__).parents[2] / "vectors" / "kafka_partition_folder.json"
FILES = {
    name: bytes.fromhex(text) for name, text in json.loads(VECTOR.read_text())["files"].items()
}
CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=100_000)


def kafka_folder() -> MemoryStorage:
    storage = MemoryStorage()
    storage.make_directory("t-0")
    storage.content["t-0"] = {name: bytearray(data) for name, data in FILES.items()}
    return storage


def open_it(storage: MemoryStorage, *, clean: bool) -> PartitionLog:
    return PartitionLog(storage, TopicPartition("t", 0), CONFIG, now_ms=NOW_MS, clean=clean)


@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_kafka_is_understood(clean: bool) -> None:
    log = open_it(kafka_folder(), clean=clean)
    end = log.log_end_offset
    assert f"{end:020d}.snapshot" in FILES
    assert log.last_stable_offset == end - 1
    values = [value for _, value in read_all(log)]
    committed = [value for _, value in read_all(log, isolation_level=IsolationLevel.READ_COMMITTED)]
    assert values.count(b"value 3") == 4
    assert committed.count(b"value 3") == 2
    assert values.count(b"other 3") == committed.count(b"other 3") == 4
    assert b"open" in values
    assert b"open" not in committed
    assert len(log.producers()) == 2


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_indexes_built_from_the_log_are_those_of_kafka(suffix: str) -> None:
    """Trap 79: the offset index names the last offset of a batch."""
    storage = kafka_folder()
    for name in list(storage.content["t-0"]):
        if name.endswith(suffix):
            del storage.content["t-0"][name]
    open_it(storage, clean=False).close()
    expected = {name: data for name, data in FILES.items() if name.endswith(suffix)}
    assert expected
    for name, data in expected.items():
        assert bytes(storage.content["t-0"][name]) == data


def test_a_clean_stop_leaves_kafkas_files_as_they_were() -> None:
    storage = kafka_folder()
    open_it(storage, clean=True).close()
    left = {name: bytes(data) for name, data in storage.content["t-0"].items()}
    extra = [name for name in left if name not in FILES]
    assert all(name.endswith(".producers5") for name in extra)
    assert {name: left[name] for name in FILES} == FILES


def test_the_snapshot_derived_from_the_log_holds_what_kafkas_does() -> None:
    storage = kafka_folder()
    name = next(name for name in FILES if name.endswith(".snapshot"))
    del storage.content["t-0"][name]
    open_it(storage, clean=False).close()
    rebuilt = bytes(storage.content["t-0"][name])
    assert sorted(rows_of(rebuilt)) == sorted(rows_of(FILES[name]))


def rows_of(snapshot: bytes) -> list[bytes]:
    return [snapshot[at : at + 46] for at in range(10, len(snapshot), 46)]
