"""One background event loop per client, so that blocking calls can use asyncio clients.

The portal decides how a call crosses into the loop's thread and back: exceptions keep their traces,
Ctrl-C interrupts the wait and cancels the work, a fork is noticed, and closing leaves no thread
behind. What the calls do is not its business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from onceflow.sdk.aio.forks import forked_error
from onceflow.sdk.errors import ClientClosedError, IllegalStateError, RequestTimedOutError
from onceflow.sdk.event_loops import new_event_loop

T = TypeVar("T")

log: logging.Logger = logging.getLogger("onceflow.sdk.portal")

CLOSE_MARGIN_S = 5.0
"""How long closing waits for the loop's thread beyond the work that it was given."""

GREENLETS = (
    "needs a real thread with an event loop, and gevent or eventlet stands in for them: call "
    "gevent.monkey.patch_all(thread=False, select=False) or eventlet.monkey_patch(thread=False), "
    "or use workers that are threads or processes (a call that waits holds up its whole thread)"
)
"""Error text for a program that replaced threads by greenlets."""


class Portal:
    """A thread that runs an event loop for one client.

    Attributes:
        loop: The loop; other threads may only use its thread-safe methods.
        at_end: What the loop does last, set by the client: an interrupted call may have left
            connections open, and nothing else closes these.
    """

    def __init__(
        self, name: str, at_end: Callable[[], Coroutine[object, object, None]] | None = None
    ) -> None:
        """Start the thread.

        Args:
            name: Name of the client, for the thread's name and messages.
            at_end: Sets the attribute.

        Raises:
            IllegalStateError: The process may not start a thread, or greenlets stand in for them.
        """
        self.name = name
        self._pid = os.getpid()
        self._is_real = True
        self._closed = False
        self._calls: set[_Call[Any]] = set()
        self._stopping = False
        self.at_end: Callable[[], Coroutine[object, object, None]] | None = at_end
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(started, threading.get_native_id()),
            name=f"onceflow-{name}",
            daemon=True,
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise IllegalStateError(
                f"this {name} needs a thread, and none can be started ({error}): the program has "
                "too many, or its main thread is over, after which Python 3.12 starts none"
            ) from error
        started.wait()
        if not self._is_real:
            self.loop.close()
            raise IllegalStateError(f"this {name} {GREENLETS}")

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that made the portal."""
        return self._pid != os.getpid()

    def check_usable(self) -> None:
        """Raise if the portal cannot take calls.

        Raises:
            IllegalStateError: The process was forked after the client was made, or the call comes
                from the loop's own thread, where the wait would never end.
            ClientClosedError: It is closed.
        """
        if self._pid != os.getpid():
            raise forked_error(self.name)
        if self._closed:
            raise ClientClosedError(f"this {self.name} is closed; make a new one")
        self.check_thread()

    def check_thread(self) -> None:
        """Raise if the call comes from the loop's own thread.

        Raises:
            IllegalStateError: The wait would never end.
        """
        if threading.get_ident() == self._thread.ident:
            raise IllegalStateError(
                f"a blocking call of this {self.name} was made from its own callback: the wait "
                "would never end"
            )

    def call(
        self, function: Callable[[], Coroutine[object, object, T]], timeout_s: float | None = None
    ) -> T:
        """Run a coroutine in the loop and wait for it.

        Args:
            function: Makes the coroutine; called in the loop's thread.
            timeout_s: Limit of the wait in seconds; None waits for ever.

        Returns:
            What the coroutine returns.

        Raises:
            RequestTimedOutError: The limit passed; the coroutine is cancelled.
            IllegalStateError: See ``check_usable``.
        """
        self.check_usable()
        call = _Call(function)
        try:
            self._calls.add(call)
            self._hand_over(call.start)
            if call.wait(timeout_s):
                return call.outcome()
            raise RequestTimedOutError(f"no result within {timeout_s} s")
        except asyncio.CancelledError:
            raise ClientClosedError(f"this {self.name} was closed during the call") from None
        finally:
            self._calls.discard(call)
            if not call.is_over:
                # The limit passed, or Ctrl-C or another signal interrupted this thread: cancel the
                # work, which must not continue after the call has ended.
                self.wake(call.cancel)

    def run(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread and wait for it.

        Args:
            function: Does not wait.

        Raises:
            IllegalStateError: See ``check_usable``.
        """

        async def run() -> T:
            return function()

        return self.call(run)

    def _hand_over(self, callback: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            raise ClientClosedError(f"this {self.name} is closed; make a new one") from None

    def wake(self, callback: Callable[[], object]) -> None:
        """Run a callback in the loop soon, without waiting; ignored once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Stop the loop and its thread. Calling it again is fine, also after an interruption."""
        self._closed = True
        if self._pid != os.getpid():
            return  # The thread does not exist in a forked child, and the loop is the parent's.
        self.wake(self._stop)
        if threading.get_ident() != self._thread.ident:
            self._thread.join(CLOSE_MARGIN_S)

    def _stop(self) -> None:
        """Stop the loop, in its thread, once: a second stop would end the clean-up."""
        if not self._stopping:
            self._stopping = True
            self.loop.stop()

    def _run(self, started: threading.Event, maker_id: int) -> None:
        # A greenlet runs in the thread that made it, where another loop may run already.
        self._is_real = threading.get_native_id() != maker_id and not _is_of_gevent(self.loop)
        if not self._is_real:
            started.set()
            return
        asyncio.set_event_loop(self.loop)
        _here.name = self.name
        self.loop.call_soon(started.set)
        try:
            while not self._stopping:
                try:
                    self.loop.run_forever()
                except (KeyboardInterrupt, SystemExit):
                    # Raised by a user's function that the loop called. It must not end this thread.
                    log.exception(
                        "a callback within this %s raised KeyboardInterrupt or SystemExit",
                        self.name,
                    )
        finally:
            try:
                _cancel_all(self.loop)
                if self.at_end is not None:
                    self.loop.run_until_complete(self.at_end())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                # shutdown_default_executor() starts a thread, which fails at the end of a program;
                # closing the loop ends the executor as well, without waiting.
                with contextlib.suppress(RuntimeError):
                    self.loop.run_until_complete(self.loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()
                for call in self._calls.copy():  # Calls that were never started.
                    call.end(asyncio.CancelledError())


_here = threading.local()


def check_outside(name: str) -> None:
    """Refuse to wait in the thread of a client's loop: it must run for the wait to end.

    Args:
        name: Name of the kind of client whose loop ends the wait.

    Raises:
        IllegalStateError: This is a callback of such a client.
    """
    if getattr(_here, "name", "") == name:
        raise IllegalStateError(
            f"a callback of a {name} must not wait for its records: they are sent by the thread "
            "that runs the callback, so the wait would never end"
        )


def _is_of_gevent(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop waits by gevent's hub, which reports a hub without greenlets as stuck."""
    selector: object = getattr(loop, "_selector", None)
    return type(selector).__module__.partition(".")[0] == "gevent"


class _Call(Generic[T]):
    """One call on its way through the loop; the caller waits for a lock, the cheapest wait.

    The task itself releases the caller, which saves a turn of the loop.
    """

    __slots__ = ("_done", "_error", "_function", "_is_wanted", "_task", "_value", "is_over")

    def __init__(self, function: Callable[[], Coroutine[object, object, T]]) -> None:
        self._function = function
        self._done = threading.Lock()
        self._done.acquire()
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = True
        self._value: T | None = None
        self._error: BaseException | None = None
        self.is_over: bool = False

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end, in the caller's thread, and return whether it came."""
        timeout_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        return self._done.acquire(timeout=timeout_s)

    def outcome(self) -> T:
        """Return the result or raise the error, once, in the caller's thread."""
        error, self._error = self._error, None
        if error is None:
            return cast("T", self._value)
        try:
            raise error
        finally:
            del error  # Its traceback holds this frame.

    def start(self) -> None:
        """Begin, in the loop's thread."""
        if self._is_wanted:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._task_ended)

    def cancel(self) -> None:
        """Cancel the work, in the loop's thread: the caller has gone on."""
        self._is_wanted = False
        if self._task is not None:
            self._task.cancel()

    def end(self, error: BaseException | None) -> None:
        """Let the caller continue."""
        if not self.is_over:
            self._error = error
            self.is_over = True
            self._done.release()

    async def _run(self) -> None:
        try:
            self._value = await self._function()
        except (asyncio.CancelledError, GeneratorExit) as error:
            self.end(error)
            raise
        except BaseException as error:  # noqa: BLE001 - the caller's, also pytest.fail's and such
            self.end(error)
        else:
            self.end(None)

    def _task_ended(self, _: object) -> None:
        self.end(asyncio.CancelledError())  # It was cancelled before its first step.


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
