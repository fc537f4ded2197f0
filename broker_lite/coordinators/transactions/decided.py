"""From a decision to its markers and its completion: the end of a transaction, step by step.

Log first, each step: the decision is in ``__transaction_state`` when this begins, then come the
markers, one to each partition, then the completion. Where a power loss is thought of (durability
``group``), each step waits until the one before it is on the disk. It decides when to try again;
what is decided, and when, is the coordinator's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceflow.broker_lite.coordinators.state_log import StateLogError, TransactionMarker
from onceflow.broker_lite.coordinators.transactions.states import (
    PREPARED,
    TransactionEntry,
    TransactionState,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.coordinators.settings import TransactionSettings
    from onceflow.broker_lite.coordinators.transactions.log import TransactionLog
    from onceflow.broker_lite.coordinators.transactions.markers import TransactionMarkers
    from onceflow.broker_lite.purgatory import Timer, Timers

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.transaction")

WhenSafe = Callable[[Callable[[bool], None]], None]
"""Tells once everything written before is on the disk (True), or never can be (False)."""


class DecidedTransactions:
    """Carries out what was decided.

    Args:
        settings: The coordinator's settings.
        log: Its entries.
        markers: Writes markers.
        timers: Runs what comes later.
        when_safe: Tells when writes are on the disk; None where a power loss is not thought of.
    """

    __slots__ = (
        "_log",
        "_marker_timers",
        "_markers",
        "_settings",
        "_timers",
        "_undecided",
        "_unmarked",
        "_when_safe",
    )

    def __init__(
        self,
        settings: TransactionSettings,
        log: TransactionLog,
        markers: TransactionMarkers,
        timers: Timers,
        when_safe: WhenSafe | None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._markers = markers
        self._timers = timers
        self._when_safe = when_safe
        self._undecided: dict[str, list[Callable[[bool], None]]] = {}
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._marker_timers: dict[str, Timer] = {}

    def close(self) -> None:
        """Stop every timer; the next start goes on."""
        for timer in self._marker_timers.values():
            timer.cancel()
        self._marker_timers.clear()

    def begin(self, entry: TransactionEntry, now_ms: int) -> bool:
        """Carry out a decision that was just written.

        Returns:
            False when storage failed on the way; it is tried again later.
        """
        self._unmarked[entry.transactional_id] = set(entry.partitions)
        if self._settings.end_txn_early_answer:
            self._later(entry.transactional_id, now_ms + self._settings.end_txn_marker_delay_ms)
            return True
        return self._mark(entry.transactional_id, now_ms)

    def resume(self, entry: TransactionEntry, now_ms: int) -> None:
        """Go on with a decision that was found at the start."""
        marker = self._marker_of(entry)
        self._unmarked[entry.transactional_id] = {
            partition
            for partition in entry.partitions
            if not self._markers.already_written(partition, marker)
        }
        self._mark(entry.transactional_id, now_ms)

    def _mark(self, transactional_id: str, now_ms: int) -> bool:
        """Carry out a decision; False when storage failed meanwhile and it is tried again later.

        Where a power loss is thought of, the markers wait until the decision is safe and the
        completion until the markers are, and this returns before.
        """
        if self._when_safe is None:
            marked = self._write_markers(transactional_id, now_ms)
            return marked and self._complete(transactional_id, now_ms)
        when_safe = self._when_safe
        waiting = self._undecided.setdefault(transactional_id, [])

        def mark(safe: bool) -> None:
            if safe and self._write_markers(transactional_id, now_ms):
                when_safe(complete)
            else:
                tell(safe)

        def complete(safe: bool) -> None:
            if safe:
                self._complete(transactional_id, now_ms)
            tell(safe)

        def tell(safe: bool) -> None:
            if self._undecided.pop(transactional_id, None) is waiting:
                for callback in waiting:
                    callback(safe)

        when_safe(mark)
        return True

    def when_marked(self, transactional_id: str, callback: Callable[[bool], None]) -> bool:
        """Have somebody told once the markers of a decision were written, or never can be.

        Returns:
            False when they are written already; then nobody is told.
        """
        waiting = self._undecided.get(transactional_id)
        if waiting is not None:
            waiting.append(callback)
        return waiting is not None

    def _marker_of(self, entry: TransactionEntry) -> TransactionMarker:
        return TransactionMarker(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            committed=entry.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self._log.coordinator_epoch(entry.transactional_id),
            transaction_version=entry.client_transaction_version,
        )

    def _write_markers(self, transactional_id: str, now_ms: int) -> bool:
        """Write what markers are missing; False when storage failed meanwhile."""
        timer = self._marker_timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        entry = self._log.get(transactional_id)
        if entry is None or entry.state not in PREPARED:
            return True
        marker = self._marker_of(entry)
        unmarked = self._unmarked.setdefault(transactional_id, set(entry.partitions))
        for partition in sorted(unmarked):
            # A partition that is gone, or that a newer epoch has taken over, needs no marker.
            code = self._markers.write(partition, marker, now_ms)
            if code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._later(transactional_id, now_ms + self._settings.marker_retry_ms)
                return False
            unmarked.discard(partition)
        return True

    def _complete(self, transactional_id: str, now_ms: int) -> bool:
        """Note that all markers are written; False when storage failed."""
        entry = self._log.get(transactional_id)
        if entry is None or entry.state not in PREPARED:
            return True
        try:
            self._log.put(entry.completed(now_ms), now_ms)
        except StateLogError as error:
            logger.error("%s: completion failed, will retry: %s", transactional_id, error)
            self._later(transactional_id, now_ms + self._settings.marker_retry_ms)
            return False
        self._unmarked.pop(transactional_id, None)
        return True

    def _later(self, transactional_id: str, at_ms: int) -> None:
        self._marker_timers[transactional_id] = self._timers.schedule(
            at_ms, lambda now_ms: self._run_markers(transactional_id, now_ms)
        )

    def _run_markers(self, transactional_id: str, now_ms: int) -> None:
        self._mark(transactional_id, now_ms)
