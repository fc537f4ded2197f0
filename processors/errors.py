"""Errors of processors: what a record, a declaration or a start-up check can do wrong.

Errors of the brokers keep the SDK's classes. Nothing here decides what is done about an error;
``policies`` and ``worker`` do.
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
    """Base of the errors that processors raise on their own account."""


class DeclarationError(ProcessorError, TypeError):
    """A processor is declared in a way that cannot work; the message says what to change."""


class DeserializationError(ProcessorError, SerializationError):
    """The bytes of a record do not fit the annotated type."""


class EventTimeError(ProcessorError, RecordError):
    """A record has no event time that can be used, or one too far ahead of the clock."""


class StateKeyError(ProcessorError, RecordError):
    """A record without a key reached a processor with state; state belongs to a key."""


class UndeliverableOutputError(ProcessorError, RecordError):
    """A handler's output names a topic, partition, header or time that no broker takes."""


class HandlerCancelledError(ProcessorError):
    """Something that a handler awaited was cancelled; the worker itself was not."""


class OutputRefusedError(ProcessorError, IllegalStateError):
    """A send or a state write came after its record was finished; await it in the handler.

    Such an output would land in the transaction of a later record, or in none.
    """


class ProcessingError(ProcessorError, FatalError):
    """A record could not be processed and the policy is to stop; its offset is not committed.

    Attributes:
        topic: Topic of the record.
        partition: Partition of the record.
        offset: Offset of the record, at which a restart continues.
        attempts: How often it was tried.
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
    """More records than the limit allows went to the dead-letter topic; something is broken."""


class TopicSetupError(ProcessorError, FatalError):
    """A topic that the application needs is missing or does not fit; the message says which."""


class StateDirectoryError(ProcessorError, FatalError):
    """The directory for state or process identity cannot be used."""


class StateCorruptedError(StateDirectoryError):
    """A stored value is not what was written; the next start rebuilds the store from its changelog.

    It is not the fault of the record whose key it belongs to.
    """


class StateTypeError(StateDirectoryError):
    """A stored value is of a type that its state has no more; declare a ``Migration``."""


class StateMismatchError(StateDirectoryError):
    """State, changelog and committed offsets do not belong together; the message says how.

    Going on would lose or double state. ``on_state_gap="continue"`` goes on with what is there.
    """


class StateValueError(ProcessorError, ValueError):
    """A handler set a value that is none of its state's type."""


class SlotInUseError(ProcessorError, FatalError):
    """Another live worker runs under the slot of this one, and has taken over."""


class TooManyAbortsError(ProcessorError, FatalError):
    """Transactions were aborted again and again without progress; the last cause is attached."""


class StoppedError(ProcessorError):
    """The application was stopped while it waited for brokers to answer; nothing is wrong."""


class ForcedShutdown(BaseException):
    """A second signal, or the end of the shutdown time, cut processing short."""
