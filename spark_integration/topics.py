"""How many partitions topics have; the driver asks, or a task for the topics of its rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onceflow.sdk import Admin, AdminConfig
from onceflow.sdk.errors import UnknownTopicOrPartitionError
from onceflow.spark_integration.client_options import client_of


def partition_counts(
    options: Mapping[str, str], topics: Iterable[str] | None = None
) -> dict[str, int]:
    """Number of partitions of topics, asked on the driver.

    Args:
        options: The options ``kafka.*`` and ``client`` that readers and writers take.
        topics: Names; None for all topics that this user may see.

    Raises:
        UnknownTopicOrPartitionError: A topic does not exist.
    """
    return counts_by(client_of(options).admin(), topics)


def counts_by(config: AdminConfig, topics: Iterable[str] | None) -> dict[str, int]:
    """Number of partitions of topics, asked by an admin client with these settings."""
    with Admin(config=config) as admin:
        return topic_counts(admin, admin.list_topics() if topics is None else topics)


def topic_counts(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """Number of partitions of topics.

    Args:
        admin: Client to ask with.
        topics: Their names.

    Raises:
        UnknownTopicOrPartitionError: A topic does not exist.
    """
    names = sorted(topics)
    described = admin.describe_topics(names) if names else {}
    return {topic: description.partition_count for topic, description in described.items()}


def existing_counts(admin: Admin, topics: Iterable[str]) -> dict[str, int]:
    """Number of partitions of those of the topics that exist."""
    names = sorted(topics)
    try:
        return topic_counts(admin, names)
    except UnknownTopicOrPartitionError:
        found: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(UnknownTopicOrPartitionError):
                found |= topic_counts(admin, [name])
        return found


@dataclass(slots=True)
class CountsLookup:
    """Counts of partitions of the topics that rows name, asked once for each topic and task.

    The cost grows with the topics of the rows, not with those of the cluster.

    Attributes:
        admin: Settings of the client that asks.
        known: Counts found so far; 0 is a topic that does not exist.
    """

    admin: AdminConfig
    known: dict[str, int] = field(default_factory=dict)

    def of(self, topics: Iterable[str | None]) -> Mapping[str, int]:
        """Counts of these topics at least; those that do not exist are left out."""
        fresh = {topic for topic in topics if topic is not None} - self.known.keys()
        if fresh:
            with Admin(config=self.admin) as admin:
                self.known |= dict.fromkeys(fresh, 0) | existing_counts(admin, fresh)
        return {topic: count for topic, count in self.known.items() if count}
