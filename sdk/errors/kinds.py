"""The bases of onceflow's errors: how to react, and what a broker's answer carries.

`onceflow.sdk.errors` is where users import them from. What belongs to which kind stands with each
error; nothing here decides when an error is raised or retried.
"""

from __future__ import annotations

import re
from typing import ClassVar


class KafkaError(Exception):
    """Base of every error that onceflow raises on purpose.

    Attributes:
        retriable: True if the same call may succeed later without any change.
        place: Topic, partition and offset that could not be read, where it is about one partition.
    """

    retriable: ClassVar[bool] = False
    place: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        return super().__str__() or self.sentence()

    @classmethod
    def sentence(cls) -> str:
        """The general cause and what to do next: the first line of the class's docstring.

        Under ``python -OO``, which drops docstrings, it is the class's name.
        """
        return (cls.__doc__ or cls.__name__).strip().partition("\n")[0]


class RetriableError(KafkaError):
    """The same call may succeed later without any change."""

    retriable = True


class AbortableError(KafkaError):
    """The open transaction must be aborted; the client can be used after that (KIP-1050)."""


class FatalError(KafkaError):
    """This client cannot continue; close it."""


class RecordError(KafkaError):
    """The record or its batch is at fault; sending it again unchanged fails again."""


class BrokerError(KafkaError):
    """An error that a broker answered, by its code.

    Some are also raised where the client itself finds the same condition (a request timed out,
    a version is not supported).

    Attributes:
        code: Kafka's number for the error.
        name: Kafka's name for the error, such as ``NOT_COORDINATOR``.
        message: What the broker added, or an empty string.
        by_code: Every subclass under its code.
    """

    code: int = -1
    name: str = "UNKNOWN_SERVER_ERROR"
    by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init_subclass__(cls, *, code: int | None = None, name: str | None = None) -> None:
        super().__init_subclass__()
        if code is None:  # A subclass of a table class keeps that class's place in the table.
            return
        cls.code = code
        cls.name = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__[:-5]).upper()
        cls.by_code[code] = cls

    def __init__(self, message: str = "") -> None:
        """Make the error.

        Args:
            message: What the broker said beyond the code.
        """
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        text = f"{self.name} ({self.code}): {self.sentence()}"
        return f"{text} [{self.message}]" if self.message else text


class UnlistedError(BrokerError):
    """The broker answered a code that this version of onceflow does not know."""

    def __init__(self, message: str = "", code: int = -1) -> None:
        """Make the error for a code outside the table.

        Args:
            message: What the broker said beyond the code.
            code: The number that the broker answered.
        """
        super().__init__(message)
        self.args: tuple[object, ...] = (message, code)
        self.code = code
        self.name: str = f"CODE_{code}"
