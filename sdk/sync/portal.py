"""One background event loop per client, so that blocking calls can use asyncio clients.

The portal decides how a call crosses into the loop's thread and back: exceptions come through
with their traces, Ctrl-C interrupts the wait and cancels the work, a fork is noticed, and closing
leaves no thread behind. What the calls do is not its business.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar, cast

from onceflow.sdk.errors import ClientClosedError, IllegalStateError, RequestTimedOutError

T = TypeVar("T")

log: logging.Logger = logging.getLogger("onceflow.sdk.portal")

CLOSE_MARGIN_S = 5.0
"""How long closing waits for the loop's thread beyond the work that it was given."""

GREENLETS = (
    "needs a real thread with an event loop, and gevent or eventlet stands in for them: call "
    "gevent.monkey.patch_all(thread=False, select=False) or eventlet.monkey_patch(thread=False), "
    "or use workers that are threads or processes (a call that waits holds up its whole thread)"
)
"""What a program is told that replaced threads by greenlets."""


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
        self._stopping = False
        self.at_end: Callable[[], Coroutine[object, object, None]] | None = at_end
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
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
                from the loop's own thread, where it would wait for itself.
            ClientClosedError: It is closed.
        """
        if self._pid != os.getpid():
            raise IllegalStateError(
                f"this {self.name} was made before a fork; its thread and sockets belong to the "
                "parent process: make a new one in this process"
            )
        if self._closed:
            raise ClientClosedError(f"this {self.name} is closed; make a new one")
        self.check_thread()

    def check_thread(self) -> None:
        """Raise if the call comes from the loop's own thread.

        Raises:
            IllegalStateError: It would wait for itself.
        """
        if threading.get_ident() == self._thread.ident:
            raise IllegalStateError(
                f"a blocking call of this {self.name} was made from its own callback, where it "
                "would wait for itself"
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
        if timeout_s is not None:
            timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
        submit = asyncio.run_coroutine_threadsafe
        future: concurrent.futures.Future[_Outcome[T]] = submit(_start(function), self.loop)
        try:
            return future.result(timeout_s).get()
        except concurrent.futures.CancelledError:
            raise ClientClosedError(f"this {self.name} was closed during the call") from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            if timeout_s is None:
                raise  # A signal handler's, in this thread.
            raise RequestTimedOutError(f"no result within {timeout_s} s") from None
        except BaseException:
            # Ctrl-C in this thread: the work must not go on behind the caller's back.
            future.cancel()
            raise

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
        """In the loop's thread. Once only: a second stop would end the clearing up."""
        if not self._stopping:
            self._stopping = True
            self.loop.stop()

    def _run(self, started: threading.Event, maker_id: int) -> None:
        # A greenlet is in the thread that made it, where another loop may run already.
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
                    # Of a user's function that the loop called; it ends no other thread either.
                    log.exception("a callback within this %s wanted to end the program", self.name)
        finally:
            try:
                _cancel_all(self.loop)
                if self.at_end is not None:
                    self.loop.run_until_complete(self.at_end())
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                # It takes a thread, which at the end of a program there is none for; closing the
                # loop ends the executor as well, without waiting.
                with contextlib.suppress(RuntimeError):
                    self.loop.run_until_complete(self.loop.shutdown_default_executor())
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()


_here = threading.local()


def check_outside(name: str) -> None:
    """Refuse to wait in the loop's thread of a client, which has to go on for the wait to end.

    Args:
        name: Name of the clients whose work would end it.

    Raises:
        IllegalStateError: This is a callback of such a client.
    """
    if getattr(_here, "name", "") == name:
        raise IllegalStateError(
            f"within a callback of a {name} there is no waiting for its records: it would wait "
            "for itself"
        )


def _is_of_gevent(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop would wait by gevent's hub, which takes a hub without greenlets for stuck."""
    selector: object = getattr(loop, "_selector", None)
    return type(selector).__module__.partition(".")[0] == "gevent"


class _Outcome(Generic[T]):
    """What a call returned, or an exception that would end a loop in which it is raised."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: T | None, error: BaseException | None) -> None:
        self._value = value
        self._error = error

    def get(self) -> T:
        """Return or raise it."""
        if self._error is not None:
            raise self._error
        return cast("T", self._value)


async def _start(function: Callable[[], Coroutine[object, object, T]]) -> _Outcome[T]:
    try:
        return _Outcome(await function(), None)
    except (KeyboardInterrupt, SystemExit) as error:  # As from a deserializer that calls sys.exit.
        return _Outcome(None, error)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
