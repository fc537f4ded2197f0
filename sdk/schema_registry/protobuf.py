"""Protobuf with a schema registry; needs protobuf (``pip install 'onceflow[protobuf]'``).

A file's descriptor goes to the registry in base64, which every registry of Confluent's interface
takes; files that it imports are registered under their import path and referenced. A reader finds
the message by its place in the writer's file, and by that its name.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

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

BUILT_IN = "google/protobuf/"
"""Import paths that every registry and every reader has."""


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


def _indexes(descriptor: Any) -> list[int]:
    """The place of a message in its file, outermost first."""
    found: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name if outer is None else outer.nested_types
        names = [getattr(entry, "name", entry) for entry in siblings]  # in the file's order
        found.insert(0, names.index(descriptor.name))
        descriptor = outer
    return found


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

    def _place(self, value: object) -> bytes:
        return write_indexes(_indexes(_descriptor(value)))

    def _encoder(self, schema: Schema) -> Encode:
        def encode(value: object) -> bytes:
            data: bytes = value.SerializeToString()  # type: ignore[attr-defined]
            return data

        return encode


def _descriptor(value: object) -> Any:
    if not isinstance(value, message.Message):
        raise SerializationError(f"a Protobuf message is needed, not {type(value).__name__}")
    return value.DESCRIPTOR


class _WriterFile(NamedTuple):
    """A writer's file.

    Attributes:
        file: Its description, None if the registry does not give it in a form that is read here.
        pool: It and what it imports.
    """

    file: Any
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
        file = _parse_file(schema)
        if file is None:
            if self._message_type is None:
                raise SerializationError(
                    f"the registry gives schema id {schema_id} as text only; give message_type"
                )
            return _WriterFile(None, None)
        if self._message_type is not None:
            return _WriterFile(file, None)
        return _WriterFile(file, _pool(self._registry, schema, file))

    def _decode(self, decoder: _WriterFile, data: bytes) -> object:
        indexes, offset = read_indexes(data)
        kind: Any = self._message_type
        if decoder.file is not None:
            name = _message_name(decoder.file, indexes)
            if kind is None:
                kind = message_factory.GetMessageClass(decoder.pool.FindMessageTypeByName(name))
            elif kind.DESCRIPTOR.full_name != name:
                raise SerializationError(
                    f"the value is a {name}, not a {kind.DESCRIPTOR.full_name}"
                )
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
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
    except (ValueError, message.DecodeError):
        return None  # .proto text: the registry does not know format=serialized
    return file if file.message_type else None


def _pool(registry: SchemaRegistry, schema: Schema, file: Any) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for name in file.dependency:
        _add_built_in(pool, name)
    for name, used in referenced_schemas(registry, schema).items():
        described = _parse_file(registry.schema(used.schema_id, serialized=True))
        if described is None:
            raise SerializationError(f"{name} is registered as text only; give message_type")
        for imported in described.dependency:
            _add_built_in(pool, imported)
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

        importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        built_in = known.FindFileByName(name)
    for imported in built_in.dependencies:
        _add_built_in(pool, imported.name)
    described = descriptor_pb2.FileDescriptorProto.FromString(built_in.serialized_pb)
    pool.Add(described)


def _message_name(file: Any, indexes: Sequence[int]) -> str:
    """Full name of the message at a place of a file."""
    level, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if index >= len(level):
            raise SerializationError(f"the schema has no message at {list(indexes)}")
        names.append(level[index].name)
        level = level[index].nested_type
    return ".".join(names)
