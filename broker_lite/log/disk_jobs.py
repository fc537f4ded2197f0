"""Jobs that work on the disk in other threads, so that the broker's loop does not wait.

The caller starts a job, and checks now and then whether it is done. Each worker is one thread that
does its jobs one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Job(Generic[T]):
    """Work that is done in one piece, perhaps in another thread.

    Args:
        work: The function to call; it must touch nothing that other threads use meanwhile.

    Attributes:
        done: Whether the work has ended.
    """

    __slots__ = ("_error", "_result", "_work", "done")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._result: T | None = None
        self._error: Exception | None = None
        self.done: bool = False

    def run(self) -> None:
        """Do the work and keep its result or its exception."""
        work, self._work = self._work, None
        assert work is not None, "a job is run once"
        try:
            self._result = work()
        except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
        self.done = True

    def result(self) -> T:
        """Return the work's result; only once it is done.

        Raises:
            Exception: What the work raised.
        """
        assert self.done
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast("T", self._result)


def outcome(job: Job[T]) -> Generator[None, None, T]:
    """Wait for a job in steps: each yield is a pause before the next check.

    Raises:
        Exception: What the work raised.
    """
    while not job.done:
        yield
    return job.result()


class Worker:
    """A thread, started by the first job, that does its jobs in order.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Do this work after all earlier work; it must not raise."""
        if self._thread is None:
            # A daemon thread: a storage that is not closed must not keep the process alive.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put(work)

    def close(self) -> None:
        """Return when all submitted work is done."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
