"""Goal: deferred answers, timers and parked operations run exactly when they should, and once.

Method: the machines alone, on a clock that is a number in the test.
"""

from __future__ import annotations

from onceflow.broker_lite.purgatory import Deferred, Purgatory, Timers


def test_deferred_tells_callbacks_added_before_and_after_completion() -> None:
    deferred: Deferred[int] = Deferred()
    seen: list[int] = []
    deferred.add_done_callback(seen.append)
    assert deferred.complete(7)
    deferred.add_done_callback(seen.append)
    assert seen == [7, 7]
    assert deferred.completed


def test_deferred_takes_only_the_first_answer() -> None:
    deferred: Deferred[int] = Deferred()
    seen: list[int] = []
    deferred.add_done_callback(seen.append)
    assert deferred.complete(1)
    assert not deferred.complete(2)
    assert seen == [1]


def test_disconnect_runs_the_hook_once_and_silences_the_answer() -> None:
    """Trap 71: what was parked for a peer that has gone is forgotten."""
    gone: list[str] = []
    seen: list[int] = []
    deferred: Deferred[int] = Deferred(on_disconnect=lambda: gone.append("gone"))
    deferred.add_done_callback(seen.append)
    deferred.disconnect()
    deferred.disconnect()
    assert not deferred.complete(1)
    deferred.add_done_callback(seen.append)
    assert (gone, seen) == (["gone"], [])


def test_disconnect_after_the_answer_does_nothing() -> None:
    gone: list[str] = []
    deferred: Deferred[int] = Deferred(on_disconnect=lambda: gone.append("gone"))
    deferred.complete(1)
    deferred.disconnect()
    assert gone == []


def test_timers_run_in_order_of_time_then_of_scheduling() -> None:
    timers = Timers()
    ran: list[str] = []
    timers.schedule(20, lambda now: ran.append(f"late@{now}"))
    timers.schedule(10, lambda now: ran.append(f"first@{now}"))
    timers.schedule(10, lambda now: ran.append(f"second@{now}"))
    assert timers.next_deadline_ms() == 10
    assert timers.run_due(15) == 2
    assert ran == ["first@15", "second@15"]
    assert timers.next_deadline_ms() == 20
    assert timers.run_due(20) == 1
    assert timers.next_deadline_ms() is None


def test_cancelled_timer_does_not_run_and_is_no_deadline() -> None:
    timers = Timers()
    ran: list[int] = []
    timer = timers.schedule(10, ran.append)
    timers.schedule(30, ran.append)
    timer.cancel()
    timer.cancel()
    assert not timer.active
    assert timers.next_deadline_ms() == 30
    assert len(timers) == 1
    timers.run_due(20)
    assert ran == []


def test_timer_scheduled_by_a_timer_for_now_runs_in_the_same_round() -> None:
    timers = Timers()
    ran: list[int] = []
    timers.schedule(10, lambda now: timers.schedule(now, ran.append) and None)
    timers.run_due(10)
    assert ran == [10]


def test_many_cancelled_timers_do_not_pile_up() -> None:
    timers = Timers()
    kept = timers.schedule(10**6, lambda now: None)
    for at_ms in range(10_000):
        timers.schedule(at_ms, lambda now: None).cancel()
    assert len(timers._heap) < 200
    assert len(timers) == 1
    assert timers.next_deadline_ms() == kept.at_ms


def test_earlier_timer_moves_the_alarm() -> None:
    timers = Timers()
    calls: list[str] = []
    timers.on_earlier = lambda: calls.append("moved")
    timers.schedule(20, lambda now: None)
    timers.schedule(30, lambda now: None)
    timers.schedule(10, lambda now: None)
    assert len(calls) == 2


def park(purgatory: Purgatory, keys: list[str], log: list[str], *, done: list[bool]) -> object:
    def try_complete(now_ms: int) -> bool:
        log.append(f"look@{now_ms}")
        return done[0]

    return purgatory.park(keys, 100, try_complete, lambda now: log.append(f"expire@{now}"))


def test_wake_looks_at_the_operation_when_settled_not_before() -> None:
    timers = Timers()
    purgatory = Purgatory(timers)
    log: list[str] = []
    park(purgatory, ["a", "b"], log, done=[True])
    purgatory.wake("a")
    purgatory.wake("b")
    assert log == []
    purgatory.settle(5)
    assert log == ["look@5"]
    assert not purgatory.watched("a")
    assert not purgatory.watched("b")
    assert timers.next_deadline_ms() is None


def test_operation_that_is_not_done_stays_until_its_deadline() -> None:
    timers = Timers()
    purgatory = Purgatory(timers)
    log: list[str] = []
    park(purgatory, ["a"], log, done=[False])
    purgatory.wake("a")
    purgatory.settle(5)
    assert len(purgatory) == 1
    timers.run_due(99)
    timers.run_due(100)
    timers.run_due(200)
    assert log == ["look@5", "expire@100"]
    assert len(purgatory) == 0


def test_wake_of_an_unwatched_key_is_nothing() -> None:
    purgatory = Purgatory(Timers())
    purgatory.wake("nobody")
    assert not purgatory.unsettled


def test_first_wake_asks_for_a_settle() -> None:
    purgatory = Purgatory(Timers())
    asked: list[str] = []
    purgatory.on_wake = lambda: asked.append("settle")
    park(purgatory, ["a"], [], done=[False])
    purgatory.wake("a")
    purgatory.wake("a")
    assert asked == ["settle"]


def test_operation_woken_while_settling_is_looked_at_too() -> None:
    purgatory = Purgatory(Timers())
    log: list[str] = []

    def first(now_ms: int) -> bool:
        purgatory.wake("b")
        return True

    purgatory.park(["a"], 100, first, lambda now: None)
    park(purgatory, ["b"], log, done=[True])
    purgatory.wake("a")
    purgatory.settle(1)
    assert log == ["look@1"]
