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
from typing import ParamSpec, Protocol, TypeVar

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
