"""Converts messages to plain values for JSON: bytes to their size, records to their count."""

from __future__ import annotations

import uuid

from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    iter_batch_headers,
)
from onceflow.sdk.protocol.schema import Message

TEXT_MAX = 1_000
"""Longer strings are cut."""


def plain_message(message: Message, api_version: int) -> dict[str, object]:
    """Return a message's fields by name.

    Args:
        message: A request, an answer, or a struct of one.
        api_version: Its version; fields that it lacks are left out.
    """
    return {
        name: _plain(getattr(message, name), api_version, field.kind)
        for name, field in type(message).fields().items()
        if name != "unknown_tagged_fields" and field.is_present(api_version)
    }


def _plain(value: object, api_version: int, kind: str) -> object:
    if isinstance(value, Message):
        return plain_message(value, api_version)
    if isinstance(value, list):
        return [_plain(element, api_version, "") for element in value]
    if isinstance(value, bytes | bytearray | memoryview):
        sized: dict[str, object] = {"bytes": len(value)}
        if kind == "records":
            sized["records"] = _record_count(bytes(value))
        return sized
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, str):
        return value[:TEXT_MAX]
    return value


def _record_count(data: bytes) -> int | None:
    """Return the number of records in batches; None if the batches are damaged."""
    try:
        return sum(header.records_count for _, header in iter_batch_headers(data))
    except InvalidBatchError:
        return None
