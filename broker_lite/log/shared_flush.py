"""One flush for all requests that wait: durability ``group``.

Logs note here that they were written to. A flush takes all that were noted until it began; what is
written meanwhile waits for the next one. It decides when files go to the disk and who is told;
which answers wait is the dispatcher's business. After a failure nothing is ever safe again in this
process: the kernel may have dropped what it could not write and forgotten about it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker_lite.log.partition_log import PartitionLog
    from onceflow.broker_lite.log.storage import Storage

Waiter = Callable[[bool], None]
"""Told once whether everything that was written before is safe."""


def _at_once(callback: Callable[[], None]) -> None:
    callback()


class SharedFlush:
    """Which logs hold unsafe writes, and who waits for them.

    Args:
        storage: The data folder.

    Attributes:
        post: Runs a callback on the broker's loop; storages may report from another thread.
        failure: Why nothing can be made safe any more, or None.
        on_failure: Called once with that reason.
    """

    __slots__ = (
        "_dirty",
        "_flying",
        "_in_flight",
        "_storage",
        "_waiting_in_flight",
        "_waiting_next",
        "failure",
        "on_failure",
        "post",
    )

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._dirty: dict[PartitionLog, None] = {}
        self._in_flight = False
        self._flying: list[tuple[PartitionLog, int]] = []
        self._waiting_in_flight: list[Waiter] = []
        self._waiting_next: list[Waiter] = []
        self.post: Callable[[Callable[[], None]], object] = _at_once
        self.failure: OSError | None = None
        self.on_failure: Callable[[OSError], None] | None = None

    @property
    def pending(self) -> bool:
        """Whether something was written that is not known to be on the disk."""
        return bool(self._dirty) or self._in_flight or self.failure is not None

    def note(self, log: PartitionLog) -> None:
        """A log was appended to."""
        self._dirty[log] = None

    def forget(self, log: PartitionLog) -> None:
        """A log was deleted or closed."""
        self._dirty.pop(log, None)
        self._flying = [flying for flying in self._flying if flying[0] is not log]

    def when_safe(self, waiter: Waiter) -> None:
        """Tell somebody once all that is written by now is safe, or can never be."""
        if self.failure is not None:
            waiter(False)
        elif self._dirty:
            self._waiting_next.append(waiter)
        elif self._in_flight:
            self._waiting_in_flight.append(waiter)
        else:
            waiter(True)

    def start(self) -> None:
        """Begin a flush if there is need of one and none is on its way."""
        if self._in_flight or not self._dirty or self.failure is not None:
            return
        logs, self._dirty = self._dirty, {}
        self._in_flight = True
        self._flying = [(log, log.log_end_offset) for log in logs]
        self._waiting_in_flight, self._waiting_next = self._waiting_next, []
        paths = [path for log in logs for path in log.unsafe_paths()]
        self._storage.flush_later(
            paths,
            partial(self._report, self._finish),
            lambda error: self._report(partial(self.fail, error)),
        )

    def _report(self, callback: Callable[[], None]) -> None:
        self.post(callback)

    def _finish(self) -> None:
        if self.failure is not None:
            return
        self._in_flight = False
        logs, self._flying = self._flying, []
        waiters, self._waiting_in_flight = self._waiting_in_flight, []
        for log, end_offset in logs:
            log.flushed(end_offset)
        for waiter in waiters:
            waiter(True)
        self.start()

    def fail(self, error: OSError) -> None:
        """Give up: whoever waits is told, and nothing is flushed any more."""
        if self.failure is not None:
            return
        self.failure = error
        if self.on_failure is not None:
            self.on_failure(error)
        waiters = self._waiting_in_flight + self._waiting_next
        self._waiting_in_flight, self._waiting_next = [], []
        for waiter in waiters:
            waiter(False)
