"""Stops a broker in a process when its disk fails, once and with the reason, as a daemon ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from onceflow.broker_lite.log.log_manager import LogManager


class DiskWatch:
    """Watches the data folder of each start.

    Attributes:
        failure: Why the broker was stopped; None while all is well, and after a new start.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._stopping: asyncio.Task[None] | None = None

    def begin(self, manager: LogManager, stop: Callable[[], Awaitable[None]]) -> None:
        """Call ``stop`` on the running loop once the disk failed, or failed already.

        Args:
            manager: What the broker keeps on the disk.
            stop: Stops the broker that works with it; without effect when that is stopped.
        """
        loop = asyncio.get_running_loop()
        self.failure = None

        async def end() -> None:
            self.failure = manager.failure
            await stop()
            for callback in self._callbacks:
                callback()

        def start() -> None:
            self._stopping = loop.create_task(end(), name="onceflow-disk-failed")

        def failed(error: OSError) -> None:
            loop.call_soon_threadsafe(start)

        manager.on_failure = failed
        if manager.failure is not None:
            start()

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Have somebody told, on the broker's loop, once it was stopped."""
        self._callbacks.append(callback)
        if self.failure is not None:
            callback()
