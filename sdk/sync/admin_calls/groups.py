"""Blocking calls, written from ``sdk/aio/admin/groups.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject groups.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin import GroupDescription, GroupListing
from onceflow.sdk.sync.portal import Portal


class GroupCalls:
    """The blocking admin client's calls of the subject groups."""

    _async: AsyncAdmin
    _portal: Portal

    def list_groups(
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
        return self._portal.call(
            lambda: self._async.list_groups(states=states, types=types, timeout_ms=timeout_ms)
        )

    def describe_groups(
        self,
        groups: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, GroupDescription]:
        """Return state and members of groups of both protocols; an unknown group is Dead.

        Args:
            groups: Group names.
            include_authorized_operations: Also ask what this client may do with them (KIP-430).
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.describe_groups(
                groups,
                include_authorized_operations=include_authorized_operations,
                timeout_ms=timeout_ms,
            )
        )

    def delete_groups(self, groups: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete groups with their committed offsets.

        Args:
            groups: Names of groups without members.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            NonEmptyGroupError: One has members.
            GroupIdNotFoundError: One does not exist.
        """
        self._portal.call(lambda: self._async.delete_groups(groups, timeout_ms=timeout_ms))

    def remove_members_from_consumer_group(
        self,
        group: str,
        members: Iterable[str] | None = None,
        *,
        instance_ids: Iterable[str] | None = None,
        reason: str | None = None,
        timeout_ms: int | None = None,
    ) -> list[str]:
        """Make members leave a group, so that the others take over their partitions (KIP-345).

        A static member that stopped holds its partitions until its session times out; this ends
        that at once. A member that still runs joins again, a dynamic one under a new member id.

        Args:
            group: Group name.
            members: Member ids of dynamic members, as `describe_groups` shows them.
            instance_ids: ``group.instance.id`` of static members. Without this and `members`, all
                members leave.
            reason: What the coordinator's log says (KIP-800); cut at 255 characters.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            Ids of the members that left: instance ids of static ones, member ids of others.

        Raises:
            ConfigError: An id is empty or is not a string.
            UnknownMemberIdError: The group has no such member, or there is no such group.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.remove_members_from_consumer_group(
                group, members, instance_ids=instance_ids, reason=reason, timeout_ms=timeout_ms
            )
        )
