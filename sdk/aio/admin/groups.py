"""AsyncAdmin's calls for groups and their members."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin.arguments import member_ids, name_list
from onceflow.sdk.core.admin.groups import MemberToRemove
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import check_flag, check_text
from onceflow.sdk.core.flow import Coordinator
from onceflow.sdk.errors import KafkaError, UnknownMemberIdError
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
        check_flag("include_authorized_operations", include_authorized_operations)
        return await self._asker.ask_coordinators(
            name_list("groups", groups),
            CoordinatorType.GROUP,
            lambda key: admin_groups.describe_group(key, include_authorized_operations),
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

    async def remove_members_from_consumer_group(
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
        check_text("group", group)
        if reason is not None:
            check_text("reason", reason)
        wanted = [
            *(MemberToRemove(name, None) for name in member_ids("members", members)),
            *(MemberToRemove("", name) for name in member_ids("instance_ids", instance_ids)),
        ]
        if members is None and instance_ids is None:
            described = await self.describe_groups([group], timeout_ms=timeout_ms)
            wanted = [
                MemberToRemove("" if name is not None else each.member_id, name)
                for each in described[group].members
                for name in [each.group_instance_id]
            ]
        if not wanted:
            self._asker.check(timeout_ms)
            return []
        unanswered: set[MemberToRemove] = set()

        async def ask(left: list[MemberToRemove], left_ms: int) -> Outcomes[MemberToRemove, None]:
            flow = admin_groups.remove_members(group, left, reason)
            try:
                found = await self._pool.run(flow, timeout_ms=left_ms)
            except KafkaError:
                unanswered.update(left)
                raise
            for member in unanswered:
                # The request whose answer was lost has removed it.
                if isinstance(found.get(member), UnknownMemberIdError):
                    found[member] = None
            return found

        coordinator = Coordinator(group, CoordinatorType.GROUP)
        await self._asker.complete(wanted, ask, timeout_ms, coordinator=lambda _: coordinator)
        return [each.group_instance_id or each.member_id for each in wanted]
