"""Stream processing by decorated functions: exactly-once, with state and dead letters."""

from onceflow.processors.app import App
from onceflow.processors.context import Context, Output
from onceflow.processors.errors import (
    DeclarationError,
    DeserializationError,
    HandlerCancelledError,
    OutputRefusedError,
    ProcessingError,
    ProcessorError,
    SlotInUseError,
    StateCorruptedError,
    StateDirectoryError,
    StateKeyError,
    StateMismatchError,
    StateTypeError,
    StateValueError,
    TooManyAbortsError,
    TooManyDeadLettersError,
    TopicSetupError,
    UndeliverableOutputError,
)
from onceflow.processors.graph import StoreKind, SubTopology, Topology
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.state import ListState, MapState, State
from onceflow.processors.state.codec import Migration
from onceflow.processors.values import Format

__all__ = [
    "App",
    "Context",
    "Output",
    "State",
    "MapState",
    "ListState",
    "Migration",
    "Retries",
    "OnError",
    "DeadLetterLimits",
    "Format",
    "StoreKind",
    "Topology",
    "SubTopology",
    "ProcessorError",
    "ProcessingError",
    "DeclarationError",
    "DeserializationError",
    "HandlerCancelledError",
    "OutputRefusedError",
    "UndeliverableOutputError",
    "StateKeyError",
    "StateDirectoryError",
    "StateMismatchError",
    "StateCorruptedError",
    "StateTypeError",
    "StateValueError",
    "TopicSetupError",
    "TooManyDeadLettersError",
    "TooManyAbortsError",
    "SlotInUseError",
]
