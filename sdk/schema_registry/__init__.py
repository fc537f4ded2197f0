"""Schemas kept in a registry: its client, and serdes for Avro, JSON Schema and Protobuf.

Names are loaded at their first use; each language needs its own library, see its module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.sdk.schema_registry.aio import AsyncSchemaRegistry as AsyncSchemaRegistry
    from onceflow.sdk.schema_registry.avro import avro_serde as avro_serde
    from onceflow.sdk.schema_registry.avro import avro_type_name as avro_type_name
    from onceflow.sdk.schema_registry.client import SchemaRegistry as SchemaRegistry
    from onceflow.sdk.schema_registry.config import SchemaRegistryConfig as SchemaRegistryConfig
    from onceflow.sdk.schema_registry.json_schema import json_schema_serde as json_schema_serde
    from onceflow.sdk.schema_registry.model import RegisteredSchema as RegisteredSchema
    from onceflow.sdk.schema_registry.model import Schema as Schema
    from onceflow.sdk.schema_registry.model import SchemaReference as SchemaReference
    from onceflow.sdk.schema_registry.protobuf import protobuf_serde as protobuf_serde
    from onceflow.sdk.schema_registry.serdes import RegistrySerde as RegistrySerde

_HOMES = {
    "AsyncSchemaRegistry": "aio",
    "RegisteredSchema": "model",
    "RegistrySerde": "serdes",
    "Schema": "model",
    "SchemaReference": "model",
    "SchemaRegistry": "client",
    "SchemaRegistryConfig": "config",
    "avro_serde": "avro",
    "avro_type_name": "avro",
    "json_schema_serde": "json_schema",
    "protobuf_serde": "protobuf",
}

__all__ = [
    "SchemaRegistry",
    "AsyncSchemaRegistry",
    "SchemaRegistryConfig",
    "Schema",
    "SchemaReference",
    "RegisteredSchema",
    "RegistrySerde",
    "avro_serde",
    "avro_type_name",
    "json_schema_serde",
    "protobuf_serde",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"onceflow.sdk.schema_registry.{home}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
