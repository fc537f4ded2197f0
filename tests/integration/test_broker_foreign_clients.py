"""Goal: published clients, unchanged, produce to the broker, consume from it, and commit.

Method: confluent-kafka, aiokafka and kafka-python against a broker in a thread; each client does
what its users do first. The clients' own suites are another matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from onceflow.broker_lite import Broker

pytestmark = pytest.mark.foreign

DEADLINE_SECONDS = 60
COUNT = 500


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"num.partitions": 3}) as running:
        yield running


def expected() -> list[bytes]:
    return sorted(b"value-%d" % number for number in range(COUNT))


class TestConfluent:
    def consume(self, broker: Broker, group_id: str, count: int, topic: str = "t") -> list[bytes]:
        import confluent_kafka

        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([topic])
        values: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None
                values.append(message.value())
        if values:
            consumer.commit(asynchronous=False)
        consumer.close()
        return values

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_produce_and_consume_with_each_codec(self, broker: Broker, codec: str) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 20,
            }
        )
        reports: list[object] = []
        for number in range(COUNT):
            producer.produce(
                "t",
                b"value-%d" % number,
                key=b"%d" % number,
                on_delivery=lambda error, message: reports.append(error),
            )
        assert producer.flush(DEADLINE_SECONDS) == 0
        assert reports == [None] * COUNT
        assert sorted(self.consume(broker, "g", COUNT)) == expected()

    def test_committed_offsets_are_where_the_next_member_goes_on(self, broker: Broker) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"first")
        producer.flush(DEADLINE_SECONDS)
        assert self.consume(broker, "g", 1) == [b"first"]
        producer.produce("t", b"second")
        producer.flush(DEADLINE_SECONDS)
        assert self.consume(broker, "g", 1) == [b"second"]

    def test_committed_transaction_is_read_and_an_aborted_one_is_not(self, broker: Broker) -> None:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx"}
        )
        producer.init_transactions(DEADLINE_SECONDS)
        for number in range(4):
            producer.begin_transaction()
            producer.produce("t", b"kept" if number % 2 else b"dropped")
            if number % 2:
                producer.commit_transaction(DEADLINE_SECONDS)
            else:
                producer.flush(DEADLINE_SECONDS)
                producer.abort_transaction(DEADLINE_SECONDS)
        assert self.consume(broker, "g", 2) == [b"kept", b"kept"]

    def test_admin_client(self, broker: Broker) -> None:
        from confluent_kafka.admin import (
            AdminClient,
            ConfigResource,
            NewPartitions,
            NewTopic,
            ResourceType,
        )

        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topic = NewTopic("made", 2, 1, config={"retention.ms": "1000"})
        admin.create_topics([topic])["made"].result(DEADLINE_SECONDS)
        assert len(admin.list_topics(timeout=DEADLINE_SECONDS).topics["made"].partitions) == 2
        admin.create_partitions([NewPartitions("made", 4)])["made"].result(DEADLINE_SECONDS)
        assert len(admin.list_topics(timeout=DEADLINE_SECONDS).topics["made"].partitions) == 4
        resource = ConfigResource(ResourceType.TOPIC, "made")
        configs = admin.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
        assert configs["retention.ms"].value == "1000"
        cluster = admin.describe_cluster().result(DEADLINE_SECONDS)
        assert [node.id for node in cluster.nodes] == [1]
        admin.delete_topics(["made"])["made"].result(DEADLINE_SECONDS)
        assert "made" not in admin.list_topics(timeout=DEADLINE_SECONDS).topics


class TestAiokafka:
    async def test_produce_and_consume(self, broker: Broker) -> None:
        import aiokafka

        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True
        )
        await producer.start()
        try:
            for number in range(COUNT):
                await producer.send("t", b"value-%d" % number, key=b"%d" % number)
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            values = [bytes((await consumer.getone()).value or b"") for _ in range(COUNT)]
            await consumer.commit()
        finally:
            await consumer.stop()
        assert sorted(values) == expected()

    async def test_transactions(self, broker: Broker) -> None:
        import aiokafka

        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="tx"
        )
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait("t", b"kept")
            await producer.begin_transaction()
            await producer.send_and_wait("t", b"dropped")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send_and_wait("t", b"kept too")
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        try:
            values = [(await consumer.getone()).value for _ in range(2)]
        finally:
            await consumer.stop()
        assert sorted(values) == [b"kept", b"kept too"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestKafkaPython:
    def test_produce_and_consume(self, broker: Broker) -> None:
        import kafka

        producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
        try:
            sent = [producer.send("t", b"value-%d" % number) for number in range(COUNT)]
            producer.flush(DEADLINE_SECONDS)
            assert all(future.succeeded() for future in sent)
        finally:
            producer.close(DEADLINE_SECONDS)
        consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            consumer_timeout_ms=DEADLINE_SECONDS * 1000,
        )
        try:
            values = [next(consumer).value for _ in range(COUNT)]
            consumer.commit()
        finally:
            consumer.close()
        assert sorted(values) == expected()

    def test_transactions(self, broker: Broker) -> None:
        import kafka

        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="tx"
        )
        try:
            producer.init_transactions()
            for value in (b"dropped", b"kept"):
                producer.begin_transaction()
                producer.send("t", value).get(DEADLINE_SECONDS)
                if value == b"kept":
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        finally:
            producer.close(DEADLINE_SECONDS)
        consumer = kafka.KafkaConsumer(
            "t",
            bootstrap_servers=broker.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=DEADLINE_SECONDS * 1000,
        )
        try:
            assert next(consumer).value == b"kept"
        finally:
            consumer.close()
