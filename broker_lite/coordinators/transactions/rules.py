"""Rules that depend only on a transaction's state: may a caller continue or end it, and how.

They are pure functions of an entry and a request, one for each rule of KIP-360 and KIP-890; the
coordinator acts on their results.
"""

from __future__ import annotations

import enum

from onceflow.broker_lite.coordinators.transactions.states import (
    LAST_USABLE_EPOCH,
    PREPARED,
    TransactionEntry,
    TransactionState,
    epoch_exhausted,
)
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH
from onceflow.sdk.protocol.error_codes import ErrorCode

_RETRIED_AS_NOT_ENOUGH_REPLICAS = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Retriable codes that producers do not expect in a Produce answer. They get NOT_ENOUGH_REPLICAS,
which they retry without asking for metadata (KIP-890)."""


class PartitionCheck(enum.Enum):
    """What a request does with partitions that are not part of the transaction yet."""

    REFUSE_OLD = enum.auto()
    """Refuse with INVALID_TXN_STATE: the client is too old for TRANSACTION_ABORTABLE."""
    REFUSE = enum.auto()
    """Refuse with TRANSACTION_ABORTABLE."""
    ADD = enum.auto()
    """Add them to the transaction."""


def may_continue(entry: TransactionEntry, producer_id: int, producer_epoch: int) -> bool:
    """Whether a caller that names its old identity may get the next one (KIP-360).

    The previous producer id is accepted only with an exhausted epoch: then the answer with the new
    id was lost. The caller checks the epoch.
    """
    return (
        entry.producer_epoch == NO_PRODUCER_EPOCH
        or producer_id == entry.producer_id
        or (producer_id == entry.previous_producer_id and epoch_exhausted(producer_epoch))
    )


def end_v1(
    entry: TransactionEntry, producer_id: int, producer_epoch: int, committed: bool
) -> ErrorCode | None:
    """Check EndTxn below version 5; return the code to answer, or None to end the transaction."""
    if entry.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if entry.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    state = entry.state
    if state is TransactionState.ONGOING:
        return None
    if state is _prepare(committed):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state is _complete(committed):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def end_v2(
    entry: TransactionEntry, producer_id: int, producer_epoch: int, committed: bool
) -> ErrorCode | None:
    """Check EndTxn from version 5 on; return the code to answer, or None to end the transaction.

    The epoch rises with every decision. So the current epoch is about the current transaction, and
    the epoch before is a retry. An abort of an empty transaction is legal and raises the epoch too.
    """
    state = entry.state
    after_rotation = (
        producer_id == entry.previous_producer_id
        and producer_id != entry.producer_id
        and producer_epoch == LAST_USABLE_EPOCH
        and entry.producer_epoch == 0
    )
    retried = after_rotation or (
        producer_id == entry.producer_id and entry.producer_epoch == producer_epoch + 1
    )
    if entry.producer_id != producer_id and not after_rotation:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    current = producer_id == entry.producer_id and producer_epoch == entry.producer_epoch
    if state in PREPARED:
        if not retried:
            return ErrorCode.PRODUCER_FENCED
        return (
            ErrorCode.CONCURRENT_TRANSACTIONS
            if state is _prepare(committed)
            else ErrorCode.INVALID_TXN_STATE
        )
    if retried and state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        return ErrorCode.NONE if state is _complete(committed) else ErrorCode.INVALID_TXN_STATE
    if not current:
        return ErrorCode.PRODUCER_FENCED
    if state is TransactionState.ONGOING or not committed:
        return None
    return ErrorCode.INVALID_TXN_STATE


def _prepare(committed: bool) -> TransactionState:
    return TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT


def _complete(committed: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT


def code_for_append(code: ErrorCode, check: PartitionCheck) -> ErrorCode:
    """Return the error code for a producer of records; old clients retry only codes they know."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and check is PartitionCheck.REFUSE_OLD:
        return ErrorCode.INVALID_TXN_STATE
    if code in _RETRIED_AS_NOT_ENOUGH_REPLICAS:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
