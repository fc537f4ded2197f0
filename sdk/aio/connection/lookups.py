"""Blocking work beside an event loop: each piece in a daemon thread of its own.

It decides where serializers' and deserializers' look-ups run, and how a consumer hears of them.

The loop's executor is not used, because a program could then not end before a registry that does
not answer has used up its time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from onceflow.sdk.core.produce.appending import to_bytes
from onceflow.sdk.errors import KafkaError, SchemaIdNotFoundError, SerializationError
from onceflow.sdk.serde import LOOKUPS_MAX, LookupNeeded
from onceflow.sdk.settings.config import SerializerFunction

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function without holding up the loop.

    A cancelled wait leaves the function to its own end.

    Args:
        function: What to run; safe to be run in any thread.

    Returns:
        What it returns; what it raises is raised here.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # of the function, as error is None

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = function()
        except StopIteration as error:  # no future takes it (PEP 479)
            failure = RuntimeError(f"{function!r} raised StopIteration")
            failure.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="onceflow-lookup", daemon=True).start()
    return await future


async def after_lookups(work: Callable[[], T]) -> T:
    """Do something that may need look-ups, without holding up the loop for them.

    Args:
        work: Raises LookupNeeded for what must be loaded first.

    Raises:
        KafkaError: What the work or a look-up raised.
    """
    for _ in range(LOOKUPS_MAX):
        try:
            return work()
        except LookupNeeded as needed:
            load = needed.load
        await in_thread(load)
    raise SerializationError(f"no end of look-ups after {LOOKUPS_MAX}")


async def encode(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """Bytes of a key or value; see ``to_bytes``."""
    return await after_lookups(lambda: to_bytes(data, serializer, what, topic))


class Lookups:
    """Look-ups that a consumer's records wait for, one at a time, while polling goes on."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        """Make it; nothing runs.

        Args:
            on_done: Called in the loop when records may be tried again.
        """
        self._on_done = on_done
        self._task: asyncio.Task[object] | None = None
        self._failure: KafkaError | None = None

    def need(self, needed: LookupNeeded) -> None:
        """The next record waits for something: have it loaded.

        Args:
            needed: What the deserializer raised.

        Raises:
            KafkaError: It was tried since the last call, and failed.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                in_thread(needed.load), name="onceflow-lookup"
            )
            self._task.add_done_callback(lambda task: self._ended(needed, task))

    def satisfied(self) -> None:
        """Records could be read; an older failure was about others."""
        self._failure = None

    def _ended(self, needed: LookupNeeded, task: asyncio.Task[object]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, SchemaIdNotFoundError):
            said = f"the record at {needed.where} waits for its schema: {error}; poll again"
            said += ", or seek past it to go on without it"
            self._failure = SchemaIdNotFoundError(said, error.status, error.code)
            self._failure.__cause__ = error
        elif isinstance(error, KafkaError) and error.retriable:
            self._failure = error
        elif error is not None:
            self._failure = SerializationError(
                f"cannot deserialize the record at {needed.where}: {error}; seek past it to go on "
                "without it"
            )
            self._failure.__cause__ = error
        self._on_done()

    async def close(self) -> None:
        """Wait for nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
