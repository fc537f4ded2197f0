"""The asyncio admin client's calls about offsets: of logs, and of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from onceflow.sdk.aio.admin.base import AdminBase
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC
from onceflow.sdk.core.admin import groups as admin_groups
from onceflow.sdk.core.admin.arguments import times_or_words, whole_number
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import (
    check_flag,
    check_text,
    offsets_by_partition,
    partition_list,
)
from onceflow.sdk.core.flow import Coordinator
from onceflow.sdk.errors import ConfigError, OffsetOutOfRangeError, UnknownMemberIdError
from onceflow.sdk.model.admin_cluster import OffsetReset
from onceflow.sdk.model.partitions import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType

OFFSET_SPECS: Final = {"latest": -1, "earliest": -2, "max_timestamp": -3}
"""Words for ListOffsets besides timestamps (KIP-734 for the last one)."""


class GroupOffsetCalls(AdminBase):
    """Offsets of partitions, and where groups stand in them."""

    async def list_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets of a group.

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

    async def list_offsets(
        self,
        targets: Mapping[TopicPartition, str | int],
        *,
        isolation_level: IsolationLevel | str = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets of partitions by time.

        Args:
            targets: "earliest", "latest", "max_timestamp", or milliseconds since 1970, by
                partition.
            isolation_level: Whether "latest" is the high watermark (read_uncommitted, the
                default here) or the last stable offset.
            timeout_ms: Limit.

        Returns:
            Offset by partition; -1 where no record is that late.

        Raises:
            ConfigError: A word is none of the three, or no isolation level.
            BrokerError: A leader refused.
        """
        level = _isolation(isolation_level)
        wanted = times_or_words(targets, OFFSET_SPECS)
        self._asker.check(timeout_ms)
        found = await self._reader.list_offsets(wanted, level, timeout_ms)
        return {
            partition: OffsetAndTimestamp(answer.offset, answer.timestamp_ms, answer.leader_epoch)
            for partition, answer in found.items()
        }

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Forget committed offsets of a group for partitions that it does not read (KIP-496).

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
        """Put a group that has no members somewhere else.

        Give exactly one of ``to``, ``to_time_ms`` and ``shift_by``. Offsets outside of a log become
        its beginning or its end.

        Args:
            group: Group name.
            partitions: Which ones; None for all that have a committed offset.
            to: "earliest", "latest", or an offset.
            to_time_ms: First record at or after this time, in milliseconds since 1970; the end
                where there is none.
            shift_by: So many offsets on, or back if negative.
            dry_run: Only say what would be done; fails where the real one would.
            timeout_ms: Limit of each step.

        Returns:
            The plan, which is carried out unless ``dry_run``.

        Raises:
            ConfigError: Not exactly one place is given, a word is none of the two, a time is
                negative, or no partitions are given and the group has committed nothing.
            OffsetOutOfRangeError: ``shift_by`` for a partition without a committed offset.
            UnknownMemberIdError: The group has members.
        """
        _check_reset(group, to, to_time_ms, shift_by, dry_run)
        given = None if partitions is None else partition_list(partitions)
        committed = await self.list_group_offsets(group, given, timeout_ms=timeout_ms)
        wanted = _wanted(group, given, committed)
        first = await self.list_offsets(dict.fromkeys(wanted, "earliest"), timeout_ms=timeout_ms)
        last = await self.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=timeout_ms)
        at_time: dict[TopicPartition, OffsetAndTimestamp] = {}
        if to_time_ms is not None:
            times = dict.fromkeys(wanted, to_time_ms)
            at_time = await self.list_offsets(times, timeout_ms=timeout_ms)
        plan: dict[TopicPartition, OffsetReset] = {}
        for partition in wanted:
            low, high = first[partition].offset, last[partition].offset
            known = committed.get(partition)
            current = None if known is None else known.offset
            if to_time_ms is not None:
                found = at_time[partition].offset
                place = high if found < 0 else found
            elif shift_by is not None:
                if current is None:
                    raise OffsetOutOfRangeError(
                        f"{partition} has no committed offset in group {group!r} to shift"
                    )
                place = current + shift_by
            else:
                place = {"earliest": low, "latest": high}.get(str(to), 0)
                place = to if isinstance(to, int) else place
            plan[partition] = OffsetReset(current, max(low, min(high, place)))
        if dry_run:
            await self._refuse_members(group, timeout_ms)
        elif plan:
            offsets = {partition: line.new for partition, line in plan.items()}
            await self.alter_group_offsets(group, offsets, timeout_ms=timeout_ms)
        return plan

    async def _refuse_members(self, group: str, timeout_ms: int | None) -> None:
        """Say of a group with members what the broker says when its offsets are altered."""
        found = await self._asker.ask_coordinators(
            [group], CoordinatorType.GROUP, admin_groups.describe_group, timeout_ms
        )
        if found[group].members:
            raise UnknownMemberIdError(f"group {group!r} has members; stop them first")


def _check_reset(
    group: str,
    to: str | int | None,
    to_time_ms: int | None,
    shift_by: int | None,
    dry_run: bool,
) -> None:
    check_text("group", group)
    check_flag("dry_run", dry_run)
    for name, number in (("to_time_ms", to_time_ms), ("shift_by", shift_by)):
        if number is not None:
            whole_number(name, number)
    if to is not None and (isinstance(to, bool) or not isinstance(to, str | int)):
        raise ConfigError("to", to, 'choose "earliest", "latest" or an offset')
    if isinstance(to, str) and to not in ("earliest", "latest"):
        raise ConfigError("to", to, 'choose "earliest", "latest" or an offset')
    given = [value for value in (to, to_time_ms, shift_by) if value is not None]
    if len(given) != 1:
        raise ConfigError("to", to, "give exactly one of to, to_time_ms and shift_by")
    if to_time_ms is not None and to_time_ms < 0:  # To brokers that would be another question.
        raise ConfigError("to_time_ms", to_time_ms, "give milliseconds since 1970")


def _wanted(
    group: str, given: list[TopicPartition] | None, committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions to reset; an empty list of them is none, and not all."""
    if given is not None:
        return list(dict.fromkeys(given))
    wanted = list(committed)
    if not wanted:
        raise ConfigError(
            "partitions",
            None,
            f"group {group!r} has committed nothing: check its name, or name the partitions",
        )
    return wanted


def _isolation(given: IsolationLevel | str) -> IsolationLevel:
    try:
        if isinstance(given, str):
            return IsolationLevel[given.upper()]
        return IsolationLevel(whole_number("isolation_level", given))
    except (KeyError, ValueError):
        raise ConfigError(
            "isolation_level", given, 'choose "read_committed" or "read_uncommitted"'
        ) from None
