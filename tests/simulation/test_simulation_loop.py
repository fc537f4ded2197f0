"""Goal: a simulated process that ends leaves no coroutine behind, whatever its clean-up starts.

Method: a task whose clean-up starts another one, in a process that is buried.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine

from sim_world import World


async def more() -> None:
    pass


def test_what_clean_up_starts_is_closed_too() -> None:
    process = World(0).start("p")
    started: list[Coroutine[object, object, None]] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            started.append(more())
            asyncio.get_running_loop().create_task(started[0])

    loop = process.loop
    loop.enter()
    try:
        begun = work()
        loop.create_task(begun)
        begun.send(None)
    finally:
        loop.leave()
    process.alive = False
    loop.abandon()
    loop.bury()
    states = [inspect.getcoroutinestate(coroutine) for coroutine in (begun, *started)]
    assert states == [inspect.CORO_CLOSED] * 2
    assert not loop.tasks
