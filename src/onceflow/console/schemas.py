"""Shows keys and values with schemas of a registry as JSON.

The page has such a value already as the schema's id and base64. Where a registry is known, the
bytes are read with the schema; one that cannot be read stays as it is, with the reason.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import TypeAlias

from onceflow.console.messages import Message
from onceflow.console.shown import SCHEMA_FORM, as_json
from onceflow.sdk.errors import KafkaError

Decode: TypeAlias = Callable[[bytes, str, str], object]
"""Reads bytes of a topic's key or value with their schema."""


def decode_all(messages: Iterable[Message], topic: str, decode: Decode) -> None:
    """Put what the schemas make of keys and values in their place.

    Args:
        messages: Of one page.
        topic: Their topic.
        decode: Reads them; may ask the registry.
    """
    for message in messages:
        for field, part in (("key", message.key), ("value", message.value)):
            if part is not None:
                _decode(part, topic, field, decode)


def _decode(part: dict[str, object], topic: str, field: str, decode: Decode) -> None:
    form = str(part["format"])
    number = form.removeprefix(SCHEMA_FORM)
    if form == number or part["cut"]:
        return
    data = b"\0" + int(number).to_bytes(4, "big") + base64.b64decode(str(part["text"]))
    try:
        part["text"] = as_json(decode(data, topic, field))
    except (KafkaError, ValueError) as error:
        part["problem"] = str(error)
