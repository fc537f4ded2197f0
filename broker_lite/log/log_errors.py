"""Errors of the log: refusals with a Kafka error code, and unusable data folders.

Handlers pass the code of a refusal on to clients.
"""

from __future__ import annotations

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.batch_errors import RecordIssue
from onceflow.sdk.protocol.error_codes import ErrorCode


class LogError(KafkaError):
    """The log refuses a request.

    Attributes:
        code: Kafka's error code for the answer.
        message: What is wrong, for the answer's error message.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class AppendError(LogError):
    """A batch was not appended; the log is as it was.

    Attributes:
        record_errors: The faulty records, if single records are at fault.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[RecordIssue, ...] = ()
    ) -> None:
        super().__init__(code, message)
        self.args: tuple[object, ...] = (code, message, record_errors)
        self.record_errors = record_errors


class ReadError(LogError):
    """The log cannot be read at the requested place."""


class StorageLockedError(KafkaError):
    """Another process, or another broker in this process, uses the data folder.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.root = root

    def __str__(self) -> str:
        return (
            f"the data folder {self.root} is used by another broker: stop that one, "
            f"or give this one a folder of its own"
        )


class DataFolderError(KafkaError):
    """The data folder belongs to another cluster or node, or is damaged."""
