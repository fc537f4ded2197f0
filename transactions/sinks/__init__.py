"""Sinks that store offsets with their output: rows of each record once, outside of Kafka too.

A sink that needs another library is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from onceflow.transactions.sinks.errors import (
    SinkFencedError,
    SinkOffsetsMovedError,
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkSharedError,
    SinkTopicReplacedError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import Batch, Entry, Move, advance, claim
from onceflow.transactions.sinks.session import SinkSession
from onceflow.transactions.sinks.sink import Sink, Steps
from onceflow.transactions.sinks.sqlite import Sqlite

if TYPE_CHECKING:
    from onceflow.transactions.sinks.postgres import Postgres as Postgres

_HOMES = {"Postgres": "postgres"}

__all__ = [
    "SinkSession",
    "Sqlite",
    "Postgres",
    "Sink",
    "Steps",
    "Batch",
    "Move",
    "Entry",
    "claim",
    "advance",
    "SinkFencedError",
    "SinkOffsetsMovedError",
    "SinkOutcomeUnknownError",
    "SinkSharedError",
    "SinkTopicReplacedError",
    "SinkRowError",
    "SinkUnavailableError",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
