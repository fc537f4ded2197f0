"""Cancelling one call of a client at one of the points where it waits.

A call is driven by hand: at the chosen suspension its task is cancelled, as a time limit or a
closing program would do at any await. The simulation around it has no faults, so that whatever is
wrong afterwards comes from the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class CancelledAt:
    """Awaits a call and cancels the task that does so at its n-th suspension.

    Attributes:
        suspensions: How often the call has waited so far.
    """

    def __init__(self, call: Awaitable[Any], at: int) -> None:
        self._call = call
        self._at = at
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._call.__await__()
        task = asyncio.current_task()
        assert task is not None
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            reply, error = None, None
            if self.suspensions == self._at:
                asyncio.get_running_loop().call_soon(task.cancel)
            self.suspensions += 1
            try:
                reply = yield waits_for
            except BaseException as raised:  # noqa: BLE001 - it belongs to the call
                error = raised


async def cancel_at(call: Callable[[], Awaitable[Any]], at: int) -> bool:
    """Make a call and cancel it at a suspension.

    Args:
        call: Makes the awaitable.
        at: Which suspension, from 0.

    Returns:
        Whether the call got that far; otherwise it came to its own end.
    """
    driver = CancelledAt(call(), at)

    async def drive() -> None:
        await driver

    task = asyncio.ensure_future(drive())
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # An error of its own is as good an end as any.
    return driver.suspensions > at
