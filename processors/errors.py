"""Errors of processors: about records, declarations and the checks at the start.

Errors of brokers keep the SDK's classes. ``policies`` and ``worker`` decide how to handle an error.
"""

from __future__ import annotations

from onceflow.sdk.errors import (
    FatalError,
    IllegalStateError,
    KafkaError,
    RecordError,
    SerializationError,
)


class ProcessorError(KafkaError):
    """Base of the errors that processors raise."""


class DeclarationError(ProcessorError, TypeError):
    """A processor is declared in a way that cannot work; the message says what to change."""


class DeserializationError(ProcessorError, SerializationError):
    """The bytes of a record do not fit the annotated type."""


class EventTimeError(ProcessorError, RecordError):
    """A record has no usable event time, or one too far ahead of the clock."""


class ParkingFullError(ProcessorError):
    """So many records of a key are parked that its partition waits for them.

    Args:
        message: What happened.
        wait_ms: When the first of them is due.
    """

    def __init__(self, message: str, wait_ms: int = 0) -> None:
        super().__init__(message)
        self.wait_ms: int = wait_ms


class StateKeyError(ProcessorError, RecordError):
    """A record without a key reached a processor with state; state belongs to a key."""


class UndeliverableOutputError(ProcessorError, RecordError):
    """A handler's output has a topic, partition, header or timestamp that no broker accepts."""


class HandlerCancelledError(ProcessorError):
    """An awaitable in a handler was cancelled, but the worker was not."""


class OutputRefusedError(ProcessorError, IllegalStateError):
    """A handler's task sent or wrote state after its record was finished; await it in the handler.

    Such an output would be part of a later record's transaction, or of none.
    """


class ProcessingError(ProcessorError, FatalError):
    """A record could not be processed, and the policy is to stop; its offset is not committed.

    Attributes:
        topic: Topic of the record.
        partition: Partition of the record.
        offset: Offset of the record, at which a restart continues.
        attempts: Number of attempts.
    """

    def __init__(
        self,
        message: str,
        topic: str = "",
        partition: int = -1,
        offset: int = -1,
        attempts: int = 0,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.attempts = attempts


class TooManyDeadLettersError(ProcessingError):
    """More records went to the dead-letter topic than ``limits`` allows."""


class TopicSetupError(ProcessorError, FatalError):
    """A topic that the application needs is missing or does not fit; the message says which."""


class StateDirectoryError(ProcessorError, FatalError):
    """The directory for state or process identity cannot be used."""


class StateCorruptedError(StateDirectoryError):
    """A stored value is damaged; the next start rebuilds the store from its changelog.

    The record whose key the value belongs to is not at fault.
    """


class StateTypeError(StateDirectoryError):
    """A stored value has a type that its state no longer has; declare a ``Migration``."""


class StateMismatchError(StateDirectoryError):
    """State, changelog and committed offsets do not belong together; the message says why.

    To continue would lose state or count it twice. ``on_state_gap="continue"`` uses what is left.
    """


class StateValueError(ProcessorError, ValueError):
    """A handler set a value that does not have its state's type."""


class SlotInUseError(ProcessorError, FatalError):
    """Another live worker has the same slot and has fenced this one."""


class TooManyAbortsError(ProcessorError, FatalError):
    """Too many transactions in a row were aborted; the last cause is attached."""


class RightsMissingError(ProcessorError, FatalError):
    """An authorizer refused what the application does; the message names the ACLs to add.

    The refusal is attached as the cause.
    """


class StoppedError(ProcessorError):
    """The application was stopped while it waited for an answer of the brokers."""


class ForcedShutdown(BaseException):
    """A second signal, or the end of ``shutdown_timeout_ms``, interrupted processing."""


class QueryError(ProcessorError):
    """A query of state cannot be answered; the message says what to change."""


class UnknownStateError(QueryError):
    """The application has no such state, or none that can be queried."""


class StateNotReadyError(QueryError):
    """The state cannot be read now: it is restored, or the group is rebalancing; ask again."""


class NotOwnerError(QueryError):
    """Another worker has the state.

    Args:
        message: What happened.
        owner: Where that worker answers, ``host:port``; empty if it is not known.
        partition: The partition of the key.
        partitions: How many there are.
    """

    def __init__(
        self, message: str, owner: str = "", partition: int = 0, partitions: int = 0
    ) -> None:
        super().__init__(message)
        self.owner: str = owner
        self.partition: int = partition
        self.partitions: int = partitions
