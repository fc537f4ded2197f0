"""The table that maps an error within a transaction to an abort reason and a reaction.

There are four reactions: abort and continue with the same producer, abort with a re-initialised
producer, continue with a new producer and membership, or abort and raise. The session executes
them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onceflow.sdk.errors import (
    AbortableError,
    BrokerError,
    BufferExhaustedError,
    CommitFailedError,
    DeliveryTimeoutError,
    FatalError,
    RecordError,
    RetriableError,
    TransactionAbortedError,
)


class Reaction(enum.Enum):
    """What the session does after an error within a transaction."""

    ABORT = "abort, rewind, go on"
    REINITIALISE = "abort with a re-initialised producer, rewind, go on"
    REPLACE = "new producer and new membership, go on"
    RAISE = "abort, rewind, raise"


class AbortReason(enum.Enum):
    """Why a transaction ended in abort."""

    REQUESTED = "the caller asked for it"
    PARTITIONS_LOST = "partitions were lost or revoked before the commit"
    STALE_MEMBERSHIP = "the membership of the group is over, or has not begun"
    REBALANCE = "a rebalance came before the commit and its budget was too short"
    DELIVERY_FAILED = "a record could not be delivered"
    INVALID_EPOCH = "the coordinator ended the transaction (timeout) or bumped the epoch"
    FENCED = "another producer took over the transactional id"
    ABORTABLE = "the broker asked for an abort (KIP-890)"
    COORDINATOR = "the coordinator moved, is loading, or did not answer in time"
    OUTCOME_UNKNOWN = "the answer to the commit got lost; the committed offsets show an abort"
    INTERRUPTED = "a cancellation or a signal interrupted the commit; the committed offsets tell"
    SINK_UNAVAILABLE = "the sink cannot be reached, or did not answer in time"
    FAILED = "an error that going on does not repair"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The table's answer for one error."""

    reason: AbortReason
    reaction: Reaction


_ABORT: Final = Reaction.ABORT
_BY_BROKER_NAME: Final = MappingProxyType(
    {
        "ILLEGAL_GENERATION": Verdict(AbortReason.STALE_MEMBERSHIP, _ABORT),
        "UNKNOWN_MEMBER_ID": Verdict(AbortReason.STALE_MEMBERSHIP, _ABORT),
        "STALE_MEMBER_EPOCH": Verdict(AbortReason.STALE_MEMBERSHIP, _ABORT),
        "FENCED_MEMBER_EPOCH": Verdict(AbortReason.STALE_MEMBERSHIP, _ABORT),
        "REBALANCE_IN_PROGRESS": Verdict(AbortReason.REBALANCE, _ABORT),
        # Another live process has the same static member id: the two would fence each other for
        # ever.
        "FENCED_INSTANCE_ID": Verdict(AbortReason.FENCED, Reaction.RAISE),
        "INVALID_PRODUCER_EPOCH": Verdict(AbortReason.INVALID_EPOCH, Reaction.REINITIALISE),
        "INVALID_TXN_STATE": Verdict(AbortReason.INVALID_EPOCH, Reaction.REINITIALISE),
        "INVALID_PRODUCER_ID_MAPPING": Verdict(AbortReason.INVALID_EPOCH, Reaction.REINITIALISE),
        "UNKNOWN_PRODUCER_ID": Verdict(AbortReason.INVALID_EPOCH, Reaction.REINITIALISE),
        "OUT_OF_ORDER_SEQUENCE_NUMBER": Verdict(AbortReason.DELIVERY_FAILED, Reaction.REINITIALISE),
        "PRODUCER_FENCED": Verdict(AbortReason.FENCED, Reaction.REPLACE),
        "TRANSACTIONAL_ID_NOT_FOUND": Verdict(AbortReason.INVALID_EPOCH, Reaction.REINITIALISE),
        "TRANSACTION_ABORTABLE": Verdict(AbortReason.ABORTABLE, _ABORT),
        "CONCURRENT_TRANSACTIONS": Verdict(AbortReason.COORDINATOR, _ABORT),
        "COORDINATOR_NOT_AVAILABLE": Verdict(AbortReason.COORDINATOR, _ABORT),
        "COORDINATOR_LOAD_IN_PROGRESS": Verdict(AbortReason.COORDINATOR, _ABORT),
        "NOT_COORDINATOR": Verdict(AbortReason.COORDINATOR, _ABORT),
        "UNKNOWN_SERVER_ERROR": Verdict(AbortReason.COORDINATOR, _ABORT),
        # The same batch would get the same answer until the cluster is changed.
        "TOPIC_AUTHORIZATION_FAILED": Verdict(AbortReason.FAILED, Reaction.RAISE),
        "GROUP_AUTHORIZATION_FAILED": Verdict(AbortReason.FAILED, Reaction.RAISE),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": Verdict(AbortReason.FAILED, Reaction.RAISE),
        "UNKNOWN_TOPIC_OR_PARTITION": Verdict(AbortReason.DELIVERY_FAILED, Reaction.RAISE),
    }
)


def judge(error: Exception) -> Verdict:
    """Look up what an error inside a transaction means.

    Args:
        error: What a client call raised.

    Returns:
        Reason and reaction; errors that the table does not know are raised to the caller.
    """
    if isinstance(error, BrokerError) and error.name in _BY_BROKER_NAME:
        return _BY_BROKER_NAME[error.name]
    if isinstance(error, CommitFailedError):
        return Verdict(AbortReason.STALE_MEMBERSHIP, Reaction.ABORT)
    if isinstance(error, DeliveryTimeoutError | BufferExhaustedError):
        return Verdict(AbortReason.DELIVERY_FAILED, Reaction.ABORT)
    if isinstance(error, RecordError):
        return Verdict(AbortReason.DELIVERY_FAILED, Reaction.RAISE)
    if isinstance(error, TransactionAbortedError) and isinstance(error.__cause__, Exception):
        verdict = judge(error.__cause__)
        if verdict.reason in (AbortReason.FENCED, AbortReason.INVALID_EPOCH):
            # The producer asked the coordinator: if another producer had the id, the error would
            # say so.
            return Verdict(AbortReason.INVALID_EPOCH, Reaction.ABORT)
        return verdict
    if isinstance(error, FatalError):
        return Verdict(AbortReason.FAILED, Reaction.RAISE)
    if isinstance(error, AbortableError):
        return Verdict(AbortReason.ABORTABLE, Reaction.ABORT)
    if isinstance(error, RetriableError):
        return Verdict(AbortReason.COORDINATOR, Reaction.ABORT)
    return Verdict(AbortReason.FAILED, Reaction.RAISE)
