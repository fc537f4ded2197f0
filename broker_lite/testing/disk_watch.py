"""Stops a broker in a process when its disk fails, as the daemon ends then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from onceflow.broker_lite.net.serving import Serving


class DiskWatch:
    """Watches the disk of each start.

    Attributes:
        failure: Why the broker was stopped; None before that, and after a new start.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._stopping: asyncio.Task[None] | None = None

    def begin(self, serving: Serving, stop: Callable[[], Awaitable[None]]) -> None:
        """Call ``stop`` on the running loop when the disk fails or has failed.

        Args:
            serving: The broker that writes to the disk.
            stop: Stops the broker, if it is not stopped yet.
        """
        loop = asyncio.get_running_loop()
        self.failure = None

        async def end() -> None:
            self.failure = serving.failure
            await stop()
            for callback in self._callbacks:
                callback()

        def start() -> None:
            self._stopping = loop.create_task(end(), name="onceflow-disk-failed")

        serving.when_disk_failed(start)

    def when_failed(self, callback: Callable[[], None]) -> None:
        """Call a function on the broker's loop after the broker was stopped."""
        self._callbacks.append(callback)
        if self.failure is not None:
            callback()
