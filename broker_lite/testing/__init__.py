"""A broker for tests: in this process, in memory or on disk, with a clock moved by hand, a journal
of requests, faults on demand, and the outcomes of transactions; or in a container."""

from typing import TYPE_CHECKING

from onceflow.broker_lite.testing.fault_rules import Fault, FaultRule
from onceflow.broker_lite.testing.faults import FaultInjector
from onceflow.broker_lite.testing.figures import PartitionFigures
from onceflow.broker_lite.testing.in_process import Broker
from onceflow.broker_lite.testing.journal import Journal, JournalEntry
from onceflow.broker_lite.testing.outcomes import TransactionOutcomes, transaction_outcomes
from onceflow.broker_lite.testing.virtual_clock import RunningClock, VirtualClock

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.container import OnceflowContainer

__all__ = [
    "Broker",
    "Fault",
    "FaultInjector",
    "FaultRule",
    "Journal",
    "JournalEntry",
    "OnceflowContainer",
    "PartitionFigures",
    "RunningClock",
    "TransactionOutcomes",
    "VirtualClock",
    "transaction_outcomes",
]


def __getattr__(name: str) -> object:
    # Only who uses it needs the package testcontainers.
    if name == "OnceflowContainer":
        from onceflow.broker_lite.testing.container import OnceflowContainer

        return OnceflowContainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
