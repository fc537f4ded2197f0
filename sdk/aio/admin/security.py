"""AsyncAdmin's calls for ACLs, SCRAM passwords and quotas."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.core.admin import security as admin_security
from onceflow.sdk.core.admin.arguments import (
    instances,
    name_list,
)
from onceflow.sdk.core.admin.security_arguments import (
    check_deletion,
    check_rule,
    check_upsertion,
    quota_changes,
    quota_components,
)
from onceflow.sdk.core.arguments import check_flag
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin_cluster import (
    AclBinding,
    AclFilter,
    AnyName,
    ClientQuota,
    ScramDeletion,
    ScramUpsertion,
)

SALT_BYTES: Final = 16


class AsyncSecurityCalls(AsyncAdminBase):
    """ACLs, passwords and quotas."""

    async def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> list[AclBinding]:
        """Return the ACLs that a filter matches; all without a filter.

        Args:
            wanted: The filter; None for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        asked = AclFilter() if wanted is None else wanted
        if not isinstance(asked, AclFilter):
            raise ConfigError("wanted", wanted, "must be an AclFilter, or None for all rules")
        check_rule("wanted", asked)
        return await self._asker.ask_controller_once(
            lambda _, target: admin_security.describe_acls(asked, target), timeout_ms
        )

    async def create_acls(
        self, bindings: Iterable[AclBinding], *, timeout_ms: int | None = None
    ) -> None:
        """Add ACLs; existing ones are not an error.

        Args:
            bindings: The ACLs to add.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: An ACL has ANY where one thing must be named.
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        check = partial(check_rule, "bindings")
        wanted = instances("bindings", bindings, AclBinding, check)
        await self._asker.ask_controller(
            wanted, lambda left, _, target: admin_security.create_acls(left, target), timeout_ms
        )

    async def delete_acls(
        self, filters: Iterable[AclFilter], *, timeout_ms: int | None = None
    ) -> dict[AclFilter, list[AclBinding]]:
        """Delete every ACL that one of the filters matches, and return what was deleted.

        Args:
            filters: Each deletes every ACL that it matches.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        return await self._asker.ask_controller(
            instances("filters", filters, AclFilter, partial(check_rule, "filters")),
            lambda left, _, target: admin_security.delete_acls(left, target),
            timeout_ms,
        )

    async def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of users with SCRAM passwords (KIP-554).

        Args:
            users: Which ones; None for all.
            timeout_ms: Limit.

        Raises:
            ResourceNotFoundError: One has no password.
        """
        if users is None:
            found = await self._asker.ask_controller_once(
                lambda _, target: admin_security.describe_scram_users(None, target), timeout_ms
            )
            return {user: infos for user, infos in found.items() if isinstance(infos, dict)}
        return await self._asker.ask_controller(
            name_list("users", users),
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
        """Set and delete SCRAM passwords of users (KIP-554).

        Args:
            upsertions: Passwords to set, by user and mechanism.
            deletions: Mechanisms to take from users.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A mechanism, a number of iterations or a password that cannot work.
            ResourceNotFoundError: A password to remove is not there.
            BrokerError: Another refusal.
        """
        removed = instances("deletions", deletions, ScramDeletion, check_deletion)
        salted = [
            wish._replace(salt=secrets.token_bytes(SALT_BYTES)) if wish.salt is None else wish
            for wish in instances(
                "upsertions", upsertions, ScramUpsertion, check_upsertion, is_secret=True
            )
        ]
        users = [wish.user for wish in salted] + [deletion.user for deletion in removed]
        await self._asker.ask_controller(
            dict.fromkeys(users),
            lambda left, _, target: admin_security.alter_scram_users(
                [wish for wish in salted if wish.user in left],
                [deletion for deletion in removed if deletion.user in left],
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
        wanted = quota_components(components)
        check_flag("strict", strict)
        return await self._asker.ask_controller_once(
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
        wanted = quota_changes(changes)
        check_flag("validate_only", validate_only)
        await self._asker.ask_controller(
            wanted,
            lambda left, _, target: admin_security.alter_quotas(
                {entity: wanted[entity] for entity in left}, validate_only, target
            ),
            timeout_ms,
        )
