"""One face over the published clients and ours, for scenarios that every client must play.

A kit makes producers, consumers and admins of one client. The face is small: what a scenario needs
and every client has. Calls block; clients for asyncio run on a loop in a thread, where they go on
heartbeating between calls. Errors are the client's own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")

DEADLINE_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Partition = tuple[str, int]
Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record, as sent (offset -1) or as received."""

    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = 0
    offset: int = -1

    def without_offset(self) -> Row:
        return self._replace(offset=-1)


class StockProducer(Protocol):
    """A producer. ``flush`` waits for every record and gives (partition, offset) in send order."""

    def send(self, topic: str, row: Row) -> None: ...
    def flush(self) -> list[tuple[int, int]]: ...
    def begin(self) -> None: ...
    def send_offsets(self, offsets: Mapping[Partition, int], consumer: StockConsumer) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class StockConsumer(Protocol):
    """A consumer of one group."""

    group_id: str

    def subscribe(self, topic: str) -> None: ...
    def assign(self, offsets: Mapping[Partition, int]) -> None: ...
    def poll(self, timeout_s: float) -> list[Row]: ...
    def assignment(self) -> set[Partition]: ...
    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None: ...
    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]: ...
    def close(self) -> None: ...


class StockAdmin(Protocol):
    """An admin client."""

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None: ...
    def partition_counts(self) -> dict[str, int]: ...
    def config(self, topic: str, name: str) -> str | None: ...
    def grow(self, topic: str, partitions: int) -> None: ...
    def delete(self, topic: str) -> None: ...
    def close(self) -> None: ...


class Kit(Protocol):
    """What one client library offers.

    Attributes:
        name: The distribution's name.
        fenced: What a fenced transactional producer raises.
        topic_exists: What creating a topic twice raises.
        codecs: What it can compress with, as installed here.
        null_headers: Whether it takes headers without a value.
    """

    name: str
    fenced: tuple[type[Exception], ...]
    topic_exists: tuple[type[Exception], ...]
    codecs: tuple[str, ...]
    null_headers: bool

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> StockProducer: ...

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> StockConsumer: ...

    def admin(self, bootstrap: str) -> StockAdmin: ...


class LoopThread:
    """An event loop in a thread of its own, for clients that need one that never stops."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run a coroutine there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(DEADLINE_S)

    def close(self) -> None:
        """End the loop and everything that still runs on it."""
        self.run(_cancel_others)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Look again until something is so; the condition itself gives time to the client."""
    deadline = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s} s: {what}"
        pause.wait(0.005)


def read(consumer: StockConsumer, count: int, extra_s: float = 0.3) -> list[Row]:
    """Poll until that many records are there, then a little longer for one too many."""
    rows: list[Row] = []

    def enough() -> bool:
        rows.extend(consumer.poll(0.1))
        return len(rows) >= count

    wait_until(enough, f"{count} records")
    if extra_s:
        deadline = time.monotonic() + extra_s
        while time.monotonic() < deadline:
            rows.extend(consumer.poll(0.1))
    return rows


def by_partition(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows of each partition, in the order in which they came."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.partition, []).append(row)
    return found
