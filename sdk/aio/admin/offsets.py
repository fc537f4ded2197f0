"""AsyncAdmin's calls for offsets: those of logs, and those that groups have committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC
from onceflow.sdk.aio.consume.offset_reader import OffsetReader
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin.arguments import (
    isolation_of,
    times_or_words,
)
from onceflow.sdk.core.admin.offset_resets import Reset
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_flag,
    check_text,
    offsets_by_partition,
    partition_list,
)
from onceflow.sdk.core.flow import Coordinator
from onceflow.sdk.errors import UnknownMemberIdError
from onceflow.sdk.model.admin_cluster import OffsetReset
from onceflow.sdk.model.partitions import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.settings.config import AdminConfig

OFFSET_SPECS: Final = {"latest": -1, "earliest": -2, "max_timestamp": -3}
"""Words for ListOffsets besides timestamps (KIP-734 for the last one)."""


class AsyncOffsetCalls(AsyncAdminBase):
    """Offsets of logs, and committed offsets of groups.

    Args:
        config: The settings of the client.
    """

    def __init__(self, config: AdminConfig) -> None:
        super().__init__(config)
        self._reader = OffsetReader(self._pool)

    async def list_offsets(
        self,
        targets: Mapping[TopicPartition, str | int],
        *,
        isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return offsets of partitions by time.

        Args:
            targets: "earliest", "latest", "max_timestamp", or milliseconds since 1970, by
                partition.
            isolation_level: Whether "latest" is the high watermark (read_uncommitted, the
                default here) or the last stable offset.
            timeout_ms: Limit.

        Returns:
            Offset by partition; -1 where no record is that late.

        Raises:
            ConfigError: A word is unknown, or the isolation level is.
            BrokerError: A leader refused.
        """
        level = isolation_of(isolation_level)
        wanted = times_or_words(targets, OFFSET_SPECS)
        self._asker.check(timeout_ms)
        self._pool.remember_topics({partition.topic for partition in wanted})
        found = await self._reader.list_offsets(wanted, level, timeout_ms)
        return {
            partition: OffsetAndTimestamp(answer.offset, answer.timestamp_ms, answer.leader_epoch)
            for partition, answer in found.items()
        }

    async def list_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group.

        Args:
            group: Group name.
            partitions: Which ones; None for all that have one.
            require_stable: Wait for transactions that are about to commit offsets (KIP-447).
            timeout_ms: Limit.

        Returns:
            Offsets by partition; partitions without one are left out.
        """
        check_text("group", group)
        wanted = None if partitions is None else partition_list(partitions)
        check_flag("require_stable", require_stable)
        self._asker.check(timeout_ms)
        found = await self._reader.committed(
            group, wanted, require_stable=require_stable, timeout_ms=timeout_ms
        )
        return {partition: offset for partition, offset in found.items() if offset is not None}

    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Store offsets for a group that has no members.

        Args:
            group: Group name.
            offsets: Offset of the next record by partition.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownMemberIdError: The group has members.
            BrokerError: Another refusal.
        """
        check_text("group", group)
        wanted = offsets_by_partition(offsets)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, None]:
            flow = admin_groups.alter_group_offsets(group, {p: wanted[p] for p in left})
            return await self._pool.run(flow, timeout_ms=left_ms)

        coordinator = Coordinator(group, CoordinatorType.GROUP)
        await self._asker.complete(
            wanted, ask, timeout_ms, final=NO_SUCH_TOPIC, coordinator=lambda _: coordinator
        )

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete committed offsets of a group, of partitions that it does not read (KIP-496).

        Args:
            group: Group name.
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            GroupSubscribedToTopicError: A member of the group reads the topic.
            GroupIdNotFoundError: There is no such group.
        """
        check_text("group", group)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, None]:
            flow = admin_groups.delete_group_offsets(group, left)
            return await self._pool.run(flow, timeout_ms=left_ms)

        coordinator = Coordinator(group, CoordinatorType.GROUP)
        await self._asker.complete(
            dict.fromkeys(partition_list(partitions)),
            ask,
            timeout_ms,
            final=NO_SUCH_TOPIC,
            coordinator=lambda _: coordinator,
        )

    async def reset_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        to: str | int | None = None,
        to_time_ms: int | None = None,
        shift_by: int | None = None,
        dry_run: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetReset]:
        """Change the committed offsets of a group that has no members.

        Set exactly one of ``to``, ``to_time_ms`` and ``shift_by``. Offsets outside of a log become
        its start or its end.

        Args:
            group: Group name.
            partitions: Which ones; None for all that have a committed offset.
            to: "earliest", "latest", or an offset.
            to_time_ms: First record at or after this time, in milliseconds since 1970; the end
                where there is none.
            shift_by: Number of offsets to go forward, or back if negative.
            dry_run: Only return the plan; fails where the reset would fail.
            timeout_ms: Limit of each step.

        Returns:
            The plan, which is carried out unless ``dry_run``.

        Raises:
            ConfigError: Not exactly one target is set, a word is unknown, a time is negative, or no
                partitions are named and the group has committed nothing.
            OffsetOutOfRangeError: ``shift_by`` for a partition without a committed offset.
            UnknownMemberIdError: The group has members.
        """
        check_text("group", group)
        check_flag("dry_run", dry_run)
        reset = Reset(group, to, to_time_ms, shift_by)
        given = None if partitions is None else partition_list(partitions)
        committed = await self.list_group_offsets(group, given, timeout_ms=timeout_ms)
        wanted = reset.wanted(given, committed)
        first = await self.list_offsets(dict.fromkeys(wanted, "earliest"), timeout_ms=timeout_ms)
        last = await self.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=timeout_ms)
        at_time: dict[TopicPartition, OffsetAndTimestamp] = {}
        if to_time_ms is not None:
            times = dict.fromkeys(wanted, to_time_ms)
            at_time = await self.list_offsets(times, timeout_ms=timeout_ms)
        plan = reset.plan(wanted, committed, first, last, at_time)
        if dry_run:
            await self._refuse_members(group, timeout_ms)
        elif plan:
            offsets = {partition: line.new for partition, line in plan.items()}
            await self.alter_group_offsets(group, offsets, timeout_ms=timeout_ms)
        return plan

    async def _refuse_members(self, group: str, timeout_ms: int | None) -> None:
        """Raise for a group with members, as the broker does when its offsets are altered."""
        found = await self._asker.ask_coordinators(
            [group], CoordinatorType.GROUP, admin_groups.describe_group, timeout_ms
        )
        if found[group].members:
            raise UnknownMemberIdError(f"group {group!r} has members; stop them first")
