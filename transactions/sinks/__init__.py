"""Sinks that store offsets with their output: rows of each record once, outside of Kafka too."""

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

__all__ = [
    "SinkSession",
    "Sqlite",
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
