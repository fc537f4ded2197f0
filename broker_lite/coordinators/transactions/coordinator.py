"""The transaction coordinator: who may produce under a transactional id, and how transactions end.

It decides fencing (KIP-98, KIP-360), the life of a transaction in both protocol versions (1, and 2
of KIP-890), timeouts and the expiry of ids. ``states`` has the table of legal steps; ``log`` and
``markers`` write to storage. The handlers choose error names that depend on the version of a
request: here a fenced producer always gets PRODUCER_FENCED.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onceflow.broker_lite.coordinators.consumer.topic_regex import RegexError, select
from onceflow.broker_lite.coordinators.settings import TransactionSettings
from onceflow.broker_lite.coordinators.state_log import StateLog, StateLogError
from onceflow.broker_lite.coordinators.transactions.decided import DecidedTransactions, WhenSafe
from onceflow.broker_lite.coordinators.transactions.log import TransactionLog
from onceflow.broker_lite.coordinators.transactions.markers import TransactionMarkers
from onceflow.broker_lite.coordinators.transactions.producer_ids import ProducerIds
from onceflow.broker_lite.coordinators.transactions.rules import (
    PartitionCheck,
    code_for_append,
    end_v1,
    end_v2,
    may_continue,
)
from onceflow.broker_lite.coordinators.transactions.states import (
    AT_REST,
    EPOCH_BUMP_VERSION,
    PREPARED,
    TransactionEntry,
    TransactionState,
)
from onceflow.broker_lite.purgatory import Timer, Timers
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from onceflow.sdk.protocol.error_codes import ErrorCode

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.transaction")

PRODUCE_ADDS_FROM = 12
"""First Produce version that adds its partitions to the transaction itself (KIP-890)."""

PRODUCE_ABORTABLE_FROM = 11
"""First Produce version whose senders know TRANSACTION_ABORTABLE."""


class ProducerGrant(NamedTuple):
    """Answer of InitProducerId and EndTxn: an error, or the identity to continue with."""

    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class TransactionListing(NamedTuple):
    """Answer of ListTransactions."""

    error_code: ErrorCode
    unknown_states: Sequence[str] = ()
    entries: Sequence[TransactionEntry] = ()


class TransactionCoordinator:
    """Coordinates the transactions of every transactional id of the broker.

    A method completes its change before it returns, so that no other request sees half of a change.
    Only markers may follow later, with early answers or after a storage failure. Then the entry's
    state is PrepareCommit or PrepareAbort.

    Attributes:
        markers: Writes markers; WriteTxnMarkers uses it too.
        decided: Ends transactions whose outcome is decided.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        log: StateLog,
        markers: TransactionMarkers,
        producer_ids: ProducerIds,
        timers: Timers,
        when_safe: WhenSafe | None = None,
    ) -> None:
        """Make it.

        Args:
            settings: Its settings.
            log: The topic ``__transaction_state``.
            markers: Writes markers.
            producer_ids: Gives out producer ids.
            timers: Timers of the broker.
            when_safe: Calls back when all earlier writes are on the disk, or when that is
                impossible. None if the durability does not cover a power loss. With it, no marker
                reaches the disk before its decision.
        """
        self._settings = settings
        self._log = TransactionLog(log, settings.transaction_version)
        self.markers = markers
        self._producer_ids = producer_ids
        self._timers = timers
        self.decided: DecidedTransactions = DecidedTransactions(
            settings, self._log, markers, producer_ids, timers, when_safe
        )
        self._periodic: list[Timer] = []

    # --- life of the coordinator

    def load(self, now_ms: int) -> None:
        """Read and resume in one step; after a crash `after_crash` makes repairs in between."""
        self.read(now_ms)
        self.resume(now_ms)

    def read(self, now_ms: int) -> None:
        """Reload every id."""
        self._producer_ids.note_used(self._log.load(now_ms))

    def end_identities(
        self,
        is_lost: Callable[[TransactionEntry], bool],
        now_ms: int,
        *,
        keep_commits: bool,
    ) -> None:
        """Take transactional ids from producers whose epoch may have been given out twice.

        This drops their open transactions. A decided transaction is ended first.

        Args:
            is_lost: Selects the entries.
            now_ms: Wall milliseconds.
            keep_commits: Whether decisions below version 2 are carried out too. After a power loss
                they must not be: the log may have lost the end of this transaction and the begin
                of the next one. Both have the same epoch, so the markers would commit the next one.

        Raises:
            StateLogError: An entry could not be written.
        """
        for entry in self._log:
            if not is_lost(entry):
                continue
            exact = entry.client_transaction_version >= EPOCH_BUMP_VERSION
            if entry.state in PREPARED and (keep_commits or exact):
                self.decided.end_identity_after(entry.transactional_id)
            else:
                self._log.put(entry.without_owner(self._producer_ids.next(), now_ms), now_ms)

    def resume(self, now_ms: int, on_settled: Callable[[], None] = lambda: None) -> None:
        """Finish transactions whose outcome was decided before the restart.

        An undecided transaction stays open until its producer ends it or its timeout is over. The
        timeout counts from the transaction's begin.

        Args:
            now_ms: Wall milliseconds.
            on_settled: Called when `end_identities` is complete.
        """
        self.decided.when_identities_ended(on_settled)
        for entry in self._log:
            if entry.state in PREPARED:
                logger.info(
                    "%s: finishing %s found at start", entry.transactional_id, entry.state.label
                )
                self.decided.resume(entry, now_ms)

    def start(self, now_ms: int) -> None:
        """Schedule the periodic scans for timed-out transactions and idle ids."""
        settings = self._settings
        self._every(settings.abort_timed_out_interval_ms, self.abort_timed_out, now_ms)

        def remove_expired(now_ms: int) -> None:
            self.remove_expired(now_ms - self._timers.ahead_ms)

        self._every(settings.remove_expired_interval_ms, remove_expired, now_ms)

    def set_transaction_version(self, level: int) -> None:
        """Use another level of the feature; open transactions keep the version of their begin."""
        self._settings = dataclasses.replace(self._settings, transaction_version=level)
        self._log.set_transaction_version(level)

    def close(self) -> None:
        """Stop every timer; the next start ends decided transactions."""
        for timer in self._periodic:
            timer.cancel()
        self._periodic.clear()
        self.decided.close()

    def partition_for(self, transactional_id: str) -> int:
        """Partition of ``__transaction_state`` that the id belongs to (trap 51)."""
        return self._log.partition_for(transactional_id)

    # --- identity

    def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int,
        producer_epoch: int,
        now_ms: int,
    ) -> ProducerGrant:
        """Give a producer its producer id and epoch, and fence the one that had the id before.

        Args:
            transactional_id: None for a producer that is only idempotent.
            timeout_ms: Transaction timeout asked for.
            producer_id: Identity that the caller had (KIP-360), -1 for none.
            producer_epoch: Epoch that goes with it, -1 for none.
            now_ms: Wall milliseconds.

        Returns:
            The identity; or INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED, or
            CONCURRENT_TRANSACTIONS if the caller must repeat the request (an open transaction is
            aborted first).
        """
        try:
            if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
                return ProducerGrant(ErrorCode.INVALID_REQUEST)
            if transactional_id is None:
                return ProducerGrant(ErrorCode.NONE, self._producer_ids.next(), 0)
            if not transactional_id:
                return ProducerGrant(ErrorCode.INVALID_REQUEST)
            if not 0 < timeout_ms <= self._settings.max_timeout_ms:
                return ProducerGrant(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            entry = self._log.get(transactional_id)
            if entry is None:
                entry = TransactionEntry(
                    transactional_id=transactional_id,
                    producer_id=self._producer_ids.next(),
                    producer_epoch=NO_PRODUCER_EPOCH,
                    timeout_ms=timeout_ms,
                    state=TransactionState.EMPTY,
                    last_update_ms=now_ms,
                )
            expected = None if producer_id == NO_PRODUCER_ID else (producer_id, producer_epoch)
            return self._init(entry, timeout_ms, expected, now_ms)
        except StateLogError as error:
            logger.error("%s: InitProducerId failed: %s", transactional_id, error)
            return ProducerGrant(error.code)

    def _init(
        self,
        entry: TransactionEntry,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        now_ms: int,
    ) -> ProducerGrant:
        if expected is not None and not may_continue(entry, *expected):
            return ProducerGrant(ErrorCode.PRODUCER_FENCED)
        if entry.state in PREPARED:
            return ProducerGrant(ErrorCode.CONCURRENT_TRANSACTIONS)
        if entry.state is TransactionState.ONGOING:
            # No producer gets the epoch that fences. The caller repeats the request and gets the
            # next one, or a new producer id if the fencing epoch was the last one (trap 42).
            self._abort_by_coordinator(entry, now_ms)
            return ProducerGrant(ErrorCode.CONCURRENT_TRANSACTIONS)
        new = self._next_identity(entry, timeout_ms, None if not expected else expected[1], now_ms)
        if new is None:
            return ProducerGrant(ErrorCode.PRODUCER_FENCED)
        self._log.put(new, now_ms)
        return ProducerGrant(ErrorCode.NONE, new.producer_id, new.producer_epoch)

    def _next_identity(
        self,
        entry: TransactionEntry,
        timeout_ms: int,
        expected_epoch: int | None,
        now_ms: int,
    ) -> TransactionEntry | None:
        """Return the entry after InitProducerId; None if the caller is fenced (trap 39)."""
        known = expected_epoch is not None
        if (
            expected_epoch is None
            or entry.producer_epoch == NO_PRODUCER_EPOCH
            or expected_epoch == entry.producer_epoch
        ):
            if entry.epoch_exhausted:
                return entry.with_new_producer_id(
                    self._producer_ids.next(), timeout_ms, now_ms, remember_last=known
                )
            return entry.with_next_epoch(timeout_ms, now_ms, remember_last=known)
        if expected_epoch == entry.last_producer_epoch:
            return entry.with_same_epoch(timeout_ms, now_ms)
        return None

    # --- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        *,
        transaction_version: int = 0,
    ) -> ErrorCode:
        """Add partitions to the transaction; the first ones begin it (trap 48).

        Args:
            transactional_id: Whose transaction.
            producer_id: Identity of the caller.
            producer_epoch: Its epoch.
            partitions: Existing partitions; those already in the transaction change nothing.
            now_ms: Wall milliseconds.
            transaction_version: 2 when the partitions come with their records (KIP-890).
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        entry, error = self._current(transactional_id, producer_id, producer_epoch)
        if entry is None:
            return error
        if entry.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        wanted = frozenset(partitions)
        if entry.state is TransactionState.ONGOING and wanted <= entry.partitions:
            return ErrorCode.NONE
        try:
            self._log.put(entry.with_partitions(wanted, now_ms, transaction_version), now_ms)
        except StateLogError as failure:
            logger.error("%s: partitions were not added: %s", transactional_id, failure)
            return failure.code
        return ErrorCode.NONE

    def verify_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Check whether partitions are part of the open transaction, without adding any.

        Returns:
            A code per partition; TRANSACTION_ABORTABLE for one outside of the transaction.
        """
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        entry, error = self._current(transactional_id, producer_id, producer_epoch)
        if entry is None:
            return dict.fromkeys(partitions, error)
        if entry.state in PREPARED:
            return dict.fromkeys(partitions, ErrorCode.CONCURRENT_TRANSACTIONS)
        members = entry.partitions
        return {
            partition: ErrorCode.NONE if partition in members else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def verify_or_add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        api_version: int,
        now_ms: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """Check for a Produce request which partitions may get records of the transaction.

        Every transactional record passes this check. So no record can follow the marker of its
        transaction and stay open for ever (trap 46, KIP-890).

        Args:
            transactional_id: From the request.
            producer_id: From the batches.
            producer_epoch: From the batches.
            partitions: Partitions that exist.
            api_version: Version of the Produce request: from 12 on partitions are added.
            now_ms: Wall milliseconds.

        Returns:
            The refused partitions, with the code for the Produce answer;
            empty if all are accepted.
        """
        if api_version >= PRODUCE_ADDS_FROM:
            check = PartitionCheck.ADD
        elif api_version >= PRODUCE_ABORTABLE_FROM:
            check = PartitionCheck.REFUSE
        else:
            check = PartitionCheck.REFUSE_OLD
        return self.check_partitions(
            transactional_id, producer_id, producer_epoch, partitions, check, now_ms
        )

    def check_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        check: PartitionCheck,
        now_ms: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """As :meth:`verify_or_add`, for any request that writes records of a transaction."""
        wanted = list(partitions)
        if check is PartitionCheck.ADD:
            code: ErrorCode = self.add_partitions(
                transactional_id,
                producer_id,
                producer_epoch,
                wanted,
                now_ms,
                transaction_version=EPOCH_BUMP_VERSION,
            )
            codes: dict[TopicPartition, ErrorCode] = dict.fromkeys(wanted, code)
        else:
            codes = self.verify_partitions(transactional_id, producer_id, producer_epoch, wanted)
        return {
            partition: code_for_append(code, check)
            for partition, code in codes.items()
            if code is not ErrorCode.NONE
        }

    # --- end

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        now_ms: int,
        *,
        transaction_version: int,
    ) -> ProducerGrant:
        """Commit or abort.

        Args:
            transactional_id: Whose transaction.
            producer_id: Identity of the caller.
            producer_epoch: Its epoch.
            committed: True is commit.
            now_ms: Wall milliseconds.
            transaction_version: 2 if the caller continues with the epoch in the answer.

        Returns:
            NONE with the identity to continue with (the same one below version 2). By default the
            markers are written before. A repeated request gets the first one's answer (trap 44).
        """
        if not transactional_id:
            return ProducerGrant(ErrorCode.INVALID_REQUEST)
        entry = self._log.get(transactional_id)
        if entry is None:
            return ProducerGrant(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        decide = end_v2 if transaction_version >= EPOCH_BUMP_VERSION else end_v1
        code = decide(entry, producer_id, producer_epoch, committed)
        if code is not None:
            if code is not ErrorCode.NONE:
                return ProducerGrant(code)
            return ProducerGrant(code, entry.producer_id, entry.producer_epoch)
        try:
            return self._end(entry, committed, transaction_version, now_ms)
        except StateLogError as error:
            logger.error("%s: EndTxn failed: %s", transactional_id, error)
            return ProducerGrant(error.code)

    def _end(
        self, entry: TransactionEntry, committed: bool, transaction_version: int, now_ms: int
    ) -> ProducerGrant:
        rotates = transaction_version >= EPOCH_BUMP_VERSION and entry.epoch_exhausted
        prepared = entry.prepared(
            committed=committed,
            now_ms=now_ms,
            transaction_version=transaction_version,
            next_producer_id=self._producer_ids.next() if rotates else NO_PRODUCER_ID,
        )
        self._log.put(prepared, now_ms)
        done = prepared.completed(now_ms)
        grant = ProducerGrant(ErrorCode.NONE, done.producer_id, done.producer_epoch)
        if self.decided.begin(prepared, now_ms):
            return grant
        # Decided, but a marker is missing: the client repeats the request until it is written.
        return ProducerGrant(ErrorCode.CONCURRENT_TRANSACTIONS)

    def _abort_by_coordinator(self, entry: TransactionEntry, now_ms: int) -> None:
        """Abort an open transaction and raise the epoch, so that its producer is fenced."""
        version = self._settings.transaction_version
        if version < EPOCH_BUMP_VERSION:
            entry, version = entry.fenced(now_ms), 0
        prepared = entry.prepared(committed=False, now_ms=now_ms, transaction_version=version)
        self._log.put(prepared, now_ms)
        self.decided.begin(prepared, now_ms)

    def holds(self, producer_id: int, producer_epoch: int, partition: TopicPartition) -> bool:
        """Whether the coordinator knows a producer's open transaction in a partition."""
        return any(
            entry.producer_id == producer_id
            and entry.may_hold(producer_epoch)
            and partition in entry.partitions
            for entry in self._log
        )

    # --- periodic work

    def abort_timed_out(self, now_ms: int) -> None:
        """Abort every transaction that is open for longer than its timeout (trap 47)."""
        for entry in self._log:
            if (
                entry.state is TransactionState.ONGOING
                and entry.start_ms + entry.timeout_ms < now_ms
            ):
                logger.info("%s: transaction timed out, aborting it", entry.transactional_id)
                try:
                    self._abort_by_coordinator(entry, now_ms)
                except StateLogError as error:
                    logger.error("%s: abort failed: %s", entry.transactional_id, error)

    def remove_expired(self, now_ms: int) -> None:
        """Remove ids that were not used for ``transactional.id.expiration.ms``."""
        for entry in self._log:
            if (
                entry.state in AT_REST
                and entry.last_update_ms + self._settings.id_expiration_ms <= now_ms
            ):
                try:
                    self._log.remove(entry.transactional_id, now_ms)
                except StateLogError as error:
                    logger.error("%s: expiry failed: %s", entry.transactional_id, error)

    def _every(self, interval_ms: int, work: Callable[[int], None], now_ms: int) -> None:
        slot = len(self._periodic)

        def run(now_ms: int) -> None:
            work(now_ms)
            self._periodic[slot] = self._timers.schedule(now_ms + interval_ms, run)

        self._periodic.append(self._timers.schedule(now_ms + interval_ms, run))

    # --- questions

    def describe(self, transactional_id: str) -> TransactionEntry | ErrorCode:
        """Return the entry of an id (KIP-664), INVALID_REQUEST or TRANSACTIONAL_ID_NOT_FOUND."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        entry = self._log.get(transactional_id)
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if entry is None else entry

    def list_transactions(
        self,
        state_filters: Sequence[str],
        producer_id_filters: Sequence[int],
        duration_ms: int,
        id_pattern: str | None,
        now_ms: int,
    ) -> TransactionListing:
        """Return the entries that pass every filter (KIP-664, KIP-994).

        Args:
            state_filters: State names; empty for all. The answer lists unknown ones.
            producer_id_filters: Producer ids; empty for all.
            duration_ms: Only ids whose last transaction began longer ago than this, or that had
                none (so Kafka); negative for all.
            id_pattern: Regular expression (of RE2) for the whole id; None or empty for all.
            now_ms: Wall milliseconds.
        """
        by_label = {state.label: state for state in TransactionState}
        states = {by_label[name] for name in state_filters if name in by_label}
        unknown = [name for name in state_filters if name not in by_label]
        entries: list[TransactionEntry] = []
        if states or not state_filters:
            entries = [
                entry
                for entry in self._log
                if (not states or entry.state in states)
                and (not producer_id_filters or entry.producer_id in producer_id_filters)
                and (duration_ms < 0 or entry.start_ms < now_ms - duration_ms)
            ]
        if id_pattern:
            try:
                ids = select([entry.transactional_id for entry in entries], id_pattern)
            except RegexError:
                return TransactionListing(ErrorCode.INVALID_REGULAR_EXPRESSION)
            entries = [entry for entry in entries if entry.transactional_id in ids]
        return TransactionListing(ErrorCode.NONE, unknown, entries)

    def _current(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> tuple[TransactionEntry | None, ErrorCode]:
        """Return the entry if the caller is its current producer; else None and the error code."""
        entry = self._log.get(transactional_id)
        if entry is None or entry.producer_id != producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if entry.producer_epoch != producer_epoch:
            return None, ErrorCode.PRODUCER_FENCED
        return entry, ErrorCode.NONE
