"""Encodes values of state: layout byte, checksum, type tag, MessagePack.

The checksum covers the key too, so that a flipped bit on a disk is an error and not another value.
The tag identifies values of an earlier type, which a declared migration converts; without one they
are refused. A value is checked when it is set: if it were refused only when it is read, every later
record of its key would fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from crc32c import crc32c

from onceflow.processors.errors import (
    DeclarationError,
    StateCorruptedError,
    StateTypeError,
    StateValueError,
)
from onceflow.processors.models import from_msgpack
from onceflow.processors.state.type_text import type_text
from onceflow.sdk.serde import model_to_mapping

LAYOUT: Final = b"\x02"
"""First byte of every stored value. After it come 4 bytes of CRC-32C over the key and the rest,
2 bytes for the type, and the value as MessagePack."""

_CRC_AT: Final = 1
_TAG_AT: Final = 5
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Migration:
    """Converts stored values of a state whose type has changed.

    A value is converted when it is read, and stored in the new type at the next change of its key.

    With ``version`` the schema of a state has numbers: 1 is the first one, and the state has one
    more than its latest migration. Each migration then gives the next version, so that older values
    go through several of them; and a type may stay while its meaning changes, such as from cents
    to euros. Keep the latest migration declared, as it tells the state's version.

    Attributes:
        from_type: The earlier annotation.
        convert: Converts a value of the earlier type to the next one; None decodes the stored
            values as the next type.
        version: The version that it converts; None for types that differ by themselves,
            each of which is converted to the state's.
    """

    from_type: object
    convert: Callable[[Any], object] | None = None
    version: int | None = None

    def __post_init__(self) -> None:
        if self.version is not None and self.version < 1:
            raise DeclarationError(f"version={self.version!r}: versions are counted from 1")
        if self.convert is not None and not callable(self.convert):
            raise DeclarationError(f"convert={self.convert!r}: must be a function, or None")


def schema_text(kind: object, what: str, version: int | None = None) -> str:
    """Return the structure of a type as text, with the version of the schema behind the first.

    Args:
        kind: An annotation that msgspec supports.
        what: Name of the state, for messages.
        version: Number of the schema; None for one without.

    Raises:
        DeclarationError: The type cannot be decoded.
    """
    text = type_text(kind, what)
    return text if version in (None, 1) else f"{text} (version {version})"


def _check_versions(migrations: Sequence[Migration], what: str) -> None:
    """Refuse versions that do not lead from each to the next.

    Raises:
        DeclarationError: A version is missing, is given twice, or some have none.
    """
    versions = sorted(m.version for m in migrations if m.version is not None)
    if not versions:
        return
    if len(versions) < len(migrations):
        raise DeclarationError(f"{what}: give each of its migrations a version=, or none")
    if versions != list(range(versions[0], versions[0] + len(versions))):
        raise DeclarationError(
            f"{what}: its migrations are from the versions {', '.join(map(str, versions))}; each "
            "leads to the next one, so declare each once and leave out none between"
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """One migration at work.

    Attributes:
        decode: Decodes values of the earlier type.
        convert: See ``Migration``.
        following: The migration of the next version; None when the state's type is reached.
    """

    decode: Callable[[bytes], object]
    convert: Callable[[Any], object] | None
    following: _Step | None


class ValueCodec:
    """Encodes, decodes and checks the values of one state.

    Args:
        kind: The annotated type.
        what: Name of the state, for messages.
        migrations: For stored values of earlier types.

    Attributes:
        what: Name of the state, for messages.
        text: The structure of the type; see ``schema_text``.
        earlier: Those that migrations convert.
        is_atom: Whether values are numbers, text or bytes: they cannot be changed in place, so
            the open unit keeps them unencoded, and encodes them once before the commit.
        is_sized: Whether kept values have a length.

    Raises:
        DeclarationError: msgspec does not support a type.
    """

    __slots__ = (
        "_atom",
        "_decode",
        "_earlier",
        "_encode",
        "_lead",
        "earlier",
        "is_atom",
        "is_sized",
        "text",
        "what",
    )

    def __init__(self, kind: object, what: str, migrations: Sequence[Migration] = ()) -> None:
        self.what: str = what
        _check_versions(migrations, what)
        latest = max((m.version or 0 for m in migrations), default=0)
        self.text: str = schema_text(kind, what, latest + 1)
        self.earlier: tuple[str, ...] = tuple(
            schema_text(m.from_type, what, m.version) for m in migrations
        )
        self._encode = msgspec.msgpack.Encoder(enc_hook=model_to_mapping).encode
        self._decode = _decoder(kind, what)
        self._atom = kind if kind in (int, float, str, bytes, bool) else None
        self.is_atom: bool = self._atom is not None
        self.is_sized: bool = self._atom in (None, str, bytes)
        self._lead = _tag(self.text)
        self._earlier: dict[bytes, _Step] = {}
        step: _Step | None = None
        # The latest version first: each of the others needs the next one.
        for m in sorted(migrations, key=lambda each: each.version or 0, reverse=True):
            following = step if m.version is not None else None
            step = _Step(_decoder(m.from_type, what), m.convert, following)
            self._earlier[_tag(schema_text(m.from_type, what, m.version))] = step
        if len({self._lead, *self._earlier}) <= len(migrations):
            raise DeclarationError(
                f"{what}: two of its types look the same; leave out the migration from the "
                "state's own type, or give each a version="
            )

    @property
    def tags(self) -> frozenset[bytes]:
        """Tags of the types whose stored values can be read."""
        return frozenset({self._lead, *self._earlier})

    def keep(self, value: object) -> object:
        """Check a value that a handler sets.

        Returns:
            What the open unit keeps: an atom itself, or else the value's MessagePack, so that
            later changes of the object have no effect.

        Raises:
            StateValueError: The value does not have the state's type.
        """
        kind = type(value)
        if kind is self._atom:
            if kind is int:
                if _INT_MIN <= cast(int, value) <= _INT_MAX:
                    return value
            elif kind is not str or cast(str, value).isascii():
                return value
        try:
            payload = self._encode(value)
            checked = self._decode(payload)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise StateValueError(
                f"{self.what} cannot hold {_shown(value)}: {error}; set a value of its type, "
                "or declare another type"
            ) from error
        return checked if self.is_atom else payload

    def open(self, kept: object) -> object:
        """Return the value of a result of ``keep``."""
        return kept if self.is_atom else self._decode(cast(bytes, kept))

    def encode(self, key: bytes, kept: object) -> bytes:
        """Return the stored bytes of a result of ``keep``."""
        body = self._lead + (self._encode(kept) if self.is_atom else cast(bytes, kept))
        return LAYOUT + crc32c(key + body).to_bytes(4) + body

    def decode(self, key: bytes, data: bytes) -> object:
        """Return the value of stored bytes.

        Raises:
            StateCorruptedError: The bytes are damaged.
            StateTypeError: They have another type, and no migration from it is declared.
        """
        body = data[_TAG_AT:]
        if data[:1] != LAYOUT or crc32c(key + body).to_bytes(4) != data[_CRC_AT:_TAG_AT]:
            raise StateCorruptedError(
                f"{self.what}, key {key[:100]!r}: stored bytes {data[:32]!r} are damaged or of an "
                "unknown layout"
            )
        if body[:2] == self._lead:
            try:
                return self._decode(body[2:])
            except msgspec.MsgspecError as error:
                raise StateTypeError(f"{self.what}, key {key[:100]!r}: {error}") from error
        return self._migrate(key, body)

    def _migrate(self, key: bytes, body: bytes) -> object:
        found = self._earlier.get(body[:2])
        if found is None:
            raise StateTypeError(
                f"{self.what}, key {key[:100]!r}: the stored value does not have the type "
                f"{self.text}; declare a Migration from the earlier type"
            )
        step: _Step | None = found
        payload = body[2:]
        try:
            while step is not None:
                if step.convert is not None:
                    payload = self._encode(step.convert(step.decode(payload)))
                step = step.following
            return self._decode(payload)
        except Exception as error:
            raise StateTypeError(
                f"{self.what}, key {key[:100]!r}: its migration failed: {error}"
            ) from error


def plain_value(key: bytes, data: bytes) -> object:
    """Return a stored value as MessagePack has it, for readers that do not know its type.

    Args:
        key: Its key within the store.
        data: The stored bytes.

    Raises:
        StateCorruptedError: They are damaged, or no value.
    """
    body = data[_TAG_AT:]
    if data[:1] != LAYOUT or crc32c(key + body).to_bytes(4) != data[_CRC_AT:_TAG_AT]:
        raise StateCorruptedError(f"key {key[:100]!r}: damaged, or no value: {data[:32]!r}")
    try:
        found: object = msgspec.msgpack.decode(body[2:])
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(f"key {key[:100]!r}: {error}") from error
    return found


def _decoder(kind: object, what: str) -> Callable[[bytes], object]:
    try:
        return msgspec.msgpack.Decoder(cast(type[object], kind), dec_hook=from_msgpack).decode
    except TypeError as error:
        shown = inspect.formatannotation(kind)
        raise DeclarationError(f"{what}: msgspec cannot decode {shown}: {error}") from error


def _tag(text: str) -> bytes:
    return (crc32c(text.encode()) & 0xFFFF).to_bytes(2)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the user's __repr__ may raise any error
        text = "a value"
    return f"{text[:80]} ({inspect.formatannotation(type(value))})"
