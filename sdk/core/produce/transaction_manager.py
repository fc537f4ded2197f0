"""A producer's identity, and the state of its transaction.

It holds producer id and epoch, the transaction states as a table, the partitions of the open
transaction, and the failure that broke it. ``transaction_flows`` has the requests to coordinators;
the queues of the accumulator have the sequences.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from onceflow.sdk.errors import (
    FatalError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    UnknownProducerIdError,
    UnsupportedForMessageFormatError,
)
from onceflow.sdk.model.partitions import ProducerIdentity, TopicPartition


class TransactionState(enum.Enum):
    """State of a producer, in the words of Kafka's own client.

    In Kafka's client an end without an answer is a pending transition; here it is a state.
    """

    UNINITIALIZED = "has no producer id yet"
    INITIALIZING = "is asking for its producer id"
    READY = "has no open transaction"
    IN_TRANSACTION = "has an open transaction"
    COMMITTING_TRANSACTION = "is waiting for the commit"
    COMMIT_UNANSWERED = "has asked for a commit and got no answer"
    ABORTING_TRANSACTION = "is waiting for the abort"
    ABORT_UNANSWERED = "has asked for an abort and got no answer"
    ABORTABLE_ERROR = "must abort the open transaction"
    FATAL_ERROR = "cannot be used any more"


S = TransactionState

TRANSITIONS: dict[TransactionState, frozenset[TransactionState]] = {
    S.UNINITIALIZED: frozenset({S.INITIALIZING, S.FATAL_ERROR}),
    S.INITIALIZING: frozenset({S.READY, S.UNINITIALIZED, S.FATAL_ERROR}),
    S.READY: frozenset({S.IN_TRANSACTION, S.INITIALIZING, S.FATAL_ERROR}),
    S.IN_TRANSACTION: frozenset(
        {
            S.COMMITTING_TRANSACTION,
            S.ABORTING_TRANSACTION,
            S.ABORTABLE_ERROR,
            S.FATAL_ERROR,
        }
    ),
    S.COMMITTING_TRANSACTION: frozenset(
        {
            S.READY,
            S.IN_TRANSACTION,
            S.COMMIT_UNANSWERED,
            S.ABORTABLE_ERROR,
            S.UNINITIALIZED,
            S.FATAL_ERROR,
        }
    ),
    S.COMMIT_UNANSWERED: frozenset({S.COMMITTING_TRANSACTION, S.FATAL_ERROR}),
    S.ABORTING_TRANSACTION: frozenset(
        {S.READY, S.ABORT_UNANSWERED, S.UNINITIALIZED, S.FATAL_ERROR}
    ),
    S.ABORT_UNANSWERED: frozenset({S.ABORTING_TRANSACTION, S.FATAL_ERROR}),
    S.ABORTABLE_ERROR: frozenset({S.ABORTING_TRANSACTION, S.FATAL_ERROR}),
    S.FATAL_ERROR: frozenset(),
}
"""From each state, the ones that may follow. Drawn in the documentation from this table."""

_NEXT_STEP = {
    S.UNINITIALIZED: "call init_transactions() first",
    S.INITIALIZING: "wait for init_transactions() to return",
    S.READY: "call begin_transaction() first",
    S.IN_TRANSACTION: "commit or abort it first",
    S.COMMITTING_TRANSACTION: "wait for the commit to return",
    S.COMMIT_UNANSWERED: "call commit_transaction() again to learn the outcome",
    S.ABORTING_TRANSACTION: "wait for the abort to return",
    S.ABORT_UNANSWERED: "call abort_transaction() again",
    S.ABORTABLE_ERROR: "call abort_transaction()",
    S.FATAL_ERROR: "close this producer",
}

_ABORT_ANYWAY = (InvalidTxnStateError, UnsupportedForMessageFormatError)
"""Fatal errors that an abort of the transaction clears (KIP-890, KIP-1050)."""

EPOCH_LOST = (InvalidProducerEpochError, InvalidTxnStateError, UnknownProducerIdError)
"""Errors after which the coordinator must be asked for an identity before the next transaction."""


@dataclass(slots=True)
class EndProgress:
    """What is known of a transaction's end while EndTxn is sent, once or several times.

    Attributes:
        may_have_arrived: Whether the coordinator may have carried out an attempt whose answer is
            lost. A later refusal then says nothing about the outcome.
    """

    may_have_arrived: bool = False


class TransactionManager:
    """Identity and transaction of one producer.

    Attributes:
        transactional_id: The transactional id, None for a producer without transactions.
        is_joined: Whether the transaction belongs to another producer, which begins and ends it.
        state: State of the producer.
        producer_id: -1 until the first answer.
        producer_epoch: -1 until the first answer.
        protocol_version: 2 if Produce adds its partitions and each end raises the epoch
            (KIP-890), else 1.
        error: The error that broke the transaction, or the producer for good.
        bump_required: Whether the epoch must be raised before the next transaction, because the
            outcome of a batch is unknown (KIP-360).
        number: How many transactions have begun; batches carry it.
        registered: Partitions that were added to the transaction (version 1).
        has_content: Whether anything was sent, so that the coordinator may know the transaction.
        is_acknowledged: Whether a broker has confirmed content of the open transaction. Before, a
            raised epoch may be that of a newer producer.
        end: What is known of the requested end.
        began_ms: When the open transaction began.
        already_aborted: Whether an error has said that the coordinator aborted it.
    """

    def __init__(self, transactional_id: str | None, *, is_joined: bool = False) -> None:
        self.transactional_id = transactional_id
        self.is_joined = is_joined
        self.state: TransactionState = S.UNINITIALIZED
        self.producer_id: int = -1
        self.producer_epoch: int = -1
        self.protocol_version: int = 1
        self.error: KafkaError | None = None
        self.bump_required: bool = False
        self.number: int = 0
        self.registered: set[TopicPartition] = set()
        self.has_content: bool = False
        self.is_acknowledged: bool = False
        self.end: EndProgress = EndProgress()
        self.began_ms: int = 0
        self.already_aborted: bool = False
        self._foreign_sequences = False

    @property
    def is_transactional(self) -> bool:
        """Whether batches belong to transactions."""
        return self.transactional_id is not None

    @property
    def identity(self) -> ProducerIdentity | None:
        """The identity; None without one or without transactions."""
        if self.transactional_id is None or self.producer_id < 0:
            return None
        return ProducerIdentity(self.transactional_id, self.producer_id, self.producer_epoch)

    @property
    def has_identity(self) -> bool:
        """Whether there is a producer id, so that batches can be built."""
        return self.producer_id >= 0

    @property
    def may_send(self) -> bool:
        """Whether batches may be sent; not after an error, until the abort."""
        if not self.is_transactional:
            return self.state is S.READY
        return self.state in (S.IN_TRANSACTION, S.COMMITTING_TRANSACTION)

    @property
    def is_broken(self) -> bool:
        """Whether ``error`` must be handled before any other call."""
        return self.state in (S.ABORTABLE_ERROR, S.FATAL_ERROR) and self.error is not None

    @property
    def is_abortable(self) -> bool:
        """Whether there is something to abort."""
        return not self.is_joined and self.state in (
            S.IN_TRANSACTION,
            S.ABORTABLE_ERROR,
            S.ABORT_UNANSWERED,
        )

    def move(self, state: TransactionState) -> None:
        """Change the state.

        Args:
            state: The next one.

        Raises:
            IllegalStateError: The table has no such transition.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalStateError(f"cannot go from {self.state.name} to {state.name}")
        self.state = state

    def require(self, *states: TransactionState, what: str) -> None:
        """Check that a call is allowed now.

        Args:
            states: The allowed states.
            what: Name of the call, for the message.

        Raises:
            KafkaError: The error that broke the producer or the transaction.
            IllegalStateError: The state does not allow the call; the message says what to do first.
        """
        if self.state in states:
            return
        if self.error is not None and self.state in (S.FATAL_ERROR, S.ABORTABLE_ERROR):
            raise self.error.with_traceback(None)  # Every call raises it.
        raise self.refusal(what)

    def refusal(self, what: str) -> IllegalStateError:
        """Return the error of a call that the present state does not allow.

        Args:
            what: Name of the call.
        """
        if self.transactional_id is None:
            return IllegalStateError(f"{what} needs a producer with transactional_id")
        return IllegalStateError(
            f"{what} is not allowed now: this producer {self.state.value}; {_NEXT_STEP[self.state]}"
        )

    # identity

    def initialized(self, producer_id: int, producer_epoch: int, protocol_version: int) -> None:
        """Set the identity that the coordinator, or without transactions any broker, assigned."""
        self.move(S.READY)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.protocol_version = protocol_version
        self.bump_required = False
        self.already_aborted = False
        self._foreign_sequences = False
        self._clear()

    def adopt(self, identity: ProducerIdentity, protocol_version: int, now_ms: int) -> None:
        """Join an open transaction under a known identity."""
        self.move(S.INITIALIZING)
        self.initialized(identity.producer_id, identity.producer_epoch, protocol_version)
        self.begin(now_ms)
        self.has_content = True
        self.is_acknowledged = True  # The owner of the identity knows that.
        self._foreign_sequences = True

    # the open transaction

    def begin(self, now_ms: int) -> None:
        """Open a transaction; the coordinator begins it with the first partition."""
        self.require(S.READY, what="begin_transaction()")
        self.move(S.IN_TRANSACTION)
        self._clear()
        self.number += 1
        self.began_ms = now_ms

    def note_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions that other producers write to, so the transaction is not empty."""
        noted = list(partitions)
        if noted:
            self.has_content = True
            # Other producers have used sequences of this epoch there; this one must not.
            self._foreign_sequences = True

    def needs_registration(self, partition: TopicPartition) -> bool:
        """Whether a partition must be added to the transaction before records go there."""
        return self.protocol_version == 1 and partition not in self.registered

    def fail(self, error: KafkaError) -> None:
        """Keep a failure that the next call must raise.

        An abort clears nearly all failures of a transaction, but not a fence or a refusal. The
        first error stays.

        Args:
            error: The failure.
        """
        if self.state is S.FATAL_ERROR:
            return
        if isinstance(error, EPOCH_LOST):
            self.bump_required = True
        if isinstance(error, FatalError) and not isinstance(error, _ABORT_ANYWAY):
            self.error = error
            self.state = S.FATAL_ERROR
        elif self.is_transactional and self.state in (
            S.IN_TRANSACTION,
            S.COMMITTING_TRANSACTION,
        ):
            self.error = error
            self.state = S.ABORTABLE_ERROR

    def begin_end(self, *, committed: bool) -> bool:
        """Begin to end the transaction, or to repeat an end without an answer.

        Args:
            committed: Whether to commit.

        Returns:
            Whether to send EndTxn; an empty transaction needs none.

        Raises:
            KafkaError: The error that broke the transaction (only an abort is possible then).
            IllegalStateError: None is open, or another producer owns it.
        """
        what = "commit_transaction()" if committed else "abort_transaction()"
        if self.is_joined:
            raise IllegalStateError(
                f"{what} is not allowed: another producer owns this transaction and ends it"
            )
        if committed:
            self.require(S.IN_TRANSACTION, S.COMMIT_UNANSWERED, what=what)
            self.move(S.COMMITTING_TRANSACTION)
        else:
            self.require(S.IN_TRANSACTION, S.ABORTABLE_ERROR, S.ABORT_UNANSWERED, what=what)
            self.move(S.ABORTING_TRANSACTION)
        return self.has_content

    def end_not_asked(self) -> None:
        """Return to the open transaction: the commit ended before its request was sent."""
        if self.state is S.COMMITTING_TRANSACTION:
            self.move(S.IN_TRANSACTION)

    def end_unanswered(self) -> None:
        """Note that an EndTxn has no answer: only sending it again can tell its outcome."""
        if self.state is S.COMMITTING_TRANSACTION:
            self.move(S.COMMIT_UNANSWERED)
        else:
            self.move(S.ABORT_UNANSWERED)

    def ended(self, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Note that the transaction has ended.

        Args:
            producer_id: Id for the next one, -1 to keep it.
            producer_epoch: Epoch for the next one, -1 to keep it.
        """
        self.move(S.READY)
        if producer_id >= 0 and producer_epoch >= 0:
            self.producer_id, self.producer_epoch = producer_id, producer_epoch
            self._foreign_sequences = False
            self.bump_required = False
        elif self._foreign_sequences:
            self.bump_required = True
        self._clear()

    def ended_elsewhere(self, *, epoch_raised: bool) -> None:
        """Note that the transaction has ended, without an answer that brings the next identity.

        Args:
            epoch_raised: Whether the coordinator raised the epoch with it.
        """
        self.move(S.UNINITIALIZED)
        if epoch_raised:
            self.producer_epoch += 1
        self._clear()

    def fatal(self, error: KafkaError) -> None:
        """Fail this producer for good."""
        self.error = error
        self.state = S.FATAL_ERROR

    def _clear(self) -> None:
        self.registered.clear()
        self.has_content = False
        self.is_acknowledged = False
        self.end = EndProgress()
        self.error = None


def fenced_error(transactional_id: str | None) -> ProducerFencedError:
    """Return the error of a producer that a newer one replaced."""
    return ProducerFencedError(
        f"another producer with transactional_id {transactional_id!r} took over; close this one. "
        "If it was not meant to be replaced, two live processes share the id"
    )


def forgotten_error(transactional_id: str | None) -> InvalidProducerIdMappingError:
    """Return the error of a producer whose transactional id the coordinator has forgotten."""
    return InvalidProducerIdMappingError(
        f"the coordinator has forgotten transactional_id {transactional_id!r}, as it does after "
        "transactional.id.expiration.ms without use. Another producer may have used the id since: "
        "close this one and make a new one"
    )
