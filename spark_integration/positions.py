"""Asking the broker where a source's partitions begin, end and were committed.

Turns bounds (earliest, a time, a group's commits, given offsets) into one number a partition.
An answer that misses a partition that the query knows is retried and then an error: taking it for
"the partition is gone" would make everything look new and be read again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

import tenacity

from onceflow.sdk import IsolationLevel, TopicPartition
from onceflow.sdk.errors import ConfigError, KafkaError, UnknownTopicOrPartitionError
from onceflow.sdk.model.special_values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from onceflow.spark_integration.options import Bound, PartitionOffsets, SourceOptions, Subscription
from onceflow.spark_integration.planning import DataLossError

if TYPE_CHECKING:
    from onceflow.sdk import Admin

logger: logging.Logger = logging.getLogger("onceflow.spark_integration")

T = TypeVar("T")
WAIT_S_MAX = 2
"""Longest wait before an answer that lacks something is asked for again, in seconds."""


STARTING = "startingOffsets"


class MissingPartitionsError(Exception):
    """The cluster did not name partitions that the query reads."""


class PositionFinder:
    """Positions of one subscription, asked through one admin client.

    Args:
        options: The source's options.
        admin: Client to ask with; the caller closes it.
    """

    def __init__(self, options: SourceOptions, admin: Admin) -> None:
        self._options = options
        self._admin = admin

    def _retrying(self, call: Callable[[], T]) -> T:
        """Ask again, with growing waits, when an answer lacks something."""
        wait_s = self._options.listing_wait_ms / 1000
        retry = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._options.listing_retries + 1),
            wait=tenacity.wait_exponential(multiplier=wait_s, max=max(WAIT_S_MAX, wait_s))
            + tenacity.wait_random(0, wait_s),
            retry=tenacity.retry_if_exception(
                lambda e: (
                    isinstance(e, MissingPartitionsError)
                    or (isinstance(e, KafkaError) and e.retriable)
                )
            ),
            reraise=True,
        )
        return retry(call)

    def cluster_id(self) -> str:
        """Id of the cluster that is read."""
        return self._retrying(lambda: self._admin.describe_cluster().cluster_id)

    def partitions(self) -> list[TopicPartition]:
        """Partitions that the subscription names now, sorted.

        A topic that does not exist is left out when ``failOnDataLoss`` is false.

        Raises:
            UnknownTopicOrPartitionError: A topic does not exist.
        """
        subscription = self._options.subscription
        if subscription.partitions:
            return sorted(subscription.partitions)
        return self._retrying(lambda: self._described(self._topics(subscription)))

    def existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of the partitions that the cluster knows now."""
        wanted = set(partitions)
        names = set(self._admin.list_topics())
        topics = sorted({tp.topic for tp in wanted if tp.topic in names})
        return wanted.intersection(self._retrying(lambda: self._described(topics)))

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Ids of those of the topics that exist; a topic that is made again gets another id."""
        names = set(topics)
        if not names:
            return {}

        def ask() -> dict[str, str]:
            try:
                described = self._admin.describe_topics(sorted(names))
            except UnknownTopicOrPartitionError:
                present = sorted(names.intersection(self._admin.list_topics()))
                described = self._admin.describe_topics(present) if present else {}
            # Brokers older than Kafka 2.8 have no ids of topics.
            return {name: str(d.topic_id) for name, d in described.items() if d.topic_id.int}

        return self._retrying(ask)

    def _described(self, topics: list[str]) -> list[TopicPartition]:
        described = self._admin.describe_topics(topics) if topics else {}
        return sorted(
            TopicPartition(topic, info.partition)
            for topic, description in described.items()
            for info in description.partitions
        )

    def _topics(self, subscription: Subscription) -> list[str]:
        if subscription.pattern is None and self._options.fail_on_data_loss:
            return list(subscription.topics)
        names = self._admin.list_topics()
        if subscription.pattern is None:
            return [name for name in subscription.topics if name in set(names)]
        matcher = re.compile(subscription.pattern)
        return [name for name in names if matcher.fullmatch(name)]

    def earliest(self, partitions: Iterable[TopicPartition]) -> PartitionOffsets:
        """First offset that is still there, by partition."""
        return self._listed(dict.fromkeys(partitions, "earliest"))

    def latest(self, partitions: Iterable[TopicPartition]) -> PartitionOffsets:
        """Offset after the last one that the isolation level shows (LSO or high watermark)."""
        return self._listed(dict.fromkeys(partitions, "latest"))

    def _listed(
        self, wanted: Mapping[TopicPartition, str | int], isolation: IsolationLevel | None = None
    ) -> PartitionOffsets:
        level = IsolationLevel(self._options.isolation_level) if isolation is None else isolation

        def ask() -> PartitionOffsets:
            if not wanted:
                return {}
            found = self._admin.list_offsets(dict(wanted), isolation_level=level)
            missing = [str(tp) for tp in wanted if tp not in found]
            if missing:
                raise MissingPartitionsError(
                    f"the cluster gave no offsets for {', '.join(missing)}; were they deleted?"
                )
            return {tp: answer.offset for tp, answer in found.items()}

        return self._retrying(ask)

    def resolve(
        self, bound: Bound, partitions: list[TopicPartition], name: str
    ) -> PartitionOffsets:
        """One offset for each partition.

        Args:
            bound: Where to start or end.
            partitions: The partitions that are read.
            name: Option that gave offsets, for errors.

        Raises:
            ConfigError: Given offsets leave out a partition, or name one that is not read; or a
                starting time is after a partition's last record, unless
                ``startingOffsetsByTimestampStrategy`` allows it.
            DataLossError: A given offset lies beyond its log's end, and ``failOnDataLoss`` is set.
        """
        if bound.kind == "earliest":
            return self.earliest(partitions)
        if bound.kind == "latest":
            return self.latest(partitions)
        if bound.kind == "committed":
            return self._committed(partitions)
        strict = self._options.strict_times and name == STARTING
        if bound.timestamp_ms is not None:
            return self._at_times(dict.fromkeys(partitions, bound.timestamp_ms), strict)
        self._check_complete(bound, partitions)
        if bound.kind == "timestamps":
            return self._at_times(bound.values, strict)
        special = {
            tp: "earliest" for tp, offset in bound.values.items() if offset == EARLIEST_TIMESTAMP
        }
        special |= {
            tp: "latest" for tp, offset in bound.values.items() if offset == LATEST_TIMESTAMP
        }
        return {**bound.values, **self._listed(special), **self._beyond(bound, name)}

    def _beyond(self, bound: Bound, name: str) -> PartitionOffsets:
        """Ends of the logs that end before a given offset; open transactions belong to a log."""
        given = {tp: offset for tp, offset in bound.values.items() if offset > 0}
        ends = self._listed(dict.fromkeys(given, "latest"), IsolationLevel.READ_UNCOMMITTED)
        beyond = {tp: ends[tp] for tp, offset in sorted(given.items()) if offset > ends[tp]}
        told = "; ".join(
            f"{tp}: {given[tp]}, but the log ends at {end}" for tp, end in beyond.items()
        )
        if beyond and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{name}: {told}. Give an offset that exists, or -1 for the end. "
                "Offsets of a topic that was deleted and made again begin at 0."
            )
        if beyond:
            logger.warning("failOnDataLoss=false: %s: %s; uses the end", name, told)
        return beyond

    def _check_complete(self, bound: Bound, partitions: list[TopicPartition]) -> None:
        missing = [str(tp) for tp in partitions if tp not in bound.values]
        unknown = [str(tp) for tp in sorted(bound.values) if tp not in set(partitions)]
        if missing or unknown:
            parts = [f"missing: {', '.join(missing)}"] if missing else []
            parts += [f"not subscribed: {', '.join(unknown)}"] if unknown else []
            raise ConfigError(
                f"offsets by partition ({bound.kind})",
                "; ".join(parts),
                "name every partition that is read, and no other",
            )

    def _at_times(self, times: Mapping[TopicPartition, int], strict: bool) -> PartitionOffsets:
        found = self._listed(times)
        none = sorted(tp for tp, offset in found.items() if offset < 0)
        if none and strict:
            told = ", ".join(f"{tp}: {times[tp]}" for tp in none)
            raise ConfigError(
                "starting time",
                told,
                "no record is as late as that; set startingOffsetsByTimestampStrategy=latest to "
                "start such partitions at their end",
            )
        return {**found, **self.latest(none)}

    def _committed(self, partitions: list[TopicPartition]) -> PartitionOffsets:
        group_id = self._options.group_id
        assert group_id is not None, "options require groupId with committed"
        stored = self._admin.list_group_offsets(group_id, require_stable=True)
        known = {tp: stored[tp].offset for tp in partitions if tp in stored}
        return {**self.earliest(tp for tp in partitions if tp not in known), **known}
