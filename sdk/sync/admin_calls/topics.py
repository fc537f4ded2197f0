"""Blocking calls, written from ``sdk/aio/admin/topics.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject topics.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.model.admin import TopicDescription
from onceflow.sdk.model.partitions import NewTopic, TopicPartition
from onceflow.sdk.sync.portal import Portal


class TopicCalls:
    """The blocking admin client's calls of the subject topics."""

    _async: AsyncAdmin
    _portal: Portal

    def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, UUID]:
        """Create topics and wait until the brokers show them.

        Args:
            topics: What to create; a name alone takes the broker's defaults.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Returns:
            Id by topic.

        Raises:
            TopicAlreadyExistsError: One exists.
            InvalidTopicError: A name is not allowed.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.create_topics(
                topics, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_topics(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with all their records.

        Args:
            topics: Topic names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """
        self._portal.call(lambda: self._async.delete_topics(topics, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise topics to new totals of partitions, and wait until the brokers show them.

        Afterwards records with a key may go to another partition than before.

        Args:
            totals: New number of partitions by topic; never lower than before.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            InvalidPartitionsError: A total is not above the present one.
            BrokerError: Another refusal.
        """
        self._portal.call(
            lambda: self._async.create_partitions(
                totals, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> list[str]:
        """Return the names of all topics that this client may see, sorted.

        Args:
            include_internal: Also those of the broker itself, such as ``__consumer_offsets``.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.list_topics(
                include_internal=include_internal, timeout_ms=timeout_ms
            )
        )

    def describe_topics(
        self,
        topics: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, TopicDescription]:
        """Return partitions, leaders and id of topics.

        Args:
            topics: Topic names.
            include_authorized_operations: Also ask what this client may do with them (KIP-430).
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """
        return self._portal.call(
            lambda: self._async.describe_topics(
                topics,
                include_authorized_operations=include_authorized_operations,
                timeout_ms=timeout_ms,
            )
        )

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete records from the start of partitions.

        Args:
            before: First offset to keep, by partition; -1 deletes up to the high watermark.
            timeout_ms: Limit.

        Returns:
            Where each log starts now.

        Raises:
            OffsetOutOfRangeError: An offset is beyond the high watermark.
            BrokerError: Another refusal.
        """
        return self._portal.call(lambda: self._async.delete_records(before, timeout_ms=timeout_ms))
