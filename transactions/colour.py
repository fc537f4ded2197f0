"""Runs the same coroutine over blocking and over asyncio clients.

The session's logic is written once, as coroutines that call clients and ``settle`` their results.
Over blocking clients such a coroutine never suspends, so ``run_blocking`` runs it with a single
step; over asyncio clients the event loop runs it. There is no thread and no second copy of the
code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Maybe: TypeAlias = T | Awaitable[T]
"""A result or an awaitable of it: what a call of either face returns."""


async def settle(result: T | Awaitable[T]) -> T:
    """Return a result of a blocking client, or await that of an asyncio client."""
    if isinstance(result, Awaitable):
        return await result
    return result


def run_blocking(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine that never suspends, as over blocking clients.

    Raises:
        RuntimeError: The coroutine wanted to wait for an event loop (asyncio clients were given
            to a blocking session).
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError(
        "asyncio clients cannot serve a blocking session; use AsyncTransactionSession"
    )
