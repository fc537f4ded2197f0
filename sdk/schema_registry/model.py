"""Values that a schema registry deals in: schemas, references between them, and what is stored.

Nothing here knows HTTP or how a schema's text is read.
"""

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
    """A schema that another one uses, by the name that the other calls it.

    Attributes:
        name: Name within the using schema: a full name in Avro, a ``$ref`` in JSON Schema, an
            import path in Protobuf.
        subject: Subject under which the used schema is registered.
        version: Its version under that subject.
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
        references: Schemas that it uses.
    """

    text: str
    schema_type: SchemaType = "AVRO"
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with the names under which the registry knows it.

    Attributes:
        schema: The schema.
        schema_id: Its id, the same under every subject.
        subject: Subject that was asked for.
        version: Version under that subject, counted from 1.
    """

    schema: Schema
    schema_id: int
    subject: str
    version: int
