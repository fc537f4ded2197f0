"""A bounded cache, and requests that concurrent callers share.

Needs cachetools (``pip install 'onceflow[registry]'``).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar, cast

try:
    import cachetools
except ImportError as _missing:
    raise ImportError("cachetools is missing: pip install 'onceflow[registry]'") from _missing

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """A thread-safe cache that drops the least recently used entry when it is full."""

    def __init__(
        self,
        capacity: int,
        ttl_ms: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make an empty cache.

        Args:
            capacity: Most entries.
            ttl_ms: How long an entry is valid; None means without limit.
            clock: Returns the time in seconds, for the age of entries.
        """
        self._entries: cachetools.Cache[Hashable, T] = (
            cachetools.LRUCache(capacity)
            if ttl_ms is None
            else cachetools.TTLCache(capacity, ttl_ms / 1000, clock)
        )
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> T | None:
        """Return the value; None if there is none or it has expired."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Store a value."""
        with self._lock:
            self._entries[key] = value

    def forget(self, condition: Callable[[Hashable], bool]) -> None:
        """Drop the entries whose key meets a condition."""
        with self._lock:
            for key in [key for key in self._entries if condition(key)]:
                self._entries.pop(key, None)

    def after_fork(self) -> None:
        """In a forked child, make a new lock: a thread of the parent may have held the old one."""
        self._lock = threading.Lock()


class SingleFlight:
    """Lets threads that need the same answer share one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[object]] = {}

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Send the request, or wait for the thread that has sent the same one.

        Args:
            key: Identifies the request.
            work: Sends the request.

        Returns:
            The answer. An error of `work` is raised in all waiting threads.
        """
        with self._lock:
            flight = self._flights.get(key)
            leads = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not leads:
            return cast("T", flight.result())
        try:
            result = work()
        except BaseException as error:
            flight.set_exception(error)
            raise
        else:
            flight.set_result(result)
            return result
        finally:
            with self._lock:
                self._flights.pop(key, None)

    def after_fork(self) -> None:
        """In a forked child, forget the requests of the parent's threads."""
        self._lock = threading.Lock()
        self._flights = {}


class Forkable(Protocol):
    """An object whose locks a fork may leave locked."""

    def after_fork(self) -> None:
        """In a forked child, make new locks."""


_FORKED: weakref.WeakSet[Forkable] = weakref.WeakSet()


def mend_after_fork(*parts: Forkable) -> None:
    """Call ``after_fork`` of these objects in every child that is forked from now on."""
    _FORKED.update(parts)


def _after_fork() -> None:
    for part in list(_FORKED):
        part.after_fork()


os.register_at_fork(after_in_child=_after_fork)
