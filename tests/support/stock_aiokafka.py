"""The kit of aiokafka. Its clients live on a loop in a thread; it reads settings of topics not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import aiokafka
import aiokafka.errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from stock_clients import CODECS, LoopThread, Partition, Row


class AiokafkaProducer:
    """Idempotent; transactional with an id."""

    def __init__(
        self, bootstrap: str, codec: str, linger_ms: int, transactional_id: str | None
    ) -> None:
        self._loop = LoopThread()
        self._sent: list[asyncio.Future[aiokafka.structs.RecordMetadata]] = []

        async def start() -> aiokafka.AIOKafkaProducer:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                enable_idempotence=True,
                linger_ms=linger_ms,
                compression_type=None if codec == "none" else codec,
                transactional_id=transactional_id,
            )
            await producer.start()
            return producer

        self._producer = self._loop.run(start)

    def send(self, topic: str, row: Row) -> None:
        async def send() -> None:
            self._sent.append(
                await self._producer.send(
                    topic,
                    row.value,
                    row.key,
                    row.partition,
                    row.timestamp_ms or None,
                    list(row.headers),
                )
            )

        self._loop.run(send)

    def flush(self) -> list[tuple[int, int]]:
        async def wait() -> list[tuple[int, int]]:
            return [(found.partition, found.offset) for found in await asyncio.gather(*self._sent)]

        found = self._loop.run(wait)
        self._sent.clear()
        return found

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: AiokafkaConsumer) -> None:
        wanted = {aiokafka.TopicPartition(*at): offset for at, offset in offsets.items()}
        self._loop.run(
            lambda: self._producer.send_offsets_to_transaction(wanted, consumer.group_id)
        )

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction)

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction)

    def close(self) -> None:
        self._loop.run(self._producer.stop)
        self._loop.close()


class AiokafkaConsumer:
    """One member."""

    def __init__(self, bootstrap: str, group_id: str, isolation_level: str, auto_commit: bool):
        self.group_id = group_id
        self._loop = LoopThread()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group_id,
                isolation_level=isolation_level,
                auto_offset_reset="earliest",
                enable_auto_commit=auto_commit,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=100,
            )
            await consumer.start()
            return consumer

        self._consumer = self._loop.run(start)

    def subscribe(self, topic: str) -> None:
        async def subscribe() -> None:
            self._consumer.subscribe([topic])

        self._loop.run(subscribe)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        async def assign() -> None:
            wanted = {aiokafka.TopicPartition(*at): offset for at, offset in offsets.items()}
            self._consumer.assign(list(wanted))
            for partition, offset in wanted.items():
                self._consumer.seek(partition, offset)

        self._loop.run(assign)

    def poll(self, timeout_s: float) -> list[Row]:
        found = self._loop.run(lambda: self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        return [
            Row(
                record.partition,
                record.value,
                record.key,
                tuple(record.headers),
                record.timestamp,
                record.offset,
            )
            for records in found.values()
            for record in records
        ]

    def assignment(self) -> set[Partition]:
        return {(found.topic, found.partition) for found in self._consumer.assignment()}

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        wanted = offsets and {aiokafka.TopicPartition(*at): o for at, o in offsets.items()}
        self._loop.run(lambda: self._consumer.commit(wanted))

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        async def ask() -> dict[Partition, int | None]:
            return {
                at: await self._consumer.committed(aiokafka.TopicPartition(*at))
                for at in partitions
            }

        return self._loop.run(ask)

    def close(self) -> None:
        self._loop.run(self._consumer.stop)
        self._loop.close()


class AiokafkaAdmin:
    """The admin client."""

    def __init__(self, bootstrap: str) -> None:
        self._loop = LoopThread()

        async def start() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self._admin = self._loop.run(start)

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=dict(configs))
        answer = self._loop.run(lambda: self._admin.create_topics([wanted]))
        _raise_for(answer.topic_errors)

    def partition_counts(self) -> dict[str, int]:
        found = self._loop.run(self._admin.describe_topics)
        return {topic["topic"]: len(topic["partitions"]) for topic in found}

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._loop.run(lambda: self._admin.describe_configs([resource]))
        entries = answer.resources[0][4]
        return next((entry[1] for entry in entries if entry[0] == name), None)

    def grow(self, topic: str, partitions: int) -> None:
        wanted = {topic: NewPartitions(partitions)}
        answer = self._loop.run(lambda: self._admin.create_partitions(wanted))
        _raise_for(answer.topic_errors)

    def delete(self, topic: str) -> None:
        answer = self._loop.run(lambda: self._admin.delete_topics([topic]))
        _raise_for(answer.topic_error_codes)

    def close(self) -> None:
        self._loop.run(self._admin.close)
        self._loop.close()


def _raise_for(errors: Sequence[Sequence[object]]) -> None:
    """Its admin hands out codes where the others raise."""
    for _, code, *_ in errors:
        if code:
            raise aiokafka.errors.for_code(code)


class AiokafkaKit:
    """aiokafka."""

    name = "aiokafka"
    fenced = (aiokafka.errors.ProducerFenced,)
    topic_exists = (aiokafka.errors.TopicAlreadyExistsError,)
    codecs = CODECS
    null_headers = True

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> AiokafkaProducer:
        return AiokafkaProducer(bootstrap, codec, linger_ms, transactional_id)

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> AiokafkaConsumer:
        return AiokafkaConsumer(bootstrap, group_id, isolation_level, auto_commit)

    def admin(self, bootstrap: str) -> AiokafkaAdmin:
        return AiokafkaAdmin(bootstrap)
