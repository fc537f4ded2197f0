"""Deliveries of the asyncio producer: the outcome of records, and how a task waits for it.

One handle is made for each record, so this module may be compiled (see ``tools/build_backend.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Generator, Iterable

from onceflow.sdk.core.produce.batch import (
    DeliveryGroup,
    DeliveryHandle,
    HandleMaker,
    ProducerBatch,
)
from onceflow.sdk.model.partitions import RecordMetadata


class AsyncDelivery(DeliveryHandle):
    """The outcome of one record; await it for its RecordMetadata.

    Cancelling the await does not take the record back.
    """

    __slots__ = ()

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        self._mark_seen()
        if not self._batch.done:
            try:
                yield from _wait_for((self._batch,)).__await__()
            except BaseException:
                self._mark_unseen()
                raise
        return self._metadata()


class AsyncDeliveryMaker(HandleMaker[AsyncDelivery]):
    """Makes the handles of the asyncio producer."""

    def make(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> AsyncDelivery:
        """Return the handle of a record; see ``HandleMaker``."""
        return AsyncDelivery(batch, index, timestamp_ms)


class AsyncDeliveries(DeliveryGroup):
    """The outcomes of one ``send_many``; await it for their RecordMetadata in order."""

    __slots__ = ()

    def __await__(self) -> Generator[object, None, list[RecordMetadata]]:
        self._mark_seen()
        yield from _wait_for(tuple(self.batches())).__await__()
        return self._metadata()


async def _wait_for(batches: Iterable[ProducerBatch]) -> None:
    loop = asyncio.get_running_loop()
    for batch in batches:
        if batch.done:
            continue
        future: asyncio.Future[None] = loop.create_future()

        def settle(future: asyncio.Future[None] = future) -> None:
            if not future.done():
                future.set_result(None)

        batch.add_done_callback(functools.partial(_settle_in, loop, settle))
        await future


def _settle_in(loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
    """Call at once if the waiting loop runs in this thread; else schedule the call there."""
    try:
        if asyncio.get_running_loop() is loop:
            settle()
            return
    except RuntimeError:
        pass  # Outside of any loop, as in tests of the core.
    with contextlib.suppress(RuntimeError):  # The loop is closed, so no task waits any more.
        loop.call_soon_threadsafe(settle)


for _kind, _text in (  # Compiled classes lose their docstrings.
    (AsyncDelivery, "The fate of one record; await it for its RecordMetadata."),
    (AsyncDeliveries, "The fate of the records of one ``send_many``; await it for all of them."),
):
    _kind.__doc__ = _text
