"""Sinks that store offsets with their rows, so that each record's rows are stored once.

A sink that needs another library is imported at its first use.
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
from onceflow.transactions.sinks.files import FileSink, JsonLines, read_json_lines
from onceflow.transactions.sinks.ledger import Batch, Entry, Letter, Move, advance, claim
from onceflow.transactions.sinks.session import AsyncSinkSession, SinkSession
from onceflow.transactions.sinks.sink import AsyncSink, CopiedSink, Sink, Steps
from onceflow.transactions.sinks.sqlite import Sqlite

if TYPE_CHECKING:
    from onceflow.transactions.sinks.http import Http as Http
    from onceflow.transactions.sinks.parquet import Parquet as Parquet
    from onceflow.transactions.sinks.parquet import read_parquet as read_parquet
    from onceflow.transactions.sinks.postgres import Postgres as Postgres

_HOMES = {"Http": "http", "Parquet": "parquet", "Postgres": "postgres", "read_parquet": "parquet"}

__all__ = [
    "SinkSession",
    "AsyncSinkSession",
    "Sqlite",
    "Postgres",
    "JsonLines",
    "Parquet",
    "FileSink",
    "Http",
    "read_json_lines",
    "read_parquet",
    "Sink",
    "CopiedSink",
    "AsyncSink",
    "Steps",
    "Batch",
    "Letter",
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
