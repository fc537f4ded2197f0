"""States of a transactional id at the coordinator, as a table, and the value that moves through it.

The table says which state may follow which; the transitions below say how identity, epoch,
partitions and times change with each step (KIP-98, KIP-360, KIP-890). An entry is immutable: the
coordinator writes the next one to the log, and only then replaces the old one. ``coordinator`` and
``rules`` decide the answers to requests.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_PRODUCER_EPOCH = 32_767
"""Largest epoch on the wire; used for fencing only, never given to a producer."""

LAST_USABLE_EPOCH = MAX_PRODUCER_EPOCH - 1
"""The last epoch that a producer gets; after it follows a new producer id (trap 40)."""

EPOCH_BUMP_VERSION = 2
"""First transaction version in which every transaction ends with a new epoch (KIP-890)."""


class TransactionState(enum.IntEnum):
    """Coordinator-side state; the numbers are the ones stored in ``__transaction_state``."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name of the state, as in ListTransactions (``PrepareCommit``)."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_S = TransactionState

LEGAL_PREDECESSORS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
        _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
        _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
        # An abort of nothing is legal under transaction version 2, where it bumps the epoch.
        _S.PREPARE_ABORT: frozenset(
            {
                _S.ONGOING,
                _S.PREPARE_EPOCH_FENCE,
                _S.EMPTY,
                _S.COMPLETE_COMMIT,
                _S.COMPLETE_ABORT,
            }
        ),
        _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
        _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
        _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
        _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
    }
)
"""Which states a state may be entered from."""

AT_REST = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is open and no marker is missing."""

PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The outcome is decided and durable; markers are still to be written."""


def epoch_exhausted(producer_epoch: int) -> bool:
    """Whether this is the last epoch of a producer id."""
    return producer_epoch >= LAST_USABLE_EPOCH


@dataclass(frozen=True, slots=True)
class TransactionEntry:
    """All that the coordinator knows about one transactional id.

    Attributes:
        transactional_id: The transactional id.
        producer_id: Current producer id.
        producer_epoch: Current epoch, -1 before the first InitProducerId succeeded.
        timeout_ms: Transaction timeout that the producer asked for.
        state: State in the table above.
        last_update_ms: Time of the last change, wall milliseconds.
        previous_producer_id: Producer id before its last change, else the current one or -1.
        next_producer_id: Producer id that completion will switch to, -1 for none (KIP-890).
        last_producer_epoch: Epoch before the last bump; a request with it is a retry. -1 for none.
        partitions: Partitions that will get a marker.
        start_ms: When the open transaction began, -1 for none.
        client_transaction_version: Transaction version of the client's last step.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    client_transaction_version: int = 0

    @property
    def epoch_exhausted(self) -> bool:
        """True when the current epoch is the last one for this producer id."""
        return epoch_exhausted(self.producer_epoch)

    def _enter(self, state: TransactionState) -> None:
        assert self.state in LEGAL_PREDECESSORS[state], (
            f"{self.transactional_id}: {self.state.label} may not become {state.label}"
        )

    def with_next_epoch(
        self, timeout_ms: int, now_ms: int, *, remember_last: bool
    ) -> TransactionEntry:
        """InitProducerId: the epoch rises by one, which fences the producer with the old one.

        Args:
            timeout_ms: New transaction timeout.
            now_ms: Time of the change.
            remember_last: True if the caller named its old epoch: then a retry of the request is
                recognized. A new producer names none, so the old one is fenced for good.
        """
        assert not self.epoch_exhausted, "the caller must rotate the producer id"
        return self._initialised(
            timeout_ms,
            now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if remember_last else NO_PRODUCER_EPOCH,
        )

    def with_same_epoch(self, timeout_ms: int, now_ms: int) -> TransactionEntry:
        """InitProducerId repeated after its answer was lost: only times change."""
        return self._initialised(
            timeout_ms,
            now_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_producer_epoch=self.last_producer_epoch,
        )

    def with_new_producer_id(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, remember_last: bool
    ) -> TransactionEntry:
        """InitProducerId with exhausted epochs: a new producer id at epoch 0 (trap 40)."""
        return self._initialised(
            timeout_ms,
            now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=self.producer_epoch if remember_last else NO_PRODUCER_EPOCH,
        )

    def _initialised(
        self,
        timeout_ms: int,
        now_ms: int,
        *,
        producer_id: int,
        producer_epoch: int,
        last_producer_epoch: int,
    ) -> TransactionEntry:
        self._enter(TransactionState.EMPTY)
        return replace(
            self,
            producer_id=producer_id,
            previous_producer_id=self._previous_for(producer_id),
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def with_partitions(
        self, partitions: Iterable[TopicPartition], now_ms: int, transaction_version: int
    ) -> TransactionEntry:
        """Add partitions; from a state at rest this begins the next transaction."""
        self._enter(TransactionState.ONGOING)
        begins = self.state is not TransactionState.ONGOING
        return replace(
            self,
            state=TransactionState.ONGOING,
            previous_producer_id=self.producer_id,
            partitions=self.partitions.union(partitions),
            start_ms=now_ms if begins else self.start_ms,
            last_update_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def fenced(self, now_ms: int) -> TransactionEntry:
        """Raise the epoch for an abort by the coordinator below version 2, without a retry.

        This is Kafka's state PrepareEpochFence. It is never written here, because the append of
        the abort follows at once.
        """
        self._enter(TransactionState.PREPARE_EPOCH_FENCE)
        return replace(
            self,
            producer_epoch=min(self.producer_epoch + 1, MAX_PRODUCER_EPOCH),
            last_producer_epoch=NO_PRODUCER_EPOCH,
            state=TransactionState.PREPARE_EPOCH_FENCE,
            last_update_ms=now_ms,
        )

    def prepared(
        self,
        *,
        committed: bool,
        now_ms: int,
        transaction_version: int,
        next_producer_id: int = NO_PRODUCER_ID,
    ) -> TransactionEntry:
        """Return the entry with the decided outcome, which cannot change once it is written.

        Args:
            committed: True is commit.
            now_ms: Time of the decision.
            transaction_version: From 2 on the epoch rises here, so that markers carry the new one
                and fence late records of this transaction (trap 45).
            next_producer_id: New producer id for completion, when the epoch is exhausted.
        """
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        self._enter(state)
        producer_epoch, last_producer_epoch = self.producer_epoch, self.last_producer_epoch
        if transaction_version >= EPOCH_BUMP_VERSION:
            last_producer_epoch = producer_epoch
            producer_epoch = min(producer_epoch + 1, MAX_PRODUCER_EPOCH)
        return replace(
            self,
            previous_producer_id=self.producer_id,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            next_producer_id=next_producer_id,
            state=state,
            start_ms=now_ms if self.start_ms < 0 or self.state in AT_REST else self.start_ms,
            last_update_ms=now_ms,
            client_transaction_version=transaction_version,
        )

    def completed(self, now_ms: int) -> TransactionEntry:
        """Return the entry after all markers, with the next producer id after the last epoch."""
        state = (
            TransactionState.COMPLETE_COMMIT
            if self.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )
        self._enter(state)
        rotates = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0 if rotates else self.producer_epoch,
            state=state,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def without_owner(self, producer_id: int, now_ms: int) -> TransactionEntry:
        """Take the id from its producer, after some of its state was lost.

        The producer may have later epochs than the log. So a new producer id replaces the old one,
        and the old producer's requests are refused. This is outside of the table of states; its
        open transaction is aborted as one that the coordinator does not know.

        Args:
            producer_id: A new one.
            now_ms: Time of the change.
        """
        return replace(
            self,
            producer_id=producer_id,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=0,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def may_hold(self, producer_epoch: int) -> bool:
        """Whether the producer's open transaction in that epoch can be that of this entry.

        With version 2 the decision raised the epoch. So a transaction in the new epoch came later,
        and one in an older epoch is an earlier transaction whose marker was lost.
        """
        if self.state in AT_REST:
            return False
        if self.state is TransactionState.PREPARE_ABORT:
            return producer_epoch <= self.producer_epoch
        raised = (
            self.state is TransactionState.PREPARE_COMMIT
            and self.client_transaction_version >= EPOCH_BUMP_VERSION
        )
        return producer_epoch == self.producer_epoch - raised

    def _previous_for(self, producer_id: int) -> int:
        # Kafka keeps the id that was current before the step, also if it did not change. But a
        # repeated InitProducerId right after a change of ids must still find the former one.
        if producer_id != self.producer_id or self.previous_producer_id == NO_PRODUCER_ID:
            return self.producer_id
        return self.previous_producer_id
