"""Goal: requests on the helper thread end with their callers, and leave nothing behind.

Method: ``OnThread`` on a real loop; a request that waits is interrupted as the brokers' calls are.
"""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from onceflow.processors.calls import OnThread
from onceflow.processors.errors import StoppedError


async def test_a_cancelled_call_that_fails_prints_no_traceback() -> None:
    """Its error belongs to the stop that ended it; asyncio reports errors that nobody looked at."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    begun, interrupted = asyncio.Event(), threading.Event()
    calls = OnThread(interrupted.set)
    loop = asyncio.get_running_loop()

    async def request() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert interrupted.wait(30)
        raise StoppedError("stopped")

    task = asyncio.create_task(calls(request()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    calls.close()
    await asyncio.to_thread(calls._thread.join)  # It refers to its last call.
    del task
    gc.collect()
    assert told == []


async def test_a_call_that_fails_raises_its_error() -> None:
    calls = OnThread(lambda: None)

    async def request() -> None:
        raise StoppedError("stopped")

    with pytest.raises(StoppedError, match="stopped"):
        await calls(request())
    calls.close()
