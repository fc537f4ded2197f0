"""How values of state are stored: layout byte, checksum, type, MessagePack.

The checksum covers the key too, so that a flipped bit on a disk is an error and not another value.
The type's tag tells values of an earlier type apart: they are converted by a declared migration,
or refused. Values are checked when they are set, because what is refused only when it is read
would make every later record of its key fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, cast

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
"""First byte of every stored value. Behind it: 4 bytes of CRC-32C over the key and all that
follows, 2 bytes for the type, the value as MessagePack."""

_CRC_AT: Final = 1
_TAG_AT: Final = 5
_VALUE_AT: Final = 7
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Migration:
    """Lets a state go on whose type has changed.

    Stored values of the earlier type are converted when they are read, and written as the new
    type with the next change of their key.

    Attributes:
        from_type: The earlier type, as it was annotated.
        convert: Makes a value of the new type of one of the earlier type; None reads the stored
            values as the new type, as they are.
    """

    from_type: object
    convert: Callable[[object], object] | None = None

    def __post_init__(self) -> None:
        if self.convert is not None and not callable(self.convert):
            raise DeclarationError(f"convert={self.convert!r}: must be a function, or None")


class ValueCodec:
    """Encodes, decodes and checks the values of one state.

    Args:
        kind: The annotated type.
        what: Name of the state, for messages.
        migrations: For stored values of earlier types.

    Attributes:
        what: Name of the state, for messages.
        text: The structure of the type; see ``type_text``.
        is_atom: Whether values are numbers, text or bytes: nobody can change them in place, so
            they are kept as they are and encoded once, before the commit.
        is_sized: Whether what is kept of a value has a length that counts.

    Raises:
        DeclarationError: msgspec does not know a type.
    """

    __slots__ = (
        "_atom",
        "_decode",
        "_earlier",
        "_encode",
        "_lead",
        "is_atom",
        "is_sized",
        "text",
        "what",
    )

    def __init__(self, kind: object, what: str, migrations: Sequence[Migration] = ()) -> None:
        self.what: str = what
        self.text: str = type_text(kind, what)
        self._encode = msgspec.msgpack.Encoder(enc_hook=model_to_mapping).encode
        self._decode = _decoder(kind, what)
        self._atom = kind if kind in (int, float, str, bytes, bool) else None
        self.is_atom: bool = self._atom is not None
        self.is_sized: bool = self._atom in (None, str, bytes)
        self._lead = _tag(self.text)
        self._earlier = {
            _tag(type_text(m.from_type, what)): (_decoder(m.from_type, what), m) for m in migrations
        }

    @property
    def tags(self) -> frozenset[bytes]:
        """The types whose stored values can be read."""
        return frozenset({self._lead, *self._earlier})

    def keep(self, value: object) -> object:
        """Check a value that is being set.

        Returns:
            What the open unit keeps of it: the value itself for an atom, else its MessagePack, so
            that later changes of the object do not count.

        Raises:
            StateValueError: It is no value of the state's type.
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
                "or declare another one"
            ) from error
        return checked if self.is_atom else payload

    def open(self, kept: object) -> object:
        """The value of what ``keep`` gave."""
        return kept if self.is_atom else self._decode(cast(bytes, kept))

    def encode(self, key: bytes, kept: object) -> bytes:
        """The stored form of what ``keep`` gave."""
        body = self._lead + (self._encode(kept) if self.is_atom else cast(bytes, kept))
        return LAYOUT + crc32c(key + body).to_bytes(4) + body

    def decode(self, key: bytes, data: bytes) -> object:
        """The value.

        Raises:
            StateCorruptedError: The bytes are not what was written.
            StateTypeError: They are of a type without a migration.
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
                f"{self.what}, key {key[:100]!r}: the stored value is of another type than "
                f"{self.text}; declare a Migration from the earlier type"
            )
        decode, migration = found
        try:
            if migration.convert is None:
                return self._decode(body[2:])
            return self.open(self.keep(migration.convert(decode(body[2:]))))
        except Exception as error:
            raise StateTypeError(
                f"{self.what}, key {key[:100]!r}: its migration failed: {error}"
            ) from error


def _decoder(kind: object, what: str) -> Callable[[bytes], object]:
    try:
        return msgspec.msgpack.Decoder(cast(type[object], kind), dec_hook=from_msgpack).decode
    except TypeError as error:
        shown = inspect.formatannotation(kind)
        raise DeclarationError(f"{what}: no codec for the type {shown}: {error}") from error


def _tag(text: str) -> bytes:
    return (crc32c(text.encode()) & 0xFFFF).to_bytes(2)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value's own repr is not ours
        text = "a value"
    return f"{text[:80]} ({inspect.formatannotation(type(value))})"
