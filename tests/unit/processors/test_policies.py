"""Goal: retries, dead-letter limits and the pacing of transactions count as documented.

Method: the pure parts alone, with given numbers for time and offsets.
"""

from __future__ import annotations

import pytest
import tenacity

from onceflow.processors import DeadLetterLimits, Retries
from onceflow.processors.lanes import Lane
from onceflow.processors.policies import DeadLetterMeter, ThrottledWarnings, dead_letter_headers
from onceflow.processors.unit import Unit
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import Abort, AbortReason

IN0 = TopicPartition("in", 0)


def test_backoff_doubles_up_to_its_maximum() -> None:
    retries = Retries(9, backoff_ms=100, backoff_max_ms=1_000)
    assert [retries.delay_ms(n) for n in range(1, 7)] == [100, 200, 400, 800, 1_000, 1_000]


def test_any_wait_of_tenacity_can_be_used() -> None:
    assert Retries(1, wait=tenacity.wait_fixed(2)).delay_ms(5) == 2_000


@pytest.mark.parametrize("wrong", [{"count_max": -1}, {"backoff_ms": 5, "backoff_max_ms": 1}])
def test_wrong_retries_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"give a number|must be"):
        Retries(**wrong)


def test_consecutive_limit_is_per_partition_and_ends_with_a_good_record() -> None:
    meter = DeadLetterMeter(DeadLetterLimits(consecutive_max=2))
    assert [meter.bad(0), meter.bad(0), meter.bad(1)] == [None, None, None]
    meter.good(0)
    assert [meter.bad(0), meter.bad(0)] == [None, None]
    assert meter.bad(0) == "3 dead letters in a row, the limit is 2"


def test_ratio_limit_counts_once_the_window_is_full() -> None:
    meter = DeadLetterMeter(DeadLetterLimits(1_000, ratio_max=0.2, ratio_window=10))
    for _ in range(7):
        meter.good(0)
    assert [meter.bad(0), meter.bad(0)] == [None, None]
    assert meter.bad(0) == "3 of the latest 10 records are dead letters, the limit is 20%"


def test_limit_of_a_run_counts_all_partitions() -> None:
    meter = DeadLetterMeter(DeadLetterLimits(run_max=2))
    assert [meter.bad(0), meter.bad(1)] == [None, None]
    for _ in range(5_000):
        meter.good(2)
    assert meter.bad(3) == "3 dead letters in this run, the limit is 2"


def test_records_that_come_again_are_counted_once() -> None:
    meter = DeadLetterMeter(DeadLetterLimits(2, 0.5, 100, run_max=4))
    assert meter.bad(0) is None
    meter.committed()
    for _ in range(10):  # The same record, and an abort behind it.
        assert meter.bad(0) is None
        meter.good(1)
        meter.dropped()
    assert meter.bad(0) is None
    assert meter.bad(0) == "3 dead letters in a row, the limit is 2"


def test_warnings_of_a_kind_are_summed_up() -> None:
    """A flood of dead letters is no flood of log lines."""
    lines: list[str] = []
    now = [0.0]
    warnings = ThrottledWarnings(lines.append, lambda: now[0])
    for number in range(5):
        warnings.note(ValueError(), f"v{number}")
    warnings.note(KeyError(), "k0")
    now[0] = 10.0
    warnings.note(ValueError(), "v5")
    assert lines == ["v0", "k0", "v5 (and 4 more like it before)"]


def test_dead_letter_keeps_headers_and_bounds_the_traceback() -> None:
    record = ConsumerRecord("in", 3, 7, headers=[("own", None)])
    headers = dead_letter_headers(record, ValueError("x" * 20_000), 2, "handler")
    assert headers[0] == ("own", None)
    found = dict(headers)
    assert found["onceflow.error.partition"] == b"3"
    assert found["onceflow.error.class"] == b"builtins.ValueError"
    assert len(found["onceflow.error.traceback"] or b"") == 8_192


class Clock:
    """Seconds, set by hand."""

    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def unit_of(records_max: int = 1_000, aborts_max: int = 3) -> Unit:
    return Unit(Clock(), 100, records_max, aborts_max)


def fail(unit: Unit, count: int, upto: int, reason: AbortReason = AbortReason.ABORTABLE) -> None:
    unit.count = count
    unit.aborted(Abort(reason), {IN0: upto})


def commit(unit: Unit, count: int, upto: int) -> None:
    unit.count = count
    unit.committed({IN0: upto})


def test_aborts_that_come_again_halve_the_units() -> None:
    """Trap 81: up to the offsets of the failed unit."""
    unit = unit_of()
    fail(unit, 8, 8)
    assert (unit.room, unit.backoff_ms()) == (1_000, 0)
    fail(unit, 8, 8)
    assert (unit.room, unit.backoff_ms()) == (4, 50)
    commit(unit, 4, 4)
    assert (unit.room, unit.aborts) == (2, 0)
    commit(unit, 2, 6)
    assert unit.room == 1
    commit(unit, 1, 7)
    assert (unit.room, unit.is_careful) == (1, True)
    commit(unit, 1, 8)
    assert (unit.room, unit.is_careful) == (1_000, False)


@pytest.mark.parametrize("culprit", range(0, 1_000, 77))
def test_the_record_to_blame_is_found_in_few_units(culprit: int) -> None:
    """A unit that holds the record fails; about two units for each halving find it."""
    unit, place, units = unit_of(), 0, 0
    while True:
        count = min(unit.room, 1_000 - place)
        units += 1
        if not place <= culprit < place + count:
            place += count
            commit(unit, count, place)
        elif count == 1:
            break
        else:
            unit.suspect({IN0: place + count}, count)
    assert place == culprit
    assert units <= 24
    unit.found()
    assert unit.room == 1_000


def test_rebalances_are_nobodys_fault() -> None:
    unit = unit_of()
    for _ in range(10):
        fail(unit, 5, 5, AbortReason.STALE_MEMBERSHIP)
    assert (unit.room, unit.exhausted) == (1_000, False)
    for _ in range(4):
        fail(unit, 5, 5)
    assert unit.exhausted


def test_partition_that_goes_takes_its_suspicion_along() -> None:
    unit = unit_of()
    unit.suspect({IN0: 8}, 8)
    unit.forget(IN0)
    assert unit.room == 1_000


def test_interval_counts_from_the_first_uncommitted_record() -> None:
    unit = unit_of()
    clock = unit.clock
    assert isinstance(clock, Clock)
    unit.started()
    unit.count = 1
    clock.now_s = 10.05
    unit.started()
    assert unit.due_s == pytest.approx(10.1)
    assert not unit.is_due
    clock.now_s = 10.11
    assert unit.is_due


def test_outputs_of_a_topic_keep_their_order() -> None:
    """Plain ones travel in runs, those with headers or partition one by one, all in order."""
    lane = Lane("out", Clock())
    lane.add(b"1", None, 0)
    lane.add(b"2", None, 0)
    lane.add(b"3", None, 0, [("h", b"")])
    lane.add(b"4", None, 0, (), 1)
    lane.add(b"5", None, 0)
    runs = [(run.values, list(run.headers), run.partition) for run in lane.take()]
    assert runs == [
        ([b"1", b"2"], [], None),
        ([b"3"], [("h", b"")], None),
        ([b"4"], [], 1),
        ([b"5"], [], None),
    ]
    assert lane.take() == []
