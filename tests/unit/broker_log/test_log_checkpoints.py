"""A start after a crash checks the end of the log only, from the last checkpoint of its segment on.

Method: with checkpoints every few batches, what a start reads is counted, and the log that it gives
is compared with one that was checked from the beginning: records, look-ups by offset and time,
aborted transactions, producers. Damage of anything that a checkpoint relies on brings the long way
back.
"""

from __future__ import annotations

import random

import pytest
from log_batches import NOW_MS, PARTITION, batch, idempotent, open_log, read_all
from power_loss import disk_after_power_loss

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog, segment_writer
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage
from onceflow.sdk.model.partitions import IsolationLevel

COMMITTED = IsolationLevel.READ_COMMITTED
CONFIG = LogConfig(index_interval_bytes=300)
FOLDER = str(PARTITION)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "CHECKPOINT_BATCHES", 10)


def write(log: PartitionLog, count: int = 95, first: int = 0) -> None:
    """Plain, idempotent and aborted batches with growing times."""
    for number in range(first, first + count):
        time_ms = NOW_MS + number * 10
        if number % 5 == 3:
            log.append(
                idempotent(number // 5, b"t%d" % number, producer_id=9, transactional=True),
                now_ms=time_ms,
            )
            log.append_control(9, 0, 0, number % 10 == 3, time_ms)
        else:
            log.append(batch(b"v%d" % number * 10, timestamp_ms=time_ms), now_ms=time_ms)


def facts(log: PartitionLog) -> object:
    """What a user can see of a log."""
    times = [log.offset_for_timestamp(NOW_MS + at) for at in range(-5, 1000, 17)]
    return (
        read_all(log),
        read_all(log, isolation_level=COMMITTED),
        times,
        log.log_end_offset,
        log.last_stable_offset,
        [log.has_open_transaction(9), log.producers()],
    )


def checked_bytes(storage: MemoryStorage, **options: object) -> tuple[PartitionLog, int]:
    """Open after a crash; how many bytes of batches went through the check."""
    seen: list[int] = []
    from onceflow.broker_lite.log import recovery

    original = recovery.walk

    def counting(segment: object, next_offset: int, position: int = 0) -> object:
        for found in original(segment, next_offset, position):  # type: ignore[arg-type]
            seen.append(len(found.data))
            yield found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "walk", counting)
        log = open_log(storage, CONFIG, clean=False, **options)  # type: ignore[arg-type]
    return log, sum(seen)


def crashed() -> tuple[MemoryStorage, int]:
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    write(log)
    log.close(clean=False)
    return storage, log.recovery_point


def copy_of(storage: MemoryStorage) -> MemoryStorage:
    return FailingStorage(storage).disk_after(0)


def test_only_the_tail_is_checked_and_the_log_is_the_same() -> None:
    storage, recovery_point = crashed()
    assert recovery_point > 100
    whole, all_bytes = checked_bytes(copy_of(storage))
    tail, tail_bytes = checked_bytes(storage, recovery_point=recovery_point)
    assert tail_bytes < all_bytes / 5
    assert facts(tail) == facts(whole)
    for log in (whole, tail):
        write(log, 12, 95)
    assert read_all(tail) == read_all(whole)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".txncopy"])
@pytest.mark.parametrize("damage", ["missing", "cut", "zeros", "other"])
def test_an_index_that_cannot_be_right_brings_the_long_way_back(suffix: str, damage: str) -> None:
    storage, recovery_point = crashed()
    whole, _ = checked_bytes(copy_of(storage))
    files = storage.content[FOLDER]
    name = f"{0:020d}{suffix}"
    size = len(files[name])
    if damage == "missing":
        del files[name]
    elif damage == "cut":
        del files[name][size // 2 :]
    elif damage == "zeros":
        files[name][size // 2 :] = bytes(size - size // 2)
    else:
        files[name][3] ^= 0x40
    log, _ = checked_bytes(storage, recovery_point=recovery_point)
    assert facts(log) == facts(whole)


def test_a_damaged_snapshot_leaves_the_one_before_or_the_long_way() -> None:
    storage, recovery_point = crashed()
    whole, all_bytes = checked_bytes(copy_of(storage))
    for name, data in storage.content[FOLDER].items():
        if name.endswith(".snapshot"):
            data[-1] ^= 1
    log, read_bytes = checked_bytes(storage, recovery_point=recovery_point)
    assert facts(log) == facts(whole)
    assert read_bytes >= all_bytes


def test_no_more_than_one_checkpoint_is_kept() -> None:
    storage, _ = crashed()
    snapshots = [name for name in storage.content[FOLDER] if name.endswith(".snapshot")]
    assert len(snapshots) == 1


def test_a_roll_takes_the_place_of_the_checkpoint() -> None:
    storage = MemoryStorage()
    log = open_log(storage, CONFIG)
    write(log)
    log.roll(NOW_MS)
    names = storage.content[FOLDER]
    snapshots = [name for name in names if name.endswith(".snapshot")]
    assert snapshots == [f"{log.log_end_offset:020d}.snapshot"]


def test_a_checkpoint_that_cannot_be_written_hurts_nobody() -> None:
    storage = FailingStorage()
    log = open_log(storage, CONFIG)
    for number in range(10):
        log.append(batch(b"%d" % number), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes))
    for number in range(10, 15):
        log.append(batch(b"%d" % number), now_ms=NOW_MS)
    assert len(read_all(log)) == 15
    assert log.recovery_point == 0


@pytest.mark.parametrize("durability", ["kafka", "group", "always"])
def test_whatever_a_power_loss_takes_the_log_is_as_if_checked_from_the_beginning(
    durability: str,
) -> None:
    config = LogConfig(index_interval_bytes=300, durability=durability)
    storage = FailingStorage(durable=durability != "kafka")
    log = open_log(storage, config)
    points: list[int] = []
    for number in range(30):
        point = log.recovery_point
        write(log, 3, number * 3)
        points += [point] * (len(storage.writes) - len(points))
        if number % 7 == 0:
            log.flush()
            points += [point] * (len(storage.writes) - len(points))
    for writes in range(20, len(storage.writes), 23):
        for seed in range(3):
            disk = disk_after_power_loss(storage, writes, random.Random(f"{writes} {seed}"))
            if FOLDER not in disk.content:
                continue
            long_way = open_log(copy_of(disk), config, clean=False)
            tail = open_log(disk, config, clean=False, recovery_point=points[writes - 1])
            assert facts(tail) == facts(long_way)
            assert tail.log_end_offset >= points[writes - 1]


def test_the_checkpoints_files_go_to_the_disk_before_the_recovery_point_moves() -> None:
    storage = FailingStorage()
    log = open_log(storage, CONFIG)
    write(log, 30)
    flushed = [write.path.rpartition("/")[2] for write in storage.writes
               if write.change is Change.FLUSH]  # fmt: skip
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        assert f"{0:020d}{suffix}" in flushed
    assert f"{log.recovery_point:020d}.snapshot" in flushed
