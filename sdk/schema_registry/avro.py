"""Avro with a schema registry; needs fastavro (``pip install 'onceflow[avro]'``)."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from onceflow.sdk.errors import SerializationError
from onceflow.sdk.schema_registry.aio import AsyncSchemaRegistry
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
    as_plain,
    compiled,
    referenced_schemas,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy

try:
    import fastavro
except ImportError as _missing:
    raise ImportError("fastavro is missing: pip install 'onceflow[avro]'") from _missing

RECURSIVE_FAST_BYTES_MAX: Final = 2_048
"""Longest value of a recursive schema that the compiled reader is trusted with: it descends on the
machine's stack, and one byte may be one level, so that 20 kB can end the process."""


def avro_serde(
    registry: SchemaRegistry | AsyncSchemaRegistry,
    schema: str | Mapping[str, object] | Schema | None = None,
    *,
    kind: type[object] | None = None,
    reader_schema: str | Mapping[str, object] | Schema | None = None,
    subject_name_strategy: SubjectNameStrategy = "topic",
    auto_register: bool | None = None,
    use_latest_version: bool = False,
    normalize: bool = False,
) -> RegistrySerde:
    """A serde for Avro records with registered schemas, in Confluent's layout.

    Values are mappings, dataclasses, ``msgspec`` structs or pydantic models; a field that the
    schema does not have is refused rather than dropped.

    Args:
        registry: Where schemas are.
        schema: Schema to write with; None only reads, or writes with the newest version.
        kind: Type that values are turned into when they are read; None gives dictionaries.
        reader_schema: Schema that values are read as, whatever they were written with; None gives
            them as they were written.
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
        _AvroDeserializer(registry, as_kind(kind), _as_schema(reader_schema)),
    )


def _as_schema(given: str | Mapping[str, object] | Schema | None) -> Schema | None:
    if given is None or isinstance(given, Schema):
        return given
    schema = Schema(given if isinstance(given, str) else json.dumps(given, allow_nan=False))
    compiled(lambda: fastavro.parse_schema(cast("Any", _loaded(schema.text))), "the Avro schema")
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
        self._name = None if schema is None else _record_name(_loaded(schema.text))

    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        return None, self._name

    def _schema_of(self, value: object) -> Schema | None:
        return self._schema

    def _encoder(self, schema: Schema) -> Encode:
        parsed = _parsed(self._registry, schema)

        def encode(value: object) -> bytes:
            out = io.BytesIO()
            plain = cast("Any", as_plain(value))
            fastavro.schemaless_writer(out, parsed, plain, strict_allow_default=True)
            return out.getvalue()

        return encode


class _AvroDeserializer(PayloadDeserializer):
    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        convert: Callable[[object], object],
        reader: Schema | None,
    ) -> None:
        super().__init__(registry)
        self._convert = convert
        self._reader = reader

    def _decoder(self, schema_id: int) -> Decode:
        schema = self._registry.schema(schema_id)
        if schema.schema_type != "AVRO":
            raise SerializationError(
                f"schema id {schema_id} is of type {schema.schema_type}, not AVRO; use its serde"
            )
        writer = _parsed(self._registry, schema)
        reader = None if self._reader is None else _parsed(self._registry, self._reader)
        used = [entry.schema for entry in referenced_schemas(self._registry, schema).values()]
        loaded = [_loaded(entry.text) for entry in (*used, schema)]
        _check_bounded(loaded)
        recursive = any(map(_is_recursive, loaded))
        return functools.partial(self._read, writer, reader, recursive)

    def _read(self, writer: Any, reader: Any, recursive: bool, data: bytes) -> object:
        source = io.BytesIO(data)
        read: Callable[..., object] = fastavro.schemaless_reader
        if recursive and len(data) > RECURSIVE_FAST_BYTES_MAX:
            from fastavro import _read_py

            read = _read_py.schemaless_reader
        value = read(source, writer, reader)
        left = len(data) - source.tell()
        if left:
            raise SerializationError(f"{left} bytes are left behind the value")
        return self._convert(value)


def _loaded(text: str) -> object:
    """The schema's JSON; a bare name such as ``string`` is one as well."""
    text = text.strip()
    found: object = json.loads(text) if text[:1] in '{["' else text
    return found


def _parsed(registry: SchemaRegistry, schema: Schema) -> Any:
    named: dict[str, Any] = {}
    for used in referenced_schemas(registry, schema).values():
        fastavro.parse_schema(cast("Any", _loaded(used.schema.text)), named_schemas=named)
    return fastavro.parse_schema(cast("Any", _loaded(schema.text)), named_schemas=named)


def _check_bounded(schemas: Iterable[object]) -> None:
    """Refuse arrays whose items take no bytes: a few bytes could tell of any number of them."""
    empty: set[str] = set()
    for schema in schemas:
        for part in _types_in(schema):
            if not isinstance(part, dict):
                continue
            if part.get("type") == "array" and _takes_no_bytes(part.get("items"), empty):
                raise SerializationError(
                    "it has an array whose items take no bytes, which is not read: nothing would "
                    "bound their number"
                )
            if isinstance(part.get("name"), str) and _takes_no_bytes(part, empty):
                empty.add(part["name"].rpartition(".")[2])


def _types_in(schema: object) -> Iterator[object]:
    """All types that a schema is made of, used ones before their users."""
    if isinstance(schema, list):
        for entry in schema:
            yield from _types_in(entry)
    elif isinstance(schema, dict):
        parts = [schema.get("type"), schema.get("items"), schema.get("values")]
        parts += [f.get("type") for f in schema.get("fields", ()) if isinstance(f, dict)]
        for part in parts:
            if not isinstance(part, str):
                yield from _types_in(part)
    yield schema


def _takes_no_bytes(schema: object, empty: set[str]) -> bool:
    if isinstance(schema, str):
        return schema == "null" or schema.rpartition(".")[2] in empty
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    if kind == "record":
        fields = schema.get("fields") or []
        return all(_takes_no_bytes(f.get("type"), empty) for f in fields if isinstance(f, dict))
    if kind == "fixed":
        return schema.get("size") == 0
    return _takes_no_bytes(kind, empty)


def _record_name(schema: object) -> str | None:
    """Full name of a named schema."""
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return None
    return _full_name(schema["name"], schema.get("namespace") or "")


def _full_name(name: str, namespace: object) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _is_recursive(schema: object, outer: frozenset[str] = frozenset(), namespace: str = "") -> bool:
    """Whether a type contains itself."""
    if isinstance(schema, str):
        return _full_name(schema, namespace) in outer or schema in outer
    if isinstance(schema, list):
        return any(_is_recursive(entry, outer, namespace) for entry in schema)
    if not isinstance(schema, dict):
        return False
    if isinstance(schema.get("name"), str):
        namespace = str(schema.get("namespace", namespace))
        name = _full_name(schema["name"], namespace)
        namespace = name.rpartition(".")[0]
        outer |= {name}
    parts = [schema.get("type"), schema.get("items"), schema.get("values")]
    parts += [field.get("type") for field in schema.get("fields", ()) if isinstance(field, dict)]
    return any(_is_recursive(part, outer, namespace) for part in parts if part is not None)
