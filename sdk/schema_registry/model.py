"""Data classes of the schema registry: schemas, references between them, registered versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Compatibility", "RegisteredSchema", "Schema", "SchemaReference", "SchemaType"]

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
Compatibility = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A reference from one schema to another.

    Attributes:
        name: Name that the referencing schema uses: a full name in Avro, a ``$ref`` in JSON
            Schema, an import path in Protobuf.
        subject: Subject under which the referenced schema is registered.
        version: Version of the referenced schema under that subject.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as the registry stores it.

    Attributes:
        text: The schema in its own language; for Protobuf either ``.proto`` text or a
            FileDescriptorProto in base64.
        schema_type: AVRO, JSON or PROTOBUF.
        references: Schemas that it references.
    """

    text: str
    schema_type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id, subject and version in the registry.

    Attributes:
        schema: The schema.
        schema_id: Its id, the same under every subject.
        subject: Subject of the request.
        version: Version under that subject, counted from 1.
    """

    schema: Schema
    schema_id: int
    subject: str
    version: int
