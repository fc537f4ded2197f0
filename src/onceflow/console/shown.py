"""Keys, values and headers as a page can show them: text, JSON, MessagePack or base64.

Bytes do not tell their format, so the first of these that fits is taken. A long value is cut, and
the page gets its length.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.serde import REGISTRY_PREFIX_BYTES, to_json

SHOWN_BYTES_MAX: Final = 16_384
"""Of a longer key or value only the first bytes are shown."""

SCHEMA_FORM: Final = "schema "
"""Format of bytes that begin with the id of a schema, which follows."""


def shown(data: bytes | None) -> dict[str, object] | None:
    """Return bytes for a page: ``format``, ``text``, ``bytes`` and whether they were ``cut``.

    Args:
        data: A key, value or header; None stays None.
    """
    if data is None:
        return None
    head = data[:SHOWN_BYTES_MAX]
    form, text = _as_text(head, is_whole=len(head) == len(data))
    return {"format": form, "text": text, "bytes": len(data), "cut": len(head) < len(data)}


def _as_text(data: bytes, *, is_whole: bool) -> tuple[str, str]:
    if is_whole:
        if data[:1] in b'{["' and (found := _decoded(data, msgspec.json.decode)) is not _NONE:
            return "json", as_json(found)
        found = _decoded(data, msgspec.msgpack.decode)
        if isinstance(found, dict | list):
            return "msgpack", as_json(found)
    if len(data) >= REGISTRY_PREFIX_BYTES and data[0] == 0:
        number = int.from_bytes(data[1:REGISTRY_PREFIX_BYTES], "big")
        rest = base64.b64encode(data[REGISTRY_PREFIX_BYTES:]).decode()
        return f"{SCHEMA_FORM}{number}", rest
    try:
        # The cut may have gone through the bytes of one character.
        text = data.decode() if is_whole else data.decode(errors="ignore")
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    if not is_whole and len(text.encode()) < len(data) - 3:
        return "base64", base64.b64encode(data).decode()
    return "text", text


_NONE: Final = object()


def _decoded(data: bytes, decode: object) -> object:
    try:
        return decode(data)  # type: ignore[operator]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return _NONE


def as_json(value: object) -> str:
    """JSON for reading; bytes inside become base64, as msgspec writes them.

    Args:
        value: What JSON can hold, as a rule.
    """
    try:
        return msgspec.json.format(to_json(value), indent=2).decode()
    except SerializationError:  # NaN, or a key that JSON has no form for.
        return repr(value)
