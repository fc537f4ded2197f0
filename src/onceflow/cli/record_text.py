"""Records as text: JSON lines that lose nothing, templates, lines with a key.

Bytes that are UTF-8 become text; others become ``{"base64": "..."}``. A line that ``consume
--json`` prints is one that ``produce --format json`` takes.
"""

from __future__ import annotations

import base64
import binascii
import json
import string
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from onceflow.cli.base import Failure

if TYPE_CHECKING:
    from onceflow.sdk import ConsumerRecord

FIELDS: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp_ms",
    "time",
    "key",
    "value",
    "headers",
)
"""What a template may name."""
_INPUT: Final = frozenset(FIELDS) - {"time"}


class Given(NamedTuple):
    """A record to produce.

    Attributes:
        value: Its value, None for a tombstone.
        key: Its key, or None.
        headers: Names and values, or None where the line says nothing of them.
        partition: Its partition, or None.
        timestamp_ms: Its timestamp, or None.
    """

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class Decoded(NamedTuple):
    """A key or value that a schema made JSON of."""

    found: object


def json_line(record: ConsumerRecord[object, object], key: object, value: object) -> bytes:
    """Return a record as one line of JSON.

    Args:
        record: What was read.
        key: Its key, in bytes or decoded.
        value: Its value, likewise.
    """
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": as_text(key),
        "value": as_text(value),
        "headers": [[name, as_text(value)] for name, value in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def as_text(data: object) -> object:
    """Return bytes as text, or as ``{"base64": ...}`` if they are not UTF-8; None stays.

    Args:
        data: A key or value.
    """
    if data is None:
        return None
    if isinstance(data, Decoded):
        return data.found
    assert isinstance(data, bytes), "records are read without deserializers"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def template(text: str) -> Callable[[ConsumerRecord[object, object], object, object], bytes]:
    r"""Return a function that writes records by a template.

    Args:
        text: Text with fields such as ``{key}``; ``\t`` and ``\n`` are tab and end of line.

    Raises:
        BadParameter: It names an unknown field, or its braces do not match.
    """
    text = text.replace("\\t", "\t").replace("\\n", "\n")
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise click.BadParameter(f"--format {text!r}: {error}") from None
    for _, name, *_ in parts:
        if name is not None and name not in FIELDS:
            fields = ", ".join(f"{{{field}}}" for field in FIELDS)
            raise click.BadParameter(f"--format: {{{name}}} is unknown; there are {fields}")

    def write(record: ConsumerRecord[object, object], key: object, value: object) -> bytes:
        out = bytearray()
        values = _fields(record, key, value)
        for literal, name, *_ in parts:
            out += literal.encode()
            if name is not None:
                out += values[name]
        return bytes(out) + b"\n"

    return write


def _fields(
    record: ConsumerRecord[object, object], key: object, value: object
) -> Mapping[str, bytes]:
    """The bytes of each field; a template does not change those of key and value."""
    seconds, milliseconds = divmod(record.timestamp_ms, 1000)
    at = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    headers = b",".join(name.encode() + b"=" + (data or b"") for name, data in record.headers)
    return {
        "topic": record.topic.encode(),
        "partition": b"%d" % record.partition,
        "offset": b"%d" % record.offset,
        "timestamp_ms": b"%d" % record.timestamp_ms,
        "time": f"{at}.{milliseconds:03}Z".encode(),
        "key": _bytes(key),
        "value": _bytes(value),
        "headers": headers,
    }


def _bytes(data: object) -> bytes:
    if isinstance(data, Decoded):
        return json.dumps(data.found, ensure_ascii=False, allow_nan=False).encode()
    assert data is None or isinstance(data, bytes), "records are read without deserializers"
    return data or b""


def plain_line(line: bytes, key_delimiter: bytes | None, place: str) -> Given:
    """Return the record of a line of text.

    Args:
        line: Without its end.
        key_delimiter: What ends the key; None where lines have no key.
        place: File and line, for the message.

    Raises:
        Failure: The line has no delimiter.
    """
    if key_delimiter is None:
        return Given(line)
    key, found, value = line.partition(key_delimiter)
    if not found:
        shown = key_delimiter.decode(errors="replace")
        raise Failure(f"{place}: no key delimiter {shown!r} in this line", 2)
    return Given(value, key)


def read_json_line(line: bytes, place: str, typed: Collection[str] = ()) -> Given:
    """Return the record of a line of JSON.

    Args:
        line: An object with value, and perhaps key, headers, partition and timestamp_ms. Topic and
            offset are not used.
        place: File and line, for the message.
        typed: Which of key and value are any JSON, of which a schema makes bytes later.

    Raises:
        Failure: It is no such object; names field and remedy.
    """
    try:
        found = json.loads(line)
    except ValueError as error:
        raise Failure(f"{place}: not JSON: {error}", 2) from None
    if not isinstance(found, dict) or "value" not in found:
        raise Failure(f'{place}: must be an object with a "value"; null is a tombstone', 2)
    if unknown := found.keys() - _INPUT:
        raise Failure(f"{place}: {min(unknown)!r} is unknown; there are {sorted(_INPUT)}", 2)
    headers = found.get("headers", [])
    if not isinstance(headers, list) or not all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in headers
    ):
        raise Failure(f"{place}: headers: must be a list of [name, value] pairs", 2)
    value, key = (
        _json_text(found.get(name), name, place)
        if name in typed
        else _read(found.get(name), name, place)
        for name in ("value", "key")
    )
    return Given(
        value,
        key,
        [(name, _read(value, f"headers: {name}", place)) for name, value in headers],
        _whole(found.get("partition"), "partition", place),
        _whole(found.get("timestamp_ms"), "timestamp_ms", place),
    )


def _json_text(value: object, field: str, place: str) -> bytes | None:
    if value is None:
        return None
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError as error:
        raise Failure(f"{place}: {field}: not JSON: {error}", 2) from None


def _read(value: object, field: str, place: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Failure(f'{place}: {field}: not UTF-8; write {{"base64": "..."}}', 2) from None
    if isinstance(value, dict) and set(value) == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Failure(f"{place}: {field}: not base64", 2) from None
    raise Failure(f'{place}: {field}: must be text, null or {{"base64": "..."}}', 2)


def _whole(value: object, field: str, place: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Failure(f"{place}: {field}={value!r}: must be a whole number from 0", 2)
    return value
