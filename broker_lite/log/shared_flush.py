"""One flush for all requests that wait: durability ``group``.

Logs note their writes here. A flush syncs all logs that were noted before it began; later writes
wait for the next flush. The dispatcher decides which answers wait. After a failed flush this
process never calls a write safe again: the kernel may have dropped what it could not write, and a
later flush would succeed without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker_lite.log.partition_log import PartitionLog
    from onceflow.broker_lite.log.storage import Storage

Waiter = Callable[[bool], None]
"""Called once: with True when all earlier writes are on the disk, with False if that failed."""


def _at_once(callback: Callable[[], None]) -> None:
    callback()


class SharedFlush:
    """The logs with writes that are not on the disk, and the callbacks that wait for them.

    Args:
        storage: The data folder.

    Attributes:
        post: Runs a callback on the broker's loop; storages may report from another thread.
        failure: The error of a failed flush, or None.
        on_failure: Called once with that error.
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
        """Whether some write may not be on the disk yet."""
        return bool(self._dirty) or self._in_flight or self.failure is not None

    def note(self, log: PartitionLog) -> None:
        """Note that a log was written to."""
        self._dirty[log] = None

    def forget(self, log: PartitionLog) -> None:
        """Forget a log that was deleted or closed."""
        self._dirty.pop(log, None)
        self._flying = [flying for flying in self._flying if flying[0] is not log]

    def when_safe(self, waiter: Waiter) -> None:
        """Call `waiter` when all present writes are on the disk, or when that has failed."""
        if self.failure is not None:
            waiter(False)
        elif self._dirty:
            self._waiting_next.append(waiter)
        elif self._in_flight:
            self._waiting_in_flight.append(waiter)
        else:
            waiter(True)

    def start(self) -> None:
        """Begin a flush if one is needed and none is running."""
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
        """Give up: call all waiters with False, and flush nothing any more."""
        if self.failure is not None:
            return
        self.failure = error
        if self.on_failure is not None:
            self.on_failure(error)
        waiters = self._waiting_in_flight + self._waiting_next
        self._waiting_in_flight, self._waiting_next = [], []
        for waiter in waiters:
            waiter(False)
