"""Goal: field cases of offsets (T5): what an abort, a timestamp or a lost position means.

Method: our clients and the published ones against our broker and Apache Kafka; raw ListOffsets
where the answer's fields matter.
"""

from __future__ import annotations

import asyncio
import time
import warnings

import pytest
from broker_requests import list_offset, produce
from broker_wire import Wire, batch
from case_clients import OURS, SkippableClock, read, values
from processor_processes import fill

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    Consumer,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from onceflow.sdk.protocol.records import encode_batch


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def take(consumer: Consumer, count: int) -> list[int]:
    """Offsets of the next records, exactly so many."""
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found}"
        for records in consumer.poll(100, count - len(found)).values():
            found += [record.offset for record in records]
    return found


def test_fc29_after_an_abort_the_input_is_read_again(cluster: str, topic: str, name: str) -> None:
    partition, out = TopicPartition(topic, 0), f"{name}-out"
    fill(cluster, topic, [b"%d" % number for number in range(10)])
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([out])
    with (
        Consumer(
            topic,
            bootstrap_servers=cluster,
            group_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
        Producer(bootstrap_servers=cluster, transactional_id=name) as producer,
    ):

        def process(count: int) -> list[int]:
            offsets = take(consumer, count)
            producer.begin_transaction()
            for offset in offsets:
                producer.send(out, b"%d" % offset, partition=0)
            upto = {partition: offsets[-1] + 1}
            producer.send_offsets_to_transaction(upto, consumer.group_metadata())
            return offsets

        assert process(5) == [0, 1, 2, 3, 4]
        producer.abort_transaction()
        assert consumer.committed([partition])[partition] is None
        assert consumer.position(partition) == 5
        consumer.seek_to_beginning([partition])
        for _ in range(2):
            offsets = process(5)
            producer.commit_transaction()
        assert offsets == [5, 6, 7, 8, 9]
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert committed.offset == 10
    assert values(read("confluent-kafka", cluster, out)) == [b"%d" % n for n in range(10)]


QUESTIONS = {0: (0, 1000), 1500: (1, 3000), 2500: (1, 3000), 3001: (3, 5000), 5001: None}


async def test_fc32_offsets_for_timestamps(cluster: str, topic: str) -> None:
    async with Wire(address(cluster)) as wire:
        times = (1000, 3000, 2000)
        records = encode_batch([(at, None, b"%d" % at, []) for at in times], codec=1)
        assert (await produce(wire, topic, bytes(records))).error_code == 0
        assert (await produce(wire, topic, batch(b"5000", timestamp_ms=5000))).base_offset == 3
        for version in (1, 5, 8):
            for target, wanted in QUESTIONS.items():
                answer = await list_offset(wire, topic, target, api_version=version)
                assert answer.error_code == 0
                assert (answer.offset, answer.timestamp) == (wanted or (-1, -1))
    for ask in (ask_ours, ask_confluent, ask_aiokafka, ask_kafka_python):
        found = await asyncio.to_thread(ask, cluster, topic)
        for target, wanted in QUESTIONS.items():
            offset = wanted[0] if wanted else None
            assert found[target] in (wanted, offset), (ask.__name__, target)


def ask_ours(bootstrap: str, topic: str) -> dict[int, object]:
    partition = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        found = {at: consumer.offsets_for_times({partition: at})[partition] for at in QUESTIONS}
    return {at: (each.offset, each.timestamp_ms) if each else None for at, each in found.items()}


def ask_confluent(bootstrap: str, topic: str) -> dict[int, object]:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    found: dict[int, object] = {}
    try:
        for at in QUESTIONS:
            question = confluent_kafka.TopicPartition(topic, 0, at)
            (answer,) = consumer.offsets_for_times([question], 10)
            assert answer.error is None
            # It says -1 (the end) for none.
            found[at] = None if answer.offset == confluent_kafka.OFFSET_END else answer.offset
    finally:
        consumer.close()
    return found


def ask_aiokafka(bootstrap: str, topic: str) -> dict[int, object]:
    import aiokafka

    async def ask() -> dict[int, object]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            found = {}
            for at in QUESTIONS:
                answer = (await consumer.offsets_for_times({partition: at}))[partition]
                found[at] = None if answer is None else (answer.offset, answer.timestamp)
        finally:
            await consumer.stop()
        return found  # type: ignore[return-value]

    return asyncio.run(ask())


def ask_kafka_python(bootstrap: str, topic: str) -> dict[int, object]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import kafka

        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
        try:
            partition = kafka.TopicPartition(topic, 0)
            found: dict[int, object] = {}
            for at in QUESTIONS:
                answer = consumer.offsets_for_times({partition: at})[partition]
                found[at] = None if answer is None else (answer.offset, answer.timestamp)
        finally:
            consumer.close()
    return found


def test_fc32_between_two_batches_of_a_topic_with_broker_timestamps(
    broker: Broker, clock: SkippableClock, name: str
) -> None:
    broker.create_topic(name, configs={"message.timestamp.type": "LogAppendTime"})
    partition = TopicPartition(name, 0)
    with (
        Producer(bootstrap_servers=broker.bootstrap_servers) as producer,
        Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer,
    ):
        for _ in range(2):
            producer.send(name, b"a", timestamp_ms=5)
            between = producer.send(name, b"b", timestamp_ms=6).result(20).timestamp_ms + 500
            clock.skip(broker, 1_000)
        answer = consumer.offsets_for_times({partition: between - 1_000})[partition]
        assert answer is not None
        assert answer.offset == 2
        assert answer.timestamp_ms > 1_000_000_000_000
        assert consumer.offsets_for_times({partition: between})[partition] is None


@pytest.fixture
def cut_topic(cluster: str, topic: str, name: str) -> TopicPartition:
    """A hundred records of which the first fifty are deleted."""
    partition = TopicPartition(topic, 0)
    fill(cluster, topic, [b"%d" % number for number in range(100)])
    with Admin(bootstrap_servers=cluster) as admin:
        admin.delete_records({partition: 50})
    return partition


@pytest.mark.parametrize("committed", [10, 500])
def test_fc33_offset_out_of_range_under_each_reset_policy(
    cluster: str, cut_topic: TopicPartition, committed: int
) -> None:
    partition, group = cut_topic, cut_topic.topic

    def consumer(policy: str) -> Consumer:
        with Admin(bootstrap_servers=cluster) as admin:
            admin.alter_group_offsets(group, {partition: committed})
        return Consumer(
            partition.topic,
            bootstrap_servers=cluster,
            group_id=group,
            auto_offset_reset=policy,
            enable_auto_commit=False,
        )

    with consumer("earliest") as earliest:
        assert take(earliest, 50) == list(range(50, 100))
    with consumer("latest") as latest:
        deadline = time.monotonic() + 60
        while not latest.assignment() or latest.position(partition) != 100:
            assert latest.poll(100) == {}
            assert time.monotonic() < deadline
    with consumer("none") as none:
        refused = (NoOffsetForPartitionError, OffsetOutOfRangeError)
        with pytest.raises(refused, match=rf"{committed} of {partition.topic}-0"):
            take(none, 1)
        with pytest.raises(refused, match=rf"{committed} of {partition.topic}-0"):
            none.poll(0)
        none.seek_to_beginning([partition])
        assert take(none, 1) == [50]


def test_fc33_deleting_everything_keeps_the_end(cluster: str, cut_topic: TopicPartition) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.delete_records({cut_topic: 100})
        for word in ("earliest", "latest"):
            assert admin.list_offsets({cut_topic: word})[cut_topic].offset == 100
    with Producer(bootstrap_servers=cluster) as producer:
        assert producer.send(cut_topic.topic, b"x").result(20).offset == 100
    assert [row.offset for row in read(OURS, cluster, cut_topic.topic, start=100)] == [100]
