"""The JSON Schema serde; needs jsonschema (``pip install 'onceflow[json-schema]'``).

A schema without ``$schema`` is draft 7, as at the registry. Names of references resolve against the
``$id`` of the schema that uses them. No schema is ever fetched by its URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, NoReturn
from urllib.parse import urldefrag, urljoin

import msgspec

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
    used_schema,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy
from onceflow.sdk.serde import to_json

try:
    import jsonschema
    import referencing
    import referencing.jsonschema
    from jsonschema import validators
except ImportError as _missing:
    raise ImportError("jsonschema is missing: pip install 'onceflow[json-schema]'") from _missing

GENERATED_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
"""Dialect of the schemas that msgspec and pydantic generate."""
_DRAFTS: Final = {
    "draft-03": validators.Draft3Validator,
    "draft-04": validators.Draft4Validator,
    "draft-06": validators.Draft6Validator,
    "draft-07": validators.Draft7Validator,
    "draft/2019-09": validators.Draft201909Validator,
    "draft/2020-12": validators.Draft202012Validator,
}


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
    """Return a serde for JSON values with registered JSON Schemas, in Confluent's layout.

    Args:
        registry: Client of the schema registry.
        schema: Schema to write with; draft 7 unless ``$schema`` says otherwise. None generates it
            from `kind`; without `kind` the serde only reads, unless `use_latest_version` is set.
        kind: Type of the values: a dataclass, ``msgspec`` struct, pydantic model ...; None means
            JSON's own types.
        validate: Whether to check values against their schema when they are written and read.
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
        found = describe()
    else:
        found = {"title": getattr(kind, "__name__", str(kind)), **msgspec.json.schema(kind)}
    return {"$schema": GENERATED_DIALECT, **found}


def _as_schema(given: str | Mapping[str, object] | Schema | None) -> Schema | None:
    if given is None or isinstance(given, Schema):
        return given
    schema = Schema(given if isinstance(given, str) else json.dumps(given, allow_nan=False), "JSON")
    compiled(lambda: _validator_class(json.loads(schema.text)), "the JSON schema")
    return schema


def _validator_class(loaded: Any) -> Any:
    found = _dialect(loaded)
    found.check_schema(loaded)
    return found


def _dialect(loaded: Any) -> Any:
    """Return the validator of the draft in ``$schema``; draft 7 if it is missing or unknown."""
    named = loaded.get("$schema") if isinstance(loaded, dict) else None
    draft = re.match(r"https?://json-schema\.org/(draft[-/][\d-]+)/", str(named))
    return _DRAFTS.get(draft[1] if draft else "", validators.Draft7Validator)


def _resource(loaded: Any) -> Any:
    dialect = _dialect(loaded)
    specification = referencing.jsonschema.specification_with(dialect.ID_OF(dialect.META_SCHEMA))
    return specification.create_resource(loaded)


def _validator(registry: SchemaRegistry, schema: Schema) -> Callable[[object], None]:
    """Return a function that raises SerializationError for a value that breaks the schema."""
    loaded = json.loads(schema.text)
    known: dict[str, Any] = {}

    def add(user: Schema, base: str) -> None:
        for reference in user.references:
            address = urldefrag(urljoin(base, reference.name)).url
            if address in known:
                continue
            used = used_schema(registry, reference, len(known))
            resource = known[address] = _resource(json.loads(used.schema.text))
            own = urljoin(address, resource.id() or "")
            known.setdefault(own, resource)
            add(used.schema, own)

    add(schema, _resource(loaded).id() or "")
    resources: Any = referencing.Registry().with_resources(known.items())
    checker = _validator_class(loaded)(loaded, registry=resources)

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
            if value is None or isinstance(value, dict | list | str | int | float):
                _check_plain(value)
            data = to_json(value)
            if check is not None:
                check(json.loads(data))  # readers check the decoded JSON too
            return data

        return encode


class _JsonDeserializer(PayloadDeserializer):
    _schema_type = "JSON"

    def __init__(
        self,
        registry: SchemaRegistry | AsyncSchemaRegistry,
        convert: Callable[[object], object],
        validate: bool,
    ) -> None:
        super().__init__(registry)
        self._convert = convert
        self._validate = validate

    def _decoder(self, schema: Schema) -> Decode:
        check = _validator(self._registry, schema) if self._validate else None

        def decode(data: bytes) -> object:
            value: object = json.loads(data, parse_constant=_refuse_constant)
            if check is not None:
                check(value)
            return self._convert(value)

        return decode


def _check_plain(value: object) -> None:
    """Refuse values that JSON would change: keys that are not strings, bytes, sets ..."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SerializationError(f"the key {key!r} must be a string, as JSON requires")
            _check_plain(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_plain(inner)
    elif value is not None and not isinstance(value, str | int | float):
        raise SerializationError(
            f"JSON has no {type(value).__name__}; convert it, or make the whole value an object of "
            "a dataclass, msgspec struct or pydantic model"
        )


def _refuse_constant(word: str) -> NoReturn:
    raise SerializationError(f"{word} is not allowed in JSON")
