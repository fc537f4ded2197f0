"""Consume-transform-produce sessions: input offsets and outputs become visible together."""

from onceflow.transactions.abort_reasons import AbortReason
from onceflow.transactions.config import SessionConfig
from onceflow.transactions.errors import TransactionalIdInUseError
from onceflow.transactions.listener import Abort, PollResult, SessionListener
from onceflow.transactions.session import AsyncTransactionSession, TransactionSession

__all__ = [
    "TransactionSession",
    "AsyncTransactionSession",
    "SessionConfig",
    "SessionListener",
    "Abort",
    "PollResult",
    "AbortReason",
    "TransactionalIdInUseError",
]
