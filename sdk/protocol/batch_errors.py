"""The error of a record batch that breaks Kafka's format or rules.

It stands apart from ``batch_header``, which may be compiled: pickling a compiled exception loses
its notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onceflow.sdk.errors import RecordError, RemoteProtocolError
from onceflow.sdk.protocol.error_codes import ErrorCode


class RecordIssue(NamedTuple):
    """What is wrong with one record of a refused batch (Produce answers of version 8 and up).

    Attributes:
        batch_index: Index of the record in its batch.
        message: Sentence for the producer's user.
    """

    batch_index: int
    message: str


class InvalidBatchError(RecordError, RemoteProtocolError):
    """A record batch breaks Kafka's format or rules, and is refused as a whole.

    Attributes:
        code: Error that a broker answers for it.
        record_issues: The records at fault, where the rule is about single records.
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode = ErrorCode.INVALID_RECORD,
        record_issues: Sequence[RecordIssue] = (),
    ) -> None:
        super().__init__(message, code, record_issues)
        self.code = code
        self.record_issues: tuple[RecordIssue, ...] = tuple(record_issues)

    def __str__(self) -> str:
        return str(self.args[0])
