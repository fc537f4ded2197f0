"""Checks the arguments of admin calls about ACLs, SCRAM users and quotas.

As in ``arguments``, an error names the argument, and is raised before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, SupportsFloat

from onceflow.sdk.core.admin.arguments import whole_number
from onceflow.sdk.core.admin.security import SCRAM_MECHANISMS, QuotaEntity, quota_entity
from onceflow.sdk.core.arguments import check_choice
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin_cluster import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    AnyName,
    ScramDeletion,
    ScramUpsertion,
)

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Bounds of brokers; below, guessing is too easy, and above, a log-in too expensive."""

QUOTA_ENTITY_TYPES: Final = ("user", "client-id", "ip")

_ACL_ENUMS: Final = {
    "resource_type": AclResourceType,
    "operation": AclOperation,
    "permission": AclPermission,
    "pattern_type": AclPatternType,
}
_ACL_TEXTS: Final = ("resource_name", "principal", "host")
_CHANGES: Final = "give pairs, as [({'user': 'alice'}, {'producer_byte_rate': 1e6})]"


def check_rule(argument: str, rule: AclBinding | AclFilter) -> None:
    """Refuse fields of the wrong kind, and in a rule what only a filter may say.

    Args:
        argument: What the argument is called.
        rule: What the user gave.

    Raises:
        ConfigError: A field is something else, or ANY in a rule.
    """
    is_filter = isinstance(rule, AclFilter)
    for field, kind in _ACL_ENUMS.items():
        value = getattr(rule, field)
        if not isinstance(value, kind):
            remedy = f"must be a {kind.__name__}, such as {kind.__name__}.{list(kind)[-1].name}"
            raise ConfigError(f"{argument}: {field}", value, remedy)
        if not is_filter and value.name in ("ANY", "MATCH"):
            raise ConfigError(
                f"{argument}: {field}", value.name, "must name one; this value is for filters only"
            )
    for field in _ACL_TEXTS:
        value = getattr(rule, field)
        if not isinstance(value, str) and not (is_filter and value is None):
            remedy = "must be a string, or None for any" if is_filter else "must be a string"
            raise ConfigError(f"{argument}: {field}", value, remedy)


def check_upsertion(wish: ScramUpsertion) -> None:
    """Refuse a password that cannot be set.

    Raises:
        ConfigError: A field is of the wrong kind, or has a value that brokers refuse.
    """
    _check_user(wish.user, "upsertions")
    check_choice("upsertions: mechanism", wish.mechanism, SCRAM_MECHANISMS)
    iterations = whole_number("upsertions: iterations", wish.iterations)
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        bounds = f"must be {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise ConfigError("upsertions: iterations", iterations, bounds)
    if not isinstance(wish.password, str) or not wish.password:
        shown = "***" if wish.password else ""
        remedy = f"must be a string that is not empty, for user {wish.user!r}"
        raise ConfigError("upsertions: password", shown, remedy)
    if wish.salt is not None and not isinstance(wish.salt, bytes):
        raise ConfigError("upsertions: salt", "***", "must be bytes, or None for a random salt")


def check_deletion(wish: ScramDeletion) -> None:
    """Refuse a password that cannot be taken away.

    Raises:
        ConfigError: A field is of the wrong kind, or names no mechanism.
    """
    _check_user(wish.user, "deletions")
    check_choice("deletions: mechanism", wish.mechanism, SCRAM_MECHANISMS)


def _check_user(user: object, argument: str) -> None:
    if not isinstance(user, str):
        raise ConfigError(f"{argument}: user", user, "the user's name must be a string")


def quota_components(given: object) -> dict[str, str | AnyName | None]:
    """Return the parts that a filter of quota entities asks for.

    Raises:
        ConfigError: It is not a mapping of entity types to names.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError("components", given, "must be a dictionary, such as {'user': 'alice'}")
    found: dict[str, str | AnyName | None] = {}
    for kind, name in given.items():
        check_choice("components", kind, QUOTA_ENTITY_TYPES)
        if name is not None and not isinstance(name, str | AnyName):
            remedy = "must be a name, None for the default, or AnyName.ANY"
            raise ConfigError(f"components: {kind}", name, remedy)
        found[kind] = name
    return found


def quota_changes(given: object) -> dict[QuotaEntity, dict[str, float | None]]:
    """Return new quotas by entity.

    Raises:
        ConfigError: It is not a list of pairs, or one of them cannot be sent.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError("changes", given, _CHANGES)
    found: dict[QuotaEntity, dict[str, float | None]] = {}
    for change in given:
        if not isinstance(change, tuple | list) or len(change) != 2:
            raise ConfigError("changes", change, _CHANGES)
        entity, quotas = change
        if not isinstance(entity, Mapping) or not isinstance(quotas, Mapping):
            raise ConfigError("changes", change, _CHANGES)
        for kind, name in entity.items():
            check_choice("changes: entity", kind, QUOTA_ENTITY_TYPES)
            if name is not None and not isinstance(name, str):
                remedy = "must be a name, or None for the default"
                raise ConfigError(f"changes: {kind}", name, remedy)
        values = {quota: _quota_value(quota, value) for quota, value in quotas.items()}
        found.setdefault(quota_entity(entity.items()), {}).update(values)
    return found


def _quota_value(quota: object, value: object) -> float | None:
    if not isinstance(quota, str):
        raise ConfigError("changes: quotas", quota, "the quota's name must be a string")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise ConfigError(
            f"changes: {quota}", value, "must be a number, or None to remove the quota"
        )
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"changes: {quota}", value, "give None, which sets no limit") from None
