"""Goal: what published clients offer beyond the common scenarios works on our broker as on Kafka.

Method: each client's own calls, on both brokers: cooperative, static and KIP-848 members, pausing,
seeking, offsets by time, large records, and the admin clients call by call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from stock_clients import DEADLINE_S, wait_until
from stock_confluent import settings_for
from stock_kafka_python import kafka
from stock_scenarios import make_topic

THEN = int(time.time() - 60) * 1000  # Retention takes what is older than a week.
PARTITIONS = 4
LARGE = b"x" * 900_000


@pytest.fixture
def filled(bootstrap: str, name: str) -> str:
    """A topic with forty records in its first partition, a second apart, and one large one."""
    make_topic(bootstrap, name, PARTITIONS)
    producer = confluent_kafka.Producer(settings_for(bootstrap, message_max_bytes=1_000_000))
    for number in range(40):
        producer.produce(name, b"%d" % number, partition=0, timestamp=THEN + number * 1000)
    producer.produce(name, LARGE, partition=1)
    assert producer.flush(DEADLINE_S) == 0
    return name


@contextlib.contextmanager
def confluent(bootstrap: str, **settings: object) -> Iterator[confluent_kafka.Consumer]:
    base = {"auto_offset_reset": "earliest", "session_timeout_ms": 6_000}
    if settings.get("group_protocol") == "consumer":
        del base["session_timeout_ms"]
    consumer = confluent_kafka.Consumer(settings_for(bootstrap, **base, **settings))
    try:
        yield consumer
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 100},
        {"partition_assignment_strategy": "roundrobin", "heartbeat_interval_ms": 100},
        {"group_protocol": "consumer"},
    ],
    ids=["cooperative", "eager", "KIP-848"],
)
def test_confluent_members_come_and_go(
    settings: dict[str, object], bootstrap: str, filled: str
) -> None:
    with contextlib.ExitStack() as stack:
        members = []
        for _ in range(4):
            member = stack.enter_context(confluent(bootstrap, group_id=filled, **settings))
            member.subscribe([filled])
            members.append(member)
            wait_until(lambda: is_shared(members), f"{len(members)} members share")
        members.pop(0).close()
        members.pop(0).close()
        wait_until(lambda: is_shared(members), "two are left")


def is_shared(members: list[confluent_kafka.Consumer]) -> bool:
    """Whether every partition belongs to one member and none has much more than another."""
    for member in members:
        member.poll(0.02)
    owned = [[p.partition for p in member.assignment()] for member in members]
    sizes = sorted(map(len, owned))
    everything = sorted(partition for own in owned for partition in own)
    return everything == list(range(PARTITIONS)) and sizes[-1] - sizes[0] <= 1


def test_confluent_static_member_keeps_its_partitions(bootstrap: str, filled: str) -> None:
    settings = {"group_id": filled, "group_instance_id": "one"}
    seen: set[str] = set()
    for _ in range(2):
        with confluent(bootstrap, **settings) as consumer:
            consumer.subscribe([filled])
            wait_until(lambda: is_shared([consumer]), "an assignment")
            member_id = consumer.memberid()
            assert member_id
            seen.add(member_id)
    assert len(seen) == 2  # Each life has its own id, and the second fences the first.


def test_confluent_pauses_seeks_and_looks_up_times(bootstrap: str, filled: str) -> None:
    first = confluent_kafka.TopicPartition(filled, 0)
    with confluent(bootstrap, group_id=f"{filled}-seek") as consumer:
        assert consumer.get_watermark_offsets(first, DEADLINE_S) == (0, 40)
        asked = confluent_kafka.TopicPartition(filled, 0, THEN + 7_500)
        assert consumer.offsets_for_times([asked], DEADLINE_S)[0].offset == 8
        consumer.assign([confluent_kafka.TopicPartition(filled, 0, 30)])
        assert consumer.poll(DEADLINE_S).offset() == 30
        consumer.pause([first])
        assert consumer.poll(0.3) is None
        consumer.seek(confluent_kafka.TopicPartition(filled, 0, 5))
        consumer.resume([first])
        found: list[int] = []

        def looked() -> bool:
            message = consumer.poll(0.2)
            if message is not None:
                found.append(message.offset())
            return bool(found)

        wait_until(looked, "the sought record")
        assert found == [5]
        consumer.assign([confluent_kafka.TopicPartition(filled, 1, 0)])
        assert consumer.poll(DEADLINE_S).value() == LARGE


def test_confluent_admin(bootstrap: str, filled: str) -> None:
    admin = AdminClient(settings_for(bootstrap))
    first = confluent_kafka.TopicPartition(filled, 0)
    collection = confluent_kafka.TopicCollection([filled])
    described = admin.describe_topics(collection)[filled].result(DEADLINE_S)
    assert len(described.partitions) == PARTITIONS
    assert len(admin.describe_cluster().result(DEADLINE_S).nodes) == 1
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 40),
        (OffsetSpec.for_timestamp(THEN + 500), 1),
        (OffsetSpec.max_timestamp(), 39),
    ):
        assert admin.list_offsets({first: spec})[first].result(DEADLINE_S).offset == offset
    entry = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, filled, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    cut = confluent_kafka.TopicPartition(filled, 0, 3)
    assert admin.delete_records([cut])[cut].result(DEADLINE_S).low_watermark == 3
    group = f"{filled}-admin"
    positions = [confluent_kafka.TopicPartition(filled, 0, 11)]
    wish = confluent_kafka.ConsumerGroupTopicPartitions(group, positions)
    admin.alter_consumer_group_offsets([wish])[group].result(DEADLINE_S)
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    listed = admin.list_consumer_group_offsets([asked])[group].result(DEADLINE_S)
    assert [(p.partition, p.offset) for p in listed.topic_partitions] == [(0, 11)]
    assert group in {g.group_id for g in admin.list_consumer_groups().result(DEADLINE_S).valid}
    shown = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert (shown.state.name, shown.members) == ("EMPTY", [])
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)


async def test_aiokafka_pauses_seeks_and_is_static(bootstrap: str, filled: str) -> None:
    first = aiokafka.TopicPartition(filled, 0)
    consumer = aiokafka.AIOKafkaConsumer(
        filled,
        bootstrap_servers=bootstrap,
        group_id=filled,
        group_instance_id="one",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(consumer.assignment()) < PARTITIONS:
                await consumer.getmany(timeout_ms=50)
            found = await consumer.offsets_for_times({first: THEN + 7_500})
            assert found[first].offset == 8
            assert await consumer.end_offsets([first]) == {first: 40}
            consumer.pause(*consumer.assignment() - {first})
            consumer.seek(first, 35)
            values = []
            while len(values) < 5:
                values += [
                    r.offset for r in (await consumer.getmany(first, timeout_ms=200)).get(first, [])
                ]
            assert values == [35, 36, 37, 38, 39]
            await consumer.commit({first: (36, "note")})
            assert await consumer.committed(first) == 36
    finally:
        await consumer.stop()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_kafka_python_pauses_seeks_and_administers(bootstrap: str, filled: str) -> None:
    first = kafka.TopicPartition(filled, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=filled)
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        consumer.assign([first])
        assert consumer.offsets_for_times({first: THEN + 7_500})[first].offset == 8
        assert consumer.beginning_offsets([first]) == {first: 0}
        assert consumer.end_offsets([first]) == {first: 40}
        consumer.seek(first, 38)
        found: list[int] = []

        def looked() -> bool:
            found.extend(r.offset for r in consumer.poll(200).get(first, []))
            return len(found) >= 2

        wait_until(looked, "two records")
        assert found == [38, 39]
        consumer.commit()
        assert consumer.committed(first) == 40
        assert filled in {group["group_id"] for group in admin.list_groups()}
    finally:
        consumer.close()
        admin.close()
