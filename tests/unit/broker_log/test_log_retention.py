"""Goal: segments roll and go by size, age and log start as Kafka's do, with all their files.

Method: logs in memory with small limits and a clock given as a number; the segments and files
that are left are listed.
"""

from __future__ import annotations

import pytest
from log_batches import NOW_MS, PARTITION, batch, idempotent, open_log, read_all

from onceflow.broker_lite.log import LogConfig, LogError, MemoryStorage, PartitionLog
from onceflow.broker_lite.log.removals import Removals
from onceflow.sdk.protocol.error_codes import ErrorCode

HOUR_MS = 3_600_000
BATCH = batch(b"x" * 100)


def bases(storage: MemoryStorage) -> list[int]:
    names = storage.files(str(PARTITION))
    return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def fill(log: PartitionLog, count: int, *, step_ms: int = 0) -> None:
    for number in range(count):
        time_ms = NOW_MS + number * step_ms
        log.append(batch(b"x" * 100, timestamp_ms=time_ms), now_ms=time_ms)


def test_a_segment_is_full_before_it_would_pass_its_size() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=len(BATCH) * 3))
    fill(log, 7)
    assert bases(storage) == [0, 3, 6]
    assert log.size_bytes == len(BATCH) * 7


def test_a_segment_is_full_when_its_first_record_is_old() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_ms=HOUR_MS))
    fill(log, 5, step_ms=HOUR_MS // 2)
    assert bases(storage) == [0, 3]


def test_without_timestamps_the_age_counts_from_its_making() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_ms=HOUR_MS))
    data = batch(b"a", timestamp_ms=-1)
    log.append(data, now_ms=NOW_MS)
    log.append(data, now_ms=NOW_MS + HOUR_MS)
    assert bases(storage) == [0]
    log.append(data, now_ms=NOW_MS + HOUR_MS + 1)
    assert bases(storage) == [0, 2]


def test_jitter_takes_the_same_time_off_at_each_roll() -> None:
    storage = MemoryStorage()
    config = LogConfig(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2)
    log = open_log(storage, config)
    fill(log, 60, step_ms=HOUR_MS // 30)
    distances = {
        later - earlier for earlier, later in zip(bases(storage), bases(storage)[1:], strict=False)
    }
    assert len(distances) == 1
    assert 15 <= distances.pop() <= 31


def test_a_segment_is_full_when_an_index_is() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(index_interval_bytes=1, segment_index_bytes=36))
    fill(log, 12)
    assert bases(storage) == [0, 5, 10]


def test_an_offset_that_an_index_cannot_hold_begins_a_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    fill(log, 1)
    log._log_end_offset = 2**31 + 5
    fill(log, 1)
    assert bases(storage) == [0, 2**31 + 5]


def test_retention_by_size_keeps_at_least_the_limit() -> None:
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=len(BATCH) * 2, retention_bytes=len(BATCH) * 5)
    log = open_log(storage, config)
    fill(log, 12)
    assert log.apply_retention(NOW_MS) == 3
    assert bases(storage) == [6, 8, 10]
    assert log.log_start_offset == 6
    assert log.size_bytes == len(BATCH) * 6
    assert log.apply_retention(NOW_MS) == 0


def test_retention_by_time_also_empties_the_active_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=len(BATCH) * 2, retention_ms=HOUR_MS))
    fill(log, 5)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0
    assert log.apply_retention(NOW_MS + HOUR_MS + 1) == 3
    assert bases(storage) == [5]
    assert (log.log_start_offset, log.log_end_offset, read_all(log)) == (5, 5, [])
    fill(log, 1)
    assert read_all(log)[0][0] == 5
    log.close()
    assert open_log(storage).log_end_offset == 6


def test_all_files_of_a_removed_segment_go() -> None:
    storage = MemoryStorage()
    removals = Removals(storage)
    log = open_log(
        storage,
        LogConfig(segment_bytes=400, index_interval_bytes=1, retention_ms=HOUR_MS),
        removals=removals,
    )
    for number in range(6):
        log.append(idempotent(number, b"x" * 50, transactional=True), now_ms=NOW_MS)
        log.append_control(7, 0, 0, False, NOW_MS)
    kinds = {name[20:] for name in storage.files(str(PARTITION))}
    assert {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".producers5"} <= kinds
    log.apply_retention(NOW_MS + HOUR_MS + 1)
    assert any(name.endswith(".log.deleted") for name in storage.files(str(PARTITION)))
    removals.run_due(NOW_MS + HOUR_MS + 60_001)
    left = sorted(storage.files(str(PARTITION)))
    end = f"{log.log_end_offset:020d}"
    assert left == [f"{end}.log", f"{end}.producers5", f"{end}.snapshot", "leader-epoch-checkpoint"]


def test_compacted_topics_keep_everything_here() -> None:
    log = open_log(config=LogConfig(cleanup_policy="compact", segment_bytes=400, retention_ms=1))
    fill(log, 6)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0


def test_what_readers_may_not_see_yet_is_not_removed() -> None:
    log = open_log(config=LogConfig(segment_bytes=400, retention_ms=1), replicated=True)
    fill(log, 6)
    assert log.apply_retention(NOW_MS + HOUR_MS) == 0


def test_deleted_records_are_gone_at_once_and_their_segments_at_the_next_round() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=len(BATCH) * 2))
    fill(log, 7)
    heard: list[int] = []
    log.listeners.append(lambda: heard.append(log.log_start_offset))
    assert log.delete_records_before(5) == 5
    assert log.delete_records_before(2) == 5
    assert heard == [5]
    assert bases(storage) == [0, 2, 4, 6]
    log.apply_retention(NOW_MS)
    assert bases(storage) == [4, 6]
    assert log.delete_records_before(-1) == 7
    assert (log.log_start_offset, read_all(log)) == (7, [])


@pytest.mark.parametrize("offset", [-2, 8])
def test_records_outside_of_the_log_cannot_be_deleted(offset: int) -> None:
    log = open_log()
    fill(log, 7)
    with pytest.raises(LogError) as refused:
        log.delete_records_before(offset)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_records_of_a_compacted_topic_cannot_be_deleted() -> None:
    log = open_log(config=LogConfig(cleanup_policy="compact"))
    fill(log, 2)
    with pytest.raises(LogError) as refused:
        log.delete_records_before(1)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    log.config = log.config.replace(cleanup_policy="compact,delete")
    assert log.delete_records_before(1) == 1


def test_flush_ms_counts_from_the_first_append_that_was_not_flushed() -> None:
    log = open_log(config=LogConfig(flush_ms=1000))
    log.append(BATCH, now_ms=NOW_MS)
    log.append(BATCH, now_ms=NOW_MS + 900)
    log.flush_if_due(NOW_MS + 999)
    assert log.recovery_point == 0
    log.flush_if_due(NOW_MS + 1000)
    assert log.recovery_point == 2
    log.flush_if_due(NOW_MS + 5000)
    log.append(BATCH, now_ms=NOW_MS + 6000)
    log.flush_if_due(NOW_MS + 6500)
    assert log.recovery_point == 2
