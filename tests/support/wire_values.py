"""Random messages for any declaration and version, from a seeded generator.

Values stay within what the foreign encoders can express: error codes are known ones, times are
after 1970. Everything else takes edge values often.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.schema import Field, Message

_BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
_TEXTS = ("", "a", "topic-1", "ünïcode ✓", "x" * 126, "y" * 127, "z" * 300)


def all_messages() -> list[type[Message]]:
    """Every request and response of the registry, in the order of the keys."""
    return [message_type for key in sorted(API) for message_type in API[key]]


def all_message_versions() -> Iterator[tuple[type[Message], int]]:
    """Every message with every one of its versions."""
    for message_type in all_messages():
        first, last = message_type.versions
        for version in range(first, last + 1):
            yield message_type, version


per_message = pytest.mark.parametrize(
    "message_type", all_messages(), ids=lambda message_type: message_type.__name__
)
"""Makes a test one for each message."""


def each_version(check: Callable[..., None]) -> Callable[..., None]:
    """A test of a message in one version becomes one of the message in all of its versions.

    A failure names the version.
    """

    signature = inspect.signature(check)
    shown = signature.replace(
        parameters=[value for name, value in signature.parameters.items() if name != "version"]
    )

    @functools.wraps(check)
    def check_all(*values: object, **named: object) -> None:
        arguments = shown.bind(*values, **named).arguments
        message_type: type[Message] = arguments["message_type"]
        first, last = message_type.versions
        for version in range(first, last + 1):
            try:
                check(**arguments, version=version)
            except BaseException as error:
                error.add_note(f"in version {version} of {message_type.__name__}")
                raise

    check_all.__signature__ = shown  # type: ignore[attr-defined]
    return check_all


def random_message(
    message_type: type[Message],
    version: int,
    rng: random.Random,
    *,
    depth: int = 0,
    unknown_tags: bool = False,
    flexible: bool | None = None,
) -> Message:
    """Make a message whose fields hold random values, as far as the version has them."""
    if flexible is None:
        first = message_type.flexible_from
        flexible = first is not None and version >= first
    values: dict[str, object] = {}
    for name, field in message_type.fields().items():
        if not field.is_present(version):
            values[name] = field.absent_value
        elif field.tag is not None and rng.random() < 0.5:
            values[name] = field.default
        else:
            values[name] = _value(name, field, version, rng, depth, unknown_tags, flexible)
    if unknown_tags and flexible and rng.random() < 0.3:
        values["unknown_tagged_fields"] = {
            rng.choice((40, 127, 128, 2**31)): rng.randbytes(rng.choice((0, 3, 200)))
        }
    return message_type(**values)


def _value(
    name: str,
    field: Field,
    version: int,
    rng: random.Random,
    depth: int,
    unknown_tags: bool,
    flexible: bool,
) -> object:
    if field.is_nullable(version) and rng.random() < 0.25:
        return None
    if field.kind == "array":
        assert field.element is not None
        count = rng.choice((0, 1, 2, 3)) if depth or rng.random() < 0.95 else 130
        return [
            _value(name, field.element, version, rng, depth + 1, unknown_tags, flexible)
            for _ in range(count)
        ]
    if field.kind == "struct":
        assert field.struct_type is not None
        return random_message(
            field.struct_type,
            version,
            rng,
            depth=depth + 1,
            unknown_tags=unknown_tags,
            flexible=flexible,
        )
    return _primitive(name, field.kind, rng)


def _primitive(name: str, kind: str, rng: random.Random) -> object:
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    if kind == "uuid":
        return UUID(int=rng.choice((0, 1, rng.getrandbits(128))))
    if kind == "string":
        return rng.choice(_TEXTS)
    if kind in ("bytes", "records"):
        return rng.randbytes(rng.choice((0, 1, 20, 126, 127, 128, 200)))
    if name.endswith("error_code"):
        return rng.randrange(-1, 134)
    if kind == "int64" and (name.endswith("_ms") or "timestamp" in name):
        return rng.randrange(2**41)
    bits = _BITS[kind]
    lowest = 0 if kind.startswith("u") else -(2 ** (bits - 1))
    highest = lowest + 2**bits - 1
    return rng.choice((lowest, highest, 0, 1, rng.randint(lowest, highest), rng.randrange(100)))
