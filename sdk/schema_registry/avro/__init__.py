"""Avro with a schema registry; needs fastavro (``pip install 'onceflow[avro]'``)."""

from onceflow.sdk.schema_registry.avro.names import avro_type_name
from onceflow.sdk.schema_registry.avro.serde import avro_serde

__all__ = ["avro_serde", "avro_type_name"]
