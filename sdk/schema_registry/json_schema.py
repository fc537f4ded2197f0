"""JSON Schema with a registry; needs jsonschema (``pip install 'onceflow[json-schema]'``)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

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
    compiled,
    referenced_schemas,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy
from onceflow.sdk.serde import model_to_mapping

try:
    import jsonschema
    import referencing
    import referencing.jsonschema
except ImportError as _missing:
    raise ImportError("jsonschema is missing: pip install 'onceflow[json-schema]'") from _missing


def json_schema_serde(
    registry: SchemaRegistry | AsyncSchemaRegistry,
    schema: str | Mapping[str, object] | Schema | None = None,
    *,
    kind: type[object] | None = None,
    validate: bool = True,
    subject_name_strategy: SubjectNameStrategy = "topic",
    auto_register: bool | None = None,
    use_latest_version: bool = False,
    normalize: bool = False,
) -> RegistrySerde:
    """A serde for JSON with registered JSON Schemas, in Confluent's layout.

    Args:
        registry: Where schemas are.
        schema: Schema to write with; None takes that of `kind`, or with neither only reads, or
            writes with the newest version.
        kind: Type of the values: a dataclass, ``msgspec`` struct, pydantic model ...; None means
            what JSON has.
        validate: Whether values are checked against their schema, both ways.
        subject_name_strategy: "topic", "record" (the schema's title), "topic-record", or a
            function of topic, field and record name.
        auto_register: Register the schema if its subject lacks it (``auto.register.schemas``);
            None does so unless `use_latest_version`.
        use_latest_version: Write with the subject's newest schema (``use.latest.version``).
        normalize: ``normalize.schemas``.

    Returns:
        The serde, for ``value_serializer=serde.serialize`` and the like.

    Raises:
        ConfigError: Two options contradict each other.
        SerializationError: The schema cannot be read.
    """
    options = SubjectOptions(
        subject_name_strategy=subject_name_strategy,
        auto_register=auto_register,
        use_latest_version=use_latest_version,
        normalize=normalize,
    )
    if schema is None and kind is not None and not use_latest_version:
        schema = compiled(lambda: _schema_of(kind), f"the type {kind!r}")
    return RegistrySerde(
        "json schema",
        _JsonSerializer(registry, options, _as_schema(schema), validate),
        _JsonDeserializer(registry, as_kind(kind), validate),
    )


def _schema_of(kind: type[object]) -> Mapping[str, object]:
    describe: Callable[[], dict[str, object]] | None = getattr(kind, "model_json_schema", None)
    if describe is not None:
        return describe()
    import msgspec

    found = msgspec.json.schema(kind)
    return {"title": getattr(kind, "__name__", str(kind)), **found}


def _as_schema(given: str | Mapping[str, object] | Schema | None) -> Schema | None:
    if given is None or isinstance(given, Schema):
        return given
    schema = Schema(given if isinstance(given, str) else json.dumps(given, allow_nan=False), "JSON")
    compiled(lambda: _validator_class(json.loads(schema.text)), "the JSON schema")
    return schema


def _validator_class(loaded: Any) -> Any:
    found = jsonschema.validators.validator_for(loaded)
    found.check_schema(loaded)
    return found


def _validator(registry: SchemaRegistry, schema: Schema) -> Callable[[object], None]:
    """A function that raises for what the schema does not allow. Nothing is fetched by URL."""
    loaded = json.loads(schema.text)
    known: Any = referencing.Registry()
    for name, used in referenced_schemas(registry, schema).items():
        contents = json.loads(used.schema.text)
        resource = referencing.Resource.from_contents(
            contents, default_specification=referencing.jsonschema.DRAFT7
        )
        known = known.with_resource(name, resource)
        if isinstance(contents, dict) and isinstance(contents.get("$id"), str):
            known = known.with_resource(contents["$id"], resource)
    checker = _validator_class(loaded)(loaded, registry=known)

    def check(value: object) -> None:
        error = jsonschema.exceptions.best_match(checker.iter_errors(value))
        if error is not None:
            raise SerializationError(f"{error.json_path}: {error.message[:500]}")

    return check


class _JsonSerializer(RegistrySerializer):
    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        options: SubjectOptions,
        schema: Schema | None,
        validate: bool,
    ) -> None:
        super().__init__(registry, options)
        self._schema = schema
        self._validate = validate
        loaded = None if schema is None else json.loads(schema.text)
        title = loaded.get("title") if isinstance(loaded, dict) else None
        self._name = title if isinstance(title, str) else None

    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        return None, self._name

    def _schema_of(self, value: object) -> Schema | None:
        return self._schema

    def _encoder(self, schema: Schema) -> Encode:
        check = _validator(self._registry, schema) if self._validate else None

        def encode(value: object) -> bytes:
            plain = _as_json(value)
            if check is not None:
                check(plain)
            return json.dumps(plain, allow_nan=False).encode()

        return encode


class _JsonDeserializer(PayloadDeserializer):
    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        convert: Callable[[object], object],
        validate: bool,
    ) -> None:
        super().__init__(registry)
        self._convert = convert
        self._validate = validate

    def _decoder(self, schema_id: int) -> Decode:
        schema = self._registry.schema(schema_id)
        if schema.schema_type != "JSON":
            raise SerializationError(
                f"schema id {schema_id} is of type {schema.schema_type}, not JSON; use its serde"
            )
        check = _validator(self._registry, schema) if self._validate else None

        def decode(data: bytes) -> object:
            value: object = json.loads(data)
            if check is not None:
                check(value)
            return self._convert(value)

        return decode


def _as_json(value: object) -> object:
    """A value as JSON has it; dates and the like become text."""
    if hasattr(value, "model_dump"):
        return model_to_mapping(value, as_json=True)
    if value is None or isinstance(value, dict | list | str | int | float):
        return value
    import msgspec

    return msgspec.to_builtins(value, enc_hook=functools.partial(model_to_mapping, as_json=True))
