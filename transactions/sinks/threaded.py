"""Runs a blocking sink for an asyncio session, in one thread and in order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries
from onceflow.transactions.sinks.sink import AsyncSink, Sink

T = TypeVar("T")


def asyncio_sink(sink: Sink | AsyncSink) -> AsyncSink:
    """Return an ``AsyncSink``: the given one, or a wrapper that runs a ``Sink`` in a thread."""
    if inspect.iscoroutinefunction(sink.write):
        return sink  # type: ignore[return-value] # its calls are coroutines
    return ThreadedSink(sink)  # type: ignore[arg-type] # they are not


class ThreadedSink:
    """Passes calls to a blocking sink, one after the other.

    A call whose caller is cancelled goes on, and the next call waits for it. So a claim after an
    interrupted write finds out whether that write was carried out.

    Args:
        sink: The blocking sink.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.needs_records: bool = bool(getattr(sink, "needs_records", False))
        self._thread = ThreadPoolExecutor(1, "onceflow-sink")

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def open(self, group_id: str) -> None:
        """See ``Sink.open``."""
        await self._call(lambda: self._sink.open(group_id))

    async def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``."""
        return await self._call(lambda: self._sink.claim(partitions, owner, topic_ids))

    async def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``."""
        return await self._call(lambda: self._sink.stored(partitions))

    async def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``."""
        await self._call(lambda: self._sink.write(batch, timeout_ms))

    async def close(self) -> None:
        """See ``Sink.close``."""
        try:
            await self._call(self._sink.close)
        finally:
            self._thread.shutdown(wait=False)
