"""Gets the first answer of several servers, of which some may be silent.

It decides when to try the next server while others have not answered yet, and which of several
failures to raise. The caller makes the requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar

from onceflow.sdk.errors import ConfigError, FatalError, KafkaError

T = TypeVar("T")

PATIENCE_MS: Final = 1_000
"""How long one server may be silent before the next one is tried too. A handshake with TLS and
SASL across continents takes about half of that."""


async def first_answer(attempts: Sequence[Callable[[], Coroutine[object, object, T]]]) -> T:
    """Return the result of the first attempt that succeeds.

    The next attempt begins when one fails, or after ``PATIENCE_MS`` without an answer; the
    earlier ones continue. When one succeeds, the others are cancelled.

    Args:
        attempts: The attempts in order, at least one; each may raise KafkaError.

    Raises:
        KafkaError: All failed. It is an error of this client's settings or credentials, if there
            is one, since no retry helps then; else a retriable one, if there is one.
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
    """Return the failure that best explains why no server answered."""
    for error in failures:
        if isinstance(error, FatalError | ConfigError):
            return error
    for error in reversed(failures):
        if error.retriable:
            return error
    return failures[0]
