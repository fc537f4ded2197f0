"""The whole broker may die at any write to any file: each input still counts exactly once.

Method: `Processor` drives a broker without sockets over real partition logs in memory. For every
write n of a run (or every third, where two versions and a torn write multiply), the process dies
with it, whole or torn in the middle; the next one starts on what the files hold. Committed outputs
must equal the committed offset at each start and be complete, once each, in the end.
"""

from __future__ import annotations

import contextlib

import pytest
from coordinator_bench import ProcessDied
from coordinator_processor import DyingStorage, Processor, expected_outputs

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
