"""The Avro serde with a schema registry; needs fastavro (``pip install 'onceflow[avro]'``)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry.aio import AsyncSchemaRegistry
from onceflow.sdk.schema_registry.avro.fitting import Fitter
from onceflow.sdk.schema_registry.avro.names import code_name
from onceflow.sdk.schema_registry.avro.resolving import Change, Resolver, needs_pairs
from onceflow.sdk.schema_registry.avro.schemas import (
    Type,
    all_types,
    check_bounded,
    declared_name,
    is_recursive,
    read_schema,
)
from onceflow.sdk.schema_registry.client import SchemaRegistry
from onceflow.sdk.schema_registry.model import Schema
from onceflow.sdk.schema_registry.serdes import (
    Decode,
    Encode,
    PayloadDeserializer,
    RegistrySerde,
    RegistrySerializer,
    SubjectOptions,
    as_kind,
    compiled,
    referenced_schemas,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy

try:
    import fastavro
except ImportError as _missing:
    raise ImportError("fastavro is missing: pip install 'onceflow[avro]'") from _missing

AvroSchema = str | Mapping[str, object] | Sequence[object] | Schema
"""A schema: JSON text, the parsed JSON, or a ``Schema``, which may reference other schemas."""

RECURSIVE_FAST_BYTES_MAX: Final = 2_048
"""Longest value of a recursive schema that fastavro's compiled reader gets. It recurses on the C
stack, one level a byte at worst, so that a value of 20 kB can crash the process."""


def avro_serde(
    registry: SchemaRegistry | AsyncSchemaRegistry,
    schema: AvroSchema | None = None,
    *,
    kind: type[object] | None = None,
    reader_schema: AvroSchema | None = None,
    subject_name_strategy: SubjectNameStrategy = "topic",
    auto_register: bool | None = None,
    use_latest_version: bool = False,
    normalize: bool = False,
) -> RegistrySerde:
    """Return a serde for Avro values with registered schemas, in Confluent's layout.

    Records are mappings, dataclasses, ``msgspec`` structs or pydantic models. Logical types are
    Python's (``Decimal``, ``UUID``, ``date``, ``time``, ``datetime``). The serializer refuses
    values that their type cannot hold and fields that the schema lacks; it changes and drops none.

    The serializer picks the union branch that a value fits. If several fit, name the branch: give
    a pair of name and value, as ``("shop.Order", {...})``, or an object whose class has that name.
    A value read from a union remembers its branch (``avro_type_name``) and needs no pair.

    Args:
        registry: Client of the schema registry.
        schema: Schema to write with. With None the serde only reads, unless `use_latest_version`
            is set.
        kind: Type to convert read values into; None gives dictionaries.
        reader_schema: Schema to resolve read values to, by Avro's rules of schema resolution; None
            gives them in the schema that they were written with.
        subject_name_strategy: "topic", "record", "topic-record", or a function of topic, field
            and record name.
        auto_register: Register the schema if its subject lacks it (``auto.register.schemas``);
            None does so unless `use_latest_version`.
        use_latest_version: Write with the subject's newest schema (``use.latest.version``).
        normalize: ``normalize.schemas``.

    Returns:
        The serde, for ``value_serializer=serde.serialize`` and the like.

    Raises:
        ConfigError: Two options contradict each other.
        SerializationError: A schema cannot be read.
    """
    options = SubjectOptions(
        subject_name_strategy=subject_name_strategy,
        auto_register=auto_register,
        use_latest_version=use_latest_version,
        normalize=normalize,
    )
    return RegistrySerde(
        "avro",
        _AvroSerializer(registry, options, _as_schema(schema)),
        _AvroDeserializer(registry, kind, _as_schema(reader_schema)),
    )


def _as_schema(given: AvroSchema | None) -> Schema | None:
    if given is None or isinstance(given, Schema):
        return given
    schema = Schema(given if isinstance(given, str) else json.dumps(given, allow_nan=False))
    compiled(lambda: read_schema(schema.text), "the Avro schema")
    return schema


class _AvroSerializer(RegistrySerializer):
    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        options: SubjectOptions,
        schema: Schema | None,
    ) -> None:
        super().__init__(registry, options)
        self._schema = schema
        self._name = None if schema is None else declared_name(schema.text)

    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        return None, self._name

    def _schema_of(self, value: object) -> Schema | None:
        return self._schema

    def _encoder(self, schema: Schema) -> Encode:
        root = graph_of(self._registry, schema)
        code = _code(root)
        fit = Fitter(root).fit

        def encode(value: object) -> bytes:
            out = io.BytesIO()
            fastavro.schemaless_writer(out, code, {"value": fit(value)})
            return out.getvalue()

        return encode


class _AvroDeserializer(PayloadDeserializer):
    _schema_type = "AVRO"

    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        kind: type[object] | None,
        reader: Schema | None,
    ) -> None:
        super().__init__(registry)
        self._convert = as_kind(kind)
        self._names = kind is None  # converted values cannot carry the name of their Avro type
        self._reader = reader

    def _decoder(self, schema: Schema) -> Decode:
        writer = graph_of(self._registry, schema)
        reader = writer if self._reader is None else graph_of(self._registry, self._reader)
        check_bounded(writer)
        named = any(needs_pairs(each) for each in all_types(writer) if each.kind == "union")
        change = Resolver("named" if named else "none", names=self._names).change(writer, reader)
        return _Reading(_code(writer), change, named, is_recursive(writer), self._convert)


class _Reading:
    """Decodes the values that one schema wrote."""

    def __init__(
        self,
        code: Any,
        change: Change | None,
        named: bool,
        recursive: bool,
        convert: Callable[[object], object],
    ) -> None:
        self._code = code
        self._change = change
        self._named = named
        self._recursive = recursive
        self._convert = convert

    def __call__(self, data: bytes) -> object:
        source = io.BytesIO(data)
        read: Callable[..., Any] = fastavro.schemaless_reader
        if self._recursive and len(data) > RECURSIVE_FAST_BYTES_MAX:
            from fastavro import _read_py

            read = _read_py.schemaless_reader
        value = read(source, self._code, None, return_named_type=self._named)["value"]
        left = len(data) - source.tell()
        if left:
            raise SerializationError(
                f"{left} bytes follow the value: they were not written with the schema of their id"
            )
        if self._change is not None:
            value = self._change(value)
        return self._convert(value)


def graph_of(registry: SchemaRegistry, schema: Schema) -> Type:
    """Return the schema as a graph, with what it uses.

    Args:
        registry: Where the used schemas are.
        schema: The schema.
    """
    used = referenced_schemas(registry, schema).values()
    return read_schema(schema.text, [each.schema.text for each in used])


def _code(root: Type) -> Any:
    """Return the schema in fastavro's form, for raw values: without logical types and defaults.

    A record of one field wraps the schema and adds no bytes: fastavro would parse a type without a
    name again for each value.
    """
    defined: set[str] = set()

    def render(type_: Type) -> object:
        name = code_name(type_)
        if type_.kind == "union":
            return [render(each) for each in type_.branches]
        if type_.kind == "array":
            return {"type": "array", "items": render(type_.inner)}
        if type_.kind == "map":
            return {"type": "map", "values": render(type_.inner)}
        if not type_.name or name in defined:
            return name
        defined.add(name)
        found: dict[str, object] = {"type": type_.kind, "name": name}
        if type_.kind == "enum":
            found["symbols"] = list(type_.symbols)
        elif type_.kind == "fixed":
            found["size"] = type_.size
        else:
            found["fields"] = [
                {"name": each.name, "type": render(each.type)} for each in type_.fields
            ]
        return found

    fields: list[object] = [{"name": "value", "type": render(root)}]
    return fastavro.parse_schema({"type": "record", "name": "onceflow.Value", "fields": fields})
