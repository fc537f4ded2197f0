"""Goal: a subscription knows which offset comes next, and no late answer can move it back.

Method: the states are driven by hand through assignments, seeks, resets and answers that arrive
after the question lost its meaning; the cursor of iteration is tested with the same states.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sdk.core.consume.record_cursor import RecordCursor
from onceflow.sdk.core.consume.subscription import PartitionPhase, Subscription, SubscriptionMode
from onceflow.sdk.errors import ConfigError, IllegalStateError, NoOffsetForPartitionError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import IsolationLevel, OffsetAndMetadata, TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def assigned(*partitions: TopicPartition, reset: str = "latest") -> Subscription:
    subscription = Subscription(reset)
    subscription.assign_manually(partitions or (P0,))
    return subscription


# --- what is read ---


def test_topics_and_partitions_exclude_each_other() -> None:
    subscription = Subscription()
    subscription.subscribe(["t"])
    with pytest.raises(IllegalStateError, match="unsubscribe"):
        subscription.assign_manually([P0])
    subscription.unsubscribe()
    subscription.assign_manually([P0])
    with pytest.raises(IllegalStateError, match="exclude each other"):
        subscription.subscribe(["t"])


def test_a_pattern_selects_whole_names_and_tells_whether_anything_changed() -> None:
    subscription = Subscription()
    subscription.subscribe_pattern(re.compile("a.*"))
    assert subscription.match_topics(["ab", "ba", "ac"])
    assert subscription.topics == {"ab", "ac"}
    assert not subscription.match_topics(["ac", "ab", "x"])
    assert subscription.uses_group


def test_topics_after_a_pattern_replace_it() -> None:
    subscription = Subscription()
    subscription.subscribe_pattern(re.compile("a.*"))
    subscription.subscribe(["t"])
    assert (subscription.mode, subscription.pattern) == (SubscriptionMode.TOPICS, None)


def test_partitions_that_stay_keep_their_position_and_pause() -> None:
    subscription = Subscription()
    subscription.subscribe(["t"])
    subscription.assign_from_group([P0])
    subscription.seek(P0, 5)
    subscription.state(P0).paused = True
    subscription.assign_from_group([P0, P1])
    assert (subscription.state(P0).position, subscription.state(P0).paused) == (5, True)
    assert subscription.state(P1).phase is PartitionPhase.LOADING


def test_a_partition_that_comes_back_starts_afresh() -> None:
    subscription = Subscription()
    subscription.subscribe(["t"])
    subscription.assign_from_group([P0])
    subscription.seek(P0, 5)
    subscription.remove([P0])
    subscription.assign_from_group([P0])
    assert not subscription.state(P0).has_position


def test_an_unassigned_partition_is_named() -> None:
    with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
        assigned(P0).seek(P1, 0)


# --- late answers ---


def test_a_committed_offset_that_arrives_after_a_seek_is_void() -> None:
    subscription = assigned()
    stamp = subscription.state(P0).stamp
    subscription.seek(P0, 42)
    assert not subscription.apply_position(P0, stamp, 7)
    assert subscription.state(P0).position == 42


def test_an_offset_for_a_former_reset_is_void() -> None:
    subscription = assigned()
    subscription.request_reset(P0, -2)
    stamp = subscription.state(P0).stamp
    subscription.request_reset(P0, -1)
    assert not subscription.apply_position(P0, stamp, 0)
    assert subscription.state(P0).reset_timestamp == -1


def test_an_answer_for_a_partition_that_was_lost_is_void() -> None:
    subscription = assigned()
    stamp = subscription.state(P0).stamp
    subscription.remove([P0])
    assert not subscription.apply_position(P0, stamp, 7)


@given(st.lists(st.sampled_from(["load", "seek", "reset", "revoke", "answer"]), max_size=40))
def test_only_the_answer_to_the_newest_question_counts(steps: list[str]) -> None:
    subscription = assigned()
    asked: list[tuple[int, int]] = []
    expected: int | None = None
    for number, step in enumerate(steps):
        if step == "answer" and asked:
            stamp, offset = asked.pop(0)
            newest = stamp == subscription.state(P0).stamp and expected is None
            assert subscription.apply_position(P0, stamp, offset) == (
                stamp == subscription.state(P0).stamp
            )
            if newest:
                expected = offset
        elif step == "seek":
            subscription.seek(P0, number)
            expected = number
        elif step == "reset":
            subscription.request_reset(P0, -1)
            asked.append((subscription.state(P0).stamp, 1_000 + number))
            expected = None
        elif step == "load":
            subscription.request_load(P0)
            asked.append((subscription.state(P0).stamp, 2_000 + number))
            expected = None
        elif step == "revoke":
            subscription.remove([P0])
            subscription.assign_manually([P0])
            expected = None
        state = subscription.state(P0)
        assert (state.position if state.has_position else None) == expected


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(ConfigError, match="offset=-1: must be the offset to seek"):
        assigned().seek(P0, -1)


# --- policies, positions ---


def test_without_a_policy_the_failure_stays_until_a_seek() -> None:
    subscription = assigned(reset="none")
    failure = NoOffsetForPartitionError("t-0")
    subscription.reset_by_policy(subscription.state(P0), failure)
    assert subscription.failure() is subscription.failure() is failure
    subscription.seek(P0, 0)
    assert subscription.failure() is None


def test_positions_leave_out_what_is_not_known() -> None:
    subscription = assigned(P0, P1)
    subscription.seek(P0, 5, leader_epoch=3)
    assert subscription.positions() == {P0: OffsetAndMetadata(5, "", 3)}


def test_lag_counts_to_the_last_stable_offset_or_to_the_high_watermark() -> None:
    subscription = assigned()
    state = subscription.state(P0)
    assert state.lag(IsolationLevel.READ_COMMITTED) is None
    subscription.seek(P0, 5)
    state.high_watermark, state.last_stable_offset = 20, 9
    assert state.lag(IsolationLevel.READ_COMMITTED) == 4
    assert state.lag(IsolationLevel.READ_UNCOMMITTED) == 15


@pytest.mark.parametrize(("position", "stable", "lag"), [(9, 9, None), (8, 9, 1), (20, -1, None)])
def test_an_end_that_was_reached_before_a_pause_is_unknown_behind_it(
    position: int, stable: int, lag: int | None
) -> None:
    """It may have moved, and nobody asked; what was fetched and not returned is still there."""
    subscription = assigned()
    state = subscription.state(P0)
    subscription.seek(P0, position)
    state.high_watermark, state.last_stable_offset = 20, stable
    level = IsolationLevel.READ_UNCOMMITTED if stable < 0 else IsolationLevel.READ_COMMITTED
    state.resume()  # Without a pause it goes on.
    assert state.lag(level) == (lag or 0)
    state.paused = True
    assert state.lag(level) == (lag or 0)
    state.resume()
    assert not state.paused
    assert state.lag(level) == lag


def test_a_partition_held_back_is_not_due_before_its_time() -> None:
    subscription = assigned()
    subscription.state(P0).retry_at_ms = 100
    assert subscription.in_phase(PartitionPhase.LOADING, 99) == []
    assert len(subscription.in_phase(PartitionPhase.LOADING, 100)) == 1


# --- the cursor of iteration ---


def polled(subscription: Subscription, *offsets: int, end: int) -> list[ConsumerRecord]:
    subscription.state(P0).position = end
    return [ConsumerRecord("t", 0, offset) for offset in offsets]


def test_a_record_counts_as_read_only_when_it_was_handed_out() -> None:
    subscription = assigned()
    subscription.seek(P0, 0)
    cursor = RecordCursor(subscription)
    cursor.load({P0: polled(subscription, 0, 2, end=5)})
    state = subscription.state(P0)
    assert state.position == 0
    assert cursor.next() is not None
    assert state.position == 1
    assert cursor.next() is not None
    assert state.position == 5, "hidden batches behind the last record go with it"
    assert cursor.next() is None


def test_a_poll_in_between_returns_what_iteration_left() -> None:
    subscription = assigned()
    subscription.seek(P0, 0)
    cursor = RecordCursor(subscription)
    cursor.load({P0: polled(subscription, 0, 1, 2, end=3)})
    cursor.next()
    assert [r.offset for r in cursor.take(1)[P0]] == [1]
    assert [r.offset for r in cursor.take(10)[P0]] == [2]
    assert subscription.state(P0).position == 3


@pytest.mark.parametrize("event", ["seek", "revoke"])
def test_left_over_records_vanish_when_their_partition_moves(event: str) -> None:
    subscription = assigned()
    subscription.seek(P0, 0)
    cursor = RecordCursor(subscription)
    cursor.load({P0: polled(subscription, 0, 1, end=2)})
    if event == "seek":
        subscription.seek(P0, 9)
    else:
        subscription.remove([P0])
        subscription.assign_manually([P0])
    assert not cursor.has_records
    assert cursor.next() is None
    assert subscription.state(P0).position == (9 if event == "seek" else -1)


def test_nothing_is_delivered_of_topics_that_are_no_longer_subscribed() -> None:
    """The group may take some time to take their partitions away (KIP-848)."""
    subscription = Subscription("latest")
    subscription.subscribe(["t", "u"])
    other = TopicPartition("u", 0)
    subscription.assign_from_group([P0, other])
    for partition in (P0, other):
        subscription.seek(partition, 0)
    cursor = RecordCursor(subscription)
    cursor.load({P0: [ConsumerRecord("t", 0, 0)], other: [ConsumerRecord("u", 0, 0)]})
    subscription.subscribe(["u"])
    assert not subscription.state(P0).deliverable
    assert subscription.state(other).deliverable
    assert cursor.take(10).keys() == {other}
    subscription.assign_from_group([P0, other])
    assert not subscription.state(P0).deliverable, "an assignment that was under way"
    assert P0 in subscription.positions(), "it is owned still"
    subscription.subscribe(["t", "u"])
    assert cursor.take(10).keys() == {P0}


def test_so_it_is_with_patterns() -> None:
    subscription = Subscription("latest")
    subscription.subscribe_pattern(re.compile("t|u"))
    other = TopicPartition("u", 0)
    subscription.assign_from_group([P0, other])
    for partition in (P0, other):
        subscription.seek(partition, 0)
    subscription.subscribe_pattern(re.compile("u.?"))
    assert [s.topic_partition for s in subscription if s.deliverable] == [other]
    subscription.subscribe(["t"])
    assert [s.topic_partition for s in subscription if s.deliverable] == [P0]
    subscription.unsubscribe()
    subscription.assign_manually([P0, other])
    assert not any(s.unsubscribed for s in subscription)


def test_left_over_records_of_a_paused_partition_wait() -> None:
    subscription = assigned(P0, P1)
    subscription.seek(P0, 0)
    subscription.seek(P1, 0)
    cursor = RecordCursor(subscription)
    other = [ConsumerRecord("t", 1, 7)]
    cursor.load({P0: polled(subscription, 0, end=1), P1: other})
    subscription.state(P0).paused = True
    assert cursor.next() is other[0]
    assert cursor.next() is None
    subscription.state(P0).paused = False
    record = cursor.next()
    assert record is not None
    assert record.topic_partition == P0
