"""Goal: reads end at batch borders, never stop a reader for good, and find records by time.

Method: logs in memory with tiny segments and index intervals; every offset and many limits are
read, and look-ups by time are compared with a scan over all records.
"""

from __future__ import annotations

import random

import pytest
from log_batches import NOW_MS, batch, idempotent, open_log, read_all

from onceflow.broker_lite.log import (
    LogConfig,
    LogError,
    MemoryStorage,
    PartitionLog,
    ReadError,
)
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import iter_batch_headers

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=150)


def filled(config: LogConfig = SMALL, count: int = 40) -> PartitionLog:
    log = open_log(config=config)
    for number in range(count):
        values = [b"%d" % number * 20] * (number % 4 + 1)
        log.append(batch(*values, timestamp_ms=NOW_MS + number * 10, step_ms=1), now_ms=NOW_MS)
    return log


@pytest.mark.parametrize("config", [SMALL, LogConfig()], ids=["small segments", "one segment"])
@pytest.mark.parametrize("max_bytes", [0, 1, 11, 60, 61, 150, 500, 1400, 10_000])
def test_from_every_offset_whole_batches_come_and_the_first_always(
    config: LogConfig, max_bytes: int
) -> None:
    log = filled(config)
    for offset in range(log.log_end_offset):
        records = log.read(offset, max_bytes).records
        headers = [header for _, header in iter_batch_headers(records)]
        assert sum(header.size_bytes for header in headers) == len(records)
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        assert len(records) <= max_bytes or len(headers) == 1


def test_without_the_guarantee_a_batch_that_does_not_fit_is_left_out() -> None:
    log = filled()
    assert log.read(0, 50, minimum_one_batch=False).records == b""
    whole = log.read(0, 50).records
    assert log.read(0, len(whole), minimum_one_batch=False).records == whole


def test_the_end_of_the_log_is_empty_and_beyond_it_out_of_range() -> None:
    log = filled()
    result = log.read(log.log_end_offset, 1000)
    assert (result.records, result.high_watermark) == (b"", log.log_end_offset)
    for offset in (-1, log.log_end_offset + 1):
        with pytest.raises(ReadError) as refused:
            log.read(offset, 1000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(10)
    with pytest.raises(ReadError):
        log.read(9, 1000)
    assert read_all(log)[0][0] == 10


def test_between_high_watermark_and_end_a_reader_waits() -> None:
    log = open_log(replicated=True)
    log.append(batch(b"a"), now_ms=NOW_MS)
    result = log.read(0, 1000)
    assert (result.records, result.high_watermark) == (b"", 0)
    assert log.read(1, 1000).records == b""
    log.advance_high_watermark(5)
    assert log.high_watermark == 1
    assert read_all(log) == [(0, b"a")]


def test_every_answer_carries_the_positions() -> None:
    log = filled()
    log.append(idempotent(0, b"a", transactional=True), now_ms=NOW_MS)
    log.delete_records_before(3)
    result = log.read(5, 100, isolation_level=IsolationLevel.READ_COMMITTED)
    assert result[1:4] == (log.high_watermark, log.last_stable_offset, 3)
    assert result.last_stable_offset == result.high_watermark - 1


@pytest.mark.parametrize("seed", range(6))
def test_records_are_found_by_time_as_a_scan_would(seed: int) -> None:
    chance = random.Random(seed)
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    times: list[int] = []
    for _ in range(60):
        start = chance.randrange(1000)
        step = chance.randrange(3)
        count = chance.randrange(1, 5)
        data = batch(*[b"x" * 20] * count, timestamp_ms=start, step_ms=step)
        log.append(data, now_ms=NOW_MS)
        times += [start + i * step for i in range(count)]
    start_offset = chance.randrange(len(times))
    for reopen in (None, True, False):
        if reopen is not None:
            log.close(reopen)
            log = open_log(storage, SMALL, clean=reopen, log_start_offset=log.log_start_offset)
        elif chance.random() < 0.7:
            log.delete_records_before(start_offset)
        first = log.log_start_offset
        for wanted in [*chance.sample(range(1010), 60), max(times), max(times) + 1, -1]:
            expected = next(
                (
                    (offset, time)
                    for offset, time in enumerate(times)
                    if offset >= first and time >= wanted
                ),
                None,
            )
            found = log.offset_for_timestamp(wanted)
            assert (found and found[:2]) == expected
        greatest = max(times[first:])
        expected_greatest = (times.index(greatest, first), greatest)
        found = log.max_timestamp()
        assert found is not None
        assert found[:2] == expected_greatest


def test_by_time_nothing_unstable_is_found_by_a_committed_reader() -> None:
    log = open_log()
    log.append(batch(b"a", timestamp_ms=10), now_ms=NOW_MS)
    open_transaction = batch(
        b"b",
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
        timestamp_ms=20,
    )
    log.append(open_transaction, now_ms=NOW_MS)
    assert log.offset_for_timestamp(15) == (1, 20, 0)
    assert log.offset_for_timestamp(15, IsolationLevel.READ_COMMITTED) is None
    assert log.latest() == (2, -1, 0)
    assert log.latest(IsolationLevel.READ_COMMITTED) == (1, -1, 0)


def test_a_log_without_timestamps_has_no_greatest_one() -> None:
    log = open_log()
    assert log.max_timestamp() is None
    log.append(batch(b"a", timestamp_ms=-1), now_ms=NOW_MS)
    assert log.max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


def test_earliest_names_the_epoch_of_the_log_start() -> None:
    log = open_log()
    log.append(batch(b"a"), now_ms=NOW_MS)
    log.begin_leader_epoch(4)
    log.append(batch(b"b"), now_ms=NOW_MS)
    assert log.earliest() == (0, -1, 0)
    log.delete_records_before(1)
    assert log.earliest() == (1, -1, 4)


def test_the_end_of_each_leader_epoch_is_known() -> None:
    log = open_log()
    for epoch in (0, 2, 5):
        log.begin_leader_epoch(epoch)
        log.append(batch(b"a", b"b"), now_ms=NOW_MS)
    assert [log.end_offset_for_epoch(epoch) for epoch in range(-1, 7)] == [
        (-1, -1),
        (0, 2),
        (0, 2),
        (2, 4),
        (2, 4),
        (2, 4),
        (5, 6),
        (-1, -1),
    ]


def test_a_damaged_file_under_a_running_log_is_an_error_not_a_loop() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    log.append(batch(b"a"), now_ms=NOW_MS)
    log.append(batch(b"b"), now_ms=NOW_MS)
    content = storage.content["orders-0"]["00000000000000000000.log"]
    content[8:12] = bytes(4)
    with pytest.raises(LogError) as refused:
        log.read(1, 1000)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
