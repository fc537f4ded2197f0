"""The Protobuf serde; needs protobuf (``pip install 'onceflow[protobuf]'``).

The serializer registers a file's descriptor in base64, which every registry with Confluent's
interface accepts, and each imported file under its import path. A value begins with the place of
its message in the file that the registry stores under the id. That file may differ from the
program's: a registry normalizes, and the newest version may have more messages. So both serializer
and deserializer look the place up in the stored file.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry.aio import AsyncSchemaRegistry
from onceflow.sdk.schema_registry.client import SchemaRegistry
from onceflow.sdk.schema_registry.model import Schema, SchemaReference
from onceflow.sdk.schema_registry.serdes import (
    Encode,
    RegistryDeserializer,
    RegistrySerde,
    RegistrySerializer,
    SubjectOptions,
    referenced_schemas,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy
from onceflow.sdk.schema_registry.wire import read_indexes, write_indexes, write_prefix

try:
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        json_format,
        message,
        message_factory,
    )
except ImportError as _missing:
    raise ImportError("protobuf is missing: pip install 'onceflow[protobuf]'") from _missing

BUILT_IN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Prefixes of import paths that every registry knows (``skip.known.types``)."""

_WIRE_FORMS: Final = {
    kind: form
    for form, kinds in {
        "number": "INT32 INT64 UINT32 UINT64 BOOL ENUM",
        "zigzag number": "SINT32 SINT64",
        "fixed number of 32 bits": "FIXED32 SFIXED32",
        "fixed number of 64 bits": "FIXED64 SFIXED64",
        "float": "FLOAT",
        "double": "DOUBLE",
        "text or bytes": "STRING BYTES",
        "message": "MESSAGE",
        "group": "GROUP",
    }.items()
    for kind in (getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{k}") for k in kinds.split())
}
"""Encoding of each field type: types with the same encoding can read each other's bytes."""


def protobuf_serde(
    registry: SchemaRegistry | AsyncSchemaRegistry,
    message_type: type[message.Message] | None = None,
    *,
    subject_name_strategy: SubjectNameStrategy = "topic",
    auto_register: bool | None = None,
    use_latest_version: bool = False,
    normalize: bool = False,
) -> RegistrySerde:
    """Return a serde for Protobuf messages with registered schemas, in Confluent's layout.

    Args:
        registry: Client of the schema registry.
        message_type: Class of the messages that are read; a value of another message is refused.
            None makes the class from the writer's schema. The serializer takes any message.
        subject_name_strategy: "topic", "record", "topic-record", or a function of topic, field
            and record name.
        auto_register: Register the schema, and those it imports, if their subjects lack them
            (``auto.register.schemas``); None does so unless `use_latest_version`.
        use_latest_version: Write with the id of the subject's newest schema
            (``use.latest.version``).
        normalize: ``normalize.schemas``.

    Returns:
        The serde, for ``value_serializer=serde.serialize`` and the like.

    Raises:
        ConfigError: Two options contradict each other.
    """
    options = SubjectOptions(
        subject_name_strategy=subject_name_strategy,
        auto_register=auto_register,
        use_latest_version=use_latest_version,
        normalize=normalize,
    )
    return RegistrySerde(
        "protobuf",
        _ProtobufSerializer(registry, options),
        _ProtobufDeserializer(registry, message_type),
    )


def _file_schema(file: Any, references: Sequence[SchemaReference] = ()) -> Schema:
    text = base64.b64encode(file.serialized_pb).decode()
    return Schema(text, "PROTOBUF", tuple(references))


class _ProtobufSerializer(RegistrySerializer):
    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        descriptor = _descriptor(value)
        return descriptor, descriptor.full_name

    def _schema_of(self, value: object) -> Schema | None:
        return self._with_imports(_descriptor(value).file)

    def _with_imports(self, file: Any) -> Schema:
        references = []
        for imported in file.dependencies:
            if imported.name.startswith(BUILT_IN):
                continue
            schema = self._with_imports(imported)
            if self._options.auto_register is not False:
                self._registry.register(imported.name, schema, normalize=self._options.normalize)
            found = self._registry.lookup(imported.name, schema, normalize=self._options.normalize)
            references.append(SchemaReference(imported.name, imported.name, found.version))
        return _file_schema(file, references)

    def _place(self, value: object, schema_id: int) -> bytes:
        descriptor = _descriptor(value)
        stored = self._registry.schema(schema_id, serialized=True)
        outline = _outline(stored)
        indexes = outline.place_of(descriptor.full_name)
        if indexes is None:
            raise SerializationError(
                f"schema id {schema_id} has no message {descriptor.full_name}; it has "
                f"{', '.join(outline.names()) or 'none'}"
            )
        file = _parse_file(stored)
        if self._options.use_latest_version and file is not None:
            pool = _pool(self._registry, stored, file)
            _check_alike(descriptor, pool.FindMessageTypeByName(descriptor.full_name), set())
        return write_indexes(indexes)

    def _encoder(self, schema: Schema) -> Encode:
        def encode(value: object) -> bytes:
            data: bytes = value.SerializeToString()  # type: ignore[attr-defined]
            return data

        return encode


def _descriptor(value: object) -> Any:
    if not isinstance(value, message.Message):
        raise SerializationError(
            f"the value must be a Protobuf message, not {type(value).__name__}"
        )
    return value.DESCRIPTOR


def _check_alike(own: Any, stored: Any, seen: set[str]) -> None:
    """Refuse a message whose bytes a reader with the stored schema would read as other values."""
    if own.full_name in seen:
        return
    seen.add(own.full_name)
    for each in own.fields:
        known = stored.fields_by_number.get(each.number)
        if known is None:
            continue  # readers keep it as an unknown field
        if _WIRE_FORMS[each.type] != _WIRE_FORMS[known.type]:
            raise SerializationError(
                f"field {each.number} ({each.name}) of {own.full_name} is encoded as "
                f"{_WIRE_FORMS[each.type]}, but the subject's newest schema has "
                f"{_WIRE_FORMS[known.type]}; give the changed field a new number"
            )
        if each.message_type is not None:
            _check_alike(each.message_type, known.message_type, seen)


@dataclass(slots=True)
class _Outline:
    """The nested message names of a file, or of one message.

    Attributes:
        name: Package of a file, name of a message.
        inner: Messages within, in the order in which the file declares them.
    """

    name: str
    inner: list[_Outline] = field(default_factory=list)

    def place_of(self, full_name: str) -> tuple[int, ...] | None:
        """Return the place of a message in this file; None if the file lacks it."""
        return next((place for place, name in self._all() if name == full_name), None)

    def names(self) -> list[str]:
        """Return the full names of all messages of this file."""
        return [name for _, name in self._all()]

    def name_at(self, place: Sequence[int]) -> str:
        """Return the full name of the message at a place of this file."""
        names, level = [self.name] if self.name else [], self
        for index in place:
            if index >= len(level.inner):
                raise SerializationError(f"the schema has no message at the place {list(place)}")
            level = level.inner[index]
            names.append(level.name)
        return ".".join(names)

    def _all(self) -> Iterator[tuple[tuple[int, ...], str]]:
        waiting: list[tuple[tuple[int, ...], str, _Outline]] = [((), self.name, self)]
        while waiting:
            place, name, outer = waiting.pop(0)
            for index, each in enumerate(outer.inner):
                entry = ((*place, index), f"{name}.{each.name}".lstrip("."), each)
                waiting.append(entry)
                yield entry[:2]


def _outline(schema: Schema) -> _Outline:
    file = _parse_file(schema)
    return _outline_of_text(schema.text) if file is None else _outline_of_file(file)


def _outline_of_file(file: Any) -> _Outline:
    def nested(message_type: Any) -> _Outline:
        return _Outline(message_type.name, [nested(each) for each in message_type.nested_type])

    return _Outline(file.package, [nested(each) for each in file.message_type])


_WORDS: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    r"""|\bpackage\s+(?P<package>[\w.]+)\s*;|\bmessage\s+(?P<message>\w+)\s*\{|[{}]""",
    re.DOTALL,
)


def _outline_of_text(text: str) -> _Outline:
    """Read the outline from ``.proto`` text, for registries that give no descriptor."""
    file = _Outline("")
    open_: list[_Outline | None] = [file]
    for word in _WORDS.finditer(text):
        if word["package"]:
            file.name = word["package"]
        elif word["message"]:
            found = _Outline(word["message"])
            outer = open_[-1]
            if outer is not None:
                outer.inner.append(found)
            open_.append(found)
        elif word[0] == "{":
            open_.append(None)  # an enum, a oneof, an option: these contain no message
        elif word[0] == "}" and len(open_) > 1:
            open_.pop()
    return file


class _WriterFile(NamedTuple):
    """The file of a writer's schema.

    Attributes:
        outline: Its messages.
        pool: Descriptors of the file and its imports; None if the user gave `message_type`.
    """

    outline: _Outline
    pool: Any


class _ProtobufDeserializer(RegistryDeserializer[_WriterFile]):
    _schema_type = "PROTOBUF"

    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        message_type: type[message.Message] | None,
    ) -> None:
        super().__init__(registry)
        self._message_type = message_type

    def _decoder(self, schema: Schema) -> _WriterFile:
        outline = _outline(schema)
        if self._message_type is not None:
            return _WriterFile(outline, None)
        file = _parse_file(schema)
        if file is None:
            raise ValueError("the registry gives it only as .proto text; set message_type")
        return _WriterFile(outline, _pool(self._registry, schema, file))

    def _decode(self, decoder: _WriterFile, data: bytes) -> object:
        indexes, offset = read_indexes(data)
        kind: Any = self._message_type
        name = decoder.outline.name_at(indexes)
        if kind is None:
            kind = message_factory.GetMessageClass(decoder.pool.FindMessageTypeByName(name))
        elif kind.DESCRIPTOR.full_name != name:
            raise SerializationError(
                f"the value is a message {name}, but message_type is {kind.DESCRIPTOR.full_name}"
            )
        try:
            found: object = kind.FromString(data[offset:])
        except message.DecodeError as error:
            raise SerializationError(
                f"the bytes are not a message {kind.DESCRIPTOR.full_name}: {error}"
            ) from error
        return found


def to_json(value: object) -> object:
    """Return what JSON has for a message, in Protobuf's JSON mapping with the fields' own names.

    Args:
        value: The message.

    Raises:
        SerializationError: The bytes are not such a message.
    """
    pool = _descriptor(value).file.pool
    found: object = json_format.MessageToDict(
        cast("message.Message", value),
        preserving_proto_field_name=True,
        descriptor_pool=pool,
    )
    return found


def json_writer(
    registry: SchemaRegistry, schema_id: int, name: str | None = None
) -> Callable[[bytes], bytes]:
    """Return a function from JSON text to a message's bytes after the id of its schema.

    The function raises ``SerializationError`` for text that is not the message's JSON.

    Args:
        registry: Where the schema is.
        schema_id: Its id.
        name: Full name of the message; None for the first one of the file.

    Raises:
        SerializationError: The schema is no Protobuf schema, or has no such message.
    """
    schema = registry.schema(schema_id, serialized=True)
    file = _parse_file(schema) if schema.schema_type == "PROTOBUF" else None
    if file is None:
        raise SerializationError(
            f"schema id {schema_id} is of type {schema.schema_type}, and the registry gives no "
            "descriptor of it"
        )
    outline = _outline_of_file(file)
    names = outline.names()
    wanted = names[0] if names and name is None else name or ""
    place = outline.place_of(wanted)
    if place is None:
        raise SerializationError(
            f"schema id {schema_id} has no message {name or 'at all'}; it has {names}"
        )
    pool = _pool(registry, schema, file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(wanted))
    prefix = write_prefix(schema_id) + write_indexes(place)

    def write(text: bytes) -> bytes:
        try:
            value = json_format.Parse(text, kind(), descriptor_pool=pool)
        except json_format.ParseError as error:
            raise SerializationError(str(error)) from error
        return prefix + value.SerializeToString()

    return write


def _parse_file(schema: Schema) -> Any:
    try:
        data = base64.b64decode(schema.text, validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except (ValueError, message.DecodeError):
        return None  # .proto text: the registry ignores format=serialized


def _pool(registry: SchemaRegistry, schema: Schema, file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    used = referenced_schemas(registry, schema)
    files = {}
    for name, entry in used.items():
        described = _parse_file(registry.schema(entry.schema_id, serialized=True))
        if described is None:
            raise SerializationError(
                f"the registry gives the imported {name} only as .proto text; set message_type"
            )
        files[name] = described
    for each in (*files.values(), file):
        for imported in each.dependency:
            if imported not in files:
                _add_built_in(pool, imported)
    for name, described in files.items():
        described.name = name
        pool.Add(described)
    pool.Add(file)
    return pool


def _add_built_in(pool: Any, name: str) -> None:
    if not name.startswith(BUILT_IN):
        return
    known = descriptor_pool.Default()
    try:
        built_in = known.FindFileByName(name)
    except KeyError:
        import importlib

        try:
            importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        except ImportError:
            raise SerializationError(
                f"the schema imports {name}, whose classes are not installed; install them "
                "(googleapis-common-protos for google/type), or set message_type"
            ) from None
        built_in = known.FindFileByName(name)
    for imported in built_in.dependencies:
        _add_built_in(pool, imported.name)
    described = descriptor_pb2.FileDescriptorProto.FromString(built_in.serialized_pb)
    pool.Add(described)
