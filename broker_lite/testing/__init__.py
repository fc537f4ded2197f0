"""A broker for tests: in this process, in memory or on disk, with a clock moved by hand, a journal
of requests, faults on demand, and the outcomes of transactions; or in a container."""

import importlib
from typing import TYPE_CHECKING

from onceflow.broker_lite.testing.fault_rules import Fault, FaultRule
from onceflow.broker_lite.testing.faults import FaultInjector
from onceflow.broker_lite.testing.figures import PartitionFigures
from onceflow.broker_lite.testing.in_process import Broker
from onceflow.broker_lite.testing.journal import Journal, JournalEntry
from onceflow.broker_lite.testing.outcomes import TransactionOutcomes, transaction_outcomes
from onceflow.broker_lite.testing.virtual_clock import RunningClock, VirtualClock

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.committed import KafkaRecords
    from onceflow.broker_lite.testing.container import OnceflowContainer
    from onceflow.broker_lite.testing.pytest_fixtures import AsyncClients

__all__ = [
    "AsyncClients",
    "Broker",
    "Fault",
    "FaultInjector",
    "FaultRule",
    "Journal",
    "JournalEntry",
    "KafkaRecords",
    "OnceflowContainer",
    "PartitionFigures",
    "RunningClock",
    "TransactionOutcomes",
    "VirtualClock",
    "transaction_outcomes",
]


_LOADED_AT_FIRST_USE = {
    "AsyncClients": "pytest_fixtures",
    "KafkaRecords": "committed",
    "OnceflowContainer": "container",
}
"""Modules that import more than the broker needs: pytest, the clients, testcontainers."""


def __getattr__(name: str) -> object:
    if name in _LOADED_AT_FIRST_USE:
        module = importlib.import_module(f"{__name__}.{_LOADED_AT_FIRST_USE[name]}")
        found: object = getattr(module, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
