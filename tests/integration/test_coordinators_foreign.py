"""Published clients use groups and transactions of the in-process broker, unchanged.

Method: confluent-kafka (librdkafka), aiokafka and kafka-python against a broker on a real socket:
commit, abort, consume-transform-produce, takeover, group consumption. Small runs; what is read back
is compared whole.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import pytest
from aiokafka.errors import ProducerFenced

from onceflow.broker_lite import Broker

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.structs import OffsetAndMetadata, TopicPartition

pytestmark = pytest.mark.foreign

DEADLINE_SECONDS = 60.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("in", partitions=2)
        running.create_topic("out", partitions=2)
        yield running


def quiet(broker: Broker, **settings: object) -> dict[str, object]:
    """librdkafka settings that write nothing to the error stream when the broker stops."""
    return {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **settings}


def read_with_confluent(broker: Broker, count: int, group: str, **settings: object) -> list[bytes]:
    """Read that many committed records, then look a little longer for one too many."""
    consumer = confluent_kafka.Consumer(
        quiet(
            broker,
            **{
                "group.id": group,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                **settings,
            },
        )
    )
    consumer.subscribe(["out"])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    extra = consumer.poll(0.2)
    if extra is not None and extra.error() is None:
        found.append(extra.value())
    consumer.close()
    return sorted(found)


class TestConfluent:
    def test_commit_and_abort(self, broker: Broker) -> None:
        producer = confluent_kafka.Producer(quiet(broker, **{"transactional.id": "t"}))
        producer.init_transactions(DEADLINE_SECONDS)
        for round_number, end in enumerate(("commit", "abort", "commit")):
            producer.begin_transaction()
            for index in range(4):
                producer.produce("out", f"{round_number}-{index}".encode())
            getattr(producer, f"{end}_transaction")(DEADLINE_SECONDS)
        expected = sorted(f"{n}-{i}".encode() for n in (0, 2) for i in range(4))
        assert read_with_confluent(broker, 8, "g") == expected

    def test_early_answers_as_apache_kafka_gives_them_traps_42_43(self) -> None:
        settings = {"onceflow.end.txn.early.answer": True, "onceflow.end.txn.marker.delay.ms": 50}
        with Broker(settings=settings) as broker:
            broker.create_topic("out", partitions=2)
            producer = confluent_kafka.Producer(quiet(broker, **{"transactional.id": "t"}))
            producer.init_transactions(DEADLINE_SECONDS)
            for index in range(5):
                producer.begin_transaction()
                producer.produce("out", str(index).encode())
                producer.commit_transaction(DEADLINE_SECONDS)
            found = read_with_confluent(broker, 5, "g")
        assert found == [str(index).encode() for index in range(5)]

    def test_consume_transform_produce(self, broker: Broker) -> None:
        source = confluent_kafka.Producer(quiet(broker))
        for index in range(10):
            source.produce("in", str(index).encode())
        source.flush(DEADLINE_SECONDS)
        producer = confluent_kafka.Producer(quiet(broker, **{"transactional.id": "t"}))
        producer.init_transactions(DEADLINE_SECONDS)
        for life in range(2):
            consumer = confluent_kafka.Consumer(
                quiet(
                    broker,
                    **{
                        "group.id": "processor",
                        "auto.offset.reset": "earliest",
                        "enable.auto.commit": False,
                        "isolation.level": "read_committed",
                    },
                )
            )
            consumer.subscribe(["in"])
            done = 0
            deadline = time.monotonic() + DEADLINE_SECONDS
            while done < 5 and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                producer.begin_transaction()
                producer.produce("out", b"seen " + message.value())
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
                )
                producer.commit_transaction(DEADLINE_SECONDS)
                done += 1
            assert done == 5, f"life {life}"
            consumer.close()
        assert read_with_confluent(broker, 10, "reader") == sorted(
            f"seen {index}".encode() for index in range(10)
        )

    def test_takeover_fences_the_old_instance_fc_09(self, broker: Broker) -> None:
        old = confluent_kafka.Producer(quiet(broker, **{"transactional.id": "t"}))
        old.init_transactions(DEADLINE_SECONDS)
        old.begin_transaction()
        old.produce("out", b"old")
        old.flush(DEADLINE_SECONDS)
        new = confluent_kafka.Producer(quiet(broker, **{"transactional.id": "t"}))
        started = time.monotonic()
        new.init_transactions(DEADLINE_SECONDS)
        assert time.monotonic() - started < DEADLINE_SECONDS
        new.begin_transaction()
        new.produce("out", b"new")
        new.commit_transaction(DEADLINE_SECONDS)
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            old.commit_transaction(DEADLINE_SECONDS)
        assert caught.value.args[0].fatal()
        assert read_with_confluent(broker, 1, "g") == [b"new"]

    def test_two_members_share_the_partitions(self, broker: Broker) -> None:
        def member() -> confluent_kafka.Consumer:
            consumer = confluent_kafka.Consumer(
                quiet(broker, **{"group.id": "shared", "auto.offset.reset": "earliest"})
            )
            consumer.subscribe(["in"])
            return consumer

        members = [member(), member()]

        def assignments() -> list[int]:
            for each in members:
                each.poll(0.05)
            return sorted(len(each.assignment()) for each in members)

        wait_for(lambda: assignments() == [1, 1])
        members.pop().close()
        wait_for(lambda: assignments() == [2])
        members.pop().close()

    def test_static_member_returns_without_a_rebalance_fc_26(self, broker: Broker) -> None:
        revoked: list[str] = []

        def member(instance: str) -> confluent_kafka.Consumer:
            consumer = confluent_kafka.Consumer(
                quiet(
                    broker,
                    **{
                        "group.id": "static",
                        "group.instance.id": instance,
                        "session.timeout.ms": 10_000,
                    },
                )
            )
            consumer.subscribe(["in"], on_revoke=lambda *_: revoked.append(instance))
            return consumer

        first, second = member("i1"), member("i2")

        def assigned(*consumers: confluent_kafka.Consumer) -> bool:
            for each in consumers:
                each.poll(0.05)
            return all(len(each.assignment()) == 1 for each in consumers)

        wait_for(lambda: assigned(first, second))
        generation = broker.state.groups._table.get("static").generation_id  # type: ignore[union-attr]
        revoked.clear()
        first.close()  # a static member does not leave
        again = member("i1")
        wait_for(lambda: assigned(again, second))
        group = broker.state.groups._table.get("static")
        assert group is not None
        assert group.generation_id == generation
        assert "i2" not in revoked
        again.close()
        second.close()


class TestAiokafka:
    async def test_transaction_with_offsets(self, broker: Broker) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="t"
        )
        await producer.start()
        partition = aiokafka.TopicPartition("in", 0)
        async with producer.transaction():
            await producer.send_and_wait("out", b"kept", partition=0)
            await producer.send_offsets_to_transaction({partition: 7}, "g")
        await producer.begin_transaction()
        await producer.send_and_wait("out", b"dropped", partition=0)
        await producer.send_offsets_to_transaction({partition: 9}, "g")
        await producer.abort_transaction()
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "out",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="reader",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        record = await asyncio.wait_for(consumer.getone(), DEADLINE_SECONDS)
        assert record.value == b"kept"
        assert not await consumer.getmany(timeout_ms=200)
        await consumer.stop()
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        )
        await reader.start()
        reader.assign([partition])
        assert await reader.committed(partition) == 7
        await reader.stop()

    async def test_fenced_producer(self, broker: Broker) -> None:
        def new() -> aiokafka.AIOKafkaProducer:
            return aiokafka.AIOKafkaProducer(
                bootstrap_servers=broker.bootstrap_servers, transactional_id="t"
            )

        old = new()
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait("out", b"old")
        fresh = new()
        await fresh.start()
        with pytest.raises(ProducerFenced):
            await old.commit_transaction()
        async with fresh.transaction():
            await fresh.send_and_wait("out", b"new")
        await old.stop()
        await fresh.stop()


class TestKafkaPython:
    def test_transaction_and_group(self, broker: Broker) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="t"
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("out", b"kept")
        producer.send_offsets_to_transaction(
            {TopicPartition("in", 1): OffsetAndMetadata(4, "", -1)}, "g"
        )
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send("out", b"dropped")
        producer.abort_transaction()
        producer.close()
        consumer = kafka.KafkaConsumer(
            "out",
            bootstrap_servers=broker.bootstrap_servers,
            group_id="reader",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=3_000,
        )
        assert [record.value for record in consumer] == [b"kept"]
        consumer.close()
        reader = kafka.KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        )
        reader.assign([TopicPartition("in", 1)])
        assert reader.committed(TopicPartition("in", 1)) == 4
        reader.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again until a condition holds; the condition itself waits for the client."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "never happened"
