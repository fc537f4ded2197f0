"""Deletes committed records from repartition topics, as Kafka Streams does.

It does so every half minute: a request after each commit would cost more than the space.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from onceflow.processors.calls import Calls
from onceflow.processors.provisioning import TopicAdmin
from onceflow.processors.rights import DELETE, NOT_AUTHORIZED, TOPIC, Need, missing_error
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import settle

logger: logging.Logger = logging.getLogger("onceflow.processors")

PURGED_S = 30.0
"""Seconds between two deletions."""


class Purge:
    """Deletes committed records of repartition topics from time to time.

    Args:
        topics: The repartition topics.
        now_s: Monotonic seconds.
    """

    __slots__ = ("_last_s", "_purged", "_topics")

    def __init__(self, topics: Iterable[str], now_s: float) -> None:
        self._topics = frozenset(topics)
        self._last_s = now_s
        self._purged: dict[TopicPartition, int] = {}

    async def step(
        self,
        calls: Calls,
        admin: TopicAdmin,
        owned: Iterable[TopicPartition],
        place: Callable[[TopicPartition], int | None],
        now_s: float,
    ) -> None:
        """Delete committed records, if it is time; after a failure the next step tries again.

        Args:
            calls: Runs the requests.
            admin: Deletes records.
            owned: Partitions of the worker.
            place: Returns the committed offset of a partition.
            now_s: Monotonic seconds.
        """
        if not self._topics or now_s - self._last_s < PURGED_S:
            return
        self._last_s = now_s
        done: dict[TopicPartition, int] = {}
        for partition in owned:
            offset = place(partition) if partition.topic in self._topics else None
            if offset and offset > self._purged.get(partition, 0):
                done[partition] = offset
        if not done:
            return

        async def purge() -> None:
            await settle(admin.purge(done))

        try:
            await calls(purge())
        except NOT_AUTHORIZED:  # The topic grows, and nothing else is wrong.
            needs = [Need(TOPIC, topic, (DELETE,), "purging") for topic in sorted(self._topics)]
            logger.warning("purging: %s", missing_error(needs))
        except KafkaError as error:
            logger.warning("purging %s: %s", ", ".join(sorted(self._topics)), error)
        else:
            self._purged.update(done)
