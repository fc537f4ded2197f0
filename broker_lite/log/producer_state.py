"""What a partition knows of its producers: sequences, epochs, open and finished transactions.

It decides whether a batch is new, a duplicate or out of order (KIP-98, KIP-360, KIP-890), which
producers are fenced, and what the first unstable offset is. The log calls it before and after each
append; ``producer_snapshot`` stores it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from onceflow.broker_lite.log.log_errors import AppendError
from onceflow.broker_lite.log.transaction_index import AbortedTransaction
from onceflow.sdk.model.special_values import NO_OFFSET
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_SEQUENCE
from onceflow.sdk.protocol.error_codes import ErrorCode

SEQUENCE_MAX = 2**31 - 1
REMEMBERED_BATCHES = 5


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence ``count`` records later; 0 follows 2147483647."""
    return (sequence + count) & SEQUENCE_MAX


class RememberedBatch(NamedTuple):
    """One of a producer's last batches.

    Attributes:
        last_sequence: Sequence of its last record.
        last_offset: Offset of its last record.
        offset_delta: Last offset minus first offset.
        timestamp_ms: Greatest timestamp in it.
    """

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        """Offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """Sequence of its first record."""
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX


class ProducerEntry:
    """State of one producer id.

    Attributes:
        producer_id: The id.
        producer_epoch: Newest epoch seen, -1 for none.
        coordinator_epoch: Coordinator epoch of the newest marker, -1 for none.
        last_timestamp_ms: Timestamp of the newest batch or marker, -1 for none.
        last_append_ms: Broker's time of the newest append; the expiry counts from it.
        transaction_first_offset: First offset of the open transaction, -1 for none.
        batches: The last batches of this epoch, oldest first.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "last_append_ms",
        "last_timestamp_ms",
        "producer_epoch",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        *,
        coordinator_epoch: int = -1,
        last_timestamp_ms: int = -1,
        last_append_ms: int = -1,
        transaction_first_offset: int = NO_OFFSET,
        batches: Iterable[RememberedBatch] = (),
    ) -> None:
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.coordinator_epoch: int = coordinator_epoch
        self.last_timestamp_ms: int = last_timestamp_ms
        self.last_append_ms: int = last_append_ms
        self.transaction_first_offset: int = transaction_first_offset
        self.batches: deque[RememberedBatch] = deque(batches, REMEMBERED_BATCHES)

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest record of this epoch, -1 for none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Offset of the newest record of this epoch, -1 for none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def duplicate_of(
        self, producer_epoch: int, base_sequence: int, last_sequence: int
    ) -> RememberedBatch | None:
        """Return the known batch with the same epoch and sequences, if any."""
        if producer_epoch == self.producer_epoch:
            for batch in self.batches:
                if (
                    batch.last_sequence == last_sequence
                    and (last_sequence - batch.offset_delta) & SEQUENCE_MAX == base_sequence
                ):
                    return batch
        return None

    def take_epoch(self, producer_epoch: int) -> None:
        """Set the epoch; a new one begins without known batches."""
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches.clear()


class ProducerSnapshot(NamedTuple):
    """An active producer as DescribeProducers shows it (KIP-664).

    Attributes:
        producer_id: The id.
        producer_epoch: Newest epoch seen.
        last_sequence: Sequence of the newest record, -1 for none.
        last_timestamp_ms: Timestamp of the newest batch or marker, -1 for none.
        coordinator_epoch: Coordinator epoch of the newest marker, -1 for none.
        current_transaction_start_offset: First offset of the open transaction, -1 for none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_transaction_start_offset: int


class _Unreplicated(NamedTuple):
    first_offset: int
    last_offset: int


class ProducerState:
    """All producers of one partition.

    Attributes:
        entries: State by producer id.
    """

    __slots__ = ("_open", "_unreplicated", "entries")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.entries: dict[int, ProducerEntry] = {entry.producer_id: entry for entry in entries}
        # Open transactions: producer ids by first offset, in order, since first offsets only grow.
        self._open: dict[int, int] = {
            entry.transaction_first_offset: entry.producer_id
            for entry in sorted(
                self.entries.values(), key=lambda entry: entry.transaction_first_offset
            )
            if entry.transaction_first_offset >= 0
        }
        # Ended transactions whose marker is not below the high watermark yet, in order.
        self._unreplicated: deque[_Unreplicated] = deque()

    def check(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        transactional: bool,
        verified_transaction: bool,
        first_sequence_zero: bool,
    ) -> RememberedBatch | None:
        """Check a client's batch before it is appended.

        Args:
            producer_id: From the batch; not -1.
            producer_epoch: From the batch.
            base_sequence: From the batch.
            record_count: Records in the batch.
            transactional: Whether it belongs to a transaction.
            verified_transaction: Whether the coordinator knows this partition as part of it.
            first_sequence_zero: Whether a producer without state must begin with sequence 0
                (KAFKA-18202). Otherwise it may continue with any sequence: retention, expiry or
                the topic's re-creation may have removed its state.

        Returns:
            The known batch that this one repeats, or None if it is new.

        Raises:
            AppendError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
                INVALID_TXN_STATE.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            if transactional and not verified_transaction:
                raise _unverified(producer_id)
            self.check_epoch(producer_id, producer_epoch)
            if first_sequence_zero and base_sequence != 0:
                raise AppendError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} is new here and began with sequence "
                    f"{base_sequence} instead of 0",
                )
            return None
        last_sequence = (base_sequence + record_count - 1) & SEQUENCE_MAX
        repeated = entry.duplicate_of(producer_epoch, base_sequence, last_sequence)
        if repeated is not None:
            return repeated
        open_transaction = entry.transaction_first_offset >= 0
        if (
            transactional
            and not verified_transaction
            and not (open_transaction and producer_epoch == entry.producer_epoch)
        ):
            raise _unverified(producer_id)
        self.check_epoch(producer_id, producer_epoch)
        _check_sequence(entry, producer_epoch, base_sequence)
        if open_transaction and not transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} sent a batch outside of its open transaction, "
                f"which began at offset {entry.transaction_first_offset}",
            )
        return None

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Refuse a fenced epoch, and one that no producer can have.

        Raises:
            AppendError: INVALID_PRODUCER_EPOCH.
        """
        entry = self.entries.get(producer_id)
        if entry is None and producer_epoch < NO_PRODUCER_EPOCH:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is below {NO_PRODUCER_EPOCH}",
            )
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} was fenced by epoch "
                f"{entry.producer_epoch}",
            )

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        """Check a transaction marker before it is appended.

        Raises:
            AppendError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        self.check_epoch(producer_id, producer_epoch)
        entry = self.entries.get(producer_id)
        if entry is not None and coordinator_epoch < entry.coordinator_epoch:
            raise AppendError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}, seen in a marker of producer {producer_id}",
            )

    def append(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        transactional: bool,
        base_offset: int,
        last_offset: int,
        max_timestamp_ms: int,
        now_ms: int,
    ) -> None:
        """Apply a batch that was appended, or was read from the log at a start."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif producer_epoch != entry.producer_epoch:
            entry.take_epoch(producer_epoch)
        offset_delta = last_offset - base_offset
        last_sequence = (
            NO_SEQUENCE if base_sequence < 0 else (base_sequence + offset_delta) & SEQUENCE_MAX
        )
        entry.batches.append(
            RememberedBatch(last_sequence, last_offset, offset_delta, max_timestamp_ms)
        )
        entry.last_timestamp_ms = max_timestamp_ms
        entry.last_append_ms = now_ms
        if transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self._open[base_offset] = producer_id

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        committed: bool,
        offset: int,
        timestamp_ms: int,
        now_ms: int,
    ) -> AbortedTransaction | None:
        """Apply a transaction marker that was appended, or was read from the log at a start.

        Returns:
            The transaction that it aborts, for the transaction index; None for a commit, or
            if no transaction was open.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        entry.take_epoch(producer_epoch)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp_ms = timestamp_ms
        entry.last_append_ms = now_ms
        first_offset = entry.transaction_first_offset
        if first_offset < 0:
            return None
        entry.transaction_first_offset = NO_OFFSET
        self._open.pop(first_offset, None)
        self._unreplicated.append(_Unreplicated(first_offset, offset))
        if committed:
            return None
        still_open = next(iter(self._open), offset + 1)
        return AbortedTransaction(producer_id, first_offset, offset, still_open)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Make ended transactions stable whose markers are below the high watermark."""
        while self._unreplicated and self._unreplicated[0].last_offset < high_watermark:
            self._unreplicated.popleft()

    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that a committed reader may not see yet."""
        first = next(iter(self._open), None)
        for transaction in self._unreplicated:
            if first is None or transaction.first_offset < first:
                first = transaction.first_offset
        return first

    @property
    def unsettled(self) -> bool:
        """Whether any transaction holds back the last stable offset."""
        return bool(self._open or self._unreplicated)

    def has_open_transaction(self, producer_id: int, producer_epoch: int | None = None) -> bool:
        """Whether a producer has a transaction open here, in that epoch if one is given."""
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.transaction_first_offset >= 0
            and producer_epoch in (None, entry.producer_epoch)
        )

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Remove producers that were idle for too long and have no open transaction.

        Returns:
            Ids of the removed producers.
        """
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_append_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return expired

    def snapshots(self) -> list[ProducerSnapshot]:
        """Return the producers as DescribeProducers shows them."""
        return [
            ProducerSnapshot(
                entry.producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
            for entry in self.entries.values()
        ]


def _check_sequence(entry: ProducerEntry, producer_epoch: int, base_sequence: int) -> None:
    if producer_epoch != entry.producer_epoch:
        if base_sequence != 0 and entry.producer_epoch != NO_PRODUCER_EPOCH:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {entry.producer_id} began epoch {producer_epoch} with sequence "
                f"{base_sequence} instead of 0",
            )
        return
    expected = sequence_after(entry.last_sequence, 1)
    if base_sequence != expected:
        raise AppendError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {entry.producer_id} epoch {producer_epoch} sent sequence "
            f"{base_sequence} instead of {expected}",
        )


def _unverified(producer_id: int) -> AppendError:
    return AppendError(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {producer_id} sent a transactional batch to a partition that is not part of "
        f"its transaction",
    )
