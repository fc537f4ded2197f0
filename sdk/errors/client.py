"""Errors that the client raises by itself; users import them from `onceflow.sdk.errors`."""

from __future__ import annotations

from onceflow.sdk.errors.kinds import (
    AbortableError,
    FatalError,
    KafkaError,
    RecordError,
    RetriableError,
)


class LocalProtocolError(KafkaError):
    """The call breaks a rule of the protocol or of this API; nothing was sent."""


class IllegalStateError(LocalProtocolError):
    """The call is not allowed in the client's present state."""


class ClientClosedError(IllegalStateError):
    """The client is closed; make a new one."""


class RemoteProtocolError(KafkaError):
    """The peer sent bytes that are not Kafka's protocol; the connection is dropped."""


class _Shown:
    """Stands for a value that cannot be pickled: its repr."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


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

    def __reduce__(self) -> tuple[object, ...]:
        import pickle  # Late: most programs never need it.

        value = self.value
        try:
            pickle.dumps(value)
        except Exception:  # noqa: BLE001 - a lock, a lambda: each refuses in its own way
            value = _Shown(repr(value))
        return type(self), (self.field, value, self.remedy), {**vars(self), "value": value}


class BrokerConnectionError(RetriableError):
    """The connection to a broker could not be made, or was lost.

    Attributes:
        may_have_arrived: Whether a request was in flight, which the broker may have carried out.
        refused: Whether no broker can be at the address now: nothing listens there, or the name
            does not resolve.
    """

    may_have_arrived: bool = False
    refused: bool = False


class SslAuthenticationError(FatalError):
    """The TLS handshake failed: check certificates, host names and security_protocol."""


class NoBrokersAvailableError(KafkaError):
    """None of bootstrap_servers answered; check the addresses and that a broker runs."""


class DeliveryTimeoutError(KafkaError):
    """A record was not acknowledged within delivery_timeout_ms; it may or may not be stored."""


class BufferExhaustedError(KafkaError):
    """buffer_memory stayed full for max_block_ms; send slower or raise the limit."""


class SerializationError(RecordError):
    """A serializer or deserializer refused a key or a value."""


class SchemaRegistryError(KafkaError):
    """The schema registry refused a request, or sent an invalid answer.

    Attributes:
        status: HTTP status of the answer, 0 if there was none.
        code: The registry's own error code, 0 if it gave none.
    """

    def __init__(self, message: str = "", status: int = 0, code: int = 0) -> None:
        super().__init__(message, status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0]) or self.sentence()


class SchemaNotFoundError(SchemaRegistryError):
    """The subject, version or schema does not exist in the schema registry."""


class SchemaIdNotFoundError(RetriableError, SchemaNotFoundError):
    """The schema registry does not know a schema id yet; a moment later it may.

    A registry of several nodes answers so until the schema has reached the node that is asked.
    """


class IncompatibleSchemaError(SchemaRegistryError):
    """The schema breaks the subject's compatibility rule; nothing was registered."""


class SchemaRegistryUnavailableError(RetriableError, SchemaRegistryError):
    """The schema registry could not be reached, or cannot answer now."""


class RecordTooLargeError(RecordError):
    """A record exceeds max_request_size or buffer_memory; it was not sent."""


class TransactionAbortedError(AbortableError):
    """The transaction was aborted, so nothing that was sent in it became visible."""


class CommitOutcomeUnknownError(KafkaError):
    """The commit has no answer: it is committed or aborted, never half; commit again to find out.

    Where the message says so, committing again cannot tell. Make a new producer then, and read what
    is committed.
    """


class CommitFailedError(KafkaError):
    """The offsets were not committed: the group has assigned the partitions to other members."""


class NoOffsetForPartitionError(KafkaError):
    """A partition has no committed offset and auto_offset_reset is "none"; seek first."""
