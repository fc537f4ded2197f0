"""Errors of clients as messages with the next step, and as exit status.

The exit status is by kind of error, so that a script need not read messages; the table in
``docs/command-line.md`` explains the numbers.
"""

from __future__ import annotations

from typing import Final

from onceflow.cli.base import Failure
from onceflow.sdk import errors
from onceflow.sdk.errors import ConfigError, KafkaError

FAILED: Final = 1
WRONG_CALL: Final = 2
NOT_FOUND: Final = 3
UNREACHABLE: Final = 4
NOT_ALLOWED: Final = 5
NEEDS_CONSENT: Final = 6

NOT_AUTHORIZED: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailedError,
)
"""The broker refused because this user needs an ACL."""

_KINDS: Final[tuple[tuple[tuple[type[KafkaError], ...], int, str], ...]] = (
    ((ConfigError,), WRONG_CALL, ""),
    (
        (errors.UnknownTopicOrPartitionError, errors.UnknownTopicIdError),
        NOT_FOUND,
        "onceflow topics list shows the topics",
    ),
    ((errors.GroupIdNotFoundError,), NOT_FOUND, "onceflow groups list shows the groups"),
    ((errors.TransactionalIdNotFoundError,), NOT_FOUND, "onceflow txns list shows those in use"),
    ((errors.ResourceNotFoundError, errors.BrokerIdNotRegisteredError), NOT_FOUND, ""),
    (
        (errors.SaslAuthenticationFailedError, errors.SslAuthenticationError),
        NOT_ALLOWED,
        "check security settings in --config FILE, --profile NAME or ONCEFLOW_* variables",
    ),
    (NOT_AUTHORIZED, NOT_ALLOWED, "this user needs an ACL for it"),
    (
        (errors.NoBrokersAvailableError, errors.BrokerConnectionError),
        UNREACHABLE,
        "check the address (--bootstrap HOST:PORT), and that a broker listens there",
    ),
    (
        (errors.RequestTimedOutError, errors.DeliveryTimeoutError),
        UNREACHABLE,
        "the brokers may be overloaded; try again",
    ),
    (
        (errors.UnknownMemberIdError, errors.NonEmptyGroupError),
        FAILED,
        "stop the group's members first; onceflow groups describe GROUP shows them",
    ),
)


def failure_of(error: Exception) -> Failure | None:
    """Return the message and exit status for an error; None if it is not a client's.

    Args:
        error: What a command raised.
    """
    if isinstance(error, TimeoutError):
        return Failure(f"{error}\nNext: the brokers did not answer in time; try again", UNREACHABLE)
    if not isinstance(error, KafkaError):
        return None
    for classes, code, step in _KINDS:
        if isinstance(error, classes):
            return Failure(str(error) + (f"\nNext: {step}" if step else ""), code)
    return Failure(f"{type(error).__name__}: {error}", FAILED)
