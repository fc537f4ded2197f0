"""The same message through other libraries' encoders: kafka-python's classes and kio's entities.

Each function takes one of our messages, builds the library's own object by the names of the fields,
and returns the bytes that the library makes of it, or None if it does not know that message or
version. kio is used as an encoder only; its native reader aborts on hostile lengths.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import warnings
from typing import Any

import kio.index
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field
from kio.static.constants import EntityType

from onceflow.sdk.protocol.schema import Message, Request

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol.admin
    import kafka.protocol.consumer
    import kafka.protocol.metadata
    import kafka.protocol.producer
    import kafka.protocol.sasl

_KAFKA_PYTHON = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
_KAFKA_PYTHON_RENAMES = {
    ("MetadataResponse", "authorized_operations"): "cluster_authorized_operations",
    ("MetadataResponseTopic", "authorized_operations"): "topic_authorized_operations",
    ("DescribeClusterResponse", "authorized_operations"): "cluster_authorized_operations",
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kafka_python_type(name: str) -> Any:
    """kafka-python's class of a message, or None."""
    return next((vars(m)[name] for m in _KAFKA_PYTHON if name in vars(m)), None)


def kafka_python_fields(message_type: type[Message], struct: Any) -> dict[str, Any]:
    """kafka-python's fields under our names, or under its own where we have none."""
    names = _names(message_type)
    fields = {}
    for field in struct.fields.values():
        renamed = _KAFKA_PYTHON_RENAMES.get((message_type.__name__, field.name), field.name)
        fields[names.get(_plain(renamed), field.name)] = field
    return fields


def kafka_python_bytes(message: Message, version: int) -> bytes | None:
    """Encode with kafka-python, or return None where it lacks the message or the version."""
    foreign = kafka_python_type(type(message).__name__)
    if foreign is None or version > foreign.max_version:
        return None
    values = _kafka_python_values(message, foreign._struct, version)
    return bytes(foreign(version=version, **values).encode(version=version))


def _kafka_python_values(message: Message, struct: Any, version: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, field in kafka_python_fields(type(message), struct).items():
        if not field.for_version_q(version):
            continue
        value = getattr(message, name)
        if field.tag is not None and value == type(message).fields()[name].default:
            continue
        if field.is_struct_array():
            value = value and [_kafka_python_struct(item, field, version) for item in value]
        elif field.is_struct():
            value = value and _kafka_python_struct(value, field, version)
        elif field.type_str == "bitfield":
            value = {bit for bit in range(32) if value >> bit & 1}
        values[field.name] = value
    return values


def _kafka_python_struct(message: Message, field: Any, version: int) -> object:
    return field.data_class(version=version, **_kafka_python_values(message, field, version))


def kio_bytes(message: Message, version: int) -> bytes | None:
    """Encode with kio, or return None where it lacks the message or the version."""
    kind = EntityType.request if isinstance(message, Request) else EntityType.response
    try:
        name = kio.index._name_from_key(message.api_key)  # type: ignore[attr-defined]
        foreign = kio.index.load_entity_schema(name, version, kind)
    except kio.index.KioIndexError:
        return None
    buffer = io.BytesIO()
    entity_writer(foreign)(buffer, _kio_entity(message, foreign))
    return buffer.getvalue()


def _kio_entity(message: Message, foreign: Any) -> Any:
    names = _names(type(message))
    values = {}
    for field in dataclasses.fields(foreign):
        plain = _plain(field.name)
        name = names.get(plain) or names[plain + "ms"]  # kio drops units where it has a type.
        ours = type(message).fields()[name]
        value = getattr(message, name)
        if ours.tag is not None and value == ours.default:
            continue
        values[field.name] = _kio_value(value, field)
    return foreign(**values)


def _kio_value(value: Any, field: dataclasses.Field[Any]) -> object:
    match classify_field(field):
        case EntityTupleField(entity):
            return value if value is None else tuple(_kio_entity(item, entity) for item in value)
        case EntityField(entity):
            return value if value is None else _kio_entity(value, entity)
    convert = _KIO_CONVERSIONS.get(field.metadata["kafka_type"], lambda plain: plain)
    if isinstance(value, list):
        return tuple(map(convert, value))
    return value if value is None else convert(value)


def _kio_datetime(value: int) -> datetime.datetime | None:
    return None if value == -1 else _EPOCH + datetime.timedelta(milliseconds=value)


def _kio_duration(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


_KIO_CONVERSIONS: dict[str, Any] = {
    "error_code": KioErrorCode,
    "timedelta_i32": _kio_duration,
    "timedelta_i64": _kio_duration,
    "datetime_i64": _kio_datetime,
}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


@functools.cache
def _names(message_type: type[Message]) -> dict[str, str]:
    return {_plain(name): name for name in message_type.fields()}
