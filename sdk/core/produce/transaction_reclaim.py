"""Finds out whether a transactional id is still this producer's, after its epoch was refused.

A coordinator raises the epoch when it aborts a transaction that was open for too long, and also
when a newer producer takes the id over (KIP-588 wanted to tell the two apart). The difference
shows in how far the epoch is ahead, and in the state: a takeover begins with `Empty`. This module
only asks; what follows is decided by its caller.
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
    """The epoch is unchanged: a transaction that can no longer be ended was not committed."""
    ABORTED = "aborted"
    """Raised once, with an abort: by the coordinator, which ended our transaction. Under version
    1 it also looks so when ours was committed, and a newer producer took over and aborted."""
    COMMITTED = "committed"
    """Raised once, with a commit: under version 2 our own, whose answer was lost."""
    FORGOTTEN = "forgotten"
    """The coordinator does not know the id (any more)."""
    TAKEN = "taken"
    UNSAID = "unsaid"
    """The broker is too old to say, or does not let this user ask."""


def owner_of(identity: ProducerIdentity, backoff: Backoff, *, protocol_version: int) -> Flow[Owner]:
    """Ask the coordinator which producer owns the id.

    Args:
        identity: What this producer last knew.
        backoff: Waits between tries.
        protocol_version: 2 raises the epoch with every end of a transaction, so that a takeover
            is further ahead; 1 does not, and a newer producer may have committed.

    Returns:
        Who has it.

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
