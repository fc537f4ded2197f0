"""Stream processing by decorated functions: exactly-once, with state and dead letters."""

from onceflow.processors.aggregates import Collect, Count, Max, Mean, Min, Ready, Reduce, Sum
from onceflow.processors.app import App
from onceflow.processors.context import Context, Output
from onceflow.processors.declare.windows import Emit
from onceflow.processors.errors import (
    DeclarationError,
    DeserializationError,
    EventTimeError,
    HandlerCancelledError,
    NotOwnerError,
    OutputRefusedError,
    ProcessingError,
    ProcessorError,
    QueryError,
    SlotInUseError,
    StateCorruptedError,
    StateDirectoryError,
    StateKeyError,
    StateMismatchError,
    StateNotReadyError,
    StateTypeError,
    StateValueError,
    TooManyAbortsError,
    TooManyDeadLettersError,
    TopicSetupError,
    UndeliverableOutputError,
    UnknownStateError,
)
from onceflow.processors.graph import StoreKind, SubTopology, Topology
from onceflow.processors.policies import DeadLetterLimits, OnError, Parking, Retries
from onceflow.processors.queries import Answer, Query
from onceflow.processors.report import RunReport, TaskReport
from onceflow.processors.state import ListState, MapState, State
from onceflow.processors.state.codec import Migration
from onceflow.processors.state_client import StateClient
from onceflow.processors.tables import GlobalTable, Table
from onceflow.processors.timers import Timer, Timers
from onceflow.processors.values import Format
from onceflow.processors.windows import (
    Hopping,
    Session,
    Tumbling,
    Window,
    days,
    hours,
    milliseconds,
    minutes,
    seconds,
)

__all__ = [
    "App",
    "RunReport",
    "TaskReport",
    "Context",
    "Output",
    "State",
    "MapState",
    "ListState",
    "Migration",
    "Table",
    "GlobalTable",
    "Timers",
    "Timer",
    "Tumbling",
    "Hopping",
    "Session",
    "Window",
    "milliseconds",
    "seconds",
    "minutes",
    "hours",
    "days",
    "Count",
    "Sum",
    "Mean",
    "Min",
    "Max",
    "Collect",
    "Reduce",
    "Ready",
    "Emit",
    "Retries",
    "Parking",
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
    "EventTimeError",
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
    "Answer",
    "Query",
    "StateClient",
    "NotOwnerError",
    "QueryError",
    "StateNotReadyError",
    "UnknownStateError",
]
