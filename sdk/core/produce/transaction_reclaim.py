"""Finds out whether a transactional id is still this producer's, after its epoch was refused.

A coordinator raises the epoch when it aborts a transaction that was open for too long, and also
when a newer producer takes the id (KIP-588 proposed to distinguish the two). The number of epochs
in between and the state show the difference: a takeover begins with `Empty`. The caller decides
what to do.
"""

from __future__ import annotations

import enum

from onceflow.sdk.core.flow import Coordinator, Flow, ask
from onceflow.sdk.core.produce.transaction_flows import retrying
from onceflow.sdk.core.retry import Backoff, Recovery, recovery_for_code
from onceflow.sdk.errors import UnsupportedVersionError
from onceflow.sdk.model.partitions import ProducerIdentity
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

_ABORTED = ("CompleteAbort", "PrepareAbort", "PrepareEpochFence")
_COMMITTED = ("CompleteCommit", "PrepareCommit")


class Owner(enum.Enum):
    """Which producer owns a transactional id."""

    OURS = "ours"
    """The epoch is unchanged: our transaction was not committed."""
    ABORTED = "aborted"
    """The epoch is one higher, after an abort: the coordinator aborted our transaction. Under
    version 1 it is the same if ours was committed and a newer producer took over and aborted."""
    COMMITTED = "committed"
    """The epoch is one higher, after a commit: under version 2 our own, whose answer was lost."""
    FORGOTTEN = "forgotten"
    """The coordinator does not know the id, or not any more."""
    TAKEN = "taken"
    UNSAID = "unsaid"
    """The broker is too old to answer, or does not allow this user the request."""


def owner_of(identity: ProducerIdentity, backoff: Backoff, *, protocol_version: int) -> Flow[Owner]:
    """Ask the coordinator which producer owns the transactional id.

    Args:
        identity: The last known identity of this producer.
        backoff: Waits between tries.
        protocol_version: With 2, every end of a transaction raises the epoch, so that after a
            takeover it is further ahead. With 1 it does not, and a newer producer may have
            committed.

    Returns:
        The owner.

    Raises:
        KafkaError: The coordinator could not be reached.
    """
    target = Coordinator(identity.transactional_id, CoordinatorType.TRANSACTION)

    def attempt() -> Flow[Owner]:
        request = DescribeTransactionsRequest(transactional_ids=[identity.transactional_id])
        try:
            reply = yield from ask(request, DescribeTransactionsResponse, target)
        except UnsupportedVersionError:
            return Owner.UNSAID
        for found in reply.transaction_states:
            if found.transactional_id != identity.transactional_id:
                continue
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return Owner.FORGOTTEN
            if recovery_for_code(found.error_code) is not Recovery.NONE:
                raise error_for(found.error_code)
            if found.error_code:
                break
            ahead = found.producer_epoch - identity.producer_epoch
            if found.producer_id == identity.producer_id and ahead == 0:
                return Owner.OURS
            if found.producer_id != identity.producer_id or ahead != 1:
                return Owner.TAKEN
            if found.transaction_state in _ABORTED:
                return Owner.ABORTED
            if found.transaction_state in _COMMITTED and protocol_version != 1:
                return Owner.COMMITTED
            return Owner.TAKEN
        return Owner.UNSAID

    return (yield from retrying(attempt, target, backoff))
