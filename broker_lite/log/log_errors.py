"""What can go wrong in the log: refusals with a Kafka error code, and a folder in use.

Which code a refusal carries is decided where it is raised; handlers pass the code on to clients.
"""

from __future__ import annotations

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.batch_errors import RecordIssue
from onceflow.sdk.protocol.error_codes import ErrorCode


class LogError(KafkaError):
    """The log refuses what was asked.

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
        record_errors: The records at fault, where single records are.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[RecordIssue, ...] = ()
    ) -> None:
        super().__init__(code, message)
        self.args: tuple[object, ...] = (code, message, record_errors)
        self.record_errors = record_errors


class ReadError(LogError):
    """The log cannot be read where that was asked."""


class StorageLockedError(KafkaError):
    """Another process, or another broker of this one, works on the data folder.

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
    """The data folder belongs to another cluster or node, or is not readable as such."""
