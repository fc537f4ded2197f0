"""An event loop on the virtual clock of a ``World``: waiting moves the clock, and takes no time.

Async handlers may sleep; the worker's clock and the loop's are one. A loop in which nothing is
scheduled any more ends with an error and does not hang.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine

from processor_worlds import World

from onceflow.processors import App
from onceflow.processors.calls import InPlace


class _Selector(selectors.SelectSelector):
    """Moves the clock where another one would wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if timeout is None and not found:
            raise RuntimeError("everything waits, and nothing is scheduled")
        if timeout and not found:
            self.world.now_ms += math.ceil(round(timeout * 1000, 3))
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a world's clock."""

    def __init__(self, world: World) -> None:
        super().__init__(_Selector(world))
        self.world = world

    def time(self) -> float:
        return self.world.now_ms / 1000


async def rest(seconds: float) -> None:
    """Let the world's clock go on; it takes no time."""
    await asyncio.sleep(seconds)


def run_in(world: World, work: Coroutine[object, object, None]) -> None:
    """Run a coroutine on the world's clock."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(world)) as runner:
        runner.run(work)


def run_async(world: World, app: App) -> None:
    """Run one worker with async handlers until its input is exhausted, or the application stops."""
    worker = app._worker = world.make(app)
    run_in(world, worker.run(InPlace()))
