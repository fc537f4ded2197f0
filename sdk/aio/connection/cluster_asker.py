"""Asks a cluster about many items, and repeats retriable failures until a limit.

It decides which brokers to ask (leaders, coordinators, any), which failures to retry, and how
failures of single items are raised. The callers pass the requests as flows of the core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import limit_of, partition_list
from onceflow.sdk.core.consume.offset_lookup import by_leader
from onceflow.sdk.core.flow import Coordinator, Flow
from onceflow.sdk.core.retry import Recovery, recovery_for
from onceflow.sdk.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for

K = TypeVar("K")
V = TypeVar("V")

NO_SUCH_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Final for requests that name topics: waiting for a topic to appear would only delay the error."""

VISIBLE_LIMIT_MS: Final = 10_000
"""Longest wait until brokers know a topic, after the controller made it."""


class ClusterAsker:
    """Sends an admin client's requests to the right brokers."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def check(self, timeout_ms: int | None) -> None:
        """Refuse a wrong limit, and calls of a client that cannot be used.

        Args:
            timeout_ms: Limit, None for the default.

        Raises:
            ConfigError: The limit is not a number of milliseconds.
            IllegalStateError: See ``ConnectionPool.check_usable``.
        """
        limit_of(timeout_ms, 0)
        self._pool.check_usable()

    async def controller(self) -> int:
        """Return a broker that accepts requests for the controller: with ZooKeeper the controller,
        else any.

        Raises:
            NoBrokersAvailableError: The cluster names no broker at the moment.
        """
        self._pool.check_usable()
        view = self._pool.metadata
        if not view.nodes:
            view = await self._pool.refresh_metadata(())
        for node_id in (view.controller_id, *view.nodes):
            if node_id in view.nodes:
                return node_id
        raise NoBrokersAvailableError("the cluster names no broker at the moment; try again")

    async def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        flow: Callable[[int, list[TopicPartition], int], Flow[Outcomes[TopicPartition, V]]],
        timeout_ms: int | None,
    ) -> dict[TopicPartition, V]:
        """Ask the leader of each partition.

        Args:
            partitions: The partitions.
            flow: Makes the flow for one node and its partitions, within a limit in
                milliseconds.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        wanted = partition_list(partitions)
        self.check(timeout_ms)
        topics = {partition.topic for partition in wanted}
        self._pool.remember_topics(topics)
        if any(self._pool.metadata.partition(partition) is None for partition in wanted):
            await self._pool.refresh_metadata(topics, timeout_ms=timeout_ms)

        async def ask(left: list[TopicPartition], left_ms: int) -> Outcomes[TopicPartition, V]:
            known, missing = by_leader(self._pool.metadata, left)
            found: Outcomes[TopicPartition, V] = {}
            for partition in missing:
                topic = self._pool.metadata.topics.get(partition.topic)
                if topic is not None and topic.error_code:
                    found[partition] = error_for(topic.error_code, str(partition))
                elif topic is not None and partition.partition not in topic.partitions:
                    found[partition] = UnknownTopicOrPartitionError(
                        f"{partition}: the topic has {len(topic.partitions)} partitions"
                    )
                else:
                    found[partition] = LeaderNotAvailableError(f"{partition} has no leader")
            for node_id, part in known.items():
                try:
                    answers = self._pool.run(flow(node_id, part, left_ms), timeout_ms=left_ms)
                    found |= await answers
                except KafkaError as error:
                    found |= dict.fromkeys(part, error)
            return found

        return await self.complete(wanted, ask, timeout_ms, final=NO_SUCH_TOPIC)

    async def ask_coordinators(
        self,
        keys: Iterable[str],
        kind: CoordinatorType,
        flow: Callable[[str], Flow[Outcomes[str, V]]],
        timeout_ms: int | None,
    ) -> dict[str, V]:
        """Ask the coordinator of each group or transactional id."""

        async def ask(left: list[str], left_ms: int) -> Outcomes[str, V]:
            found: Outcomes[str, V] = {}
            for key in left:
                try:
                    found |= await self._pool.run(flow(key), timeout_ms=left_ms)
                except KafkaError as error:
                    found[key] = error
            return found

        return await self.complete(
            list(keys), ask, timeout_ms, coordinator=lambda key: Coordinator(key, kind)
        )

    async def ask_brokers(self, flow: Callable[[int], Flow[V]], timeout_ms: int | None) -> list[V]:
        """Ask every broker; one answer each."""
        self.check(timeout_ms)
        view = await self._pool.refresh_metadata((), timeout_ms=timeout_ms)

        async def ask(left: list[int], left_ms: int) -> Outcomes[int, V]:
            found: Outcomes[int, V] = {}
            for node_id in left:
                try:
                    found[node_id] = await self._pool.run(flow(node_id), timeout_ms=left_ms)
                except KafkaError as error:
                    found[node_id] = error
            return found

        return list((await self.complete(view.nodes, ask, timeout_ms)).values())

    async def ask_controller(
        self,
        items: Iterable[K],
        flow: Callable[[list[K], int, int], Flow[Outcomes[K, V]]],
        timeout_ms: int | None,
        *,
        final: Collection[int] = (),
    ) -> dict[K, V]:
        """Ask a broker that takes requests for the controller about several items.

        Args:
            items: The items.
            flow: Makes the conversation about some of them, given a limit in milliseconds and the
                node to ask.
            timeout_ms: Limit for the whole, default ``default_api_timeout_ms``.
            final: Error codes that are not worth another try.
        """

        async def ask(left: list[K], left_ms: int) -> Outcomes[K, V]:
            target = await self.controller()
            return await self._pool.run(flow(left, left_ms, target), timeout_ms=left_ms)

        return await self.complete(items, ask, timeout_ms, final=final)

    async def ask_controller_once(
        self, flow: Callable[[int, int], Flow[V]], timeout_ms: int | None
    ) -> V:
        """Ask such a broker one question; ``flow`` gets a limit and the node to ask."""

        async def ask(left: list[str], left_ms: int) -> Outcomes[str, V]:
            target = await self.controller()
            return {"": await self._pool.run(flow(left_ms, target), timeout_ms=left_ms)}

        return (await self.complete([""], ask, timeout_ms))[""]

    async def complete(
        self,
        items: Iterable[K],
        ask: Callable[[list[K], int], Awaitable[Outcomes[K, V]]],
        timeout_ms: int | None,
        *,
        final: Collection[int] = (),
        coordinator: Callable[[K], Coordinator] | None = None,
    ) -> dict[K, V]:
        """Ask about items until each one has a result or a final error.

        Args:
            items: The items.
            ask: Asks once about some items, within a limit in milliseconds.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
            final: Error codes that are not worth another try here, though they may pass.
            coordinator: Returns the coordinator of an item, if the request goes to one.

        Returns:
            Result by item.

        Raises:
            KafkaError: The first item's failure; further ones are its notes.
        """
        self.check(timeout_ms)
        limit_ms = limit_of(timeout_ms, self._pool.config.default_api_timeout_ms)
        deadline_ms = self._pool.now_ms() + limit_ms
        results: dict[K, V] = {}
        failed: list[KafkaError] = []
        reasons: dict[K, KafkaError] = {}
        left = list(items)
        failures = 0
        while left:
            try:
                outcomes = await ask(left, max(1, deadline_ms - self._pool.now_ms()))
            except KafkaError as error:
                outcomes = dict.fromkeys(left, error)
            again: dict[K, KafkaError] = {}
            for item in left:
                found = outcomes[item]
                if not isinstance(found, KafkaError):
                    results[item] = found
                elif _is_final(found, final):
                    failed.append(found)
                else:
                    again[item] = found
                    if not isinstance(found, RequestTimedOutError) or item not in reasons:
                        reasons[item] = found
            left = list(again)
            failures += 1
            delay_ms = self._pool.backoff.delay_ms(failures)
            if left and self._pool.now_ms() + delay_ms >= deadline_ms:
                # The last try may only have timed out; the broker's earlier error says more.
                for late in (reasons[item] for item in left):
                    late.add_note(f"given up after {limit_ms} ms")
                    failed.append(late)
                break
            if left:
                await asyncio.sleep(delay_ms / 1000)
                await self._recover(again, coordinator)
        if failed:
            for other in failed[1:]:
                failed[0].add_note(f"also failed: {other}")
            raise failed[0]
        return results

    async def _recover(
        self,
        failed: Mapping[K, KafkaError],
        coordinator: Callable[[K], Coordinator] | None,
    ) -> None:
        refresh = False
        for item, error in failed.items():
            recovery = recovery_for(error, coordinator=coordinator is not None)
            if recovery is Recovery.FIND_COORDINATOR and coordinator is not None:
                wrong = coordinator(item)
                self._pool.forget_coordinator(wrong.key, wrong.key_type)
            elif recovery is not Recovery.WAIT or _code(error) == ErrorCode.NOT_CONTROLLER:
                refresh = True
        if refresh:
            await self._pool.refresh_metadata()

    async def wait_visible(self, partition_counts: Mapping[str, int]) -> None:
        """Wait until topics have that many partitions with leaders, and return at the limit too."""
        deadline_ms = self._pool.now_ms() + VISIBLE_LIMIT_MS
        failures = 0
        while self._pool.now_ms() < deadline_ms:
            view = await self._pool.refresh_metadata(tuple(partition_counts), remember=False)
            if all(
                (topic := view.topic(name)) is not None
                and len(topic.available) >= count
                and len(topic.available) == len(topic.partitions)
                for name, count in partition_counts.items()
            ):
                return
            failures += 1
            await asyncio.sleep(self._pool.backoff.delay_ms(failures) / 1000)


def _code(error: KafkaError) -> int | None:
    code = getattr(error, "code", None)
    return code if isinstance(code, int) else None


def _is_final(error: KafkaError, final: Collection[int]) -> bool:
    return _code(error) in final or recovery_for(error) is Recovery.NONE
