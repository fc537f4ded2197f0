"""The topics of a producer: looked up at the first record, updated with the metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onceflow.sdk.core.arguments import limit_of
from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.produce.accumulator import PartitionQueue, TopicState
from onceflow.sdk.core.produce.batch import DeliveryHandle
from onceflow.sdk.core.produce.errors import topic_made_anew
from onceflow.sdk.errors import (
    NoBrokersAvailableError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from onceflow.sdk.aio.produce.engine import ProducerEngine

log: logging.Logger = logging.getLogger("onceflow.producer")

_WAITABLE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NONE,
)
"""Error codes in a Metadata answer for a topic that is being created."""


class ProducerTopics:
    """Keeps the accumulator's topics equal to the cluster's."""

    def __init__(self, engine: ProducerEngine[DeliveryHandle]) -> None:
        self._engine = engine

    def on_metadata(self, metadata: ClusterMetadata) -> None:
        """Take over a newer view of the cluster."""
        self._leave_idle()
        for name in list(self._engine.accumulator.topics):
            self._apply_topic(metadata, name)
        self._engine.poke()

    def missing_of(self, names: Iterable[str]) -> list[str]:
        """Return the topics that the metadata does not have now."""
        topics = self._engine.pool.metadata.topics
        return [
            name
            for name in names
            if (found := topics.get(name)) is None
            or found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]

    def _leave_idle(self) -> None:
        """Drop idle topics; otherwise a long-lived producer would keep them all."""
        manager = self._engine.transactions

        def needed(queue: PartitionQueue) -> bool:
            # Only the coordinator raises a transactional producer's epoch.
            return (
                manager.is_transactional
                and queue.producer_id == manager.producer_id
                and queue.producer_epoch == manager.producer_epoch
            )

        idle_ms = self._engine.config.metadata_max_idle_ms
        idle = self._engine.accumulator.leave_idle(idle_ms, manager.producer_id, needed)
        if idle:
            self._engine.pool.forget_topics(idle)

    def _apply_topic(self, metadata: ClusterMetadata, name: str) -> TopicState | None:
        topic = metadata.topic(name)
        if topic is None or not topic.partitions:
            return None
        count = len(topic.partitions)
        state = self._engine.accumulator.topic_state(name, count, topic.available)
        if state.topic_id not in (topic.topic_id, ZERO_UUID):
            self._topic_made_anew(state, count)
        state.topic_id = topic.topic_id
        return state

    def _topic_made_anew(self, state: TopicState, count: int) -> None:
        """React to a topic that was deleted and created again under its name."""
        log.warning("topic %s was deleted and created again; its records are lost", state.topic)
        manager = self._engine.transactions
        with self._engine.accumulator.lock:
            # Batches that were never sent go to the new topic.
            touched = any(queue.transaction == manager.number for queue in state.queues)
            state.made_anew(count)
        if manager.is_transactional and manager.may_send and touched:
            manager.fail(topic_made_anew(state.topic))
            self._engine.after_settling()

    async def find(self, name: str, timeout_ms: int | None = None) -> TopicState:
        """Return the state of a topic; request its metadata if it is unknown.

        Args:
            name: Topic name.
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            InvalidTopicError: The name is not legal; no request was sent.
            UnknownTopicOrPartitionError: The topic did not appear within the limit.
            KafkaError: The broker refuses.
        """
        self._engine.check_usable()
        check_topic_name(name)
        limit_ms = limit_of(timeout_ms, self._engine.config.max_block_ms)
        deadline_ms = self._engine.now_ms() + limit_ms
        failures = 0
        while True:
            state = self._apply_topic(self._engine.pool.metadata, name)
            if state is not None:
                state.used_ms = self._engine.accumulator.clock_ms()
                return state
            left_ms = max(1, deadline_ms - self._engine.now_ms())
            try:
                await self._engine.pool.refresh_metadata(
                    (name,), allow_auto_topic_creation=True, timeout_ms=left_ms
                )
            except NoBrokersAvailableError as error:
                if not failures or left_ms > self._engine.config.retry_backoff_max_ms:
                    raise
                raise self._no_topic(name, limit_ms) from error
            found = self._engine.pool.metadata.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error_code
            if code and code not in _WAITABLE:
                self._engine.pool.forget_topics((name,))
                raise error_for(code, f"topic {name!r}")
            if self._engine.pool.metadata.topic(name) is not None:
                continue
            failures += 1
            delay_ms = self._engine.pool.backoff.delay_ms(failures)
            if self._engine.now_ms() + delay_ms >= deadline_ms:
                raise self._no_topic(name, limit_ms)
            await asyncio.sleep(delay_ms / 1000)

    def _no_topic(self, name: str, limit_ms: int) -> UnknownTopicOrPartitionError:
        self._engine.pool.forget_topics((name,))
        return UnknownTopicOrPartitionError(
            f"topic {name!r} did not appear within {limit_ms} ms; create it first"
        )
