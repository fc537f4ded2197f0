"""Goal: blocking calls into the background loop return, raise and end as if they were local.

Method: coroutines made for each case, without any client.
"""

from __future__ import annotations

import asyncio
import selectors
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

import pytest

from onceflow.sdk.errors import ClientClosedError, IllegalStateError, RequestTimedOutError
from onceflow.sdk.sync.portal import Portal, _Call


def test_a_call_returns_what_the_coroutine_returns() -> None:
    portal = Portal("client")

    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    assert portal.call(work) == "onceflow-client"
    portal.close()


def test_an_exception_comes_through_with_its_trace() -> None:
    portal = Portal("client")

    async def work() -> None:
        raise ZeroDivisionError("inside")

    with pytest.raises(ZeroDivisionError, match="inside") as caught:
        portal.call(work)
    assert any(entry.name == "work" for entry in caught.traceback)
    portal.close()


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    portal = Portal("client")
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(RequestTimedOutError):
        portal.call(work, timeout_s=0.05)
    assert ended.wait(30)
    portal.close()


def test_closing_ends_what_waits_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    portal = Portal("client")
    outcome: list[BaseException] = []

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.call(work)
        except ClientClosedError as error:
            outcome.append(error)

    started = threading.Event()
    thread = threading.Thread(target=call)
    thread.start()
    assert started.wait(30)
    portal.close()
    portal.close()
    thread.join(30)
    assert len(outcome) == 1
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClientClosedError, match="client is closed"):
        portal.call(work)


@pytest.mark.parametrize("in_time", [True, False], ids=["handed over", "too late"])
def test_a_call_that_comes_as_the_loop_ends_is_answered(
    in_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed the check, and the loop stopped before it was begun, or handed over at all."""
    portal = Portal("client")
    hand_over = portal.loop.call_soon_threadsafe
    entered, go = threading.Event(), threading.Event()
    begun: list[str] = []

    def hold() -> None:
        entered.set()
        assert go.wait(30)

    async def work() -> None:
        begun.append("begun")

    def late(callback: Callable[[], object]) -> None:
        monkeypatch.undo()
        if in_time:
            hand_over(callback).cancel()  # As a loop leaves it that stops first.
        go.set()
        portal.close()
        if not in_time:
            hand_over(callback)

    portal.wake(hold)
    assert entered.wait(30)
    monkeypatch.setattr(portal.loop, "call_soon_threadsafe", late)
    with pytest.raises(ClientClosedError, match="client"):
        portal.call(work)
    assert begun == []
    assert portal.loop.is_closed()


def test_a_call_given_up_before_it_began_does_not_begin() -> None:
    portal = Portal("client")
    entered, go = threading.Event(), threading.Event()
    begun: list[str] = []

    def hold() -> None:
        entered.set()
        assert go.wait(30)

    async def work() -> None:
        begun.append("begun")

    async def nothing() -> None:
        pass

    portal.wake(hold)
    assert entered.wait(30)
    with pytest.raises(RequestTimedOutError):
        portal.call(work, timeout_s=0.01)
    go.set()
    portal.call(nothing)
    portal.close()
    assert begun == [], "what nobody waits for is not done"


def test_a_blocking_call_from_the_loops_own_thread_is_refused() -> None:
    portal = Portal("client")

    async def inner() -> None:
        pass

    async def outer() -> None:
        portal.call(inner)

    with pytest.raises(IllegalStateError, match="would never end"):
        portal.call(outer)
    portal.close()


def test_waking_after_the_end_does_nothing() -> None:
    portal = Portal("client")
    woken = threading.Event()
    portal.wake(woken.set)
    assert woken.wait(30)
    portal.close()
    portal.wake(woken.clear)
    assert woken.is_set()


def no_more_threads(self: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_without_threads_it_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[asyncio.AbstractEventLoop] = []
    make = asyncio.new_event_loop

    def remember() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", remember)
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    with pytest.raises(IllegalStateError, match="this producer needs a thread"):
        Portal("producer")
    assert [loop.is_closed() for loop in made] == [True]


def test_it_ends_in_silence_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is in Python 3.12 once the main thread is over; asyncio ends executors by a thread."""
    portal = Portal("client")

    async def use_executor() -> None:
        await asyncio.get_running_loop().run_in_executor(None, int)

    portal.call(use_executor)
    unhandled: list[object] = []
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    portal.close()
    assert (portal.loop.is_closed(), unhandled) == (True, [])


def as_greenlet(self: threading.Thread) -> None:
    """What gevent and eventlet make of it: the work is done in the thread that is there."""
    self.run()


@pytest.mark.parametrize("replaced", ["threads", "selectors"])
def test_greenlets_in_the_place_of_threads_are_refused(
    monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    if replaced == "threads":
        monkeypatch.setattr(threading.Thread, "start", as_greenlet)
    else:
        theirs = type("GeventSelector", (selectors.DefaultSelector,), {"__module__": "gevent.x"})
        monkeypatch.setattr(selectors, "DefaultSelector", theirs)
    with pytest.raises(IllegalStateError, match="this producer needs a real thread"):
        Portal("producer")


def test_what_a_signal_handler_raises_is_not_taken_for_a_limit() -> None:
    """Programs end work that takes too long by an alarm whose handler raises TimeoutError."""

    def alarm(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the job takes too long")

    portal, cancelled = Portal("client"), threading.Event()

    async def work() -> None:
        main = threading.main_thread().ident or 0
        try:
            while sys._current_frames()[main].f_code is not _Call.wait.__code__:
                pass
            signal.pthread_kill(main, signal.SIGUSR1)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(TimeoutError, match="the job takes too long"):
            portal.call(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(30)
    portal.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_whoever_ends_the_program_within_a_call_ends_it_in_the_callers_thread(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """A deserializer that calls sys.exit, for example; the loop serves the close that follows."""
    portal = Portal("client")

    async def work() -> int:
        if not caplog.records:
            raise error
        return 1

    def callback() -> None:
        raise error

    with pytest.raises(type(error)):
        portal.call(work)
    portal.wake(callback)  # The same where no call is to blame.
    portal.call(lambda: asyncio.sleep(0))
    assert "raised KeyboardInterrupt or SystemExit" in caplog.text
    assert portal.call(work) == 1
    portal.close()


class _Outcome(BaseException):
    """As pytest.fail and gevent's timeout raise it."""


@pytest.mark.parametrize("error", [_Outcome("x"), GeneratorExit("x")], ids=repr)
def test_what_is_no_exception_comes_through_all_the_same(error: BaseException) -> None:
    portal = Portal("client")

    async def work() -> None:
        raise error

    with pytest.raises(type(error), match="x"):
        portal.call(work)
    portal.close()
