"""Goal: retries, dead-letter limits and the pacing of transactions count as documented.

Method: the pure parts alone, with given numbers for time and offsets.
"""

from __future__ import annotations

import pytest
import tenacity

from onceflow.processors import DeadLetterLimits, Retries
from onceflow.processors.outputs import Lane
from onceflow.processors.pacing import Pacing
from onceflow.processors.policies import DeadLetterMeter, ThrottledWarnings, dead_letter_headers
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import Abort, AbortReason

IN0 = TopicPartition("in", 0)
FAILED = Abort(AbortReason.DELIVERY_FAILED)


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


def test_second_abort_makes_the_next_transactions_single() -> None:
    """Trap 81: shrink to one, up to the offsets of the failed transaction."""
    pacing = Pacing(100, 1_000, aborts_max=3)
    pacing.aborted(FAILED, {IN0: 5})
    assert (pacing.limit, pacing.backoff_ms()) == (1_000, 0)
    pacing.aborted(FAILED, {IN0: 5})
    assert (pacing.limit, pacing.backoff_ms()) == (1, 50)
    pacing.committed({IN0: 4}, 0.0)
    assert (pacing.limit, pacing.aborts) == (1, 0)
    pacing.committed({IN0: 5}, 0.0)
    assert pacing.limit == 1_000


def test_rebalances_are_nobodys_fault() -> None:
    pacing = Pacing(100, 1_000, aborts_max=3)
    for _ in range(10):
        pacing.aborted(Abort(AbortReason.STALE_MEMBERSHIP), {IN0: 5})
    assert (pacing.limit, pacing.exhausted) == (1_000, False)
    for _ in range(4):
        pacing.aborted(FAILED, {IN0: 5})
    assert pacing.exhausted


def test_interval_counts_from_the_first_uncommitted_record() -> None:
    pacing = Pacing(100, 1_000, aborts_max=3)
    pacing.started(10.0)
    pacing.uncommitted = 1
    pacing.started(10.05)
    assert pacing.due_s == pytest.approx(10.1)


def test_outputs_of_a_topic_keep_their_order() -> None:
    """Plain ones travel in runs, those with headers or partition one by one, all in order."""
    sent: list[object] = []

    class Session:
        def send(self, topic: str, value: object = None, **more: object) -> None:
            sent.append((value, more["headers"], more["partition"]))

        def send_many(self, topic: str, values: list[object], keys: object, **more: object) -> None:
            sent.append(list(values))

    lane = Lane("out")
    lane.add(b"1", None, 0)
    lane.add(b"2", None, 0)
    lane.add(b"3", None, 0, [("h", b"")])
    lane.add(b"4", None, 0, (), 1)
    lane.add(b"5", None, 0)
    lane.send(Session())  # type: ignore[arg-type]
    assert sent == [[b"1", b"2"], (b"3", [("h", b"")], None), (b"4", (), 1), [b"5"]]
