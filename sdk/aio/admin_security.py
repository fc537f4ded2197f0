"""The asyncio admin client's calls about ACLs, SCRAM users and quotas."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onceflow.sdk.admin_cluster_model import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    AnyName,
    ClientQuota,
    ScramDeletion,
    ScramUpsertion,
)
from onceflow.sdk.aio.admin_base import AdminBase
from onceflow.sdk.core import admin_security
from onceflow.sdk.core.admin_arguments import instances, name_list
from onceflow.sdk.core.admin_security import SCRAM_MECHANISMS, QuotaEntity, quota_entity
from onceflow.sdk.errors import ConfigError

SALT_BYTES: Final = 16
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Bounds of brokers; below, guessing is too easy, and above, a log-in too expensive."""

QUOTA_ENTITY_TYPES: Final = ("user", "client-id", "ip")


class SecurityCalls(AdminBase):
    """ACLs, users and quotas."""

    async def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Rules that a filter matches; all without one.

        Args:
            wanted: The filter; None for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        asked = AclFilter() if wanted is None else wanted
        return await self._ask_once(
            lambda _, target: admin_security.describe_acls(asked, target), timeout_ms
        )

    async def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout_ms: int | None = None
    ) -> None:
        """Add rules; one that is there already is no error.

        Args:
            bindings: What to add; one that is there already is no error.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A rule has ANY where one thing must be named.
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        wanted = instances("bindings", bindings, AclBinding)
        for binding in wanted:
            _check_binding(binding)
        await self._ask_each(
            wanted, lambda left, _, target: admin_security.create_acls(left, target), timeout_ms
        )

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout_ms: int | None = None
    ) -> dict[AclFilter, list[AclBinding]]:
        """Remove every rule that one of the filters matches; gives what was removed.

        Args:
            filters: Each deletes every ACL that fits it.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        return await self._ask_each(
            instances("filters", filters, AclFilter),
            lambda left, _, target: admin_security.delete_acls(left, target),
            timeout_ms,
        )

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Iterations by mechanism of users with SCRAM passwords (KIP-554).

        Args:
            users: Which ones; None for all.
            timeout_ms: Limit.

        Raises:
            ResourceNotFoundError: One has no password.
        """
        if users is None:
            found = await self._ask_once(
                lambda _, target: admin_security.describe_scram_users(None, target), timeout_ms
            )
            return {user: infos for user, infos in found.items() if isinstance(infos, dict)}
        return await self._ask_each(
            name_list(users),
            lambda left, _, target: admin_security.describe_scram_users(left, target),
            timeout_ms,
        )

    async def alter_user_scram_credentials(
        self,
        upsertions: Sequence[ScramUpsertion] = (),
        deletions: Sequence[ScramDeletion] = (),
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Set and remove passwords of users (KIP-554).

        Args:
            upsertions: Passwords to set, by user and mechanism.
            deletions: Mechanisms to take from users.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A mechanism, a number of iterations or a password that cannot work.
            ResourceNotFoundError: A password to remove is not there.
            BrokerError: Another refusal.
        """
        mechanisms = [wish.mechanism for wish in upsertions]
        for mechanism in mechanisms + [deletion.mechanism for deletion in deletions]:
            if mechanism not in SCRAM_MECHANISMS:
                choices = f"choose from {', '.join(SCRAM_MECHANISMS)}"
                raise ConfigError("mechanism", mechanism, choices)
        salted = []
        for wish in upsertions:
            if not ITERATIONS_MIN <= wish.iterations <= ITERATIONS_MAX:
                bounds = f"give {ITERATIONS_MIN} to {ITERATIONS_MAX}"
                raise ConfigError("iterations", wish.iterations, bounds)
            if not wish.password:
                raise ConfigError("password", "", f"give user {wish.user!r} a password")
            salt = secrets.token_bytes(SALT_BYTES) if wish.salt is None else wish.salt
            salted.append(wish._replace(salt=salt))
        users = [wish.user for wish in salted] + [deletion.user for deletion in deletions]
        await self._ask_each(
            name_list(users),
            lambda left, _, target: admin_security.alter_scram_users(
                [wish for wish in salted if wish.user in left],
                [deletion for deletion in deletions if deletion.user in left],
                target,
            ),
            timeout_ms,
        )

    async def describe_client_quotas(
        self,
        components: Mapping[str, str | AnyName | None] | None = None,
        *,
        strict: bool = False,
        timeout_ms: int | None = None,
    ) -> list[ClientQuota]:
        """Quotas of entities (KIP-546).

        Args:
            components: What parts of an entity must be, by "user", "client-id" or "ip": a name,
                None for the default, or `AnyName.ANY`; all entities without any.
            strict: Leave out entities that have other parts too.
            timeout_ms: Limit.

        Raises:
            ConfigError: There is no such type of entity.
            BrokerError: A refusal.
        """
        wanted = dict(components or {})
        _check_entity(wanted)
        return await self._ask_once(
            lambda _, target: admin_security.describe_quotas(wanted, strict, target), timeout_ms
        )

    async def alter_client_quotas(
        self,
        changes: Iterable[tuple[Mapping[str, str | None], Mapping[str, float | None]]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Set quotas of entities (KIP-546).

        Args:
            changes: Pairs of an entity, as in `ClientQuota.entity`, and its new quotas by Kafka's
                name; None removes one.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            ConfigError: There is no such type of entity.
            InvalidRequestError: A quota or value does not exist.
        """
        wanted: dict[QuotaEntity, dict[str, float | None]] = {}
        for entity, quotas in changes:
            _check_entity(entity)
            wanted.setdefault(quota_entity(entity.items()), {}).update(quotas)
        await self._ask_each(
            wanted,
            lambda left, _, target: admin_security.alter_quotas(
                {entity: wanted[entity] for entity in left}, validate_only, target
            ),
            timeout_ms,
        )


def _check_binding(binding: AclBinding) -> None:
    """Refuse what only a filter may say."""
    wrong = {
        "resource_type": binding.resource_type is AclResourceType.ANY,
        "operation": binding.operation is AclOperation.ANY,
        "permission": binding.permission is AclPermission.ANY,
        "pattern_type": binding.pattern_type in (AclPatternType.ANY, AclPatternType.MATCH),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(name, getattr(binding, name).name, "name one; this is for filters")


def _check_entity(entity: Mapping[str, object]) -> None:
    for kind in entity:
        if kind not in QUOTA_ENTITY_TYPES:
            raise ConfigError("entity", kind, f"choose from {', '.join(QUOTA_ENTITY_TYPES)}")
