"""A thread with an event loop for a broker beside the program's own loops and threads.

It decides how a call crosses into the thread and back. Whatever ends a called function, a
``sys.exit`` too, is raised in the caller, and the loop lives on: other clients are served by it.
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
    """Raise if the caller, which wants to wait for a loop, is a function that this loop runs.

    Args:
        loop: The loop, if there is one.

    Raises:
        RuntimeError: The caller would wait for itself.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop:
        raise RuntimeError(
            "this would wait for itself: in the broker's own event loop await the method with "
            "_async, and in a function that Broker.call runs do it afterwards"
        )


class LoopThread:
    """A running event loop in a thread of its own.

    Attributes:
        loop: The loop; from other threads only its thread-safe methods may be used.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Call a function in the loop and wait for its result.

        Args:
            function: What to call.
            timeout_s: How long to wait for it, in seconds.

        Returns:
            What it returns.

        Raises:
            TimeoutError: The loop did not come to it in time.
            BaseException: Whatever the function raises.
        """

        # A loop ends by some exceptions and takes others for its own, so none is raised in it.
        async def outcome() -> tuple[list[T], BaseException | None]:
            try:
                return [function()], None
            except BaseException as error:  # noqa: BLE001 - it is raised where it belongs
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
                # Of a test's function that the loop called; the broker's clients go on.
                logger.exception("a function within the broker wanted to end the program")
