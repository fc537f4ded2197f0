"""The blocking consumer's questions: offsets, topics, membership, figures; none moves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onceflow.sdk.aio.consume.consumer import AsyncConsumer
from onceflow.sdk.aio.consume.engine import ConsumerEngine
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from onceflow.sdk.sync.portal import Portal

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ConsumerMetrics


class ConsumerQuestions:
    """What may be asked of one consumer."""

    _async: AsyncConsumer[object, object]
    _engine: ConsumerEngine
    _portal: Portal

    def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Offsets that the group committed; None where there is none.

        Under read_committed it waits for transactions that are about to commit offsets (KIP-447).

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            RequestTimedOutError: There was no stable answer in time.
            IllegalStateError: There is no group_id.
        """
        return self._portal.call(lambda: self._engine.committed(partitions, timeout_ms))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """First offset that exists, by partition.

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
        """Where reading ends at present, by partition.

        Under read_committed that is the last stable offset, else the high watermark.

        Args:
            partitions: Which ones.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.end_offsets(partitions, timeout_ms=timeout_ms))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """First record at or after a time, by partition; None where there is none.

        Args:
            timestamps_ms: Milliseconds since 1970 by partition.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            ConfigError: A time is negative, or no whole number.
        """
        return self._portal.call(
            lambda: self._async.offsets_for_times(timestamps_ms, timeout_ms=timeout_ms)
        )

    def lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end, as of the last fetch.

        Args:
            partition: An assigned partition.

        Returns:
            The distance in offsets (not records: markers count), None while it is unknown.
        """
        return self._async.lag(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """See ``Consumer.lag``; this is the Java client's name for it (KIP-695).

        Args:
            partition: An assigned partition.
        """
        return self.lag(partition)

    def metrics(self) -> ConsumerMetrics:
        """What this consumer has done so far; cheap, from any thread, and also after the end."""
        return self._async.metrics()

    def partitions_for_topic(self, topic: str, *, timeout_ms: int | None = None) -> set[int] | None:
        """Partition numbers of a topic, None if it does not exist.

        Args:
            topic: Topic name.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.partitions_for_topic(topic, timeout_ms=timeout_ms)
        )

    def topics(self, *, timeout_ms: int | None = None) -> set[str]:
        """All topics of the cluster that this client may see, internal ones excluded.

        Args:
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(lambda: self._async.topics(timeout_ms=timeout_ms))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Membership as of now, for ``send_offsets_to_transaction`` (KIP-447).

        Take it when a batch is polled, not when it is committed: a rebalance in between must make
        the commit fail.

        Raises:
            IllegalStateError: There is no group_id, or this consumer is no member at the moment.
        """
        return self._engine.group_metadata()

    def ensure_membership(self, expected: ConsumerGroupMetadata | None = None) -> None:
        """Ask the coordinator whether this consumer still counts, by a heartbeat out of turn.

        A rebalance in progress is fine: until it polls, this member keeps its partitions.

        Args:
            expected: Membership under which work was done, to be compared with the present one.

        Raises:
            CommitFailedError: The group went on without this member, or the membership differs.
            FencedInstanceIdError: Another consumer runs with the same group_instance_id.
            KafkaError: The coordinator could not be asked.
        """
        self._portal.call(lambda: self._engine.ensure_membership(expected))
