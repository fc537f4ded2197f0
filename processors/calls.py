"""How the runner makes blocking calls: directly, or on one helper thread beside an event loop.

With blocking handlers only, no event loop is needed and every call is made in place. With async
handlers the loop belongs to them, so calls that wait for brokers or disks are made on one thread,
always the same, and never two at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_WAIT_S = 1.0
"""How long a cancelled caller waits for its call to return."""


class Calls(Protocol):
    """Makes one blocking call."""

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...

    def close(self) -> None:
        """Release the helper thread, if any."""


class DirectCalls:
    """Calls in place."""

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call and return at once, without ever suspending."""
        return function(*args, **kwargs)

    def close(self) -> None:
        """Nothing to release."""


class ThreadCalls:
    """Calls on one helper thread, which never keeps the process from ending.

    Args:
        interrupt: Makes a waiting call return early, when its caller is cancelled.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="onceflow-runner", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    async def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call on the helper thread and await the result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
                done.set_exception(error)

        self._queue.put(job)
        future = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The next call must not meet this one half done; it waits behind it on the thread.
            self._interrupt()
            await asyncio.wait([future], timeout=CANCEL_WAIT_S)
            raise

    def close(self) -> None:
        """Let the helper thread end."""
        self._queue.put(None)


class Attempt(Generic[T]):
    """A blocking step on a thread of its own, which its caller can leave behind.

    Reaching brokers may take long, and neither a signal handler nor another thread can end it. So
    the caller waits for whichever comes first, the result or ``leave``. The thread of a step that
    was left ends by itself and does not keep the process from ending.

    Args:
        step: Makes something.
        undo: Releases it, on the same thread, if the caller has left.
    """

    def __init__(self, step: Callable[[], T], undo: Callable[[T], None]) -> None:
        self._step = step
        self._undo = undo
        # Its put() may interrupt another put() or a get(), as signal handlers do.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._left = False
        self._done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def leave(self) -> None:
        """Make ``result`` return; callable from signal handlers and other threads."""
        self._news.put(None)

    def result(self) -> T | None:
        """Run the step.

        Returns:
            What it made; None if ``leave`` was called first.

        Raises:
            BaseException: What the step raised.
        """
        threading.Thread(target=self._work, name="onceflow-start", daemon=True).start()
        try:
            self._news.get()
        finally:  # also when a signal handler raises
            with self._ending:
                self._left = not self._done.done()
        return None if self._left else self._done.result()

    def _work(self) -> None:
        try:
            made = self._step()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._done.set_exception(error)
        else:
            with self._ending:
                left = self._left
                if not left:
                    self._done.set_result(made)
            if left:
                self._undo(made)
        self._news.put(None)
