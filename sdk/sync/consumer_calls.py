"""Blocking calls, written from ``sdk/aio/consume/consumer.py``; do not edit, run ``make fix``.

The calls of the blocking consumer that run no callbacks and return no records.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from onceflow.sdk.aio.consume.consumer import AsyncConsumer
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.settings.config import ConsumerConfig
from onceflow.sdk.sync.portal import Portal

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ConsumerMetrics


class ConsumerCalls:
    """The calls of the blocking consumer that run no callbacks and return no records."""

    _async: AsyncConsumer[object, object]
    _portal: Portal

    @property
    def config(self) -> ConsumerConfig:
        """The settings, defaults included."""
        return self._async.config

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's rebalances.

        Positions start at the group's committed offsets if there is a group_id, else at
        ``auto_offset_reset``.

        Args:
            partitions: Which ones, in place of those of the last call.

        Raises:
            IllegalStateError: Topics are subscribed.
        """
        self._portal.run(lambda: self._async.assign(partitions))

    def subscription(self) -> set[str]:
        """Topics that are subscribed, or that the pattern matches at present."""
        return self._async.subscription()

    def assignment(self) -> set[TopicPartition]:
        """Partitions that belong to this consumer now."""
        return self._async.assignment()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; what was fetched is kept.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: One of them is not assigned.
        """
        self._portal.run(lambda: self._async.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End a pause.

        Args:
            partitions: Assigned partitions.

        Raises:
            IllegalStateError: One of them is not assigned.
        """
        self._portal.run(lambda: self._async.resume(partitions))

    def paused(self) -> set[TopicPartition]:
        """Partitions that are paused."""
        return self._async.paused()

    def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Return the offset of the next record; it steps over transaction markers.

        Args:
            partition: An assigned partition.
            timeout_ms: Longest wait for the position, default ``default_api_timeout_ms``.

        Raises:
            IllegalStateError: The partition is not assigned.
            NoOffsetForPartitionError: There is none, and ``auto_offset_reset`` is "none".
            RequestTimedOutError: It was not known in time.
        """
        return self._portal.call(lambda: self._async.position(partition, timeout_ms=timeout_ms))

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue reading at an offset; records fetched before are dropped.

        Args:
            partition: An assigned partition.
            offset: Offset of the next record, with its leader epoch if known.

        Raises:
            IllegalStateError: The partition is not assigned.
            ConfigError: The offset is negative, or not a whole number.
        """
        self._portal.run(lambda: self._async.seek(partition, offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the first record of partitions.

        Args:
            partitions: Assigned ones; None means all.

        Raises:
            IllegalStateError: One is not assigned, or none is yet.
        """
        self._portal.run(lambda: self._async.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading at the end: under read_committed, at the first open transaction.

        Args:
            partitions: Assigned ones; None means all.

        Raises:
            IllegalStateError: One is not assigned, or none is yet.
        """
        self._portal.run(lambda: self._async.seek_to_end(partitions))

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets to the group.

        Args:
            offsets: Offset of the next record to be processed, by partition; None commits the
                positions of all partitions, that is everything that polls returned.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            CommitFailedError: The group expelled this member; other members own the partitions.
            RebalanceInProgressError: The group is rebalancing; poll, then commit.
            RequestTimedOutError: Time ran out; the offsets may or may not be stored.
            IllegalStateError: There is no group_id.
        """
        self._portal.call(lambda: self._async.commit(offsets, timeout_ms=timeout_ms))

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None
    ) -> None:
        """Commit without waiting; a failure is logged, and the next commit makes up for it.

        Args:
            offsets: As for `commit`; None takes the positions as of now.

        Raises:
            CommitFailedError: A partition does not belong to this consumer.
            IllegalStateError: There is no group_id.
        """
        self._portal.run(lambda: self._async.commit_async(offsets))

    def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the offsets that the group committed; None where there is none.

        Under read_committed it waits for transactions that are about to commit offsets (KIP-447).

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            RequestTimedOutError: There was no stable answer in time.
            IllegalStateError: There is no group_id.
        """
        return self._portal.call(lambda: self._async.committed(partitions, timeout_ms=timeout_ms))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset that exists, by partition.

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.beginning_offsets(partitions, timeout_ms=timeout_ms)
        )

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset at which reading ends now, by partition.

        Under read_committed that is the last stable offset, else the high watermark.

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.end_offsets(partitions, timeout_ms=timeout_ms))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record at or after a time, by partition; None where there is none.

        Args:
            timestamps_ms: Milliseconds since 1970 by partition.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A time is negative, or not a whole number.
        """
        return self._portal.call(
            lambda: self._async.offsets_for_times(timestamps_ms, timeout_ms=timeout_ms)
        )

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets lie between position and end, as of the last fetch.

        Args:
            partition: An assigned partition.

        Returns:
            The distance in offsets (not records: markers count), None while it is unknown: before
            the first fetch, and before the next one when the partition was paused at its end.
        """
        return self._async.lag(partition)

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Return the id of the topic that the partition's position belongs to (KIP-516).

        A topic that is deleted and made again under its name has another id.

        Args:
            partition: An assigned partition.

        Returns:
            None where brokers have no topic ids, and after a seek until records came from there.
        """
        return self._async.topic_id(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """See ``Consumer.lag``; this is the Java client's name for it (KIP-695).

        Args:
            partition: An assigned partition.
        """
        return self._async.current_lag(partition)

    def metrics(self) -> ConsumerMetrics:
        """Return the figures of this consumer; cheap, from any thread, and also after `close`."""
        return self._async.metrics()

    def partitions_for_topic(self, topic: str, *, timeout_ms: int | None = None) -> set[int] | None:
        """Return the partition numbers of a topic; None if it does not exist.

        Args:
            topic: Topic name.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.partitions_for_topic(topic, timeout_ms=timeout_ms)
        )

    def topics(self, *, timeout_ms: int | None = None) -> set[str]:
        """Return all topics that this client may see, without internal ones.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.topics(timeout_ms=timeout_ms))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the present membership, for ``send_offsets_to_transaction`` (KIP-447).

        Take it when a batch is polled, not when it is committed, so that a rebalance in between
        makes the commit fail.

        Raises:
            IllegalStateError: There is no group_id, or this consumer is not a member now.
        """
        return self._async.group_metadata()

    def ensure_membership(self, expected: ConsumerGroupMetadata | None = None) -> None:
        """Ask the coordinator, by an extra heartbeat, whether this consumer is still a member.

        A rebalance in progress is fine: until it polls, this member keeps its partitions.

        Args:
            expected: Membership under which work was done, to be compared with the present one.

        Raises:
            CommitFailedError: The group expelled this member, or the membership differs.
            FencedInstanceIdError: Another consumer runs with the same group_instance_id.
            KafkaError: The coordinator could not be asked.
        """
        self._portal.call(lambda: self._async.ensure_membership(expected))
