"""Goal: whatever a broker answers, and whatever gets lost, records arrive once and in order.

Method: sender and queues on a virtual clock. Each class of error is answered by hand; then a
property test plays random losses, refusals and leader changes against a model of a partition with
Kafka's rules for sequences.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from producer_rig import ModelLog, Rig, make_result, sequences, values_of

from onceflow.sdk.core.produce.transaction_manager import TransactionState
from onceflow.sdk.errors import (
    DeliveryTimeoutError,
    InvalidProducerEpochError,
    InvalidRecordError,
    KafkaError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    RemoteProtocolError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import MAX_SEQUENCE

E = ErrorCode
RETRIABLE = [
    E.CORRUPT_MESSAGE,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.LEADER_NOT_AVAILABLE,
    E.NOT_LEADER_OR_FOLLOWER,
    E.REQUEST_TIMED_OUT,
    E.NETWORK_EXCEPTION,
    E.NOT_ENOUGH_REPLICAS,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    E.KAFKA_STORAGE_ERROR,
    E.UNKNOWN_TOPIC_ID,
]
FINAL = [
    E.TOPIC_AUTHORIZATION_FAILED,
    E.CLUSTER_AUTHORIZATION_FAILED,
    E.INVALID_TIMESTAMP,
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    E.POLICY_VIOLATION,
    E.INVALID_TOPIC_EXCEPTION,
    E.UNSUPPORTED_COMPRESSION_TYPE,
]


# order and sequences


def test_batches_are_numbered_in_the_order_in_which_they_are_sent() -> None:
    rig = Rig()
    rig.send_batch(b"a", b"b")
    rig.send_batch(b"c")
    assert [sequences(job) for job in rig.jobs()] == [[(0, 0, 2)], [(0, 2, 1)]]


def test_sequences_go_on_at_zero_after_the_greatest() -> None:
    rig = Rig()
    rig.send_batch(b"first")
    rig.answer(rig.job())
    rig.state.queues[0].next_sequence = MAX_SEQUENCE
    rig.send_batch(b"a", b"b", b"c")
    rig.send_batch(b"d")
    assert [sequences(job) for job in rig.jobs()] == [[(0, MAX_SEQUENCE, 3)], [(0, 2, 1)]]


def test_five_batches_of_a_partition_are_on_their_way_at_most() -> None:
    rig = Rig(max_in_flight=5)
    for n in range(7):
        rig.send_batch(b"%d" % n)
    jobs = rig.jobs()
    assert len(jobs) == 5
    rig.answer(jobs[0])
    assert len(rig.jobs()) == 1


def test_a_lost_answer_repeats_the_same_bytes_and_later_batches_wait() -> None:
    rig = Rig()
    rig.send_batch(b"a")
    rig.send_batch(b"b")
    first, second = rig.jobs()
    before = [bytes(batch.data or b"") for _, batch in (*first.items, *second.items)]
    rig.fail(first)
    rig.fail(second)
    rig.send_batch(b"c")
    assert not rig.jobs(), "the back-off holds the partition"
    rig.advance(2_000)
    (again,) = rig.jobs()
    assert bytes(again.items[0][1].data or b"") == before[0]
    assert not rig.jobs(), "a retry goes alone"
    rig.answer(again)
    again, third = rig.jobs()
    assert bytes(again.items[0][1].data or b"") == before[1]
    assert sequences(third) == [(0, 2, 1)]


def test_until_the_broker_knows_the_producer_one_batch_goes_at_a_time() -> None:
    rig = Rig(known=False)
    rig.send_batch(b"a")
    rig.send_batch(b"b")
    rig.send_batch(b"c")
    first = rig.job()
    assert values_of(first) == [b"a"]
    rig.answer(first)
    assert [values_of(job) for job in rig.jobs()] == [[b"b"], [b"c"]]


def test_a_duplicate_is_a_success() -> None:
    rig = Rig()
    (delivery,) = rig.send_batch(b"a")
    rig.answer(rig.job(), E.DUPLICATE_SEQUENCE_NUMBER)
    assert delivery.done()
    assert delivery._metadata().offset == -1


def test_one_request_carries_one_batch_of_each_partition_up_to_the_limit() -> None:
    rig = Rig(partitions=3, max_request_size=1_000, batch_size=500)
    for n in range(3):
        rig.send_batch(b"x" * 400, partition=n)
    assert [len(job.items) for job in rig.jobs()] == [2, 1]


def test_a_busy_partition_does_not_starve_the_others() -> None:
    rig = Rig(partitions=2, max_in_flight=1, max_request_size=500, batch_size=400)
    for _ in range(3):
        rig.send_batch(b"x" * 300, partition=0)
    rig.send_batch(b"y" * 300, partition=1)
    order = []
    while jobs := rig.jobs():
        order += [batch.partition for job in jobs for _, batch in job.items]
        for job in jobs:
            rig.answer(job)
    assert order[:2] == [0, 1]


def test_without_a_leader_the_plan_asks_for_metadata() -> None:
    rig = Rig()
    rig.metadata = type(rig.metadata)()
    rig.send_batch(b"a")
    assert rig.plan().metadata_topics == {"t"}


def test_without_a_connection_the_plan_asks_for_one() -> None:
    rig = Rig()
    rig.connected.clear()
    rig.send_batch(b"a")
    assert rig.plan().connect == {1}


# errors that pass


@pytest.mark.parametrize("code", RETRIABLE)
def test_a_retriable_error_is_tried_again_after_a_pause(code: ErrorCode) -> None:
    rig = Rig()
    (delivery,) = rig.send_batch(b"a")
    rig.answer(rig.job(), code)
    plan = rig.plan()
    assert not plan.jobs
    assert plan.wake_at_ms > rig.now_ms
    rig.now_ms = plan.wake_at_ms
    again = rig.job()
    assert sequences(again) == [(0, 0, 1)]
    rig.answer(again, 0, 9)
    assert delivery._metadata().offset == 9


@pytest.mark.parametrize(
    "code", [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.KAFKA_STORAGE_ERROR]
)
def test_errors_of_leadership_make_the_metadata_stale(code: ErrorCode) -> None:
    rig = Rig()
    rig.send_batch(b"a")
    rig.answer(rig.job(), code)
    assert rig.sender.metadata_stale


def test_concurrent_transactions_is_tried_again_within_milliseconds() -> None:
    rig = Rig(transactional_id="x")
    rig.send_batch(b"a")
    rig.answer(rig.job(), E.CONCURRENT_TRANSACTIONS)
    assert rig.plan().wake_at_ms <= rig.now_ms + 5


def test_a_partition_that_the_broker_left_out_of_its_answer_fails() -> None:
    rig = Rig()
    (delivery,) = rig.send_batch(b"a")
    rig.answer_each(rig.job(), {})
    rig.advance(200)
    rig.answer(rig.job(), 0, 4)
    assert delivery._metadata().offset == 4


# errors that stay


@pytest.mark.parametrize("code", FINAL)
def test_a_final_error_fails_the_batch_at_once_and_keeps_its_class(code: ErrorCode) -> None:
    rig = Rig()
    (delivery,) = rig.send_batch(b"a")
    rig.answer(rig.job(), code)
    error = delivery.exception()
    assert error is not None
    assert getattr(error, "code", None) == code
    assert rig.accumulator.memory_used == 0
    assert rig.sender.failures


def test_after_a_final_error_the_next_batch_begins_a_new_epoch() -> None:
    rig = Rig()
    rig.send_batch(b"bad")
    rig.answer(rig.job(), E.INVALID_TIMESTAMP)
    rig.send_batch(b"good")
    assert sequences(rig.job()) == [(1, 0, 1)]


def test_batches_behind_a_failed_one_are_numbered_anew_once_refused() -> None:
    rig = Rig()
    rig.send_batch(b"bad")
    (second,) = rig.send_batch(b"b")
    (third,) = rig.send_batch(b"c")
    jobs = rig.jobs()
    rig.answer(jobs[0], E.TOPIC_AUTHORIZATION_FAILED)
    rig.answer(jobs[1], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert not rig.jobs(), "nothing new while one is on its way under the old epoch"
    rig.answer(jobs[2], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rig.advance(2_000)
    first, second_job = rig.jobs()
    assert [sequences(first), sequences(second_job)] == [[(1, 0, 1)], [(1, 1, 1)]]
    rig.answer(first, 0, 0)
    rig.answer(second_job, 0, 1)
    assert [second._metadata().offset, third._metadata().offset] == [0, 1]


def test_a_batch_of_uncertain_fate_is_never_renumbered() -> None:
    rig = Rig()
    rig.send_batch(b"bad")
    rig.send_batch(b"b")
    jobs = rig.jobs()
    rig.answer(jobs[0], E.INVALID_TIMESTAMP)
    rig.fail(jobs[1])
    rig.advance(2_000)
    again = rig.job()
    assert sequences(again) == [(0, 1, 1)], "it may be stored under this sequence"
    rig.answer(again, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rig.advance(2_000)
    assert sequences(rig.job()) == [(1, 0, 1)], "now it is certain that it is not"


def test_a_predecessor_that_did_not_arrive_keeps_sequences_and_order() -> None:
    rig = Rig()
    rig.send_batch(b"a")
    rig.send_batch(b"b")
    first, second = rig.jobs()
    rig.answer(first, E.NOT_LEADER_OR_FOLLOWER)
    rig.answer(second, E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rig.advance(2_000)
    again = rig.job()
    assert sequences(again) == [(0, 0, 1)]
    rig.answer(again)
    assert sequences(rig.job()) == [(0, 1, 1)]


@pytest.mark.parametrize("code", [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID])
def test_a_broker_that_lost_the_state_gets_a_new_epoch(code: ErrorCode) -> None:
    rig = Rig()
    rig.send_batch(b"a")
    rig.answer(rig.job())
    (delivery,) = rig.send_batch(b"b")
    rig.answer(rig.job(), code)
    rig.advance(2_000)
    again = rig.job()
    assert sequences(again) == [(1, 0, 1)]
    rig.answer(again, 0, 1)
    assert delivery._metadata().offset == 1


def test_an_exhausted_epoch_asks_for_a_new_producer_id() -> None:
    rig = Rig()
    rig.send_batch(b"a")
    rig.answer(rig.job(), E.INVALID_TIMESTAMP)
    rig.state.queues[0].producer_epoch = 32_767
    rig.send_batch(b"b")
    plan = rig.plan()
    assert plan.identity_needed
    assert not plan.jobs
    rig.manager.move(TransactionState.INITIALIZING)
    rig.manager.initialized(8, 0, 1)
    job = rig.job()
    assert sequences(job) == [(0, 0, 1)]
    assert job.items[0][1].producer_id == 8


def test_the_other_partitions_keep_their_epoch() -> None:
    rig = Rig(partitions=2)
    rig.send_batch(b"bad", partition=0)
    rig.send_batch(b"x", partition=1)
    job = rig.job()
    rig.answer_each(job, {("t", 0): make_result(E.INVALID_TIMESTAMP), ("t", 1): make_result(0, 0)})
    rig.send_batch(b"good", partition=0)
    rig.send_batch(b"y", partition=1)
    assert sequences(rig.job()) == [(1, 0, 1), (0, 1, 1)]


def test_records_at_fault_are_named_and_the_others_told_why() -> None:
    rig = Rig()
    good, bad = rig.send_batch(b"a", b"b")
    issue = type(make_result(0)).BatchIndexAndErrorMessage(
        batch_index=1, batch_index_error_message="no key in a compacted topic"
    )
    rig.answer(rig.job(), E.INVALID_RECORD, record_errors=[issue])
    assert "no key in a compacted topic" in str(bad.exception())
    assert isinstance(good.exception(), InvalidRecordError)
    assert "another record" in str(good.exception())


def test_an_answer_that_is_none_fails_the_batch() -> None:
    rig = Rig()
    (delivery,) = rig.send_batch(b"a")
    rig.fail(rig.job(), RemoteProtocolError("nonsense"))
    assert isinstance(delivery.exception(), RemoteProtocolError)


# too large


def test_a_batch_that_is_too_large_is_halved_until_only_the_big_record_fails() -> None:
    rig = Rig()
    handles = rig.send_batch(*[b"s"] * 5, b"BIG", *[b"s"] * 5)
    log = ModelLog()
    for _ in range(40):
        for job in rig.jobs():
            if any(value == b"BIG" for value in values_of(job)):
                rig.answer(job, E.MESSAGE_TOO_LARGE)
            else:
                rig.serve(job, {0: log})
        rig.advance(2_000)
    errors = [handle.exception() for handle in handles]
    assert [isinstance(error, MessageTooLargeError) for error in errors] == [
        n == 5 for n in range(11)
    ]
    assert log.values == [b"s"] * 10
    assert all(handle.done() for handle in handles)
    assert rig.accumulator.memory_used == 0


def test_a_failure_in_a_half_is_seen_by_who_watched_the_whole() -> None:
    rig = Rig()
    first, second = rig.send_batch(b"s", b"BIG")
    second._mark_seen()
    rig.answer(rig.job(), E.MESSAGE_TOO_LARGE)
    small = rig.job()
    rig.answer(small, 0, 0)
    rig.answer(rig.job(), E.MESSAGE_TOO_LARGE)
    assert first._metadata().offset == 0
    assert not sum(batch.unseen_failures for batch in rig.sender.failures)


# time


def test_a_record_that_cannot_be_sent_fails_when_its_time_is_over() -> None:
    rig = Rig(delivery_timeout_ms=5_000)
    rig.connected.clear()
    (delivery,) = rig.send_batch(b"a")
    plan = rig.plan()
    assert plan.wake_at_ms == rig.now_ms + 5_000
    rig.now_ms = plan.wake_at_ms
    rig.plan()
    error = delivery.exception()
    assert isinstance(error, DeliveryTimeoutError)
    assert "never sent" in str(error)
    rig.connected.add(1)
    rig.send_batch(b"b")
    assert sequences(rig.job()) == [(0, 0, 1)], "nothing was numbered, so no epoch is spent"


def test_a_record_on_its_way_fails_in_time_and_the_next_epoch_waits_for_the_answer() -> None:
    rig = Rig(delivery_timeout_ms=5_000)
    (delivery,) = rig.send_batch(b"a")
    job = rig.job()
    rig.advance(5_000)
    rig.plan()
    assert "may or may not" in str(delivery.exception())
    rig.send_batch(b"b")
    assert not rig.jobs()
    rig.answer(job, 0, 0)
    assert sequences(rig.job()) == [(1, 0, 1)]
    assert isinstance(delivery.exception(), DeliveryTimeoutError), "an outcome never changes"


# without idempotence


def test_without_idempotence_nothing_is_numbered_and_retries_still_happen() -> None:
    rig = Rig(idempotent=False)
    (delivery,) = rig.send_batch(b"a")
    job = rig.job()
    assert sequences(job) == [(-1, -1, 1)]
    rig.answer(job, E.NOT_ENOUGH_REPLICAS)
    rig.advance(2_000)
    rig.answer(rig.job(), 0, 3)
    assert delivery._metadata().offset == 3


def test_acks_zero_counts_as_sent_when_it_is_written() -> None:
    rig = Rig(idempotent=False)
    (delivery,) = rig.send_batch(b"a")
    rig.sender.sent_without_answer(rig.job())
    assert delivery._metadata().offset == -1
    assert not rig.sender.in_flight_count[1]


# transactions


def test_in_a_transaction_a_failed_batch_poisons_it_and_nothing_more_is_sent() -> None:
    rig = Rig(transactional_id="x")
    rig.send_batch(b"a")
    rig.send_batch(b"b")
    first, second = rig.jobs()
    rig.answer(first, E.TOPIC_AUTHORIZATION_FAILED)
    assert rig.manager.state is TransactionState.ABORTABLE_ERROR
    assert isinstance(rig.manager.error, TopicAuthorizationFailedError)
    rig.send_batch(b"c")
    assert not rig.jobs()
    rig.fail(second)
    assert not rig.jobs(), "not even a retry"
    assert rig.manager.bump_required


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (E.OUT_OF_ORDER_SEQUENCE_NUMBER, OutOfOrderSequenceNumberError),
        (E.INVALID_PRODUCER_EPOCH, InvalidProducerEpochError),
    ],
)
def test_in_a_transaction_a_lost_sequence_needs_an_abort(
    code: ErrorCode, error: type[KafkaError]
) -> None:
    rig = Rig(transactional_id="x")
    (delivery,) = rig.send_batch(b"a")
    rig.answer(rig.job(), code)
    assert isinstance(delivery.exception(), error)
    assert rig.manager.state is TransactionState.ABORTABLE_ERROR
    assert rig.manager.bump_required


def test_being_fenced_is_final_and_says_what_to_do() -> None:
    rig = Rig(transactional_id="x")
    rig.send_batch(b"a")
    rig.answer(rig.job(), E.PRODUCER_FENCED)
    assert rig.manager.state is TransactionState.FATAL_ERROR
    assert isinstance(rig.manager.error, ProducerFencedError)
    assert "close this one" in str(rig.manager.error)


def test_version_one_registers_a_partition_before_its_first_record() -> None:
    rig = Rig(transactional_id="x", protocol_version=1)
    rig.send_batch(b"a")
    plan = rig.plan()
    assert plan.register == {("t", 0)}
    assert not plan.jobs
    rig.manager.registered |= plan.register
    job = rig.job()
    assert job.max_version == 11
    assert rig.manager.has_content


def test_version_two_sends_at_once() -> None:
    rig = Rig(transactional_id="x", protocol_version=2)
    rig.send_batch(b"a")
    plan = rig.plan()
    assert not plan.register
    assert plan.jobs


def test_version_one_goes_on_counting_over_transactions_and_a_new_epoch_starts_at_zero() -> None:
    rig = Rig(transactional_id="x")
    rig.send_batch(b"a", b"b")
    rig.answer(rig.job())
    rig.manager.begin_end(committed=True)
    rig.manager.ended()
    rig.begin()
    rig.send_batch(b"c")
    job = rig.job()
    assert sequences(job) == [(0, 2, 1)]
    rig.answer(job)
    rig.manager.begin_end(committed=True)
    rig.manager.ended(7, 1)
    rig.begin()
    rig.send_batch(b"d")
    assert sequences(rig.job()) == [(1, 0, 1)]


def test_purging_fails_what_waits_and_leaves_what_is_on_its_way() -> None:
    rig = Rig(transactional_id="x")
    (sent,) = rig.send_batch(b"a")
    job = rig.job()
    waiting = rig.send(b"b")
    rig.sender.purge(KafkaError("aborted"))
    assert waiting.done()
    assert not sent.done()
    rig.answer(job, 0, 0)
    assert sent._metadata().offset == 0
    assert rig.accumulator.memory_used == 0


# everything at random

FATES = st.sampled_from(
    ["ok", "ok", "ok", "lost answer", "lost request", "not leader", "replicas", "final"]
)


@settings(max_examples=150, deadline=None)
@given(
    fates=st.lists(FATES, max_size=40),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    together=st.integers(1, 6),
)
def test_records_arrive_once_and_in_order_whatever_is_lost(
    fates: list[str], counts: list[int], together: int
) -> None:
    rig = Rig(known=False)
    log = ModelLog()
    sent: list[bytes] = []
    handles = []
    plan = iter(fates)
    batches = iter(counts)
    left = True
    for _ in range(500):
        for _ in range(together):
            count = next(batches, None)
            if count is None:
                left = False
                break
            values = [b"%d" % (len(sent) + n) for n in range(count)]
            sent += values
            handles += rig.send_batch(*values)
        jobs = rig.jobs()
        broken = False
        for job in jobs:
            fate = next(plan, "ok")
            if broken:
                rig.fail(job)  # One connection: what follows a loss is lost as well.
            elif fate == "ok":
                rig.serve(job, {0: log})
            elif fate == "lost answer":
                log.append(job.items[0][1].data or b"")
                rig.fail(job)
                broken = True
            elif fate == "lost request":
                rig.fail(job)
                broken = True
            elif fate == "not leader":
                rig.answer(job, E.NOT_LEADER_OR_FOLLOWER)
            elif fate == "replicas":
                log.append(job.items[0][1].data or b"")
                rig.answer(job, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            else:
                rig.answer(job, E.POLICY_VIOLATION)
        rig.advance(500)
        if not left and all(handle.done() for handle in handles):
            break
    assert all(handle.done() for handle in handles)
    stored = [value for value, handle in zip(sent, handles, strict=True) if not handle.exception()]
    assert len(set(log.values)) == len(log.values), "a record was stored twice"
    positions = [int(value or b"") for value in log.values]
    assert positions == sorted(positions), "the order was lost"
    assert set(stored) <= set(log.values), "an acknowledged record is missing"
    for value, handle in zip(sent, handles, strict=True):
        if handle.exception() is None and handle._metadata().offset >= 0:
            assert log.values[handle._metadata().offset] == value
    assert rig.accumulator.memory_used == 0


def test_a_batch_that_a_former_topic_stored_is_lost_with_it() -> None:
    """The topic was made anew while the answer was on its way, so the answer speaks of the old."""
    rig = Rig(transactional_id="x")
    (handle,) = rig.send_batch(b"a")
    job = rig.job()
    rig.state.made_anew(len(rig.state.queues))
    assert rig.manager.error is None  # Nothing is known yet.
    rig.answer(job, 0)
    assert handle.done()
    assert isinstance(rig.manager.error, UnknownTopicIdError)


@pytest.mark.parametrize("way", ["unknown id", "no answer"])
def test_a_batch_that_a_former_topic_did_not_store_goes_to_the_new_one(way: str) -> None:
    rig = Rig(transactional_id="x")
    (handle,) = rig.send_batch(b"a")
    job = rig.job()
    rig.state.made_anew(len(rig.state.queues))
    if way == "no answer":
        rig.fail(job)  # Stored or not: what was stored in the old one is gone, and is sent again.
    else:
        rig.answer(job, E.UNKNOWN_TOPIC_ID)
    rig.advance(1_000)
    rig.answer(rig.job(), 0)
    assert handle.done()
    assert rig.manager.error is None


def test_what_waits_while_its_topic_is_made_anew_goes_to_the_new_one() -> None:
    rig = Rig(transactional_id="x")
    (handle,) = rig.send_batch(b"a")
    rig.state.made_anew(len(rig.state.queues))
    rig.answer(rig.job(), 0)
    assert handle.done()
    assert rig.manager.error is None


def test_a_batch_of_a_former_topic_outside_of_transactions_was_stored() -> None:
    rig = Rig()
    (handle,) = rig.send_batch(b"a")
    job = rig.job()
    rig.state.made_anew(len(rig.state.queues))
    rig.answer(job, 0, base_offset=7)
    assert handle._metadata().offset == 7
