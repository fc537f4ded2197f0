"""Checks of a record that need no broker: topic name, headers, timestamp.

A bad name must fail at once and by name, not as a topic that never appears (KIP-4 rules; one bad
name must not stop the others). Sizes, partitions and topics that exist are the producer's to check.
"""

from __future__ import annotations

from collections.abc import Iterable

from onceflow.sdk.errors import InvalidTopicError, SerializationError
from onceflow.sdk.model.partitions import Headers
from onceflow.sdk.model.topic_names import topic_name_fault
from onceflow.sdk.model.whole_numbers import is_whole

RecordHeaders = list[tuple[str, bytes | None]]
NO_HEADERS: RecordHeaders = []
MAX_TIMESTAMP_MS = 2**63 - 1


def check_topic_name(name: str) -> None:
    """Refuse a name that no broker takes.

    Args:
        name: Topic name.

    Raises:
        InvalidTopicError: It is empty, too long, a dot or two, or has other characters than
            ``[a-zA-Z0-9._-]``.
    """
    fault = topic_name_fault(name) if isinstance(name, str) else "it must be a string"
    if fault is not None:
        raise InvalidTopicError(f"topic name {name!r} is not allowed: {fault}")


def to_headers(headers: Headers) -> RecordHeaders:
    """Return headers in the form that the batch builder takes.

    Raises:
        SerializationError: A header is not a pair of a string and bytes or None.
    """
    if not headers:
        return NO_HEADERS
    items = headers.items() if isinstance(headers, dict) else headers
    if not isinstance(items, Iterable):
        raise SerializationError(f"headers must be pairs of name and bytes, not {items!r}")
    found: RecordHeaders = []
    for item in items:
        try:
            name, content = item
        except (TypeError, ValueError):
            raise SerializationError(
                f"a header must be a pair of name and bytes, not {item!r}"
            ) from None
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            wrong = content if isinstance(name, str) else name
            hint = ", as text.encode()" if isinstance(content, str) else ""
            raise SerializationError(
                f"header {name!r} must map text to bytes or None, not {type(wrong).__name__}{hint}"
            )
        found.append((name, content))
    return found


def check_timestamp(timestamp_ms: object) -> None:
    """Refuse wrong timestamps, as Kafka's own producer does.

    Args:
        timestamp_ms: What the user gave.

    Raises:
        SerializationError: It is negative, or not a whole number of 63 bits.
    """
    if type(timestamp_ms) is int and 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        return
    if not is_whole(timestamp_ms) or not 0 <= timestamp_ms.__index__() <= MAX_TIMESTAMP_MS:
        raise SerializationError(
            f"timestamp_ms={timestamp_ms!r}: must be milliseconds since 1970 as a whole number, "
            "not negative; leave it out for the present time"
        )
