"""Goal: a micro-batch covers what it should, no more than its limit, and loses nothing in silence.

Method: the pure planning functions are called with small maps and with random ones (hypothesis).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.sdk import TopicPartition
from onceflow.spark_integration.planning import (
    BatchDelay,
    DataLossError,
    OffsetRange,
    check_data_loss,
    limit_offsets,
    plan_ranges,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)),
    max_size=12,
)


def test_everything_is_taken_when_it_fits_the_limit() -> None:
    assert limit_offsets({A0: 5, A1: 0}, {A0: 7, A1: 3}, 5) == {A0: 7, A1: 3}


def test_small_partition_is_not_starved_by_a_large_one() -> None:
    ends = limit_offsets({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 10)
    assert ends == {A0: 9, A1: 1}


@given(backlogs, st.integers(1, 10**6))
def test_limit_holds_and_progress_is_made(
    positions: dict[TopicPartition, tuple[int, int]], limit: int
) -> None:
    start = {tp: first for tp, (first, _) in positions.items()}
    latest = {tp: first + size for tp, (first, size) in positions.items()}
    ends = limit_offsets(start, latest, limit)
    taken = {tp: ends[tp] - start[tp] for tp in ends}
    assert ends.keys() == latest.keys()
    assert all(0 <= taken[tp] <= latest[tp] - start[tp] for tp in taken)
    assert sum(taken.values()) == min(limit, sum(size for _, size in positions.values()))


def test_empty_partitions_give_no_task() -> None:
    assert plan_ranges({A0: 3, A1: 4}, {A0: 3, A1: 6}) == [OffsetRange("a", 1, 4, 6)]


@given(backlogs, st.integers(1, 50))
def test_ranges_cover_each_offset_once(
    positions: dict[TopicPartition, tuple[int, int]], least: int
) -> None:
    start = {tp: first for tp, (first, _) in positions.items()}
    end = {tp: first + size for tp, (first, size) in positions.items()}
    for tp, (first, size) in positions.items():
        pieces = [r for r in plan_ranges(start, end, least) if r.topic_partition == tp]
        borders = [first, *[r.end for r in pieces]]
        assert [r.start for r in pieces] == borders[:-1]
        assert borders[-1] == first + size
        assert all(r.end > r.start for r in pieces)


def test_min_partitions_splits_the_large_ones() -> None:
    pieces = plan_ranges({A0: 0, A1: 0}, {A0: 900, A1: 100}, 10)
    assert len(pieces) == 10
    assert sum(r.topic_partition == A0 for r in pieces) == 9


def test_ranges_hold_at_most_so_many_offsets() -> None:
    ranges = plan_ranges({A0: 0, B0: 10}, {A0: 25, B0: 14}, max_records=10)
    assert [(r.topic_partition, r.start, r.end) for r in ranges] == [
        (A0, 0, 8), (A0, 8, 16), (A0, 16, 25), (B0, 10, 14)
    ]  # fmt: skip


def test_both_limits_of_ranges_hold_together() -> None:
    ranges = plan_ranges({A0: 0, B0: 0}, {A0: 100, B0: 10}, min_partitions=4, max_records=10)
    assert len(ranges) >= 4
    assert all(0 < r.end - r.start <= 10 for r in ranges)
    assert sum(r.end - r.start for r in ranges) == 110


def test_batch_waits_for_enough_offsets_or_for_its_time() -> None:
    delay = BatchDelay(least=5, delay_ms=1_000)
    assert not delay.waits({A0: 0}, {A0: 1}, now_ms=10), "the first batch does not wait"
    assert delay.waits({A0: 1, B0: 0}, {A0: 3, B0: 2}, now_ms=500)
    assert not delay.waits({A0: 1, B0: 0}, {A0: 4, B0: 2}, now_ms=600), "enough"
    assert delay.waits({A0: 4}, {A0: 5}, now_ms=1_599)
    assert not delay.waits({A0: 4}, {A0: 5}, now_ms=1_600), "the time is over"


def test_expired_offsets_are_an_error_that_names_partition_and_remedy() -> None:
    with pytest.raises(DataLossError, match=r"a-0: wanted 5, the log begins at 9.*failOnDataLoss"):
        check_data_loss({A0: 5, B0: 0}, {A0: 12, B0: 3}, {A0: 9, B0: 0}, fail=True)


def test_expired_offsets_that_the_batch_does_not_need_are_no_loss() -> None:
    assert check_data_loss({A0: 5}, {A0: 5}, {A0: 9}, fail=True) == {A0: 5}


def test_log_that_ends_before_the_position_is_a_loss() -> None:
    with pytest.raises(DataLossError, match="at 500, but the log ends at 100"):
        check_data_loss({A0: 500}, {A0: 100}, {A0: 0}, fail=True)


def test_without_failing_the_start_moves_to_what_is_there() -> None:
    moved = check_data_loss({A0: 5, A1: 500}, {A0: 12, A1: 100}, {A0: 9, A1: 0}, fail=False)
    assert moved == {A0: 9, A1: 100}
