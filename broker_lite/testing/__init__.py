"""A broker for tests: in this process, in memory or on disk, with a clock moved by hand, a journal
of requests, faults on demand, and the outcomes of transactions."""

from onceflow.broker_lite.testing.faults import Fault, FaultInjector, FaultRule, JournalEntry
from onceflow.broker_lite.testing.in_process import Broker
from onceflow.broker_lite.testing.outcomes import TransactionOutcomes, transaction_outcomes
from onceflow.broker_lite.testing.virtual_clock import VirtualClock

__all__ = [
    "Broker",
    "Fault",
    "FaultInjector",
    "FaultRule",
    "JournalEntry",
    "TransactionOutcomes",
    "VirtualClock",
    "transaction_outcomes",
]
