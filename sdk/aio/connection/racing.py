"""The first answer of several servers, when some of them may be silent.

It decides when to try the next server beside those that have not answered yet, and which of several
failures to raise. The caller decides what the servers are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar

from onceflow.sdk.errors import ConfigError, FatalError, KafkaError

T = TypeVar("T")

PATIENCE_MS: Final = 1_000
"""How long one server may be silent before the next one is tried as well. A handshake with TLS and
SASL across continents takes about half of that."""


async def first_answer(attempts: Sequence[Callable[[], Coroutine[object, object, T]]]) -> T:
    """Return the result of the first attempt that succeeds.

    The next attempt begins as soon as one failed, or after ``PATIENCE_MS`` without an answer; the
    earlier ones go on beside it. The rest is cancelled when one succeeds.

    Args:
        attempts: What to try, in this order; each may raise KafkaError. At least one.

    Raises:
        KafkaError: All failed. An error of this client's settings or credentials comes first,
            since no repetition mends it; then one that may pass, since it is worth a repetition.
    """
    waiting: set[asyncio.Task[T]] = set()
    failures: list[KafkaError] = []
    loop = asyncio.get_running_loop()
    left = list(reversed(attempts))
    try:
        while left or waiting:
            if left:
                task = loop.create_task(left.pop()(), name="onceflow-attempt")
                task.add_done_callback(_note_failure)
                waiting.add(task)
            done, waiting = await asyncio.wait(
                waiting,
                timeout=PATIENCE_MS / 1000 if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in done:
                try:
                    return task.result()
                except KafkaError as error:
                    failures.append(error)
    finally:
        for task in waiting:
            task.cancel()
    raise decisive(failures)


def _note_failure(task: asyncio.Task[T]) -> None:
    """Mark an attempt's error as retrieved: the caller may have used another attempt."""
    if not task.cancelled():
        task.exception()


def decisive(failures: Sequence[KafkaError]) -> KafkaError:
    """The failure that tells most about why no server answered."""
    for error in failures:
        if isinstance(error, FatalError | ConfigError):
            return error
    for error in reversed(failures):
        if error.retriable:
            return error
    return failures[0]
