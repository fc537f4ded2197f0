"""The language in which Kafka's messages are declared, and what every message can do.

A message is a class whose attributes are field specifiers with version ranges; both directions of
the codec come from that one declaration:

    class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
        group_id: str = string()
        generation_id: int = int32()
        member_id: str = string()
        group_instance_id: str | None = string("3+", nullable="3+", default=None)

A struct is declared where it is used, and the message gives it a short name:

    class OffsetCommitRequest(Request, api_key=8, versions="2-9", flexible="8+"):
        class OffsetCommitRequestTopic(Struct):
            class OffsetCommitRequestPartition(Struct):
                ...
            name: str = string()
            partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)

        OffsetCommitRequestPartition = OffsetCommitRequestTopic.OffsetCommitRequestPartition
        group_id: str = string()
        topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)

Specifiers without `default` are required by the constructor, which takes keywords only. A range is
"2", "2-5" or "2+"; the first argument says in which versions the field is on the wire, `nullable`
where None is allowed, `tagged` (with `tag`) where it travels as a tagged field (KIP-482). A field
that a version lacks takes its default when read. Encoding a value other than the default into such
a version raises `LocalProtocolError`, unless the field is `ignorable`. A tagged field is left out
while it has its default. For a tagged struct, None as the default stands for "left out".

This module holds declarations and the methods of messages. How a class is turned into code for one
version is done by `onceflow.sdk.protocol.compiler`, which is loaded at the first use.
"""

from __future__ import annotations

import functools
import struct as _struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Self, TypedDict, Unpack, dataclass_transform

from onceflow.sdk.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersionError,
)
from onceflow.sdk.protocol.primitives import ZERO_UUID, Buffer, MalformedError

MAX_VALUES: Final = 4_000_000
"""How many values (fields of array elements, at least four for each) one message may hold, by
default; bounds memory."""

REQUIRED: Final = object()
"""Marks a field without a default."""

VersionRange = tuple[int, int]


class AbsentFieldError(LocalProtocolError):
    """A field is set that the version to be written does not have; leave it out.

    Attributes:
        field: Name of the field.
    """

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field: str = field

    def __str__(self) -> str:
        """Which field."""
        return f"{self.field} is set, but the version to be written has no such field"


Encoder = Callable[["Message", Callable[[Buffer], object]], None]
Decoder = Callable[[Buffer, int, int, list[int]], tuple[Any, int]]

NEVER: Final[VersionRange] = (0, -1)
"""A range that holds no version."""

_OPEN_END: Final = 0x7FFF


@functools.cache
def version_range(text: str) -> VersionRange:
    """Read "3", "3-7" or "3+" as (first, last); "" is a range that holds nothing."""
    if not text:
        return NEVER
    if text.endswith("+"):
        return int(text[:-1]), _OPEN_END
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class Field:
    """One field's declaration.

    Attributes:
        kind: Name of the wire type, such as ``int32`` or ``array``.
        versions: First and last version in which the field is on the wire.
        default: Value when a version lacks the field, or `REQUIRED`.
        nullable: Versions in which None is allowed.
        tag: Number of the tagged field, or None for a field in its place.
        ignorable: Whether a version that lacks the field may drop its value silently.
        element: For arrays, the declaration of one element.
        struct_type: For structs, the class.
    """

    __slots__ = (
        "default",
        "element",
        "ignorable",
        "kind",
        "nullable",
        "struct_type",
        "tag",
        "versions",
    )

    def __init__(
        self,
        kind: str,
        versions: str,
        default: Any = REQUIRED,
        nullable: str = "",
        tag: int | None = None,
        tagged: str = "",
        ignorable: bool = False,
        element: Field | None = None,
        struct_type: type[Message] | None = None,
    ) -> None:
        self.kind: str = kind
        self.versions: VersionRange = version_range(versions if tag is None else tagged)
        self.default: Any = default
        self.nullable: VersionRange = version_range(nullable)
        self.tag: int | None = tag
        self.ignorable: bool = ignorable
        self.element: Field | None = element
        self.struct_type: type[Message] | None = struct_type
        if (tag is None) != (not tagged):
            raise TypeError("tag= and tagged= belong together")
        if tag is not None and default is REQUIRED:
            raise TypeError("a tagged field needs a default")

    def is_present(self, version: int) -> bool:
        """Whether the field is on the wire in this version."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Whether None is allowed in this version."""
        return self.nullable[0] <= version <= self.nullable[1]

    @property
    def absent_value(self) -> Any:
        """What a reader finds in a version that lacks the field."""
        return _ZERO_VALUES[self.kind] if self.default is REQUIRED else self.default


_ZERO_VALUES: Final[dict[str, Any]] = {
    "boolean": False,
    "int8": 0,
    "int16": 0,
    "uint16": 0,
    "int32": 0,
    "uint32": 0,
    "int64": 0,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
    "array": [],
    "struct": None,
}


class FieldOptions(TypedDict, total=False):
    """Keyword arguments that every specifier takes; see the module's description."""

    default: Any
    nullable: str
    tag: int
    tagged: str
    ignorable: bool


def boolean(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A truth value in one byte."""
    return Field("boolean", versions, **options)


def int8(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A signed number of one byte."""
    return Field("int8", versions, **options)


def int16(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A signed number of two bytes."""
    return Field("int16", versions, **options)


def uint16(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """An unsigned number of two bytes."""
    return Field("uint16", versions, **options)


def int32(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A signed number of four bytes."""
    return Field("int32", versions, **options)


def uint32(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """An unsigned number of four bytes."""
    return Field("uint32", versions, **options)


def int64(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A signed number of eight bytes."""
    return Field("int64", versions, **options)


def float64(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """An IEEE 754 number of eight bytes."""
    return Field("float64", versions, **options)


def uuid(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A `uuid.UUID` in sixteen bytes."""
    return Field("uuid", versions, **options)


def string(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """Text in UTF-8, at most 32,767 bytes long."""
    return Field("string", versions, **options)


def bytes_(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """Opaque bytes, copied when read."""
    return Field("bytes", versions, **options)


def records(versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """Record batches: a memoryview into the message when read, never copied when written."""
    return Field("records", versions, **options)


def array(element: Any, versions: str = "0+", **options: Unpack[FieldOptions]) -> Any:
    """A list of structs (pass the class) or of primitives (pass a specifier such as `int32`)."""
    if isinstance(element, type):
        element = struct(element)
    elif not isinstance(element, Field):
        element = element()
    return Field("array", versions, element=element, **options)


def struct(
    struct_type: type[Message] | None, versions: str = "0+", **options: Unpack[FieldOptions]
) -> Any:
    """Another declared class in place."""
    return Field("struct", versions, struct_type=struct_type, **options)


def _first_construction(self: Message, **values: Any) -> None:
    """Stands in as a class's `__init__` until it is called: compiles the real one."""
    from onceflow.sdk.protocol.compiler import compile_constructor

    message_type = type(self)
    constructor = compile_constructor(message_type)
    message_type.__init__ = constructor  # type: ignore[method-assign]
    constructor(self, **values)


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        boolean,
        int8,
        int16,
        uint16,
        int32,
        uint32,
        int64,
        float64,
        uuid,
        string,
        bytes_,
        records,
        array,
        struct,
    ),
)
class MessageMeta(type):
    """Collects the field specifiers of a class and gives it slots instead."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        versions: str = "",
        flexible: str = "",
        api_key: int | None = None,
    ) -> MessageMeta:
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in fields:
            del namespace[key]
        inherited = getattr(bases[0], "_fields", {}) if bases else {}
        namespace["__slots__"] = tuple(fields)
        namespace["_fields"] = {**inherited, **fields} if bases else {}
        namespace["__init__"] = _first_construction
        namespace["_encoders"] = {}
        namespace["_decoders"] = {}
        if versions:
            namespace["versions"] = version_range(versions)
            namespace["flexible_from"] = version_range(flexible)[0] if flexible else None
        if api_key is not None:
            namespace["api_key"] = api_key
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any):
        super().__init__(name, bases, namespace)


class Message(metaclass=MessageMeta):
    """Base of everything that is declared in this language.

    Attributes:
        versions: First and last version.
        flexible_from: First flexible version (KIP-482), or None.
        unknown_tagged_fields: Tagged fields that the declaration does not know, by number; they
            are kept when read and written again.
    """

    # A field to type checkers and the constructor, but none of the wire (see the metaclass).
    unknown_tagged_fields: dict[int, bytes] | None = struct(None, default=None)

    versions: ClassVar[VersionRange]
    flexible_from: ClassVar[int | None]
    _fields: ClassVar[dict[str, Field]]
    _encoders: ClassVar[dict[int, Encoder]]
    _decoders: ClassVar[dict[int, Decoder]]

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """The declared fields by name, in the order of the wire."""
        return cls._fields

    def encode(self, version: int) -> bytes:
        """The message's bytes in one version.

        Args:
            version: Version of the message, within `versions`.

        Raises:
            LocalProtocolError: A field holds what this version cannot carry.
            UnsupportedVersionError: The version is outside `versions`.
        """
        parts: list[Buffer] = []
        self.encode_into(parts.append, version)
        return b"".join(parts)

    def encode_into(self, write: Callable[[Buffer], object], version: int) -> None:
        """Write the message in pieces; byte strings and record batches are passed as they are.

        Args:
            write: Takes each piece, in order.
            version: Version of the message, within `versions`.

        Raises:
            LocalProtocolError: A field holds what this version cannot carry.
            UnsupportedVersionError: The version is outside `versions`.
        """
        encoder = self._encoders.get(version) or self._compile_encoder(version)
        try:
            encoder(self, write)
        except (_struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
            from onceflow.sdk.protocol.faults import find_fault

            raise LocalProtocolError(
                f"{type(self).__qualname__} cannot be written in version {version}: "
                f"{find_fault(self, version) or error}"
            ) from error

    @classmethod
    def decode(
        cls, data: Buffer, version: int, offset: int = 0, *, max_values: int = MAX_VALUES
    ) -> tuple[Self, int]:
        """Read a message.

        Args:
            data: Bytes that hold it; what follows the message is left alone.
            version: Version of the message, within `versions`.
            offset: Where the message begins.
            max_values: How many values (fields of array elements) it may hold.

        Returns:
            The message, and the position after it.

        Raises:
            RemoteProtocolError: The bytes are not such a message.
            UnsupportedVersionError: The version is outside `versions`.
        """
        decoder = cls._decoders.get(version) or cls._compile_decoder(version)
        try:
            return decoder(data, offset, len(data), [max_values])
        except (MalformedError, IndexError, _struct.error, UnicodeDecodeError) as error:
            raise RemoteProtocolError(
                f"the bytes are not a {cls.__qualname__} of version {version}: {error}"
            ) from error

    @classmethod
    def _compile_encoder(cls, version: int) -> Encoder:
        from onceflow.sdk.protocol.compiler import compile_encoder

        cls._encoders[version] = encoder = compile_encoder(cls, version, cls._is_flexible(version))
        return encoder

    @classmethod
    def _compile_decoder(cls, version: int) -> Decoder:
        from onceflow.sdk.protocol.compiler import compile_decoder

        cls._decoders[version] = decoder = compile_decoder(cls, version, cls._is_flexible(version))
        return decoder

    @classmethod
    def _is_flexible(cls, version: int) -> bool:
        first, last = cls.versions
        if not first <= version <= last:
            raise UnsupportedVersionError(
                f"{cls.__qualname__} has versions {first} to {last}, not {version}"
            )
        return cls.flexible_from is not None and version >= cls.flexible_from

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._names())

    def __repr__(self) -> str:
        """Fields that differ from their default; byte strings only by length (may be secret)."""
        shown = []
        for name in self._names():
            value = getattr(self, name)
            field = self._fields.get(name)
            if value == (field.default if field else None):
                continue
            if isinstance(value, (bytes, bytearray, memoryview)):
                value = _Length(len(value))
            shown.append(f"{name}={value!r}")
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _names(self) -> Iterator[str]:
        yield from self._fields
        yield "unknown_tagged_fields"


class _Length(int):
    def __repr__(self) -> str:
        return f"<{int(self)} bytes>"


class Struct(Message):
    """Part of a message; its versions are those of the message that holds it."""


_REQUESTS: Final[dict[int, type[Request]]] = {}


class Request(Message):
    """What a client sends; declared before its response.

    Attributes:
        api_key: Number of the request kind.
        response_type: Class of the answer.
    """

    api_key: ClassVar[int]
    response_type: ClassVar[type[Response]]

    def __init_subclass__(cls) -> None:
        _REQUESTS[cls.api_key] = cls


class Response(Message):
    """What a broker answers.

    Attributes:
        api_key: Number of the request kind that it answers.
    """

    api_key: ClassVar[int]

    def __init_subclass__(cls) -> None:
        _REQUESTS[cls.api_key].response_type = cls


__all__ = [
    "Message",
    "Struct",
    "Request",
    "Response",
    "ZERO_UUID",
    "MAX_VALUES",
    "boolean",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes_",
    "records",
    "array",
    "struct",
]
