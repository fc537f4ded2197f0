"""Is a transactional id still this producer's, after the coordinator refused its epoch?

A coordinator raises the epoch when it aborts a transaction that was open for too long, and also
when a newer producer takes the id over (KIP-588 wanted to tell the two apart). The difference
shows in how far the epoch is ahead. This module only asks; what follows is decided by its caller.
"""

from __future__ import annotations

from onceflow.sdk.core.flow import Coordinator, CoordinatorType, Flow, ask
from onceflow.sdk.core.retry import Backoff, Recovery, recovery_for_code
from onceflow.sdk.core.transaction_flows import retrying
from onceflow.sdk.errors import UnsupportedVersionError
from onceflow.sdk.model import ProducerIdentity
from onceflow.sdk.protocol.api.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

OWN_BUMPS_MAX = 1
"""How far the coordinator itself raises the epoch when it ends a transaction."""
_NOT_BEGUN = ("Empty", "CompleteAbort", "CompleteCommit", "PrepareAbort", "PrepareEpochFence")


def still_ours(identity: ProducerIdentity, backoff: Backoff) -> Flow[bool | None]:
    """Ask the coordinator who has the id.

    Args:
        identity: What this producer last knew.
        backoff: Waits between tries.

    Returns:
        Whether no newer producer has taken the id; None when the broker cannot say, because it is
        too old or does not let this user ask.

    Raises:
        KafkaError: The coordinator could not be reached.
    """
    target = Coordinator(identity.transactional_id, CoordinatorType.TRANSACTION)

    def attempt() -> Flow[bool | None]:
        request = DescribeTransactionsRequest(transactional_ids=[identity.transactional_id])
        try:
            reply = yield from ask(request, DescribeTransactionsResponse, target)
        except UnsupportedVersionError:
            return None
        for found in reply.transaction_states:
            if found.transactional_id != identity.transactional_id:
                continue
            if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                return True  # Forgotten after a long time: nobody has it.
            if recovery_for_code(found.error_code) is not Recovery.NONE:
                raise error_for(found.error_code)
            if found.error_code:
                return None
            ahead = found.producer_epoch - identity.producer_epoch
            same = found.producer_id == identity.producer_id and 0 <= ahead <= OWN_BUMPS_MAX
            return same and (ahead == 0 or found.transaction_state in _NOT_BEGUN)
        return None

    return (yield from retrying(attempt, target, backoff))
