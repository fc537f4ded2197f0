"""Keeps a consumer's view of its topics fresh: new partitions, missing topics, matching names.

It decides when to ask the cluster about topics, which of them a pattern selects, and when to warn
that a topic is missing. The consumer decides what follows from a change. As in Kafka's clients, a
pattern without a match causes no warning: its topics may be created later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Final

from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.waker import Waker
from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.core.group.steps import RebalanceEvent
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.settings.config import ConsumerConfig

logger: logging.Logger = logging.getLogger("onceflow.sdk.consumer")

_HOPELESS: Final = frozenset(
    {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)

VIEWS_BEFORE_WARNING: Final = 4
"""A topic that is being created is missing at first. After this many metadata answers in a row,
about half a second, it is reported."""


class TopicWatch:
    """Requests the metadata of one consumer's topics when needed."""

    def __init__(
        self,
        pool: ConnectionPool,
        config: ConsumerConfig,
        subscription: Subscription,
        on_metadata: Callable[[ClusterMetadata], None],
    ) -> None:
        """Make the watch; it is idle until `start`.

        Args:
            pool: Connections and metadata.
            config: The consumer's settings.
            subscription: The topics to watch.
            on_metadata: Called after each new view of the cluster.
        """
        self._pool = pool
        self._config = config
        self._subscription = subscription
        self._on_metadata = on_metadata
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        self._failure: KafkaError | None = None
        self._views_without: dict[str, int] = {}

    def start(self) -> None:
        """Start the task."""
        self._pool.metadata_listeners.append(self._on_view)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="onceflow-topics")

    def topics_changed(self) -> None:
        """Request the unknown topics of a changed subscription."""
        self._failure = None
        self._waker.wake()

    def failure(self) -> KafkaError | None:
        """Why a topic cannot be read at all; kept until the topics change."""
        return self._failure

    async def close(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(ValueError):
                self._pool.metadata_listeners.remove(self._on_view)

    def _on_view(self, cluster: ClusterMetadata) -> None:
        for topic in self._subscription.topics:
            found = cluster.topics.get(topic)
            if found is not None and found.error_code in _HOPELESS:
                self._failure = error_for(found.error_code, f"topic {topic!r}")
        self._tell_what_is_missing(cluster)
        self._on_metadata(cluster)

    def _tell_what_is_missing(self, cluster: ClusterMetadata) -> None:
        """Log a warning, once for each missing topic or partition."""
        missing = dict(self._missing_in(cluster))
        self._views_without = {name: self._views_without.get(name, 0) + 1 for name in missing}
        for name, remedy in missing.items():
            if self._views_without[name] == VIEWS_BEFORE_WARNING:
                logger.warning("%s does not exist, so nothing is read of it: %s", name, remedy)

    def _missing_in(self, cluster: ClusterMetadata) -> Iterator[tuple[str, str]]:
        for topic in sorted(self._subscription.topics):
            found = cluster.topics.get(topic)
            if found is not None and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                yield (
                    f"topic {topic!r}",
                    "check its name or create it",
                )
        if self._subscription.uses_group:
            return  # The coordinator may know partitions that this view does not have yet.
        for partition in sorted(self._subscription.assignment()):
            count = cluster.partition_count(partition.topic)
            if count is not None and partition.partition not in range(count):
                yield f"partition {partition}", f"the topic has partitions 0 to {count - 1}"

    def matching_topics(self, cluster: ClusterMetadata) -> list[str]:
        """Return the topics that a pattern may select."""
        return [
            name
            for name, topic in cluster.topics.items()
            if topic.error_code == ErrorCode.NONE
            and not (topic.is_internal and self._config.exclude_internal_topics)
        ]

    def shown(self, event: RebalanceEvent) -> RebalanceEvent:
        """Return the event without the topics that ``exclude_internal_topics`` hides.

        A coordinator that resolves a pattern (KIP-848) assigns internal topics too.

        Args:
            event: From the group's member.
        """
        by_coordinator = self._config.group_protocol == "consumer"
        by_pattern = self._subscription.pattern is not None
        if not (by_coordinator and by_pattern and self._config.exclude_internal_topics):
            return event
        known = self._pool.metadata.topics
        internal = {name for name, topic in known.items() if topic.is_internal}
        hidden = {p for p in (*event.assignment, *event.partitions) if p.topic in internal}
        if not hidden:
            return event
        logger.info("not read, as exclude_internal_topics is set: %s", sorted(map(str, hidden)))
        left = tuple(p for p in event.partitions if p not in hidden)
        return RebalanceEvent(event.kind, left, event.assignment - hidden)

    def _missing(self) -> bool:
        view = self._pool.metadata
        return any(view.topic(topic) is None for topic in self._subscription.topics)

    async def _run(self) -> None:
        failures = 0
        while True:
            by_pattern = self._subscription.pattern is not None
            try:
                if by_pattern:
                    await self._pool.refresh_metadata(all_topics=True)
                elif self._missing():
                    await self._pool.refresh_metadata(
                        sorted(self._subscription.topics),
                        allow_auto_topic_creation=self._config.allow_auto_create_topics,
                    )
            except KafkaError as error:
                logger.warning("the topics could not be looked up: %s", error)
            except Exception:  # A bug in this library: without the task, new topics stay unseen.
                logger.exception("the topics could not be looked up")
            if self._missing():
                # The topic may be created soon, without a message from a broker: ask again.
                failures += 1
                await self._waker.wait(self._pool.backoff.delay_ms(failures))
                continue
            failures = 0
            # The pool itself refreshes topics that are subscribed by name.
            await self._waker.wait(self._config.metadata_max_age_ms if by_pattern else None)
