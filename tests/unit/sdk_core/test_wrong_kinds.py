"""Goal: whatever is given to a call of a client, it is taken or refused by name before anything is
asked of a broker: never a ``TypeError`` of a line deep inside, and never nothing.

Method: each argument of each public call gets values of every kind, the others what belongs there,
on clients that are not started. What fits the declared type gets as far as `IllegalStateError`, or
is refused for its value; anything else must be refused as ``argument=value: what to write``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from wrong_kinds import PART, arguments_of, fits, zoo

from onceflow.sdk import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclResourceType,
    AsyncAdmin,
    ConfigResource,
    NewTopic,
    OffsetAndMetadata,
    ResourceType,
    ScramDeletion,
    ScramUpsertion,
)
from onceflow.sdk.errors import ConfigError, KafkaError

RIGHT: dict[str, object] = {
    "topics": ["t"],
    "groups": ["g"],
    "group": "g",
    "totals": {"t": 3},
    "before": {PART: 5},
    "resources": ["t"],
    "changes": {},
    "partitions": [PART],
    "partition": PART,
    "transactional_ids": ["x"],
    "offsets": {PART: 5},
    "targets": {PART: "latest"},
    "bindings": [AclBinding(AclResourceType.TOPIC, "t", "User:a", AclOperation.READ)],
    "filters": [AclFilter()],
    "broker": 1,
    "folders": {PART: "/data"},
    "replicas": {PART: [1]},
    "levels": {"metadata.version": 20},
}
"""What belongs in arguments that must be given."""

RIGHT_IN: dict[str, dict[str, object]] = {
    "alter_client_quotas": {"changes": [({"user": "a"}, {"producer_byte_rate": 5.0})]},
    "reset_group_offsets": {"to": 5},
}
"""What belongs there in single calls."""


def public_calls(kind: type) -> Iterator[str]:
    for name, call in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and len(inspect.signature(call).parameters) > 1:
            yield name


CASES = [
    (kind, call, argument)
    for kind in (AsyncAdmin,)
    for call in public_calls(kind)
    for argument in arguments_of(getattr(kind, call))
]


async def outcome(kind: type, call: str, given: dict[str, object]) -> object:
    try:
        result = getattr(kind(), call)(**given)
        if inspect.isawaitable(result):
            await result
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return error
    return "nothing"


def needed_by(kind: type, call: str) -> dict[str, object]:
    """What a call must be given."""
    special = RIGHT_IN.get(call, {})
    parameters = inspect.signature(getattr(kind, call)).parameters.values()
    needed = {each.name for each in parameters if each.default is inspect.Parameter.empty}
    return special | {name: (RIGHT | special)[name] for name in needed - {"self"}}


def listed(value: object) -> object:
    return [value]


def by_partition(value: object) -> object:
    return {PART: value}


@pytest.mark.parametrize(("kind", "call", "argument"), CASES)
async def test_an_argument_is_taken_or_refused_by_name(
    kind: type, call: str, argument: str
) -> None:
    hints = arguments_of(getattr(kind, call))
    wrong = []
    for name, value in zoo().items():
        right = fits(value, hints[argument])
        found = await outcome(kind, call, needed_by(kind, call) | {argument: value})
        if right:
            well = isinstance(found, KafkaError)
        else:
            well = isinstance(found, ConfigError) and found.field.startswith(argument)
        if not well:
            wrong.append(f"{argument}={name}: {type(found).__name__} {found}")
    assert wrong == []


BINDING = AclBinding(AclResourceType.TOPIC, "t", "User:a", AclOperation.READ)
VALUES: list[tuple[type, str, str, Any, Callable[[object], object]]] = [
    (AsyncAdmin, "create_topics", "topics", NewTopic("t"), listed),
    (AsyncAdmin, "describe_configs", "resources", ConfigResource(ResourceType.BROKER, "1"), listed),
    (AsyncAdmin, "create_acls", "bindings", BINDING, listed),
    (AsyncAdmin, "delete_acls", "filters", AclFilter(), listed),
    (AsyncAdmin, "describe_acls", "wanted", AclFilter(), lambda value: value),
    (AsyncAdmin, "alter_user_scram_credentials", "upsertions", ScramUpsertion("a", "x"), listed),
    (AsyncAdmin, "alter_user_scram_credentials", "deletions", ScramDeletion("a"), listed),
    (AsyncAdmin, "alter_group_offsets", "offsets", OffsetAndMetadata(5), by_partition),
    (AsyncAdmin, "describe_producers", "partitions", PART, listed),
]
"""Values with fields: the call and argument that they belong to, and how they are given there."""


@pytest.mark.parametrize(
    ("kind", "call", "argument", "value", "given_as"),
    VALUES,
    ids=lambda each: each if isinstance(each, str) else getattr(each, "__name__", "value"),
)
async def test_a_field_of_a_value_is_taken_or_refused_by_name(
    kind: type, call: str, argument: str, value: Any, given_as: Callable[[object], object]
) -> None:
    hints = typing.get_type_hints(type(value))
    wrong = []
    for field in value._fields:
        for name, other in zoo().items():
            given = given_as(value._replace(**{field: other}))
            found = await outcome(kind, call, needed_by(kind, call) | {argument: given})
            right = fits(other, hints[field])
            expected = KafkaError if right else ConfigError
            if not isinstance(found, expected) or (not right and argument not in found.field):
                wrong.append(f"{field}={name}: {type(found).__name__} {found}")
    assert wrong == []


@pytest.mark.parametrize(
    "given",
    [
        {"alice": "secret"},
        [("alice", "secret")],
        [ScramUpsertion("alice", "secret", iterations=5)],
        [ScramUpsertion("alice", typing.cast("str", b"secret"))],
        [ScramUpsertion("alice", "x", salt=typing.cast("bytes", "secret"))],
    ],
)
async def test_a_password_is_not_shown(given: object) -> None:
    refused = await outcome(AsyncAdmin, "alter_user_scram_credentials", {"upsertions": given})
    assert isinstance(refused, ConfigError)
    assert "secret" not in str(refused)
    assert "secret" not in repr(refused.args)
