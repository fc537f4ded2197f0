"""The versions that the values of a request need.

An older broker would misread some values, or has no field for them. Such a request is not sent; the
error says what is missing, and which release of Apache Kafka has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onceflow.sdk.core.connection.handshake import served_since
from onceflow.sdk.errors import UnsupportedVersionError
from onceflow.sdk.model.special_values import BROKER_DEFAULT, MAX_TIMESTAMP
from onceflow.sdk.protocol.schema import Field, Message, Request

_LIST_OFFSETS, _TXN_OFFSET_COMMIT, _LIST_CONFIG_RESOURCES = 2, 28, 74
_LIST_GROUPS, _CREATE_TOPICS = 16, 19

_SETTINGS_LISTED = "listing what has settings (KIP-1142)"

_FIELDS: Final[Mapping[tuple[int, str], str]] = {
    (_LIST_CONFIG_RESOURCES, "resource_types"): _SETTINGS_LISTED,
    (_LIST_GROUPS, "states_filter"): "asking for groups by their state",
    (_LIST_GROUPS, "types_filter"): "asking for groups by their type",
    **dict.fromkeys(
        [(_TXN_OFFSET_COMMIT, name) for name in ("generation_id", "member_id")],
        "a transaction that is fenced by the membership of a consumer (KIP-447)",
    ),
}
"""Users' words for fields, where these differ from the name; by api key and field."""


def check_values(request: Request, version: int) -> None:
    """Refuse values that a broker would misread in this version.

    Args:
        request: The request.
        version: Its version.

    Raises:
        UnsupportedVersionError: It needs a later version.
    """
    rule = _RULES.get(request.api_key)
    if rule is None:
        return
    least, holds, what = rule
    if version < least and holds(request):
        raise _lacking(type(request), what, least, version)


def lacking_field(request_type: type[Request], field: str, version: int) -> UnsupportedVersionError:
    """Return the error for a field that is set and that this version does not have."""
    what = _FIELDS.get((request_type.api_key, field), field)
    return _lacking(request_type, what, _first_version(request_type, field, version), version)


def _lacking(
    request_type: type[Request], what: str, least: int, version: int
) -> UnsupportedVersionError:
    name = request_type.__name__.removesuffix("Request")
    since = served_since(request_type, least)
    return UnsupportedVersionError(
        f"{what} needs {name} in version {least}{since}; this connection uses version {version}"
    )


def _first_version(message_type: type[Message], name: str, version: int) -> int:
    """Return the first version with a field, after one without it; 0 if there is none."""
    found = 0
    for field_name, field in message_type.fields().items():
        if field_name == name and field.versions[0] > version:
            return field.versions[0]
        inner = _struct_of(field)
        if inner is not None:
            found = found or _first_version(inner, name, version)
    return found


def _struct_of(field: Field) -> type[Message] | None:
    return field.struct_type if field.element is None else _struct_of(field.element)


def _asks_for_max_timestamp(request: Any) -> bool:
    return any(p.timestamp == MAX_TIMESTAMP for topic in request.topics for p in topic.partitions)


def _leaves_numbers_to_the_broker(request: Any) -> bool:
    return any(
        BROKER_DEFAULT in (topic.num_partitions, topic.replication_factor) and not topic.assignments
        for topic in request.topics
    )


def _asks_for_everything(request: Any) -> bool:
    return not request.resource_types


_RULES: Final[Mapping[int, tuple[int, Callable[[Any], bool], str]]] = {
    _LIST_OFFSETS: (7, _asks_for_max_timestamp, "the offset of the largest timestamp (KIP-734)"),
    _CREATE_TOPICS: (
        4,
        _leaves_numbers_to_the_broker,
        "a topic with the broker's default number of partitions or replicas (KIP-464)",
    ),
    _LIST_CONFIG_RESOURCES: (1, _asks_for_everything, _SETTINGS_LISTED),
}
"""By api key: lowest version, a test of the requests that need it, and users' word for that."""
