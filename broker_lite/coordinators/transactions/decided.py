"""Ends a decided transaction: writes its markers, then its completion.

The coordinator has decided to commit or to abort, and has written that to ``__transaction_state``.
This module then writes a marker to each partition, then the completion, and repeats what fails.
With durability ``group``, each step waits until the one before it is on the disk.
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
    from onceflow.broker_lite.coordinators.transactions.producer_ids import ProducerIds
    from onceflow.broker_lite.purgatory import Timer, Timers

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.transaction")

MARKER_RETRY_MAX_MS = 10_000
"""Longest time until a refused marker is repeated."""

_DOUBLINGS_MAX = 20
_NO_REFUSALS = frozenset(
    {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR}
)

WhenSafe = Callable[[Callable[[bool], None]], None]
"""Calls a function with True when all earlier writes are on the disk, with False if that failed."""

WhenMarked = Callable[[ErrorCode | None], None]
"""Called with NONE after the completion, with CONCURRENT_TRANSACTIONS if a step failed and will be
repeated, or with None if the disk failed."""


class DecidedTransactions:
    """Ends decided transactions.

    Args:
        settings: The coordinator's settings.
        log: Its entries.
        markers: Writes markers.
        producer_ids: Gives out producer ids.
        timers: Timers of the broker.
        when_safe: See `WhenSafe`; None if the durability does not cover a power loss.
    """

    __slots__ = (
        "_attempts",
        "_ending",
        "_log",
        "_marker_timers",
        "_markers",
        "_on_ended",
        "_producer_ids",
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
        producer_ids: ProducerIds,
        timers: Timers,
        when_safe: WhenSafe | None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._markers = markers
        self._producer_ids = producer_ids
        self._timers = timers
        self._when_safe = when_safe
        self._undecided: dict[str, list[WhenMarked]] = {}
        self._unmarked: dict[str, set[TopicPartition]] = {}
        self._marker_timers: dict[str, Timer] = {}
        self._attempts: dict[str, int] = {}
        # Transactional ids that lose their producer id when their transaction ends.
        self._ending: set[str] = set()
        self._on_ended: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Stop every timer; the next start continues."""
        for timer in self._marker_timers.values():
            timer.cancel()
        self._marker_timers.clear()

    def begin(self, entry: TransactionEntry, now_ms: int) -> bool:
        """Begin to end a transaction whose decision was just written.

        Returns:
            False if storage failed; the failed step is repeated later.
        """
        self._unmarked[entry.transactional_id] = set(entry.partitions)
        if self._settings.end_txn_early_answer:
            self._later(entry.transactional_id, now_ms + self._settings.end_txn_marker_delay_ms)
            return True
        return self._mark(entry.transactional_id, now_ms)

    def end_identity_after(self, transactional_id: str) -> None:
        """Give the id a new producer id when its decided transaction is complete."""
        self._ending.add(transactional_id)

    def when_identities_ended(self, callback: Callable[[], None]) -> None:
        """Call a function when no id of `end_identity_after` is left; at once if there is none."""
        self._on_ended = callback
        if not self._ending:
            callback()

    def resume(self, entry: TransactionEntry, now_ms: int) -> None:
        """Continue with a decision that was found at the start."""
        marker = self._marker_of(entry)
        self._unmarked[entry.transactional_id] = {
            partition
            for partition in entry.partitions
            if not self._markers.already_written(partition, marker)
        }
        self._mark(entry.transactional_id, now_ms)

    def _mark(self, transactional_id: str, now_ms: int) -> bool:
        """Write markers and completion; False if storage failed and they are repeated later.

        If the durability covers a power loss, this returns at once. The markers wait until the
        decision is on the disk, and the completion until the markers are.
        """
        if self._when_safe is None:
            marked = self._write_markers(transactional_id, now_ms)
            return marked and self._complete(transactional_id, now_ms)
        when_safe = self._when_safe
        waiting = self._undecided.setdefault(transactional_id, [])

        def mark(safe: bool) -> None:
            if not safe:
                tell(None)
            elif self._write_markers(transactional_id, now_ms):
                when_safe(complete)
            else:
                tell(ErrorCode.CONCURRENT_TRANSACTIONS)

        def complete(safe: bool) -> None:
            if not safe:
                tell(None)
            elif self._complete(transactional_id, now_ms):
                tell(ErrorCode.NONE)
            else:
                tell(ErrorCode.CONCURRENT_TRANSACTIONS)

        def tell(code: ErrorCode | None) -> None:
            if self._undecided.pop(transactional_id, None) is waiting:
                for callback in waiting:
                    callback(code)

        when_safe(mark)
        return True

    def when_marked(self, transactional_id: str, callback: WhenMarked) -> bool:
        """Call back when the transaction is complete, or when a step failed.

        Returns:
            False if it is complete already; then the callback is not called.
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
        """Write the missing markers; False if one is still missing and will be repeated."""
        timer = self._marker_timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        entry = self._log.get(transactional_id)
        if entry is None or entry.state not in PREPARED:
            return True
        unmarked = self._unmarked.setdefault(transactional_id, set(entry.partitions))
        pause_ms = self._settings.marker_retry_ms
        for partition in sorted(unmarked):
            code = self._write_marker(partition, entry, now_ms)
            # A deleted partition needs no marker.
            if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                unmarked.discard(partition)
            elif code is ErrorCode.KAFKA_STORAGE_ERROR:
                break  # The same storage would fail for the other partitions too.
            else:
                pause_ms = self._refusal_pause_ms(transactional_id)
        if unmarked:
            self._later(transactional_id, now_ms + pause_ms)
            return False
        self._attempts.pop(transactional_id, None)
        return True

    def _write_marker(
        self, partition: TopicPartition, entry: TransactionEntry, now_ms: int
    ) -> ErrorCode:
        """Write one marker; a refused marker keeps the transaction incomplete."""
        marker = self._marker_of(entry)
        if not marker.committed and self._markers.is_fenced_off(partition, marker):
            return ErrorCode.NONE  # Its records there are aborted, and its epoch is fenced.
        code = self._markers.write(partition, marker, now_ms)
        if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            # This is the only coordinator, so a marker had an epoch that was never begun here.
            known_epoch = self._markers.coordinator_epoch(partition, entry.producer_id)
            self._log.raise_coordinator_epoch(entry.transactional_id, known_epoch)
            marker = self._marker_of(entry)
            code = self._markers.write(partition, marker, now_ms)
        if code not in _NO_REFUSALS:
            logger.error(
                "%s: %s refuses marker %s (%s); the marker will be repeated until it is written",
                entry.transactional_id,
                partition,
                marker,
                code.name,
            )
        return code

    def _refusal_pause_ms(self, transactional_id: str) -> int:
        """Return the pause before the next attempt, which doubles with each one."""
        attempts = self._attempts[transactional_id] = self._attempts.get(transactional_id, 0) + 1
        return min(
            self._settings.marker_retry_ms << min(attempts, _DOUBLINGS_MAX), MARKER_RETRY_MAX_MS
        )

    def _complete(self, transactional_id: str, now_ms: int) -> bool:
        """Write the completion; False if storage failed."""
        entry = self._log.get(transactional_id)
        if entry is None or entry.state not in PREPARED:
            return True
        completed = entry.completed(now_ms)
        ends = transactional_id in self._ending
        try:
            if ends:
                completed = completed.without_owner(self._producer_ids.next(), now_ms)
            self._log.put(completed, now_ms)
        except StateLogError as error:
            logger.error("%s: completion failed, will retry: %s", transactional_id, error)
            self._later(transactional_id, now_ms + self._settings.marker_retry_ms)
            return False
        self._unmarked.pop(transactional_id, None)
        if ends:
            self._ending.discard(transactional_id)
            if not self._ending:
                self._on_ended()
        return True

    def _later(self, transactional_id: str, at_ms: int) -> None:
        self._marker_timers[transactional_id] = self._timers.schedule(
            at_ms, lambda now_ms: self._run_markers(transactional_id, now_ms)
        )

    def _run_markers(self, transactional_id: str, now_ms: int) -> None:
        self._mark(transactional_id, now_ms)
