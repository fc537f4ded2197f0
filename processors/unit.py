"""The unit of work: everything since the last commit, and the size limit of units.

A unit ends in a commit or an abort, never in part. After an abort that may repeat (a record that
can never be delivered, a unit that takes too long) the next units are halved until the record at
fault is alone. This module does no I/O and gets its clock; the worker acts on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from onceflow.processors.errors import TooManyAbortsError
from onceflow.processors.lanes import Lanes
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import Abort, AbortReason

BACKOFF_START_MS = 50
BACKOFF_MAX_MS = 5_000
ABORTS_UNTIL_CAREFUL = 2
BYTES_MAX = 64 * 1024 * 1024

# Aborts by a rebalance, a fence or the worker itself: no record is at fault.
BLAMELESS = frozenset(
    {
        AbortReason.REQUESTED,
        AbortReason.PARTITIONS_LOST,
        AbortReason.STALE_MEMBERSHIP,
        AbortReason.REBALANCE,
        AbortReason.FENCED,
        AbortReason.INTERRUPTED,
    }
)


class DueRows(NamedTuple):
    """The rows of a task that fall due (windows, timers), as what a unit goes through.

    Attributes:
        task: Name of the task.
    """

    task: str


Place: TypeAlias = TopicPartition | DueRows
Progress = Mapping[Place, int]
"""How far a unit goes: next offset to read by partition, and how many due rows of a task."""


class Unit:
    """The work that is not committed yet.

    Args:
        clock: Monotonic seconds.
        interval_ms: Longest time between commits.
        records_max: Most records in a unit.
        aborts_max: Aborts in a row before ``exhausted``.
        bytes_max: Most bytes of uncommitted state of one task.

    Attributes:
        bytes_max: Most bytes of uncommitted state of one task.
        lanes: Outputs that are not sent yet.
        count: Records in the unit.
        due_s: When the unit must be committed; 0 means at once.
        room: Records that the unit may still take.
    """

    __slots__ = (
        "_aborts_max",
        "_interval_s",
        "_limit",
        "_records_max",
        "_suspects",
        "aborts",
        "bytes_max",
        "clock",
        "count",
        "due_s",
        "lanes",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        interval_ms: int,
        records_max: int,
        aborts_max: int,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.bytes_max: int = bytes_max
        self.clock: Callable[[], float] = clock
        self.lanes: Lanes = Lanes(clock)
        self.count: int = 0
        self.due_s: float = 0.0
        self.aborts: int = 0
        self._interval_s = interval_ms / 1000
        self._records_max = records_max
        self._aborts_max = aborts_max
        self._limit = records_max
        self._suspects: dict[Place, int] = {}

    @property
    def room(self) -> int:
        """Records that the unit may still take."""
        return self._limit - self.count

    @property
    def is_careful(self) -> bool:
        """Whether units are small, to find a record that cannot be committed."""
        return bool(self._suspects)

    @property
    def is_due(self) -> bool:
        """Whether the unit must be committed now."""
        return self.count > 0 and (self.room <= 0 or self.clock() >= self.due_s)

    @property
    def exhausted(self) -> bool:
        """Whether there were too many aborts in a row."""
        return self.aborts > self._aborts_max

    def check_exhausted(self, cause: object) -> None:
        """Raise when aborting again makes no sense.

        Args:
            cause: Of the last abort.

        Raises:
            TooManyAbortsError: No unit succeeds any more.
        """
        if self.exhausted:
            raise TooManyAbortsError(
                f"{self.aborts} transactions aborted in a row, more than aborts_max "
                f"({self._aborts_max}); the last cause: {cause}"
            ) from (cause if isinstance(cause, Exception) else None)

    def started(self) -> None:
        """Begin the commit interval, if the unit is empty: it counts from the first record."""
        if self.count == 0:
            self.due_s = self.clock() + self._interval_s

    def committed(self, progress: Progress) -> None:
        """Begin the next unit after a commit."""
        if progress:
            self.aborts = 0
        for place, upto in progress.items():
            if self._suspects.get(place, upto + 1) <= upto:
                del self._suspects[place]
        self._limit = max(1, self._limit // 2) if self._suspects else self._records_max
        self._begin()
        self.due_s = self.clock() + self._interval_s

    def aborted(self, abort: Abort, progress: Progress) -> None:
        """Begin the next unit after an abort."""
        count = self.count
        self._begin()
        if abort.reason not in BLAMELESS:
            self.aborts += 1
            if self.aborts >= ABORTS_UNTIL_CAREFUL:
                self.suspect(progress, count)

    def suspect(self, progress: Progress, count: int) -> None:
        """Halve the units up to the end of an aborted one, as one of its items is at fault."""
        for place, upto in progress.items():
            self._suspects[place] = max(upto, self._suspects.get(place, 0))
        if self._suspects:
            self._limit = max(1, min(self._limit, count) // 2)

    def found(self) -> None:
        """Stop halving, as the record at fault is found and handled."""
        self._suspects.clear()
        self._limit = self._records_max

    def forget(self, place: Place) -> None:
        """Forget a partition or task that is gone."""
        if self._suspects.pop(place, None) is not None and not self._suspects:
            self._limit = self._records_max

    def clear(self) -> None:
        """Empty the unit without a commit or an abort."""
        self._begin()

    def _begin(self) -> None:
        self.lanes.clear()
        self.count = 0

    def backoff_ms(self) -> int:
        """Return the wait before the next unit: none after the first abort, then doubling."""
        if self.aborts < 2:
            return 0
        return min(BACKOFF_MAX_MS, BACKOFF_START_MS << min(self.aborts - 2, 16))
