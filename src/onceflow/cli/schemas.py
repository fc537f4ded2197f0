"""Keys and values with schemas of a registry, as JSON: for ``consume`` and ``produce``.

Avro is in Avro's own JSON encoding and Protobuf in Protobuf's, so that what is printed can be
produced again. Where the registry is comes from ``--registry``, the settings file or variables;
credentials never from an option.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from onceflow.cli.base import Failure
from onceflow.cli.connect import REGISTRY_PREFIX, Connection
from onceflow.sdk.errors import SerializationError

if TYPE_CHECKING:
    from onceflow.sdk.schema_registry import Schema, SchemaRegistry

    Decode = Callable[[bytes, str, str], object]
    Encode = Callable[[bytes], bytes]

LATEST: Final = "latest"
SCHEMA_TYPES: Final[Mapping[str, str]] = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
"""Type of a schema by the suffix of its file."""
_IN_FILES: Final = {
    "schema.registry.url": "url",
    "basic.auth.user.info": "basic_auth_user_info",
    "bearer.auth.token": "bearer_auth_token",
}


def open_registry(connection: Connection, url: str | None) -> SchemaRegistry:
    """Make a client of the registry.

    Args:
        connection: Settings of the command line.
        url: Address from the command line, or None.

    Raises:
        ConfigError: A setting cannot be used.
        Failure: No place names the registry, or its library is not installed.
    """
    try:
        from onceflow.sdk.schema_registry import SchemaRegistry, SchemaRegistryConfig
    except ImportError as error:
        raise _missing(error) from error
    found: dict[str, object] = dict(_of_file(connection.settings_file))
    for variable, text in connection.registry_environ.items():
        name = variable.removeprefix(REGISTRY_PREFIX).lower()
        setting = SchemaRegistryConfig.declared.get(name)
        if setting is None:
            known = ", ".join(f"{REGISTRY_PREFIX}{each.upper()}" for each in _IN_FILES.values())
            raise click.UsageError(f"{variable}: no setting of a registry; there are {known}, ...")
        found[name] = setting.read(text)
    if url is not None:
        found["url"] = url
    if "url" not in found:
        raise Failure(
            "no schema registry is named\nNext: --registry URL, schema.registry.url in the "
            f"settings file, or {REGISTRY_PREFIX}URL",
            2,
        )
    config = SchemaRegistryConfig.build(found)
    settings: Any = {name: getattr(config, name) for name in found}
    return SchemaRegistry(**settings)


def _of_file(path: Path | None) -> dict[str, str]:
    """What the settings file says of the registry; its other lines are the clients'."""
    if path is None:
        return {}
    from onceflow.sdk.settings.properties import parse_properties

    text = path.read_text(encoding="utf-8-sig")
    lines = _flat(tomllib.loads(text)) if path.suffix == ".toml" else dict(parse_properties(text))
    return {target: lines[name] for name, target in _IN_FILES.items() if name in lines}


def _flat(table: Mapping[str, object], before: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = str(value)
    return found


def _missing(error: ImportError) -> Failure:
    return Failure(f"{error}\nNext: pip install 'onceflow[schema-registry]'", 2)


def decoder(registry: SchemaRegistry) -> Decode:
    """Return a function that gives bytes as JSON, by the schema whose id they begin with.

    It raises ``SerializationError`` for bytes that do not fit, and ``KafkaError`` if the registry
    cannot be asked.

    Args:
        registry: Where schemas are.
    """
    from onceflow.sdk.schema_registry.wire import read_schema_id

    made: dict[str, Decode] = {}

    def decode(data: bytes, topic: str, field: str) -> object:
        kind = registry.schema(read_schema_id(data)).schema_type
        if kind not in made:
            try:
                made[kind] = _DECODERS[kind](registry)
            except ImportError as error:
                raise _missing(error) from error
        found = made[kind](data, topic, field)
        if found is None:
            raise SerializationError(f"the {field} is null by its schema, and no tombstone")
        return found

    return decode


def _avro_decoder(registry: SchemaRegistry) -> Decode:
    from onceflow.sdk.schema_registry.avro.json_encoding import to_json
    from onceflow.sdk.schema_registry.avro.serde import avro_serde, graph_of
    from onceflow.sdk.schema_registry.wire import read_schema_id

    serde = avro_serde(registry)
    graphs: dict[int, Any] = {}

    def decode(data: bytes, topic: str, field: str) -> object:
        schema_id = read_schema_id(data)
        value = serde.bind(topic, field).deserialize(data)
        if schema_id not in graphs:
            graphs[schema_id] = graph_of(registry, registry.schema(schema_id))
        return to_json(graphs[schema_id], value)

    return decode


def _json_decoder(registry: SchemaRegistry) -> Decode:
    from onceflow.sdk.schema_registry import json_schema_serde

    serde = json_schema_serde(registry)
    return lambda data, topic, field: serde.bind(topic, field).deserialize(data)


def _protobuf_decoder(registry: SchemaRegistry) -> Decode:
    from onceflow.sdk.schema_registry.protobuf import protobuf_serde, to_json

    serde = protobuf_serde(registry)
    return lambda data, topic, field: to_json(serde.bind(topic, field).deserialize(data))


_DECODERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "AVRO": _avro_decoder,
    "JSON": _json_decoder,
    "PROTOBUF": _protobuf_decoder,
}


def encoder(
    registry: SchemaRegistry, given: str, message: str | None, topic: str, field: str
) -> Encode:
    """Return a function that writes JSON text as bytes behind the id of a schema.

    It raises ``SerializationError`` for JSON that does not fit. A schema that the topic's subject
    lacks is registered.

    Args:
        registry: Where schemas are.
        given: A schema's file, or "latest" for the subject's newest schema.
        message: Full name of a Protobuf message; None for the first one of its file.
        topic: Topic.
        field: "key" or "value".

    Raises:
        BadParameter: The file's suffix names no type of schema.
        KafkaError: The registry refuses, or cannot be asked.
    """
    from onceflow.sdk.schema_registry import Schema

    subject = f"{topic}-{field}"
    if given != LATEST:
        path = Path(given)
        kind = SCHEMA_TYPES.get(path.suffix)
        if kind is None or not path.is_file():
            raise click.BadParameter(
                f"{given!r}: must be {LATEST}, or a file {', '.join(SCHEMA_TYPES)}"
            )
        schema = Schema(path.read_text(), kind)  # type: ignore[arg-type] # of the table above
        schema_id = registry.register(subject, schema)
    else:
        latest = registry.latest(subject)
        schema_id, schema = latest.schema_id, latest.schema
    if message is not None and schema.schema_type != "PROTOBUF":
        raise click.BadParameter(f"--message {message}: {given} is of type {schema.schema_type}")
    try:
        if schema.schema_type == "PROTOBUF":
            return _protobuf_encoder(registry, schema_id, message)
        make = _avro_encoder if schema.schema_type == "AVRO" else _json_encoder
        return make(registry, schema, topic, field)
    except ImportError as error:
        raise _missing(error) from error


def _read(text: bytes) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise SerializationError(f"not JSON: {error}") from None
    return found


def _avro_encoder(registry: SchemaRegistry, schema: Schema, topic: str, field: str) -> Encode:
    from onceflow.sdk.schema_registry.avro.json_encoding import from_json
    from onceflow.sdk.schema_registry.avro.serde import avro_serde, graph_of

    serde = avro_serde(registry, schema, auto_register=False).bind(topic, field)
    graph = graph_of(registry, schema)

    def encode(text: bytes) -> bytes:
        try:
            value = from_json(graph, _read(text))
        except ValueError as error:
            raise SerializationError(str(error)) from error
        return serde.serialize(value)

    return encode


def _json_encoder(registry: SchemaRegistry, schema: Schema, topic: str, field: str) -> Encode:
    from onceflow.sdk.schema_registry import json_schema_serde

    serde = json_schema_serde(registry, schema, auto_register=False).bind(topic, field)
    return lambda text: serde.serialize(_read(text))


def _protobuf_encoder(registry: SchemaRegistry, schema_id: int, message: str | None) -> Encode:
    from onceflow.sdk.schema_registry.protobuf import json_writer

    return json_writer(registry, schema_id, message)
