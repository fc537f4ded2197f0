"""Blocking calls, written from ``sdk/aio/admin/offsets.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject offsets.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin_cluster import OffsetReset
from onceflow.sdk.model.partitions import (
    IsolationLevel,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.sync.portal import Portal


class OffsetCalls:
    """The blocking admin client's calls of the subject offsets."""

    _async: AsyncAdmin
    _portal: Portal

    def list_offsets(
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
        return self._portal.call(
            lambda: self._async.list_offsets(
                targets, isolation_level=isolation_level, timeout_ms=timeout_ms
            )
        )

    def list_group_offsets(
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

    def delete_group_offsets(
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
