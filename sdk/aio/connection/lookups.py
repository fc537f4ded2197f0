"""Runs blocking work beside an event loop: each call in a separate daemon thread.

Look-ups of serializers and deserializers run in it, such as requests to a schema registry. The
loop's executor is not used: a program could not end before the time limit of a registry that does
not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from onceflow.sdk.core.produce.appending import to_bytes
from onceflow.sdk.errors import KafkaError, SerializationError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.serde import LOOKUPS_MAX, LookupNeeded
from onceflow.sdk.settings.config import SerializerFunction

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a thread, so that the loop continues.

    When the wait is cancelled, the function still runs to its end.

    Args:
        function: The function; it may run in any thread.

    Returns:
        Its result; its exception is raised here.
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
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="onceflow-lookup", daemon=True).start()
    return await future


async def after_lookups(work: Callable[[], T]) -> T:
    """Call a function that may need look-ups, and run these in threads.

    Args:
        work: Raises LookupNeeded if something must be looked up first.

    Raises:
        KafkaError: The error of the function or of a look-up.
    """
    for _ in range(LOOKUPS_MAX):
        try:
            return work()
        except LookupNeeded as needed:
            load = needed.load
        await in_thread(load)
    raise SerializationError(f"gave up after {LOOKUPS_MAX} look-ups for one call")


async def encode(
    data: object, serializer: SerializerFunction | None, what: str, topic: str
) -> bytes | None:
    """Return the bytes of a key or value; see ``to_bytes``."""
    return await after_lookups(lambda: to_bytes(data, serializer, what, topic))


class Lookups:
    """Look-ups that a consumer's records wait for, one at a time, while polling goes on."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        """Make the object; nothing runs yet.

        Args:
            on_done: Called in the loop when records can be tried again.
        """
        self._on_done = on_done
        self._task: asyncio.Task[object] | None = None
        self._failures: dict[TopicPartition, tuple[str, KafkaError]] = {}

    def need(
        self, waiting: Mapping[TopicPartition, LookupNeeded]
    ) -> dict[TopicPartition, KafkaError]:
        """Start the look-ups that the next records of some partitions wait for.

        Args:
            waiting: The exceptions of their deserializers, by partition.

        Returns:
            Partitions whose look-up failed since the last call, and why.
        """
        failed = {
            partition: error
            for partition, (where, error) in self._failures.items()
            if partition in waiting and waiting[partition].where == where
        }
        self._failures.clear()
        for partition, needed in waiting.items():
            if self._task is None and partition not in failed:
                self._begin(partition, needed)
        return failed

    def _begin(self, partition: TopicPartition, needed: LookupNeeded) -> None:
        self._task = asyncio.get_running_loop().create_task(
            in_thread(needed.load), name="onceflow-lookup"
        )
        self._task.add_done_callback(lambda task: self._ended(partition, needed.where, task))

    def _ended(self, partition: TopicPartition, where: str, task: asyncio.Task[object]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, KafkaError) and error.retriable:
            said = (
                f"the record at {where} waits for its schema: {error}; it is tried again after a "
                "pause, or seek past it to go on without it"
            )
            failure: KafkaError = type(error)(said, *error.args[1:])
            failure.__cause__ = error
            self._failures[partition] = where, failure
        elif error is not None:
            failure = SerializationError(
                f"cannot deserialize the record at {where}: {error}; seek past it to go on without "
                "it"
            )
            failure.__cause__ = error
            self._failures[partition] = where, failure
        self._on_done()

    async def close(self) -> None:
        """Stop waiting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
