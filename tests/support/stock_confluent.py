"""The kit of confluent-kafka (librdkafka)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from stock_clients import CODECS, DEADLINE_S, Partition, Row

OFFSET_INVALID = confluent_kafka.OFFSET_INVALID


def settings_for(bootstrap: str, **settings: object) -> dict[str, object]:
    """Settings for a broker that may be stopped under the client: quick and quiet."""
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


class ConfluentProducer:
    """Idempotent; transactional with an id."""

    def __init__(
        self, bootstrap: str, codec: str, linger_ms: int, transactional_id: str | None
    ) -> None:
        settings = settings_for(
            bootstrap, enable_idempotence=True, linger_ms=linger_ms, compression_type=codec
        )
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        self._producer = confluent_kafka.Producer(settings)
        self._reports: dict[int, tuple[int, int]] = {}
        self._failures: list[confluent_kafka.KafkaError] = []
        self._sent = 0
        if transactional_id is not None:
            self._producer.init_transactions(DEADLINE_S)

    def send(self, topic: str, row: Row) -> None:
        number = self._sent
        self._sent += 1

        def report(error: confluent_kafka.KafkaError | None, message: object) -> None:
            if error is not None:
                self._failures.append(error)
            else:
                self._reports[number] = (message.partition(), message.offset())  # type: ignore[attr-defined]

        self._producer.produce(
            topic,
            row.value,
            row.key,
            row.partition,
            on_delivery=report,
            timestamp=row.timestamp_ms,
            headers=list(row.headers),
        )

    def flush(self) -> list[tuple[int, int]]:
        assert self._producer.flush(DEADLINE_S) == 0
        assert not self._failures, self._failures
        found = [self._reports[number] for number in sorted(self._reports)]
        self._reports.clear()
        return found

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: ConfluentConsumer) -> None:
        self._producer.send_offsets_to_transaction(
            positions(offsets), consumer.consumer.consumer_group_metadata(), DEADLINE_S
        )

    def commit(self) -> None:
        self._producer.commit_transaction(DEADLINE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(DEADLINE_S)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0)


def positions(offsets: Mapping[Partition, int]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*partition, at) for partition, at in offsets.items()]


class ConfluentConsumer:
    """One member."""

    def __init__(self, bootstrap: str, group_id: str, isolation_level: str, auto_commit: bool):
        self.group_id = group_id
        self.consumer = confluent_kafka.Consumer(
            settings_for(
                bootstrap,
                group_id=group_id,
                isolation_level=isolation_level,
                auto_offset_reset="earliest",
                enable_auto_commit=auto_commit,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=100,
            )
        )

    def subscribe(self, topic: str) -> None:
        self.consumer.subscribe([topic])

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.assign(positions(offsets))

    def poll(self, timeout_s: float) -> list[Row]:
        rows = []
        for message in self.consumer.consume(500, timeout_s):
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            rows.append(
                Row(
                    message.partition(),
                    message.value(),
                    message.key(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1],
                    message.offset(),
                )
            )
        return rows

    def assignment(self) -> set[Partition]:
        return {(partition.topic, partition.partition) for partition in self.consumer.assignment()}

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        if offsets is None:
            self.consumer.commit(asynchronous=False)
        else:
            self.consumer.commit(offsets=positions(offsets), asynchronous=False)

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        asked = [confluent_kafka.TopicPartition(*partition) for partition in partitions]
        return {
            (found.topic, found.partition): None if found.offset == OFFSET_INVALID else found.offset
            for found in self.consumer.committed(asked, DEADLINE_S)
        }

    def close(self) -> None:
        self.consumer.close()


class ConfluentAdmin:
    """The admin client."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient(settings_for(bootstrap))

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, config=dict(configs))
        self._admin.create_topics([wanted])[topic].result(DEADLINE_S)

    def partition_counts(self) -> dict[str, int]:
        topics = self._admin.list_topics(timeout=DEADLINE_S).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = self._admin.describe_configs([resource])[resource].result(DEADLINE_S)
        value: str | None = entries[name].value
        return value

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(DEADLINE_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def close(self) -> None:
        del self._admin


class ConfluentKit:
    """confluent-kafka."""

    name = "confluent-kafka"
    fenced = (confluent_kafka.KafkaException,)
    topic_exists = (confluent_kafka.KafkaException,)
    codecs = CODECS
    null_headers = True

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> ConfluentProducer:
        return ConfluentProducer(bootstrap, codec, linger_ms, transactional_id)

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> ConfluentConsumer:
        return ConfluentConsumer(bootstrap, group_id, isolation_level, auto_commit)

    def admin(self, bootstrap: str) -> ConfluentAdmin:
        return ConfluentAdmin(bootstrap)
