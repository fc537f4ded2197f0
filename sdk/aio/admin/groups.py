"""AsyncAdmin's calls for groups and their members."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin.arguments import name_list
from onceflow.sdk.model.admin import (
    GroupDescription,
    GroupListing,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType


class AsyncGroupCalls(AsyncAdminBase):
    """Groups and their members."""

    async def list_groups(
        self,
        *,
        states: Collection[str] = (),
        types: Collection[str] = (),
        timeout_ms: int | None = None,
    ) -> list[GroupListing]:
        """Return all groups of the cluster.

        Args:
            states: Only groups in these states, by Kafka's names; empty for all.
            types: Only groups of these types ("classic", "consumer"); empty for all.
            timeout_ms: Limit.
        """
        states, types = name_list("states", states), name_list("types", types)
        found = await self._asker.ask_brokers(
            lambda node_id: admin_groups.list_groups(node_id, states, types), timeout_ms
        )
        return sorted(listing for part in found for listing in part)

    async def describe_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """Return state and members of groups of both protocols; an unknown group is Dead.

        Args:
            groups: Group names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return await self._asker.ask_coordinators(
            name_list("groups", groups),
            CoordinatorType.GROUP,
            admin_groups.describe_group,
            timeout_ms,
        )

    async def delete_groups(self, groups: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete groups with their committed offsets.

        Args:
            groups: Names of groups without members.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            NonEmptyGroupError: One has members.
            GroupIdNotFoundError: One does not exist.
        """
        await self._asker.ask_coordinators(
            name_list("groups", groups),
            CoordinatorType.GROUP,
            admin_groups.delete_group,
            timeout_ms,
        )
