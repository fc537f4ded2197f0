"""The kits of our own clients, blocking and asyncio, under the same face as the published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stock_clients import CODECS, DEADLINE_S, LoopThread, Partition, Row

from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncDelivery,
    AsyncProducer,
    Consumer,
    ConsumerRecord,
    Delivery,
    NewTopic,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import (
    InvalidProducerEpochError,
    ProducerFencedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


def producer_settings(
    bootstrap: str, codec: str, linger_ms: int, transactional_id: str | None
) -> Any:
    return {
        "bootstrap_servers": bootstrap,
        "compression_type": codec,
        "linger_ms": linger_ms,
        "transactional_id": transactional_id,
    }


def consumer_settings(
    bootstrap: str, group_id: str, isolation_level: str, auto_commit: bool
) -> Any:
    return {
        "bootstrap_servers": bootstrap,
        "group_id": group_id,
        "isolation_level": isolation_level,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": auto_commit,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 100,
    }


def positions(offsets: Mapping[Partition, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(*at): offset for at, offset in offsets.items()}


def rows_of(polled: Mapping[TopicPartition, list[ConsumerRecord]]) -> list[Row]:
    return [
        Row(
            record.partition,
            record.value,  # type: ignore[arg-type]
            record.key,  # type: ignore[arg-type]
            tuple(record.headers),
            record.timestamp_ms,
            record.offset,
        )
        for records in polled.values()
        for record in records
    ]


class OurProducer:
    """`onceflow.sdk.Producer`."""

    def __init__(self, settings: Any) -> None:
        self._producer = Producer(**settings)
        self._sent: list[Delivery] = []

    def send(self, topic: str, row: Row) -> None:
        self._sent.append(
            self._producer.send(
                topic,
                row.value,
                key=row.key,
                headers=row.headers,
                partition=row.partition,
                timestamp_ms=row.timestamp_ms or None,
            )
        )

    def flush(self) -> list[tuple[int, int]]:
        self._producer.flush()
        found = [delivery.result(DEADLINE_S) for delivery in self._sent]
        self._sent.clear()
        return [(metadata.partition, metadata.offset) for metadata in found]

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: OurConsumer) -> None:
        self._producer.send_offsets_to_transaction(
            positions(offsets), consumer.consumer.group_metadata()
        )

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close()


class OurConsumer:
    """`onceflow.sdk.Consumer`."""

    def __init__(self, settings: Any) -> None:
        self.group_id: str = settings["group_id"]
        self.consumer = Consumer(**settings)

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.assign(list(positions(offsets)))
        for partition, offset in positions(offsets).items():
            self.consumer.seek(partition, offset)

    def poll(self, timeout_s: float) -> list[Row]:
        return rows_of(self.consumer.poll(int(timeout_s * 1000)))

    def assignment(self) -> set[Partition]:
        return {tuple(found) for found in self.consumer.assignment()}  # type: ignore[misc]

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        self.consumer.commit(None if offsets is None else positions(offsets))

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        found = self.consumer.committed([TopicPartition(*at) for at in partitions])
        return {at: _offset(found.get(TopicPartition(*at))) for at in partitions}

    def close(self) -> None:
        self.consumer.close(commit=False)


def _offset(found: Any) -> int | None:
    return None if found is None else int(found.offset)


class OurAdmin:
    """`onceflow.sdk.Admin`."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = Admin(bootstrap_servers=bootstrap)

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1, dict(configs))])

    def partition_counts(self) -> dict[str, int]:
        try:
            found = self._admin.describe_topics(self._admin.list_topics())
        except UnknownTopicOrPartitionError:  # One went between the two questions.
            return self.partition_counts()
        return {name: topic.partition_count for name, topic in found.items()}

    def config(self, topic: str, name: str) -> str | None:
        return self._admin.describe_configs([topic])[topic][name].value

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: partitions})

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def close(self) -> None:
        self._admin.close()


class OurKit:
    """The blocking clients."""

    name = "onceflow"
    fenced = (ProducerFencedError, InvalidProducerEpochError)
    topic_exists = (TopicAlreadyExistsError,)
    codecs = CODECS
    null_headers = True

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> OurProducer:
        return OurProducer(producer_settings(bootstrap, codec, linger_ms, transactional_id))

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> OurConsumer:
        return OurConsumer(consumer_settings(bootstrap, group_id, isolation_level, auto_commit))

    def admin(self, bootstrap: str) -> OurAdmin:
        return OurAdmin(bootstrap)


class OurAsyncProducer:
    """`onceflow.sdk.AsyncProducer` on a loop in a thread."""

    def __init__(self, settings: Any) -> None:
        self._loop = LoopThread()
        self._sent: list[AsyncDelivery] = []

        async def start() -> AsyncProducer:
            producer = AsyncProducer(**settings)
            await producer.start()
            return producer

        self._producer = self._loop.run(start)

    def send(self, topic: str, row: Row) -> None:
        async def send() -> None:
            self._sent.append(
                await self._producer.send(
                    topic,
                    row.value,
                    key=row.key,
                    headers=row.headers,
                    partition=row.partition,
                    timestamp_ms=row.timestamp_ms or None,
                )
            )

        self._loop.run(send)

    def flush(self) -> list[tuple[int, int]]:
        async def wait() -> list[tuple[int, int]]:
            await self._producer.flush()
            found = [await delivery for delivery in self._sent]
            return [(metadata.partition, metadata.offset) for metadata in found]

        found = self._loop.run(wait)
        self._sent.clear()
        return found

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: OurAsyncConsumer) -> None:
        async def send_offsets() -> None:
            await self._producer.send_offsets_to_transaction(
                positions(offsets), consumer.consumer.group_metadata()
            )

        self._loop.run(send_offsets)

    def commit(self) -> None:
        self._loop.run(self._producer.commit_transaction)

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction)

    def close(self) -> None:
        self._loop.run(self._producer.close)
        self._loop.close()


class OurAsyncConsumer:
    """`onceflow.sdk.AsyncConsumer` on a loop in a thread."""

    def __init__(self, settings: Any) -> None:
        self.group_id: str = settings["group_id"]
        self._loop = LoopThread()

        async def start() -> AsyncConsumer:
            consumer = AsyncConsumer(**settings)
            await consumer.start()
            return consumer

        self.consumer = self._loop.run(start)

    def subscribe(self, topic: str) -> None:
        async def subscribe() -> None:
            self.consumer.subscribe([topic])

        self._loop.run(subscribe)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        async def assign() -> None:
            self.consumer.assign(list(positions(offsets)))
            for partition, offset in positions(offsets).items():
                self.consumer.seek(partition, offset)

        self._loop.run(assign)

    def poll(self, timeout_s: float) -> list[Row]:
        return rows_of(self._loop.run(lambda: self.consumer.poll(int(timeout_s * 1000))))

    def assignment(self) -> set[Partition]:
        return {tuple(found) for found in self.consumer.assignment()}  # type: ignore[misc]

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        wanted = None if offsets is None else positions(offsets)
        self._loop.run(lambda: self.consumer.commit(wanted))

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        wanted = [TopicPartition(*at) for at in partitions]
        found = self._loop.run(lambda: self.consumer.committed(wanted))
        return {at: _offset(found.get(TopicPartition(*at))) for at in partitions}

    def close(self) -> None:
        self._loop.run(lambda: self.consumer.close(commit=False))
        self._loop.close()


class OurAsyncAdmin:
    """`onceflow.sdk.AsyncAdmin` on a loop in a thread."""

    def __init__(self, bootstrap: str) -> None:
        self._loop = LoopThread()

        async def start() -> AsyncAdmin:
            admin = AsyncAdmin(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self._admin = self._loop.run(start)

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, dict(configs))
        self._loop.run(lambda: self._admin.create_topics([wanted]))

    def partition_counts(self) -> dict[str, int]:
        async def ask() -> dict[str, int]:
            try:
                found = await self._admin.describe_topics(await self._admin.list_topics())
            except UnknownTopicOrPartitionError:  # One went between the two questions.
                return await ask()
            return {name: topic.partition_count for name, topic in found.items()}

        return self._loop.run(ask)

    def config(self, topic: str, name: str) -> str | None:
        return self._loop.run(lambda: self._admin.describe_configs([topic]))[topic][name].value

    def grow(self, topic: str, partitions: int) -> None:
        self._loop.run(lambda: self._admin.create_partitions({topic: partitions}))

    def delete(self, topic: str) -> None:
        self._loop.run(lambda: self._admin.delete_topics([topic]))

    def close(self) -> None:
        self._loop.run(self._admin.close)
        self._loop.close()


class OurAsyncKit:
    """The clients for asyncio."""

    name = "onceflow (asyncio)"
    fenced = OurKit.fenced
    topic_exists = OurKit.topic_exists
    codecs = CODECS
    null_headers = True

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> OurAsyncProducer:
        return OurAsyncProducer(producer_settings(bootstrap, codec, linger_ms, transactional_id))

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> OurAsyncConsumer:
        return OurAsyncConsumer(
            consumer_settings(bootstrap, group_id, isolation_level, auto_commit)
        )

    def admin(self, bootstrap: str) -> OurAsyncAdmin:
        return OurAsyncAdmin(bootstrap)
