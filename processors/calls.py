"""Runs a worker's requests to brokers: in the worker's thread, or on one helper thread.

A worker is a coroutine, and so are its requests to brokers. Over blocking clients such a coroutine
never suspends; over asyncio clients it is awaited. ``InPlace`` serves both. With async handlers and
blocking clients, ``OnThread`` runs the requests on one helper thread, one at a time, so that
handlers go on meanwhile and heartbeats do not wait for handlers. ``home`` brings the session's
callbacks from that thread back to the loop, so that only one thread touches the worker's state.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Generic, ParamSpec, Protocol, TypeVar

from onceflow.transactions.colour import Maybe, run_blocking, settle

logger: logging.Logger = logging.getLogger("onceflow.processors")

P = ParamSpec("P")
T = TypeVar("T")

CANCEL_WAIT_S = 1.0
"""How long a cancelled caller waits for its call to return."""


class Calls(Protocol):
    """Runs the coroutines of a worker that ask brokers."""

    async def __call__(self, work: Coroutine[object, None, T]) -> T:
        """Run a coroutine to its end."""

    def home(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of the worker from within such a coroutine."""

    def close(self) -> None:
        """End the helper thread, if there is one."""


class InPlace:
    """Awaits the coroutines where the worker runs."""

    async def __call__(self, work: Coroutine[object, None, T]) -> T:
        """Await the coroutine; over blocking clients that never suspends."""
        return await work

    def home(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function."""
        return function(*args, **kwargs)

    def close(self) -> None:
        """Do nothing."""


class OnThread:
    """Runs the coroutines on one helper thread, which never keeps the process from ending.

    Args:
        interrupt: Makes a waiting call return early, when its caller is cancelled.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="onceflow-worker", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()

    async def __call__(self, work: Coroutine[object, None, T]) -> T:
        """Run the coroutine on the helper thread and await the result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            try:
                done.set_result(run_blocking(work))
            except BaseException as error:  # noqa: BLE001 - raised where the call is awaited
                done.set_exception(error)

        self._queue.put(job)
        future = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(_dropped)
            # The next call waits on the thread until this one has ended.
            self._interrupt()
            await asyncio.wait([future], timeout=CANCEL_WAIT_S)
            raise

    def home(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function on the loop's thread and wait for its result."""

        async def call() -> T:
            return function(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def close(self) -> None:
        """Ask the helper thread to end."""
        self._queue.put(None)


def _dropped(future: asyncio.Future[T]) -> None:
    """Look at the error of a call whose caller was cancelled, or asyncio prints a traceback."""
    if not future.cancelled() and future.exception() is not None:
        logger.debug("a cancelled call failed: %s", future.exception())


class Attempt(Generic[T]):
    """A blocking step in its own thread, for which its caller can stop waiting.

    Connecting to brokers may take long, and neither a signal handler nor another thread can end it.
    So the caller waits for the result or for ``leave``. After ``leave`` the thread ends by itself;
    it does not keep the process from ending.

    Args:
        step: Makes an object.
        undo: Releases the object, on the same thread, if the caller has left.
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
            The object; None if ``leave`` was called first.

        Raises:
            BaseException: The step's error.
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


async def made(make: Callable[[], Maybe[T]]) -> T:
    """Call within the coroutine, so that ``Calls`` decides in which thread."""
    return await settle(make())
