"""Goal: whatever write a crash interrupts, the next start finds everything appended before it.

Method: a run on a storage that records each change of the folder. For every prefix of the changes,
with the next one left out, cut, or half done, the folder is opened as after a crash and compared
with a model of the same prefix: records, transactions, committed view, deduplication.
"""

from __future__ import annotations

import random
import uuid

import pytest
from log_batches import NOW_MS, PARTITION, batch, idempotent, open_log, read_all
from log_model import ModelDriver, ModelLog

from onceflow.broker_lite.log import AppendError, LogConfig, LogManager, MemoryStorage, PartitionLog
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage, StorageStoppedError
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.error_codes import ErrorCode

SMALL = LogConfig(segment_bytes=2500, index_interval_bytes=200)
COMMITTED = IsolationLevel.READ_COMMITTED
TOPIC_ID = uuid.UUID(int=77)


def manager_on(storage: MemoryStorage | FailingStorage) -> LogManager:
    ids = random.Random(1)
    return LogManager(
        storage,
        NOW_MS,
        new_uuid=lambda: uuid.UUID(int=ids.getrandbits(128)),
        config_for=lambda overrides: SMALL,
    )


def recorded_run(seed: int, steps: int) -> tuple[FailingStorage, ModelLog, list[int]]:
    """A run, and for each border of the model the count of changes when it was reached."""
    storage = FailingStorage()
    manager = manager_on(storage)
    log = manager.create_partition("orders", TOPIC_ID, 0, SMALL, now_ms=NOW_MS)
    driver = ModelDriver(seed, producers=3)
    reached = [len(storage.writes)]
    for number in range(steps):
        driver.step(log)
        reached += [len(storage.writes)] * (len(driver.model.borders) - len(reached))
        if number % 17 == 16:
            manager.checkpoint(NOW_MS)
    manager.close(clean=True)
    return storage, driver.model, reached


def check_recovered(log: PartitionLog, model: ModelLog, least_end: int) -> None:
    end = log.log_end_offset
    assert end >= least_end, "records that were appended before the crash are missing"
    assert end in model.borders, "half a batch survived"
    expected = [entry for entry in model.uncommitted_view(0) if entry[0] < end]
    assert read_all(log) == expected
    assert log.last_stable_offset == model.last_stable_offset(end)
    committed = read_all(log, isolation_level=COMMITTED)
    assert committed == model.committed_view(0, end)
    for transaction in model.transactions:
        if transaction.first_offset < end <= transaction.marker_offset:
            assert log.has_open_transaction(transaction.producer_id)
    result = log.append(batch(b"after"), now_ms=NOW_MS)
    assert result.base_offset == end
    assert read_all(log, end) == [(end, b"after")]


@pytest.mark.parametrize("seed", range(3))
def test_every_interrupted_write_leaves_a_log_with_all_that_came_before(seed: int) -> None:
    """Trap 75."""
    storage, model, reached = recorded_run(seed, steps=70)
    for count in range(reached[0], len(storage.writes)):
        size = len(storage.writes[count].data)
        torn = {None, 1, size // 2, size - 1} if size > 1 else {None}
        least_end = max(
            border for border, at in zip(model.borders, reached, strict=True) if at <= count
        )
        for torn_bytes in torn:
            disk = storage.disk_after(count, torn_bytes=torn_bytes)
            log = manager_on(disk).partition("orders", 0)
            assert log is not None
            check_recovered(log, model, least_end)


def test_a_clean_stop_needs_no_check_and_a_crash_while_starting_again_loses_nothing() -> None:
    storage, model, _ = recorded_run(5, steps=60)
    disk = storage.disk_after(len(storage.writes))
    again = FailingStorage(disk)
    manager = manager_on(again)
    assert manager.clean_start
    manager.close(clean=False)
    for count in range(len(again.writes) + 1):
        log = manager_on(again.disk_after(count)).partition("orders", 0)
        assert log is not None
        check_recovered(log, model, model.end_offset)


@pytest.mark.parametrize("seed", range(4))
def test_a_power_loss_costs_only_what_was_not_synced(seed: int) -> None:
    storage, model, reached = recorded_run(10 + seed, steps=70)
    chance = random.Random(seed)
    for count in range(reached[0], len(storage.writes), 3):
        disk = storage.lost_power_after(count, lambda unsynced: chance.randint(0, unsynced))
        synced = [
            write
            for write in storage.writes[:count]
            if write.change is Change.REPLACE and write.path == "recovery-point-offset-checkpoint"
        ]
        least_end = (
            int(synced[-1].data.split()[-1]) if synced and b"orders" in synced[-1].data else 0
        )
        log = manager_on(disk).partition("orders", 0)
        assert log is not None
        check_recovered(log, model, least_end)


def test_flush_messages_1_survives_a_power_loss() -> None:
    storage = FailingStorage()
    log = open_log(storage, LogConfig(flush_messages=1))
    for number in range(5):
        log.append(idempotent(number, b"v%d" % number), now_ms=NOW_MS)
    disk = storage.lost_power_after(len(storage.writes), lambda unsynced: 0)
    assert len(read_all(open_log(disk, clean=False))) == 5


def test_the_window_of_five_batches_survives_a_clean_stop_and_a_crash() -> None:
    """Trap 74."""
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    sent = [idempotent(number, b"x" * 300) for number in range(30)]
    offsets = [log.append(data, now_ms=NOW_MS).base_offset for data in sent]
    for clean in (True, False, True):
        log.close(clean)
        log = open_log(storage, SMALL, clean=clean)
        for data, offset in zip(sent[-5:], offsets[-5:], strict=True):
            result = log.append(data, now_ms=NOW_MS)
            assert (result.base_offset, result.duplicate) == (offset, True)
        with pytest.raises(AppendError) as refused:
            log.append(sent[-6], now_ms=NOW_MS)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_folder_that_kafka_stopped_has_a_window_of_one() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    sent = [idempotent(number, b"x") for number in range(5)]
    for data in sent:
        log.append(data, now_ms=NOW_MS)
    log.close()
    for name in list(storage.files(str(PARTITION))):
        if name.endswith(".producers5"):
            storage.remove(f"{PARTITION}/{name}")
    log = open_log(storage)
    assert log.append(sent[-1], now_ms=NOW_MS).duplicate
    with pytest.raises(AppendError):
        log.append(sent[-2], now_ms=NOW_MS)


def test_a_torn_tail_begins_a_new_leader_epoch() -> None:
    storage = FailingStorage()
    log = open_log(storage)
    log.append(batch(b"a"), now_ms=NOW_MS)
    log.append(batch(b"b"), now_ms=NOW_MS)
    last = len(storage.writes) - 1
    log = open_log(storage.disk_after(last, torn_bytes=20), clean=False)
    assert (log.log_end_offset, log.leader_epoch) == (1, 1)
    assert log.end_offset_for_epoch(0) == (0, 1)
    log.append(batch(b"c"), now_ms=NOW_MS)
    assert log.end_offset_for_epoch(1) == (1, 2)


@pytest.mark.parametrize("written_bytes", [0, 1, 40, 200])
def test_a_full_disk_refuses_one_append_and_nothing_else(written_bytes: int) -> None:
    storage = FailingStorage()
    log = open_log(storage)
    log.append(batch(b"a"), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes), written_bytes=written_bytes)
    with pytest.raises(AppendError) as refused:
        log.append(batch(b"b" * 300), now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.log_end_offset, log.high_watermark) == (1, 1)
    log.append(batch(b"c"), now_ms=NOW_MS)
    assert read_all(log) == [(0, b"a"), (1, b"c")]
    log.close()
    log = open_log(storage.inner)
    assert read_all(log) == [(0, b"a"), (1, b"c")]


def test_a_failed_write_at_the_end_is_cut_by_a_clean_stop() -> None:
    storage = FailingStorage()
    log = open_log(storage)
    log.append(batch(b"a"), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes), written_bytes=90)
    with pytest.raises(AppendError):
        log.append(batch(b"b" * 300), now_ms=NOW_MS)
    log.close()
    assert read_all(open_log(storage.inner)) == [(0, b"a")]


def test_an_abort_marker_that_readers_could_not_be_told_of_takes_the_log_offline() -> None:
    storage = FailingStorage()
    log = open_log(storage)
    log.append(idempotent(0, b"a", transactional=True), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes) + 1)
    with pytest.raises(AppendError) as refused:
        log.append_control(7, 0, 0, False, NOW_MS)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed
    with pytest.raises(AppendError, match="offline"):
        log.append(batch(b"b"), now_ms=NOW_MS)
    log.close(clean=False)
    log = open_log(storage.inner, clean=False)
    assert read_all(log, isolation_level=COMMITTED) == []
    assert log.last_stable_offset == 2


def test_a_stopped_storage_refuses_everything_after() -> None:
    storage = FailingStorage()
    log = open_log(storage)
    storage.stop_at(len(storage.writes), written_bytes=3)
    with pytest.raises(AppendError):
        log.append(batch(b"a"), now_ms=NOW_MS)
    with pytest.raises(StorageStoppedError):
        storage.directories()
    assert len(storage.inner.content[str(PARTITION)]["00000000000000000000.log"]) == 3


def test_damage_in_the_middle_cuts_there_and_drops_later_segments() -> None:
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for number in range(40):
        log.append(batch(b"%d" % number * 100), now_ms=NOW_MS)
    log.close(clean=False)
    files = storage.content[str(PARTITION)]
    names = sorted(name for name in files if name.endswith(".log"))
    assert len(names) > 3
    files[names[1]][300] ^= 1
    log = open_log(storage, SMALL, clean=False)
    border = log.log_end_offset
    assert int(names[1][:20]) <= border < int(names[2][:20])
    assert [name for name in sorted(files) if name.endswith(".log")] == names[:2]
    assert len(read_all(log)) == border


def test_a_log_that_lost_everything_begins_again_at_its_start_offset() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    for number in range(10):
        log.append(batch(b"%d" % number), now_ms=NOW_MS)
    log.close(clean=False)
    del storage.content[str(PARTITION)]["00000000000000000000.log"][:]
    log = open_log(storage, clean=False, log_start_offset=6)
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert log.append(batch(b"x"), now_ms=NOW_MS).base_offset == 6


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd", "zeros"])
def test_damaged_indexes_are_built_anew_even_after_a_clean_stop(suffix: str, damage: str) -> None:
    """Trap 79."""
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for number in range(40):
        log.append(batch(b"%d" % number * 100, timestamp_ms=NOW_MS + number), now_ms=NOW_MS)
    log.close()
    files = storage.content[str(PARTITION)]
    name = sorted(name for name in files if name.endswith(suffix))[1]
    good = bytes(files[name])
    if damage == "missing":
        del files[name]
    elif damage == "odd":
        files[name] += b"\x00"
    else:
        files[name] += bytes(24)
    log = open_log(storage, SMALL)
    assert len(read_all(log)) == 40
    found = log.offset_for_timestamp(NOW_MS + 21)
    assert found is not None
    assert found.offset == 21
    log.close()
    assert bytes(files[name]) == good


@pytest.mark.parametrize("flushed", [False, True])
def test_a_hole_that_a_power_loss_left_cuts_the_log(flushed: bool) -> None:
    """A later file may be on the disk and an earlier one not; below the recovery point both are."""
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for number in range(40):
        log.append(batch(b"%d" % number * 100), now_ms=NOW_MS)
    log.close(clean=False)
    files = storage.content[str(PARTITION)]
    names = sorted(name for name in files if name.endswith(".log"))
    files[names[1]].clear()
    hole, behind = int(names[1][:20]), int(names[2][:20])
    log = open_log(storage, SMALL, clean=False, recovery_point=behind if flushed else 0)
    assert log.log_end_offset == (40 if flushed else hole)
    assert len(read_all(log, behind if flushed else 0)) == (40 - behind if flushed else hole)
