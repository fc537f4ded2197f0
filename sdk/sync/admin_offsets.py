"""The blocking admin client's calls about offsets: of logs, and of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onceflow.sdk.model.admin_cluster import OffsetReset
from onceflow.sdk.model.partitions import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.sync.admin_base import AdminBase


class GroupOffsetCalls(AdminBase):
    """Offsets of partitions, and where groups stand in them."""

    def list_group_offsets(
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
        return self._portal.call(
            lambda: self._async.list_group_offsets(
                group, partitions, require_stable=require_stable, timeout_ms=timeout_ms
            )
        )

    def alter_group_offsets(
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
        self._portal.call(
            lambda: self._async.alter_group_offsets(group, offsets, timeout_ms=timeout_ms)
        )

    def list_offsets(
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
        return self._portal.call(
            lambda: self._async.list_offsets(
                targets, isolation_level=isolation_level, timeout_ms=timeout_ms
            )
        )

    def delete_group_offsets(
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
        self._portal.call(
            lambda: self._async.delete_group_offsets(group, partitions, timeout_ms=timeout_ms)
        )

    def reset_group_offsets(
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
        return self._portal.call(
            lambda: self._async.reset_group_offsets(
                group,
                partitions,
                to=to,
                to_time_ms=to_time_ms,
                shift_by=shift_by,
                dry_run=dry_run,
                timeout_ms=timeout_ms,
            )
        )
