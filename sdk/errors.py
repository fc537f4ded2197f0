"""Every exception that onceflow raises, in one tree.

Here stand the errors that the client itself finds. Those that a broker answers come from
`onceflow.sdk.broker_errors` and are re-exported, so that users import all of them from here.
Catch by reaction (`RetriableError`, `AbortableError`, `FatalError`, `RecordError`) or by cause.
"""

from __future__ import annotations

from onceflow.sdk.broker_errors import *  # noqa: F403
from onceflow.sdk.error_kinds import AbortableError as AbortableError
from onceflow.sdk.error_kinds import BrokerError as BrokerError
from onceflow.sdk.error_kinds import FatalError as FatalError
from onceflow.sdk.error_kinds import KafkaError as KafkaError
from onceflow.sdk.error_kinds import RecordError as RecordError
from onceflow.sdk.error_kinds import RetriableError as RetriableError
from onceflow.sdk.error_kinds import UnlistedError as UnlistedError


class LocalProtocolError(KafkaError):
    """The call breaks a rule of the protocol or of this API; nothing was sent."""


class IllegalStateError(LocalProtocolError):
    """The call is not allowed in the client's present state."""


class ClientClosedError(IllegalStateError):
    """The client is closed; make a new one."""


class RemoteProtocolError(KafkaError):
    """The other side sent bytes that are not Kafka's protocol; drop the connection."""


class ConfigError(KafkaError, ValueError):
    """A setting has a value that cannot work.

    Attributes:
        field: Name of the setting, as in the constructor.
        value: The refused value (write ``"***"`` for a secret).
        remedy: What to write instead.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(field, value, remedy)
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.field}={self.value!r}: {self.remedy}"


class BrokerConnectionError(RetriableError):
    """The connection to a broker could not be made, or was lost."""


class NoBrokersAvailableError(KafkaError):
    """None of bootstrap_servers answered; check the addresses and that a broker runs."""


class DeliveryTimeoutError(KafkaError):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not be stored."""


class BufferExhaustedError(KafkaError):
    """buffer_memory stayed full for max_block_ms; send slower or raise the limit."""


class SerializationError(RecordError):
    """A serializer or deserializer refused a key or a value."""


class RecordTooLargeError(RecordError):
    """A record exceeds max_request_size or buffer_memory; it was not sent."""


class TransactionAbortedError(AbortableError):
    """The transaction was aborted, so nothing that was sent in it became visible."""


class CommitOutcomeUnknownError(KafkaError):
    """No answer to the end of the transaction: it may be committed or aborted, never half."""


class CommitFailedError(KafkaError):
    """The offsets were not committed, because the group gave the partitions to others."""


class NoOffsetForPartitionError(KafkaError):
    """A partition has no committed offset and auto_offset_reset is "none"; seek first."""
