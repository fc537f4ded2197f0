"""The kit of kafka-python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from stock_clients import CODECS, DEADLINE_S, Partition, Row

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.codec
    import kafka.errors
    from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
    from kafka.structs import OffsetAndMetadata, TopicPartition


class KafkaPythonProducer:
    """Idempotent; transactional with an id."""

    def __init__(
        self, bootstrap: str, codec: str, linger_ms: int, transactional_id: str | None
    ) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            enable_idempotence=True,
            linger_ms=linger_ms,
            compression_type=None if codec == "none" else codec,
            transactional_id=transactional_id,
        )
        self._sent: list[kafka.future.Future] = []
        if transactional_id is not None:
            self._producer.init_transactions()

    def send(self, topic: str, row: Row) -> None:
        self._sent.append(
            self._producer.send(
                topic,
                row.value,
                row.key,
                list(row.headers),
                row.partition,
                row.timestamp_ms or None,
            )
        )

    def flush(self) -> list[tuple[int, int]]:
        self._producer.flush(DEADLINE_S)
        metadata = [future.get(DEADLINE_S) for future in self._sent]
        self._sent.clear()
        return [(found.partition, found.offset) for found in metadata]

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offsets(self, offsets: Mapping[Partition, int], consumer: KafkaPythonConsumer) -> None:
        self._producer.send_offsets_to_transaction(
            positions(offsets), consumer.consumer.group_metadata()
        )

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(DEADLINE_S)


def positions(offsets: Mapping[Partition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*at): OffsetAndMetadata(to, "", -1) for at, to in offsets.items()}


class KafkaPythonConsumer:
    """One member."""

    def __init__(self, bootstrap: str, group_id: str, isolation_level: str, auto_commit: bool):
        self.group_id = group_id
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group_id,
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
            enable_auto_commit=auto_commit,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=100,
        )

    def subscribe(self, topic: str) -> None:
        # A leader that computes the assignment before it has the topic's metadata assigns nothing,
        # and on a busy machine kafka-python stays like that.
        self.consumer.partitions_for_topic(topic)
        self.consumer.subscribe([topic])

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        self.consumer.assign([TopicPartition(*at) for at in offsets])
        for at, offset in offsets.items():
            self.consumer.seek(TopicPartition(*at), offset)

    def poll(self, timeout_s: float) -> list[Row]:
        return [
            Row(
                record.partition,
                record.value,
                record.key,
                tuple(record.headers),
                record.timestamp,
                record.offset,
            )
            for records in self.consumer.poll(int(timeout_s * 1000)).values()
            for record in records
        ]

    def assignment(self) -> set[Partition]:
        return {(found.topic, found.partition) for found in self.consumer.assignment()}

    def commit(self, offsets: Mapping[Partition, int] | None = None) -> None:
        self.consumer.commit(offsets and positions(offsets))

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        return {at: self.consumer.committed(TopicPartition(*at)) for at in partitions}

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class KafkaPythonAdmin:
    """The admin client."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(configs))])

    def partition_counts(self) -> dict[str, int]:
        found = self._admin.describe_topics()
        return {topic["name"]: len(topic["partitions"]) for topic in found}

    def config(self, topic: str, name: str) -> str | None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, [name])
        found = self._admin.describe_configs([resource], config_filter="all")
        value: str | None = found["topic"][topic][name]["value"]
        return value

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions({topic: partitions})

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])

    def close(self) -> None:
        self._admin.close()


class KafkaPythonKit:
    """kafka-python."""

    name = "kafka-python"
    fenced = (kafka.errors.ProducerFencedError, kafka.errors.InvalidProducerEpochError)
    topic_exists = (kafka.errors.TopicAlreadyExistsError,)
    codecs = tuple(
        codec
        for codec in CODECS
        if codec == "none" or getattr(kafka.codec, f"has_{codec}")()  # It brings no libraries.
    )
    null_headers = False

    def producer(
        self,
        bootstrap: str,
        *,
        codec: str = "none",
        linger_ms: int = 5,
        transactional_id: str | None = None,
    ) -> KafkaPythonProducer:
        return KafkaPythonProducer(bootstrap, codec, linger_ms, transactional_id)

    def consumer(
        self,
        bootstrap: str,
        group_id: str,
        *,
        isolation_level: str = "read_committed",
        auto_commit: bool = False,
    ) -> KafkaPythonConsumer:
        return KafkaPythonConsumer(bootstrap, group_id, isolation_level, auto_commit)

    def admin(self, bootstrap: str) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(bootstrap)
