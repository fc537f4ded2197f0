"""What simulated administrators do: topics and settings that come and go while others work.

An administrator looks at everything, makes and removes topics that nobody uses, and changes
settings of those that are in use. A second kind has a topic of its own that it fills, reads,
deletes and makes again under the same name, time after time.
"""

from __future__ import annotations

import contextlib
from uuid import UUID

from sim_work import CONSUMER_TIMES, TIMES, Worker, close_consumer

from onceflow.sdk import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from onceflow.sdk.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.partitions import TopicPartition

SETTINGS: dict[tuple[str, str], tuple[str | None, ...]] = {
    ("a", "segment.ms"): ("1500", "3000", "90000"),
    ("a", "compression.type"): ("producer", "gzip", "lz4", "uncompressed", None),
    ("a", "message.timestamp.type"): ("CreateTime", "LogAppendTime", None),
    ("b", "flush.messages"): ("1", "7", None),
    ("b", "compression.type"): ("zstd", "producer"),
    ("compact", "min.cleanable.dirty.ratio"): ("0.01", "0.5"),
    ("short", "retention.ms"): ("900", "1500", "60000"),
    ("", "compression.type"): ("producer", "snappy", None),
    ("", "log.flush.interval.messages"): ("3", None),
    ("", "log.cleaner.min.cleanable.ratio"): ("0.1", "0.9", None),
}
"""Values of settings by topic (empty for the cluster's default) and name; None takes it away.

None of them allows a broker to lose or change a record that somebody may ask for.
"""


class Administrator(Worker):
    """Looks at everything, creates and deletes unused topics, changes settings."""

    async def work(self, me: str) -> None:
        while self.left > 0 and not self.sim.is_over():
            admin = make_admin(self)
            try:
                await admin.start()
                while self.left > 0 and not self.sim.is_over():
                    self.left -= 1
                    await self._do(me, admin)
                    await self.pause(300)
            except KafkaError as error:
                await self.failed(me, "admin", error)
            finally:
                await admin.close()

    async def _do(self, me: str, admin: AsyncAdmin) -> None:
        rng = self.random
        name = f"extra-{rng.randrange(3)}"
        match rng.randrange(12):
            case 0:
                self.note(me, "create topic", name)
                await admin.create_topics([NewTopic(name, 2)])
            case 1:
                self.note(me, "delete topic", name)
                await admin.delete_topics([name])
            case 2:
                await admin.list_topics()
                await admin.list_groups()
            case 3:
                await admin.describe_groups(["group", "session"])
            case 4:
                await admin.list_transactions()
            case 5:
                await admin.describe_topics(["a", "b"])
            case 6:
                await admin.list_group_offsets("session")
            case 7:
                await admin.describe_cluster()
            case _:
                await self._alter(me, admin)
        self.note(me, "admin done")

    async def _alter(self, me: str, admin: AsyncAdmin) -> None:
        topic, name = self.random.choice(list(SETTINGS))
        value = self.random.choice(SETTINGS[topic, name])
        self.count += 1
        change = f"{me}.{self.count}"
        resource = topic or ConfigResource(ResourceType.BROKER, "")
        self.note(me, "alter", change, topic, name, value)
        await admin.alter_configs({resource: {name: value}})
        self.note(me, "altered", change)


class TopicOwner(Worker):
    """Fills, reads, deletes and makes again a topic that belongs to one life of this worker."""

    async def work(self, me: str) -> None:
        topic = f"own-{me.replace('/', '-')}"
        incarnation = 0
        while self.left > 0 and not self.sim.is_over():
            admin, producer = make_admin(self), AsyncProducer(**self.producer_settings())
            try:
                await admin.start()
                await producer.start()
                while self.left > 0 and not self.sim.is_over():
                    self.left -= 1
                    incarnation += 1
                    await self._one(me, topic, incarnation, admin, producer)
            except KafkaError as error:
                await self.failed(me, "owning", error)
            finally:
                await admin.close()
                try:
                    await producer.close()
                except KafkaError as error:
                    self.note(me, "close failed", type(error).__name__)

    async def _one(
        self, me: str, topic: str, number: int, admin: AsyncAdmin, producer: AsyncProducer
    ) -> None:
        """One incarnation: whatever is left of the one before is removed first."""
        self.note(me, "own begin", topic, number)
        with contextlib.suppress(UnknownTopicOrPartitionError):
            await admin.delete_topics([topic])
        with contextlib.suppress(TopicAlreadyExistsError):  # The first answer was lost.
            await admin.create_topics([NewTopic(topic, 1)])
        topic_id = await self._id(admin, topic)
        partitions = 1
        for _ in range(self.random.randrange(1, 5)):
            value = self.next_value(me)
            self.note(me, "own send", topic, number, value)
            stored = await producer.send(topic, value, partition=self.random.randrange(partitions))
            try:
                await stored
            except KafkaError as error:
                self.note(me, "own not acked", value, type(error).__name__)
            else:
                self.note(me, "own acked", topic, number, value)
            if partitions == 1 and self.random.random() < 0.3:
                await admin.create_partitions({topic: 2})
                partitions = 2
        found = await self._read(me, topic, partitions)
        # An earlier deletion may have come so late that this incarnation was its victim.
        if await self._id(admin, topic) == topic_id:
            self.note(me, "own read", topic, number, found)

    async def _id(self, admin: AsyncAdmin, topic: str) -> UUID:
        return (await admin.describe_topics([topic]))[topic].topic_id

    async def _read(self, me: str, topic: str, count: int) -> list[bytes]:
        consumer = AsyncConsumer(
            bootstrap_servers=self.sim.broker.addresses,
            client_id=self.name,
            auto_offset_reset="earliest",
            **TIMES,
            **{**CONSUMER_TIMES, "session_timeout_ms": 45_000},
        )
        partitions = [TopicPartition(topic, index) for index in range(count)]
        consumer.assign(partitions)
        found: list[bytes] = []
        try:
            await consumer.start()
            ends = await consumer.end_offsets(partitions)
            while True:
                if self.sim.may_lose_records:  # The end may be nearer now.
                    ends = await consumer.end_offsets(partitions)
                polled = await consumer.poll(200)
                found += [bytes(r.value or b"") for records in polled.values() for r in records]
                positions = [await consumer.position(p) >= ends[p] for p in partitions]
                if all(positions):
                    return found
        finally:
            await close_consumer(self, me, consumer)


def make_admin(worker: Worker) -> AsyncAdmin:
    """A client for administration."""
    return AsyncAdmin(
        bootstrap_servers=worker.sim.broker.addresses,
        client_id=worker.name,
        default_api_timeout_ms=4_000,
        **TIMES,
    )
