"""A thread with an event loop for the broker, beside the program's own loops and threads.

An error of a called function, ``SystemExit`` too, is raised in the caller. The loop keeps running,
as it serves other clients.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.testing")


def check_outside(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise RuntimeError if the loop runs the caller, which would then wait for itself."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError(
            "this call would wait for itself: in the broker's own event loop, await the method "
            "with _async; in a function that Broker.call runs, call it after the function returned"
        )


class LoopThread:
    """An event loop that runs in its own thread.

    Attributes:
        loop: The loop; other threads may use only its thread-safe methods.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function in the loop and return its result.

        Args:
            function: The function.
            timeout_s: Longest wait for the result, in seconds.

        Raises:
            TimeoutError: The result did not come in time.
            BaseException: Any error of the function.
        """

        # SystemExit would end the loop and CancelledError cancel the task: catch all in the loop.
        async def outcome() -> tuple[list[T], BaseException | None]:
            try:
                return [function()], None
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                return [], error

        result, error = asyncio.run_coroutine_threadsafe(outcome(), self.loop).result(timeout_s)
        if error is not None:
            raise error
        return result[0]

    def end(self) -> None:
        """Stop the loop, wait for the thread, and close the loop."""
        self._ending.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ending.is_set():
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # A callback of the test raised it; the loop must keep serving clients.
                logger.exception("a function in the broker's loop tried to end the program")
