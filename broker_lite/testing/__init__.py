"""A broker for tests: in this process, in memory or on disk, with a clock moved by hand, a journal
of requests, faults on demand, and the outcomes of transactions."""

from onceflow.broker_lite.testing.fault_rules import Fault, FaultRule
from onceflow.broker_lite.testing.faults import FaultInjector
from onceflow.broker_lite.testing.in_process import Broker
from onceflow.broker_lite.testing.journal import Journal, JournalEntry
from onceflow.broker_lite.testing.outcomes import TransactionOutcomes, transaction_outcomes
from onceflow.broker_lite.testing.virtual_clock import RunningClock, VirtualClock

__all__ = [
    "Broker",
    "Fault",
    "FaultInjector",
    "FaultRule",
    "Journal",
    "JournalEntry",
    "RunningClock",
    "TransactionOutcomes",
    "VirtualClock",
    "transaction_outcomes",
]
