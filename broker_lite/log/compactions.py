"""Chooses the log to compact next: the dirtiest one, and no damaged one.

As in Kafka's LogCleaner, logs whose ``max.compaction.lag.ms`` is over come first, then those with
the greatest share of dirty bytes. A damaged log is left out until the next start, so that it does
not stop the others. ``compaction`` compacts one log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from onceflow.broker_lite.log.log_errors import LogError
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.log.partition_log import PartitionLog

LOOKED_AT_ONCE = 200
"""Logs that one step of the search for the dirtiest one looks at."""

_logger = logging.getLogger("onceflow.broker_lite.log")


class Compactions:
    """Compacts one log after the other, step by step.

    Args:
        partitions: Gives all logs.

    Attributes:
        busy: Whether there is more to do at once.
    """

    __slots__ = (
        "_best",
        "_log",
        "_partitions",
        "_postponed",
        "_search",
        "_steps",
        "_uncleanable",
        "busy",
    )

    def __init__(self, partitions: Callable[[], list[PartitionLog]]) -> None:
        self._partitions = partitions
        self._log: PartitionLog | None = None
        self._steps: Generator[None, None, None] | None = None
        self._search: Iterator[PartitionLog] | None = None
        self._best: tuple[tuple[bool, float], PartitionLog] | None = None
        # Left out until the next start, and until the next search finds nothing to do.
        self._uncleanable: set[PartitionLog] = set()
        self._postponed: set[PartitionLog] = set()
        self.busy: bool = False

    def step(self, now_ms: int) -> PartitionLog | None:
        """Do one step of the current compaction, or of the search for the next log.

        Args:
            now_ms: The broker's clock.

        Returns:
            A log whose compaction is complete with this step.
        """
        if self._steps is None:
            self.busy = self._look(now_ms)
            return None
        self.busy = True
        log = self._log
        assert log is not None
        try:
            next(self._steps)
        except StopIteration:
            self._end()
            return log
        except LogError as error:
            self._failed(log, error)
        except Exception:
            self._uncleanable.add(log)
            self._end()
            raise
        return None

    def _look(self, now_ms: int) -> bool:
        """Look at some logs; return whether there is more to do."""
        if self._search is None:
            self._search, self._best = iter(self._partitions()), None
        for _ in range(LOOKED_AT_ONCE):
            log = next(self._search, None)
            if log is None:
                return self._choose(now_ms)
            if log in self._uncleanable or log in self._postponed:
                continue
            found = log.cleanable(now_ms)
            if found is not None:
                need = found.overdue, found.dirty_ratio
                if self._best is None or need > self._best[0]:
                    self._best = need, log
        return True

    def _choose(self, now_ms: int) -> bool:
        best, self._search, self._best = self._best, None, None
        if best is None:
            self._postponed.clear()
            return False
        # None if the log changed since it was looked at.
        self._log, self._steps = best[1], best[1].compaction(now_ms)
        return True

    def _failed(self, log: PartitionLog, error: LogError) -> None:
        """Leave the log out and continue with the others."""
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._postponed.add(log)
            _logger.error("compaction of %s is tried again later: %s", log.topic_partition, error)
        else:
            self._uncleanable.add(log)
            _logger.error(
                "%s is not compacted any more until a restart: %s", log.topic_partition, error
            )
        self._end()

    def forget(self, log: PartitionLog) -> None:
        """Stop working on a log that is being deleted."""
        self._uncleanable.discard(log)
        self._postponed.discard(log)
        if self._best is not None and self._best[1] is log:
            self._best = None
        if self._log is log:
            self.close()

    def close(self) -> None:
        """Give up the current compaction; the next start drops its unfinished files."""
        steps = self._steps
        self._end()
        if steps is not None:
            steps.close()

    def _end(self) -> None:
        self._log = self._steps = None
