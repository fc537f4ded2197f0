"""Goal: a producer leaves topics that it does not write to any more, and loses nothing by it.

Method: accumulator and sender on a virtual clock against a model partition with Kafka's rules for
sequences, which takes a sequence that begins again under its old epoch for a repetition.
"""

from __future__ import annotations

import pytest
from producer_rig import ModelLog, Rig, sequences

from onceflow.sdk.core.produce.accumulator import PartitionQueue
from onceflow.sdk.core.produce.appending import BulkAppend
from onceflow.sdk.core.produce.sender import EPOCH_MAX
from onceflow.sdk.core.produce.transaction_manager import TransactionState
from onceflow.sdk.model.partitions import TopicPartition

IDLE_MS = 300_000


def leave(rig: Rig) -> list[str]:
    """As the engine does: what a transactional producer numbered last is needed."""
    manager = rig.manager

    def needed(queue: PartitionQueue) -> bool:
        return manager.is_transactional and queue.producer_epoch == manager.producer_epoch

    return rig.accumulator.leave_idle(IDLE_MS, manager.producer_id, needed)


def come_back(rig: Rig) -> None:
    """The topic is asked for again."""
    rig.state = rig.accumulator.topic_state("t", 1, range(1))


def test_a_topic_is_left_once_nothing_was_sent_to_it_for_long_enough() -> None:
    rig = Rig()
    rig.advance(IDLE_MS - 1)
    assert leave(rig) == []
    rig.advance(1)
    assert leave(rig) == ["t"]
    assert not rig.accumulator.topics


def test_a_topic_is_not_left_while_records_wait_or_are_on_their_way() -> None:
    rig = Rig(linger_ms=10 * IDLE_MS, delivery_timeout_ms=10 * IDLE_MS)
    rig.send(b"open")
    rig.advance(IDLE_MS)
    assert leave(rig) == []
    rig.accumulator.seal(rig.state.queues[0])
    assert leave(rig) == []
    job = rig.job()
    assert leave(rig) == []
    rig.answer(job)
    assert leave(rig) == ["t"]


def test_a_batch_that_is_begun_keeps_the_topic() -> None:
    rig = Rig()
    rig.advance(IDLE_MS)
    rig.send_batch(b"a")
    rig.answer(rig.job())
    rig.advance(IDLE_MS - 1)
    assert leave(rig) == []


def test_who_comes_back_begins_a_new_epoch_and_repeats_nothing() -> None:
    log = ModelLog()
    rig = Rig()
    for turn in range(3):
        rig.send_batch(b"%d" % turn)
        job = rig.job()
        assert sequences(job) == [(turn, 0, 1)]
        rig.serve(job, {0: log})
        rig.advance(IDLE_MS)
        assert leave(rig) == ["t"]
        come_back(rig)
    assert log.values == [b"0", b"1", b"2"]


def test_a_topic_that_was_only_asked_for_costs_no_epoch() -> None:
    rig = Rig(known=False)
    rig.advance(IDLE_MS)
    leave(rig)
    come_back(rig)
    rig.send_batch(b"a")
    assert sequences(rig.job()) == [(0, 0, 1)]


def test_after_the_last_epoch_a_new_producer_id_is_asked_for() -> None:
    rig = Rig()
    rig.state.queues[0].producer_epoch = EPOCH_MAX
    rig.advance(IDLE_MS)
    leave(rig)
    come_back(rig)
    rig.send_batch(b"a")
    plan = rig.plan()
    assert plan.identity_needed
    assert not plan.jobs
    rig.manager.move(TransactionState.INITIALIZING)
    rig.manager.initialized(8, 0, 1)
    assert sequences(rig.job()) == [(0, 0, 1)]


@pytest.mark.parametrize("version", [1, 2])
def test_sequences_of_a_transactional_producer_are_kept_until_its_epoch_rises(version: int) -> None:
    log = ModelLog()
    rig = Rig(transactional_id="x", protocol_version=version)
    rig.manager.registered = {TopicPartition("t", 0)}  # Else version 1 waits for it.
    rig.send_batch(b"0")
    rig.serve(rig.job(), {0: log})
    rig.advance(IDLE_MS)
    assert leave(rig) == ["t"], "its metadata is not needed"
    assert rig.accumulator.topics, "the open transaction goes on counting"
    rig.send_batch(b"1")
    job = rig.job()
    assert sequences(job) == [(0, 1, 1)]
    rig.serve(job, {0: log})
    rig.manager.begin_end(committed=True)
    if version == 2:
        rig.manager.ended(7, 1)
    else:
        rig.manager.ended()
    rig.advance(IDLE_MS)
    leave(rig)
    assert bool(rig.accumulator.topics) is (version == 1)
    come_back(rig)
    rig.begin()
    rig.manager.registered = {TopicPartition("t", 0)}  # Else version 1 waits for it.
    rig.send_batch(b"2")
    rig.serve(rig.job(), {0: log})
    assert log.values == [b"0", b"1", b"2"]


@pytest.mark.parametrize("taken_up_by_another", [False, True])
def test_a_record_for_a_topic_that_was_left_in_this_moment_is_sent(
    taken_up_by_another: bool,
) -> None:
    """Another thread holds what it knew of the topic, and appends."""
    log = ModelLog()
    rig = Rig()
    rig.send_batch(b"0")
    rig.serve(rig.job(), {0: log})
    rig.advance(IDLE_MS)
    held = rig.state
    leave(rig)
    if taken_up_by_another:
        come_back(rig)
        rig.send_batch(b"1")
        rig.serve(rig.job(), {0: log})
    rig.state = held
    rig.send(b"2")
    for job in rig.jobs():
        rig.serve(job, {0: log})
    values: list[bytes | None] = [b"3", b"4"]
    assert BulkAppend(rig.accumulator, held, values, None, [0, 0], 5, None).advance()
    for job in rig.jobs():
        rig.serve(job, {0: log})
    expected = [b"0", b"1", b"2", b"3", b"4"]
    assert log.values == [v for v in expected if taken_up_by_another or v != b"1"]
    assert not rig.accumulator.incomplete
