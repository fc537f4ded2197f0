"""Makes the SDK's clients for a session, blocking or asyncio.

No other module of sessions uses the SDK's client classes. Consumers are subscribed with the
session's rebalance callbacks, and producers are initialised, so that both are ready to use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.sdk import (
    Admin,
    AdminConfig,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    Producer,
)
from onceflow.sdk.model.admin import TopicDescription
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.clients import SessionProducer
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.listener import RebalanceHooks


def _admin_config(config: AnySessionConfig) -> AdminConfig:
    """Return the consumer's address and security for an admin client."""
    shared = AdminConfig.declared.keys() & config.consumer.declared.keys()
    return AdminConfig.build({name: getattr(config.consumer, name) for name in shared})


def _ids(described: Mapping[str, TopicDescription]) -> dict[str, str]:
    return {name: str(found.topic_id) for name, found in described.items() if found.topic_id.int}


class BlockingClients:
    """Blocking clients; the callbacks run to their end within ``poll``."""

    def producer(self, config: AnySessionConfig) -> SessionProducer:
        """A producer that has fenced its predecessor."""
        return Producer(config=config.producer)

    def consumer(self, config: AnySessionConfig, hooks: RebalanceHooks) -> Consumer[object, object]:
        """A subscribed consumer; it joins at the first poll."""

        def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            run_blocking(hooks.on_assigned(partitions))

        def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            run_blocking(hooks.on_revoked(partitions))

        def on_lost(partitions: Sequence[TopicPartition]) -> None:
            run_blocking(hooks.on_lost(partitions))

        consumer = Consumer(config=config.consumer)
        try:
            consumer.subscribe(
                topics=list(config.topics),
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_lost=on_lost,
            )
        except BaseException:
            consumer.close(timeout_ms=0)
            raise
        return consumer

    def topic_ids(self, config: AnySessionConfig, topics: Sequence[str]) -> dict[str, str]:
        """The ids of those topics that have one (KIP-516)."""
        with Admin(config=_admin_config(config)) as admin:
            return _ids(admin.describe_topics(topics))


class AsyncioClients:
    """asyncio clients; the callbacks are awaited within ``poll``."""

    async def producer(self, config: AnySessionConfig) -> SessionProducer:
        """A producer that has fenced its predecessor."""
        producer = AsyncProducer(config=config.producer)
        try:
            await producer.start()
        except BaseException:
            await producer.close(timeout_ms=0)
            raise
        return producer

    async def consumer(
        self, config: AnySessionConfig, hooks: RebalanceHooks
    ) -> AsyncConsumer[object, object]:
        """A subscribed consumer; it joins at the first poll."""
        consumer = AsyncConsumer(config=config.consumer)
        try:
            await consumer.start()
            consumer.subscribe(
                topics=list(config.topics),
                on_assigned=hooks.on_assigned,
                on_revoked=hooks.on_revoked,
                on_lost=hooks.on_lost,
            )
        except BaseException:
            await consumer.close(timeout_ms=0)
            raise
        return consumer

    async def topic_ids(self, config: AnySessionConfig, topics: Sequence[str]) -> dict[str, str]:
        """The ids of those topics that have one (KIP-516)."""
        async with AsyncAdmin(config=_admin_config(config)) as admin:
            return _ids(await admin.describe_topics(topics))
