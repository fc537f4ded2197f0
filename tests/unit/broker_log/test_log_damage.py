"""Goal: damage below the recovery point, which a start does not look for, costs nobody a record in
silence: readers of what is gone get an error that names the file, all others what they asked for.

Method: closed segments of which single fields are changed, cut or swapped, read offset by offset
and as a consumer reads. Found by ``tests/properties/test_fuzz_files.py``, seeds 79 to 253.
"""

from __future__ import annotations

import logging

import pytest
from broker_state import SocketlessBroker
from filled_folder import filled
from log_batches import NOW_MS, PARTITION, batch, open_log, read_all

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog, ReadError
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.records import parse_batch_header

COUNT = 50
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def closed(config: LogConfig = SMALL) -> tuple[MemoryStorage, dict[str, bytearray], list[str]]:
    """A stopped log of single records; its files, and the names of its segments."""
    storage = MemoryStorage()
    log = open_log(storage, config)
    for number in range(COUNT):
        log.append(batch(b"%d" % number, timestamp_ms=NOW_MS + number), now_ms=NOW_MS)
    log.close()
    files = storage.content[str(PARTITION)]
    return storage, files, sorted(name for name in files if name.endswith(".log"))


def opened(storage: MemoryStorage) -> PartitionLog:
    return open_log(storage, SMALL, recovery_point=COUNT)


def errors(log: PartitionLog) -> dict[int, str]:
    """Offsets that cannot be read, with the error; every other one gives its record."""
    found = {}
    for offset in range(COUNT):
        try:
            records = log.read(offset, 1).records
        except ReadError as error:
            found[offset] = str(error)
        else:
            assert parse_batch_header(records).base_offset == offset
    assert all(text.startswith("CORRUPT_MESSAGE: ") for text in found.values())
    return found


@pytest.mark.parametrize("field", [0, 4])
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_no_bit_of_an_index_makes_a_reader_miss_a_record(field: int, max_bytes: int) -> None:
    """Apache Kafka takes what an index says."""
    for bit in range(0, 32, 5):
        storage, files, names = closed()
        data = files[names[1].replace(".log", ".index")]
        assert len(data) >= 32
        for entry in (0, 8, len(data) - 8):
            data[entry + field + bit // 8] ^= 1 << bit % 8
        log = opened(storage)
        assert [value for _, value in read_all(log, max_bytes=max_bytes)] == [
            b"%d" % number for number in range(COUNT)
        ]
        for offset in range(COUNT):
            records = log.read(offset, max_bytes).records
            assert parse_batch_header(records).base_offset == offset


@pytest.mark.parametrize("left", [1, 42, 43, 60, 61, 65])
def test_the_lost_end_of_a_closed_segment_is_told_to_its_readers(left: int) -> None:
    storage, files, names = closed()
    first, following = int(names[1][:20]), int(names[2][:20])
    size = len(files[names[1]]) // (following - first)
    del files[names[1]][(following - 1 - first) * size + left :]
    found = errors(opened(storage))
    assert set(found) == {following - 1}
    assert all(names[1] in message or "header" in message for message in found.values())


def test_a_consumer_that_comes_to_a_lost_end_is_told() -> None:
    storage, files, names = closed()
    del files[names[1]][-5:]
    log = opened(storage)
    before = int(names[2][:20]) - 2
    log.read(before, 70)
    with pytest.raises(ReadError, match=names[1]):
        log.read(before + 1, 1 << 20)


def test_offsets_that_cannot_be_in_a_segment_are_no_record_of_it() -> None:
    """The base offset of a batch is outside of its checksum, and of what Apache Kafka compares."""
    storage, files, names = closed()
    first = int(names[1][:20])
    files[names[1]][3] ^= 0x10
    found = errors(opened(storage))
    assert first in found
    assert all(names[1] in message for message in found.values())


def test_segments_in_each_others_place_are_told() -> None:
    storage, files, names = closed()
    files[names[1]], files[names[2]] = files[names[2]], files[names[1]]
    found = errors(opened(storage))
    assert set(found) == set(range(int(names[1][:20]), int(names[3][:20])))


def test_a_cut_after_a_stop_in_order_is_found_and_the_log_goes_on() -> None:
    storage, files, names = closed(LogConfig())
    del files[names[-1]][-5:]
    log = open_log(storage, recovery_point=COUNT)
    assert log.log_end_offset == COUNT - 1
    log.append(batch(b"new"), now_ms=NOW_MS)
    assert [value for _, value in read_all(log)][-2:] == [b"%d" % (COUNT - 2), b"new"]


def test_an_emptied_segment_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    storage, files, names = closed()
    files[names[1]].clear()
    with caplog.at_level(logging.WARNING):
        opened(storage)
    assert any(names[1] in message for message in caplog.messages)


def test_a_cut_transaction_log_starts_and_a_cut_closed_one_is_named() -> None:
    """The start of the first one never ended."""
    broker = filled()
    storage = broker.state.log_manager._storage
    assert isinstance(storage, MemoryStorage)
    broker.close()
    name = "00000000000000000000.log"
    folder = next(
        folder
        for folder, files in storage.content.items()
        if folder.startswith("__transaction_state") and files.get(name)
    )
    del storage.content[folder][name][-5:]
    SocketlessBroker(storage=storage).close()
    files = storage.content[folder]
    files["00000000000000000900.log"] = bytearray()
    files["00000000000000000900.index"] = bytearray()
    files["00000000000000000900.timeindex"] = bytearray()
    del files[name][-5:]
    with pytest.raises(KafkaError, match=f"{folder}.*(restore|remove)"):
        SocketlessBroker(storage=storage)


def test_a_damaged_setting_of_a_topic_is_told_with_the_file() -> None:
    broker = filled()
    storage = broker.state.log_manager._storage
    assert isinstance(storage, MemoryStorage)
    broker.close()
    data = storage.content[""]["topic-configs.json"]
    data[:] = bytes(data).replace(b'"100"', b'"1x0"')
    with pytest.raises(KafkaError, match=r"topic-configs\.json.*topic t.*index\.interval\.bytes"):
        SocketlessBroker(storage=storage)
