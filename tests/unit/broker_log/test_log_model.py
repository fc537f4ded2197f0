"""Goal: the log answers as a plain list would, whatever producers, markers and restarts mix.

Method: seeded random steps on a log with tiny segments and on a model (``log_model``); after every
few steps positions, views and aborted lists of random ranges are compared. Restarts, clean and
not, happen in between.
"""

from __future__ import annotations

import pytest
from log_batches import open_log, read_all
from log_model import ModelDriver, ModelLog

from onceflow.broker_lite.log import LogConfig, MemoryStorage, PartitionLog
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.records import iter_batch_headers

SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=300, segment_index_bytes=1200)
COMMITTED = IsolationLevel.READ_COMMITTED


def compare(log: PartitionLog, model: ModelLog, driver: ModelDriver) -> None:
    assert log.log_end_offset == log.high_watermark == model.end_offset
    assert log.last_stable_offset == model.last_stable_offset()
    start = driver.random.randrange(model.end_offset + 1)
    max_bytes = driver.random.choice((1, 100, 700, 5000, 100_000))
    assert read_all(log, start, max_bytes=max_bytes) == model.uncommitted_view(start)
    committed = read_all(log, start, max_bytes=max_bytes, isolation_level=COMMITTED)
    assert committed == model.committed_view(start)
    result = log.read(start, max_bytes, isolation_level=COMMITTED)
    if len(result.records):
        headers = [header for _, header in iter_batch_headers(result.records)]
        assert headers[0].base_offset <= start <= headers[0].last_offset
        expected = model.aborted_overlapping(start, headers[-1].next_offset)
        assert result.aborted_transactions == expected
        assert len(headers) == 1 or len(result.records) <= max_bytes
    else:
        assert start >= log.last_stable_offset
    for producer in driver.producers:
        open_here = producer.transaction is not None
        assert log.has_open_transaction(producer.producer_id) == open_here


@pytest.mark.parametrize("seed", range(12))
def test_the_log_agrees_with_the_model_through_restarts(seed: int) -> None:
    driver = ModelDriver(seed)
    storage = MemoryStorage()
    log = open_log(storage, SMALL)
    for number in range(250):
        driver.step(log)
        if number % 5 == 0:
            compare(log, driver.model, driver)
        if driver.random.random() < 0.03:
            clean = driver.random.random() < 0.5
            recovery_point = log.recovery_point
            log.close(clean)
            log = open_log(storage, SMALL, clean=clean, recovery_point=recovery_point)
            compare(log, driver.model, driver)
    compare(log, driver.model, driver)


@pytest.mark.parametrize("seed", range(4))
def test_a_lagging_high_watermark_hides_what_is_above_it(seed: int) -> None:
    driver = ModelDriver(seed)
    log = open_log(config=SMALL, replicated=True)
    high_watermark = 0
    for _ in range(120):
        driver.step(log)
        if driver.random.random() < 0.5:
            high_watermark = driver.random.choice(
                [at for at in driver.model.borders if at >= high_watermark]
            )
            log.advance_high_watermark(high_watermark)
        assert log.high_watermark == high_watermark
        assert log.last_stable_offset == driver.model.last_stable_offset(high_watermark)
        seen = read_all(log, 0, isolation_level=COMMITTED)
        assert seen == driver.model.committed_view(0, high_watermark)
        plain = [entry for entry in driver.model.uncommitted_view(0) if entry[0] < high_watermark]
        assert read_all(log, 0) == plain
