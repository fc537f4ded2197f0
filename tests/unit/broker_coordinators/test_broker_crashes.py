"""The whole broker may die at any write to any file: each input still counts exactly once.

Method: `Processor` drives a broker without sockets over real partition logs in memory. For every
write n of a run (or every third, where two versions and a torn write multiply), the process dies
with it, whole or torn in the middle; the next one starts on what the files hold. Committed outputs
must equal the committed offset at each start and be complete, once each, in the end.
"""

from __future__ import annotations

import contextlib
import random

import pytest
from coordinator_bench import ProcessDied
from coordinator_processor import DyingStorage, Processor, expected_outputs
from log_batches import NOW_MS, idempotent, read_all

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.coordinators.transactions.states import MAX_PRODUCER_EPOCH
from onceflow.broker_lite.log import AppendError, MemoryStorage, Storage
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.sdk.model.partitions import IsolationLevel
from onceflow.sdk.protocol.error_codes import ErrorCode

INPUTS = 2


def storage_with_topics() -> DyingStorage:
    """A folder with the processor's topics; the coordinators' own come with the first records."""
    storage = DyingStorage()
    processor = Processor(storage, 1)
    processor.create_topics()
    processor.broker.close()
    return storage


def count_writes(version: int, settings: dict[str, object], *, abort_first: bool) -> int:
    storage = storage_with_topics()
    before = storage.writes
    Processor(storage, version, settings).run(INPUTS, abort_first=abort_first)
    return storage.writes - before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_death_at_any_write(version: int, torn: bool, early: bool) -> None:
    settings: dict[str, object] = {
        "onceflow.end.txn.early.answer": early,
        "onceflow.end.txn.marker.delay.ms": 10 if early else 0,
    }
    abort_first = not early
    writes = count_writes(version, settings, abort_first=abort_first)
    for death in range(1, writes + 1, 2 if early else 1):
        storage = storage_with_topics()
        storage.torn = torn
        storage.die_after = storage.writes + death
        with contextlib.suppress(ProcessDied):
            Processor(storage, version, settings).run(INPUTS, abort_first=abort_first)
        storage.die_after = None
        storage.close()  # the operating system gives up the dead process's lock
        processor = Processor(storage, version, settings)
        processor.run(INPUTS, abort_first=abort_first)
        assert sorted(processor.outputs()) == expected_outputs(INPUTS), f"death at write {death}"
        for topic in processor.broker.state.topics:
            for log in topic.partitions:
                assert log.last_stable_offset == log.high_watermark, "no hanging transaction"
        for name in ("__consumer_offsets", "__transaction_state"):
            topic = processor.broker.state.topics.get(name)
            assert topic is not None
            assert len(topic.partitions) == 4, "a creation cut short is finished"


@pytest.mark.parametrize("version", [1, 2])
def test_clean_restart_goes_on(version: int) -> None:
    storage = DyingStorage()
    processor = Processor(storage, version)
    processor.run(1)
    processor.broker.close()
    again = Processor(storage, version)
    again.run(2)
    assert sorted(again.outputs()) == expected_outputs(2)


def opened(storage: Storage) -> BrokerState:
    return open_broker(storage, BrokerConfig(), random.Random(7), NOW_MS)


def test_records_of_a_transaction_that_was_lost_are_aborted_and_not_taken_for_known_ones() -> None:
    """Found by simulation: power was lost after the records reached the disk, and before it was
    noted that their partition belongs to the transaction. The producer had no answer and sends
    them again; told that they are there, it would commit a transaction without them."""
    storage = MemoryStorage()
    before = opened(storage)
    before.topics.create("t", 1, {}, NOW_MS)
    records = idempotent(0, b"a", epoch=2, transactional=True)
    before.topics.partition("t", 0).append(records, now_ms=NOW_MS)
    storage.close()  # The process is dead.
    for _ in range(2):  # Also after another death, of which the log alone tells.
        after = opened(storage)
        log = after.topics.partition("t", 0)
        assert log.last_stable_offset == log.high_watermark
        assert read_all(log, isolation_level=IsolationLevel.READ_COMMITTED) == []
        with pytest.raises(AppendError) as refused:
            log.append(records, now_ms=NOW_MS)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        storage.close()
    log.append(idempotent(0, b"a", epoch=3, transactional=True), now_ms=NOW_MS)


def test_a_lost_transaction_of_the_last_epoch_is_ended_too() -> None:
    storage = MemoryStorage()
    before = opened(storage)
    before.topics.create("t", 1, {}, NOW_MS)
    records = idempotent(0, b"a", epoch=MAX_PRODUCER_EPOCH, transactional=True)
    before.topics.partition("t", 0).append(records, now_ms=NOW_MS)
    storage.close()
    log = opened(storage).topics.partition("t", 0)
    assert log.last_stable_offset == log.high_watermark


def test_nobody_is_served_while_the_disk_does_not_take_the_end_of_a_lost_transaction() -> None:
    """Else it would hold back readers until the next crash, and become part of the next
    transaction of its producer."""
    storage = MemoryStorage()
    before = opened(storage)
    before.topics.create("t", 1, {}, NOW_MS)
    records = idempotent(0, b"a", epoch=2, transactional=True)
    before.topics.partition("t", 0).append(records, now_ms=NOW_MS)
    storage.close()
    refused: list[str] = []
    for number in range(20):
        failing = FailingStorage(FailingStorage(storage).disk_after(0))
        failing.fail_write(number)
        try:
            log = opened(failing).topics.partition("t", 0)
        except OSError as error:
            refused.append(error.filename)
            log = opened(failing).topics.partition("t", 0)
        assert log.last_stable_offset == log.high_watermark > 1, number
    assert "t-0/00000000000000000000.log" in refused
