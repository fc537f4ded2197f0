"""Blocking calls, written from ``sdk/aio/admin/security.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject security.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin_cluster import (
    AclBinding,
    AclFilter,
    AnyName,
    ClientQuota,
    ScramDeletion,
    ScramUpsertion,
)
from onceflow.sdk.sync.portal import Portal


class SecurityCalls:
    """The blocking admin client's calls of the subject security."""

    _async: AsyncAdmin
    _portal: Portal

    def describe_acls(
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
        return self._portal.call(lambda: self._async.describe_acls(wanted, timeout_ms=timeout_ms))

    def create_acls(self, bindings: Iterable[AclBinding], *, timeout_ms: int | None = None) -> None:
        """Add ACLs; existing ones are not an error.

        Args:
            bindings: The ACLs to add.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: An ACL has ANY where one thing must be named.
            SecurityDisabledError: The cluster has no authorizer.
            BrokerError: Another refusal.
        """
        self._portal.call(lambda: self._async.create_acls(bindings, timeout_ms=timeout_ms))

    def delete_acls(
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
        return self._portal.call(lambda: self._async.delete_acls(filters, timeout_ms=timeout_ms))

    def describe_user_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the iterations by mechanism of users with SCRAM passwords (KIP-554).

        Args:
            users: Which ones; None for all.
            timeout_ms: Limit.

        Raises:
            ResourceNotFoundError: One has no password.
        """
        return self._portal.call(
            lambda: self._async.describe_user_scram_credentials(users, timeout_ms=timeout_ms)
        )

    def alter_user_scram_credentials(
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
        self._portal.call(
            lambda: self._async.alter_user_scram_credentials(
                upsertions, deletions, timeout_ms=timeout_ms
            )
        )

    def describe_client_quotas(
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
        return self._portal.call(
            lambda: self._async.describe_client_quotas(
                components, strict=strict, timeout_ms=timeout_ms
            )
        )

    def alter_client_quotas(
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
        self._portal.call(
            lambda: self._async.alter_client_quotas(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )
