"""Protobuf with a schema registry; needs protobuf (``pip install 'onceflow[protobuf]'``).

A file's descriptor goes to the registry in base64, which every registry of Confluent's interface
takes; files that it imports are registered under their import path and referenced. A value begins
with the place of its message in the file that the registry keeps under the id, which may be another
than the program's: a registry normalizes, and the newest version may have more messages. A reader
finds the message, and by that its name, by the same place.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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
from onceflow.sdk.schema_registry.wire import read_indexes, write_indexes

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
except ImportError as _missing:
    raise ImportError("protobuf is missing: pip install 'onceflow[protobuf]'") from _missing

BUILT_IN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Beginnings of import paths that every registry has (``skip.known.types``)."""

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
"""What the types of a field are read as: those of one form read each other's bytes."""


def protobuf_serde(
    registry: SchemaRegistry | AsyncSchemaRegistry,
    message_type: type[message.Message] | None = None,
    *,
    subject_name_strategy: SubjectNameStrategy = "topic",
    auto_register: bool | None = None,
    use_latest_version: bool = False,
    normalize: bool = False,
) -> RegistrySerde:
    """A serde for Protobuf messages with registered schemas, in Confluent's layout.

    Args:
        registry: Where schemas are.
        message_type: Class that values are read into; a value whose writer meant another message
            is refused. None makes a class from the writer's schema. Writing takes any message.
        subject_name_strategy: "topic", "record", "topic-record", or a function of topic, field
            and record name.
        auto_register: Register the schema, and those it imports, if their subjects lack them
            (``auto.register.schemas``);
            None means so, unless `use_latest_version`.
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
        raise SerializationError(f"must be a Protobuf message, not {type(value).__name__}")
    return value.DESCRIPTOR


def _check_alike(own: Any, stored: Any, seen: set[str]) -> None:
    """Refuse a message whose bytes a reader of the stored schema would take for something else."""
    if own.full_name in seen:
        return
    seen.add(own.full_name)
    for each in own.fields:
        known = stored.fields_by_number.get(each.number)
        if known is None:
            continue  # kept by readers as an unknown field
        if _WIRE_FORMS[each.type] != _WIRE_FORMS[known.type]:
            raise SerializationError(
                f"field {each.number} ({each.name}) of {own.full_name} is a "
                f"{_WIRE_FORMS[each.type]}, in the newest schema a {_WIRE_FORMS[known.type]}"
            )
        if each.message_type is not None:
            _check_alike(each.message_type, known.message_type, seen)


@dataclass(slots=True)
class _Outline:
    """Names of the messages of a file, or of one message, in the order of their places.

    Attributes:
        name: Package of a file, name of a message.
        inner: The messages within.
    """

    name: str
    inner: list[_Outline] = field(default_factory=list)

    def place_of(self, full_name: str) -> tuple[int, ...] | None:
        """The place of a message in this file; None if it has no such message."""
        return next((place for place, name in self._all() if name == full_name), None)

    def names(self) -> list[str]:
        """Full names of all messages of this file."""
        return [name for _, name in self._all()]

    def name_at(self, place: Sequence[int]) -> str:
        """The full name of the message at a place of this file."""
        names, level = [self.name] if self.name else [], self
        for index in place:
            if index >= len(level.inner):
                raise SerializationError(f"the schema has no message at {list(place)}")
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
    """The outline of ``.proto`` text, for a registry that gives nothing else."""
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
            open_.append(None)  # an enum, a oneof, an option: no message stands within
        elif word[0] == "}" and len(open_) > 1:
            open_.pop()
    return file


class _WriterFile(NamedTuple):
    """A writer's file.

    Attributes:
        outline: Its messages.
        pool: It and what it imports; None where values are read into a class that was given.
    """

    outline: _Outline
    pool: Any


class _ProtobufDeserializer(RegistryDeserializer[_WriterFile]):
    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        message_type: type[message.Message] | None,
    ) -> None:
        super().__init__(registry)
        self._message_type = message_type

    def _decoder(self, schema_id: int) -> _WriterFile:
        schema = self._registry.schema(schema_id, serialized=True)
        if schema.schema_type != "PROTOBUF":
            raise SerializationError(
                f"schema id {schema_id} is of type {schema.schema_type}, not PROTOBUF; use its "
                "serde"
            )
        outline = _outline(schema)
        if self._message_type is not None:
            return _WriterFile(outline, None)
        file = _parse_file(schema)
        if file is None:
            raise SerializationError(
                f"the registry gives schema id {schema_id} as text only; give message_type"
            )
        return _WriterFile(outline, _pool(self._registry, schema, file))

    def _decode(self, decoder: _WriterFile, data: bytes) -> object:
        indexes, offset = read_indexes(data)
        kind: Any = self._message_type
        name = decoder.outline.name_at(indexes)
        if kind is None:
            kind = message_factory.GetMessageClass(decoder.pool.FindMessageTypeByName(name))
        elif kind.DESCRIPTOR.full_name != name:
            raise SerializationError(f"the value is a {name}, not a {kind.DESCRIPTOR.full_name}")
        try:
            found: object = kind.FromString(data[offset:])
        except message.DecodeError as error:
            raise SerializationError(
                f"not a {kind.DESCRIPTOR.full_name} in Protobuf: {error}"
            ) from error
        return found


def _parse_file(schema: Schema) -> Any:
    try:
        data = base64.b64decode(schema.text, validate=True)
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except (ValueError, message.DecodeError):
        return None  # .proto text: the registry does not know format=serialized


def _pool(registry: SchemaRegistry, schema: Schema, file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    used = referenced_schemas(registry, schema)
    files = {}
    for name, entry in used.items():
        described = _parse_file(registry.schema(entry.schema_id, serialized=True))
        if described is None:
            raise SerializationError(f"{name} is registered as text only; give message_type")
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
                f"the schema imports {name}, whose classes are not installed here; install them "
                "(googleapis-common-protos for google/type), or give message_type"
            ) from None
        built_in = known.FindFileByName(name)
    for imported in built_in.dependencies:
        _add_built_in(pool, imported.name)
    described = descriptor_pb2.FileDescriptorProto.FromString(built_in.serialized_pb)
    pool.Add(described)
