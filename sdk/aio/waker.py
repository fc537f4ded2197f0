"""Lets tasks wait for a wake-up or a time, without a task for each wait.

A wake-up without a waiter is kept for the next wait. It carries no data; the woken task finds out
what changed.
"""

from __future__ import annotations

import asyncio


class Waker:
    """Wakes all waiting tasks at once; belongs to one event loop."""

    __slots__ = ("_awake", "_waiters")

    def __init__(self) -> None:
        self._awake = False
        self._waiters: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        """End every present wait, or the next one if there is none."""
        if not self._waiters:
            self._awake = True
        for future in self._waiters:
            _finish(future)

    async def wait(self, delay_ms: int | None = None) -> None:
        """Wait for a wake-up.

        Args:
            delay_ms: Longest wait; None waits for ever.
        """
        if self._awake:
            self._awake = False
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.add(future)
        timer = None
        if delay_ms is not None:
            timer = loop.call_later(max(0, delay_ms) / 1000, _finish, future)
        try:
            await future
        finally:
            self._waiters.discard(future)
            if timer is not None:
                timer.cancel()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
