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
    StateDirectoryError,
    StateKeyError,
    TooManyAbortsError,
    TooManyDeadLettersError,
    TopicSetupError,
    UndeliverableOutputError,
)
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.state import State
from onceflow.processors.topology import StoreKind, Topology
from onceflow.processors.values import Format

__all__ = [
    "App",
    "Context",
    "Output",
    "State",
    "Retries",
    "OnError",
    "DeadLetterLimits",
    "Format",
    "StoreKind",
    "Topology",
    "ProcessorError",
    "ProcessingError",
    "DeclarationError",
    "DeserializationError",
    "HandlerCancelledError",
    "OutputRefusedError",
    "UndeliverableOutputError",
    "StateKeyError",
    "StateDirectoryError",
    "TopicSetupError",
    "TooManyDeadLettersError",
    "TooManyAbortsError",
]
