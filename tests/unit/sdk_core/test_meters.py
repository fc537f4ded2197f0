"""Goal: rates, averages and greatest values cover the last half to two minutes, totals everything.

Method: a virtual clock moved by hand, and a model that keeps every event.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceflow.sdk.observe.meters import WINDOW_MS, Meter


def test_an_unused_meter_is_zero() -> None:
    meter = Meter()
    assert (meter.rate(5), meter.event_rate(5), meter.average(5), meter.greatest(5)) == (0,) * 4


def test_a_first_moment_does_not_count_for_a_whole_second() -> None:
    meter = Meter()
    meter.add(100, 1_000_000)
    meter.add(100, 1_000_010)
    assert (meter.rate(1_000_010), meter.event_rate(1_000_010)) == (200, 2)


def test_figures_fade_and_totals_stay() -> None:
    meter = Meter()
    for second in range(10):
        meter.add(100, 1_000_000 + second * 1_000)
    now_ms = 1_010_000
    assert meter.rate(now_ms) == 100
    assert meter.event_rate(now_ms) == 1
    assert (meter.average(now_ms), meter.greatest(now_ms)) == (100, 100)
    later_ms = now_ms + 3 * WINDOW_MS
    assert (meter.rate(later_ms), meter.average(later_ms), meter.greatest(later_ms)) == (0, 0, 0)
    assert (meter.total, meter.count) == (1_000, 10)
    meter.add(5, later_ms)
    assert (meter.average(later_ms), meter.greatest(later_ms)) == (5, 5)


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 100)), min_size=1, max_size=50))
def test_figures_lie_between_those_of_half_a_minute_and_of_two(
    events: list[tuple[int, int]],
) -> None:
    meter, now_ms, all_events = Meter(), 5_000_000, []
    for pause_ms, value in events:
        now_ms += pause_ms
        meter.add(value, now_ms)
        all_events.append((now_ms, value))
        recent = [v for t, v in all_events if t > now_ms - WINDOW_MS]
        wider = [v for t, v in all_events if t >= now_ms - 4 * WINDOW_MS]
        assert max(recent) <= meter.greatest(now_ms) <= max(wider)
        assert min(wider) <= meter.average(now_ms) <= max(wider)
    assert (meter.count, meter.total) == (len(events), sum(v for _, v in events))
