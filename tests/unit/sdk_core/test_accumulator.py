"""Goal: records gather in batches within memory, and no handle or failure gets lost on the way.

Method: the accumulator on a virtual clock, with the sender's machines where a batch has to move.
"""

from __future__ import annotations

import itertools

import pytest
from producer_rig import ModelLog, Rig, values_of

from onceflow.sdk.core.produce.appending import BulkAppend, choose_partition, resolve_partitions
from onceflow.sdk.core.produce.batch import DeliveryGroup
from onceflow.sdk.errors import (
    ClientClosedError,
    ConfigError,
    RecordTooLargeError,
    SerializationError,
    UnknownServerError,
)


def bulk(
    rig: Rig,
    values: list[bytes | None],
    keys: list[bytes | None] | None = None,
    partition: int | None = None,
) -> BulkAppend:
    """A bulk call over the rig's topic."""
    partitions = resolve_partitions(rig.state, keys, len(values), partition, None)
    return BulkAppend(rig.accumulator, rig.state, values, keys, partitions, 5, None)


def test_records_of_a_partition_share_a_batch_until_it_is_full() -> None:
    rig = Rig(batch_size=200)
    handles = [rig.send(b"x" * 50) for _ in range(5)]
    assert len(rig.state.queues[0].sealed) == 2
    assert {h._batch for h in handles} == {*rig.accumulator.incomplete}


def test_memory_is_counted_by_record_and_given_back_when_a_batch_is_settled() -> None:
    rig = Rig()
    rig.send(b"x" * 100)
    used = rig.accumulator.memory_used
    assert used > 100
    job = rig.job()
    assert rig.accumulator.memory_used == used
    rig.answer(job)
    assert rig.accumulator.memory_used == 0
    assert not rig.accumulator.incomplete


def test_appending_answers_none_when_memory_is_used_up() -> None:
    rig = Rig(buffer_memory=400, max_request_size=300)
    while rig.accumulator.append(rig.state, 0, None, b"x" * 50, [], 1) is not None:
        pass
    assert rig.accumulator.memory_used >= 400
    for job in rig.jobs():
        rig.answer(job)
    assert rig.accumulator.append(rig.state, 0, None, b"x", [], 1) is not None


def test_waiters_for_memory_make_partial_batches_leave_at_once() -> None:
    rig = Rig(linger_ms=1_000)
    rig.send(b"a")
    assert not rig.jobs()
    rig.accumulator.memory_waiters = 1
    assert rig.jobs()


def test_linger_holds_a_batch_and_the_plan_says_until_when() -> None:
    rig = Rig(linger_ms=20)
    rig.send(b"a")
    plan = rig.plan()
    assert not plan.jobs
    assert plan.wake_at_ms == rig.now_ms + 20
    rig.advance(20)
    assert rig.jobs()


def test_a_flush_overrides_linger() -> None:
    rig = Rig(linger_ms=1_000)
    rig.send(b"a")
    rig.accumulator.flush_count = 1
    assert values_of(rig.job()) == [b"a"]


def test_the_sender_is_woken_by_the_first_record_and_by_a_full_batch_only() -> None:
    rig = Rig(linger_ms=10, batch_size=200)
    rig.send(b"x" * 50)
    assert rig.wakes == 1
    rig.accumulator.next_wake_ms = rig.now_ms + 5
    rig.send(b"x" * 50)
    assert rig.wakes == 1
    rig.send(b"x" * 50)
    assert rig.wakes == 2


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    rig = Rig(batch_size=100)
    rig.send(b"a")
    rig.send(b"x" * 500)
    rig.send(b"b")
    assert [values_of(job) for job in rig.jobs()] == [[b"a"], [b"x" * 500], [b"b"]]


def test_a_record_above_max_request_size_is_refused_by_naming_the_setting() -> None:
    rig = Rig(max_request_size=1_000)
    with pytest.raises(RecordTooLargeError, match="max_request_size"):
        rig.send(b"x" * 1_000)
    assert rig.accumulator.memory_used == 0
    assert not rig.accumulator.incomplete


@pytest.mark.parametrize("headers", [[("a",)], [(1, b"x")], [("a", "text")]])
def test_a_refused_first_record_leaves_no_empty_batch(headers: list[tuple[str, bytes]]) -> None:
    rig = Rig()
    with pytest.raises(SerializationError):
        rig.accumulator.append(rig.state, 0, None, b"v", headers, 1)  # type: ignore[arg-type]
    assert rig.accumulator.memory_used == 0
    rig.send(b"good")
    assert values_of(rig.job()) == [b"good"]


def test_a_closed_gate_asks_for_its_reason_each_time() -> None:
    rig = Rig()
    rig.send(b"a")
    rig.accumulator.close_gate()
    rig.accumulator.refusal = lambda: ClientClosedError("closed")
    with pytest.raises(ClientClosedError):
        rig.send(b"b")
    rig.accumulator.open_gate()
    rig.send(b"c")
    assert values_of(rig.job()) == [b"a", b"c"]


def test_keyless_records_stay_with_a_partition_until_its_batch_is_full() -> None:
    rig = Rig(partitions=4, batch_size=300)
    seen = [rig.send_sticky(b"x" * 60).partition for _ in range(12)]
    runs = [p for i, p in enumerate(seen) if not i or seen[i - 1] != p]
    assert len(runs) == 4
    assert all(a != b for a, b in itertools.pairwise(runs))


def test_new_partitions_change_where_keys_go_and_keep_the_old_queues() -> None:
    rig = Rig(partitions=2)
    before = rig.state.partition_for(b"foobar")
    queues = list(rig.state.queues)
    rig.accumulator.topic_state("t", 7, range(7))
    assert rig.state.queues[:2] == queues
    assert len(rig.state.queues) == 7
    assert before < 2
    assert rig.state.partition_for(b"foobar") == (-790332482 & 0x7FFFFFFF) % 7


def test_a_bulk_call_knows_where_each_record_went() -> None:
    rig = Rig(partitions=3, batch_size=150)
    values: list[bytes | None] = [b"v%03d" % n for n in range(100)]
    call = bulk(rig, values, [b"k%d" % (n % 10) for n in range(100)])
    assert call.advance()
    logs = {number: ModelLog() for number in range(3)}
    while jobs := rig.jobs():
        for job in jobs:
            rig.serve(job, logs)
    found = DeliveryGroup(call.parts, call.partitions, call.timestamps_ms)._metadata()
    assert [logs[m.partition].values[m.offset] for m in found] == values
    assert {m.timestamp_ms for m in found} == {5}


def test_a_bulk_call_stops_where_memory_ends_and_goes_on_later() -> None:
    rig = Rig(buffer_memory=600, max_request_size=300, batch_size=200)
    call = bulk(rig, [b"x" * 50] * 40)
    assert not call.advance()
    taken = call.position
    assert 0 < taken < 40
    while not call.advance():
        jobs = rig.jobs()
        assert jobs
        for job in jobs:
            rig.answer(job)
    assert sum(count for parts in call.parts.values() for _, _, count in parts) == 40


def test_a_bulk_call_that_meets_a_bad_record_keeps_what_it_took() -> None:
    rig = Rig()
    call = bulk(rig, [b"a", b"b", "text", b"c"])  # type: ignore[list-item]
    with pytest.raises(SerializationError, match="record 2"):
        call.advance()
    assert values_of(rig.job()) == [b"a", b"b"]


def test_an_unseen_failure_counts_until_somebody_looks() -> None:
    rig = Rig()
    first, second = rig.send_batch(b"a", b"b")
    rig.answer(rig.job(), -1)
    batch = first._batch
    assert batch.unseen_failures == 2
    assert isinstance(first.exception(), UnknownServerError)
    assert batch.unseen_failures == 1
    with pytest.raises(UnknownServerError):
        second._metadata()
    assert batch.unseen_failures == 0


def test_a_waiter_that_is_there_before_the_failure_counts_as_looking() -> None:
    rig = Rig()
    first, second = rig.send_batch(b"a", b"b")
    first._mark_seen()
    second._mark_seen()
    second._mark_unseen()
    rig.answer(rig.job(), -1)
    assert first._batch.unseen_failures == 1


def test_a_topic_made_anew_with_fewer_partitions_gets_no_record_for_the_others() -> None:
    """Also while records wait for a partition that is gone."""
    rig = Rig(partitions=4)
    for partition in range(4):
        rig.send(b"waits", partition=partition)
    rig.accumulator.topic_state("t", 1, range(1))
    rig.state.made_anew(1)
    assert {rig.state.partition_for(b"%d" % n) for n in range(50)} == {0}
    assert {rig.send_sticky(b"x" * 60).partition for _ in range(12)} == {0}
    with pytest.raises(ConfigError, match="partitions 0 to 0"):
        choose_partition(rig.state, None, 3, None)
    rig.accumulator.topic_state("t", 3, range(3))
    assert {rig.state.partition_for(b"%d" % n) for n in range(50)} == {0, 1, 2}
