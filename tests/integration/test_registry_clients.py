"""Goal: producers and consumers work with registered schemas without blocking where they must not.

Method: both faces over a broker in this process and a served fake registry that hangs or fails on
order; hostile records among good ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from schema_registry_fake import FakeRegistry

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerRecord,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import (
    IncompatibleSchemaError,
    SchemaIdNotFoundError,
    SchemaRegistryUnavailableError,
    SerializationError,
)
from onceflow.sdk.schema_registry import (
    AsyncSchemaRegistry,
    Schema,
    SchemaReference,
    SchemaRegistry,
    avro_serde,
)

CLICK = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "user", "type": "string"}, {"name": "count", "type": "int"}],
}
PART = TopicPartition("clicks", 0)
CLICK_USED = (SchemaReference("Click", "click", 1),)


@dataclass
class Click:
    """A value of the schema."""

    user: str
    count: int


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def values(polled: dict[TopicPartition, list[ConsumerRecord]]) -> list[object]:
    return [record.value for records in polled.values() for record in records]


def test_records_pass_through_both_blocking_clients(broker: Broker, fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url)
    key = avro_serde(registry, '"string"')
    value = avro_serde(registry, CLICK, kind=Click)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers,
        key_serializer=key.serialize,
        value_serializer=value.serialize,
    ) as producer:
        producer.send("clicks", Click("ann", 1), key="ann")
        producer.send_many("clicks", [Click("bo", 2), None], ["bo", "bo"])
        where = producer.partition_for("clicks", "ann")
        assert where in producer.partitions_for("clicks")
    assert registry.subjects() == ["clicks-key", "clicks-value"]
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        key_deserializer=avro_serde(SchemaRegistry(fake.url)).deserialize,
        value_deserializer=avro_serde(SchemaRegistry(fake.url), kind=Click).deserialize,
    ) as consumer:
        consumer.assign([PART])
        found: list[ConsumerRecord] = []
        while len(found) < 3:
            for records in consumer.poll(timeout_ms=10_000).values():
                found += records
    assert [(r.key, r.value) for r in found] == [
        ("ann", Click("ann", 1)),
        ("bo", Click("bo", 2)),
        ("bo", None),
    ]


@pytest.mark.parametrize("late", ["id", "reference"])
def test_a_schema_that_reaches_the_registry_late_is_awaited(
    broker: Broker, fake: FakeRegistry, late: str
) -> None:
    """A node of the registry may lag behind the one that the writer asked."""
    ready = SchemaRegistry(fake.url)
    ready.register("click", Schema(json.dumps(CLICK)))
    page = {"type": "record", "name": "Page", "fields": [{"name": "click", "type": "Click"}]}
    clicks = Schema(json.dumps(page), "AVRO", CLICK_USED)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers,
        value_serializer=avro_serde(ready, clicks).serialize,
    ) as producer:
        producer.send("clicks", {"click": {"user": "a", "count": 1}}).result(10)
    lagging = SchemaRegistry(fake.url, missing_id_cache_ttl_ms=1)
    fake.faults.extend([404] if late == "id" else ["ask", 404])
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=avro_serde(lagging).deserialize,
    ) as consumer:
        consumer.assign([PART])
        with pytest.raises(SchemaIdNotFoundError, match="record at offset 0 of clicks-0") as found:
            consumer.poll(timeout_ms=30_000)
        assert found.value.retriable
        assert consumer.position(PART) == 0
        found_values: list[object] = []
        while not found_values:
            try:
                found_values = values(consumer.poll(timeout_ms=10_000))
            except SchemaIdNotFoundError:  # told once more from before
                continue
    assert found_values == [{"click": {"user": "a", "count": 1}}]


async def test_a_hanging_registry_holds_up_nobody_else(broker: Broker, fake: FakeRegistry) -> None:
    registry = AsyncSchemaRegistry(fake.url, timeout_ms=60_000)
    serde = avro_serde(registry, CLICK)
    fake.faults.append("hang")
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, value_serializer=serde.serialize
    ) as producer:
        waiting = asyncio.create_task(producer.send("clicks", {"user": "a", "count": 1}))
        while not fake.requests:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0)
        sent = asyncio.create_task(producer.send("other", None))
        await (await sent)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_asyncio_clients_look_up_beside_the_loop(broker: Broker, fake: FakeRegistry) -> None:
    serde = avro_serde(AsyncSchemaRegistry(fake.url), CLICK)
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, value_serializer=serde.serialize
    ) as producer:
        await producer.send("clicks", {"user": "a", "count": 1})
        await producer.send_many("clicks", [{"user": "b", "count": 2}])
    reading = avro_serde(AsyncSchemaRegistry(fake.url, retries_wait_ms=1, max_retries=0))
    async with AsyncConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=reading.deserialize,
    ) as consumer:
        consumer.assign([PART])
        fake.faults.append(503)
        with pytest.raises(SchemaRegistryUnavailableError):
            await consumer.poll(timeout_ms=10_000)
        assert await consumer.position(PART) == 0
        found = []
        while len(found) < 2:
            found += values(await consumer.poll(timeout_ms=10_000))
    assert found == [{"user": "a", "count": 1}, {"user": "b", "count": 2}]


def test_a_record_with_a_hostile_id_is_met_until_a_seek(broker: Broker, fake: FakeRegistry) -> None:
    serde = avro_serde(SchemaRegistry(fake.url), CLICK)
    patient = SchemaRegistry(fake.url, missing_id_cache_ttl_ms=600_000)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        good = serde.serialize({"user": "a", "count": 1}, "clicks")
        for data in (good, b"\x00\x7f\xff\xff\xffbody", b"plain", good):
            producer.send("clicks", data)
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=avro_serde(patient).deserialize,
    ) as consumer:
        consumer.assign([PART])
        assert values(consumer.poll(timeout_ms=10_000)) == [{"user": "a", "count": 1}]
        asked = len(fake.requests)
        for _ in range(3):
            with pytest.raises(
                SchemaIdNotFoundError, match=r"offset 1 of clicks-0.*2147483647.*seek past"
            ):
                consumer.poll(timeout_ms=10_000)
        assert len(fake.requests) == asked + 1
        consumer.seek(PART, 2)
        with pytest.raises(SerializationError, match=r"offset 2 of clicks-0.*not 0.*seek to 3"):
            consumer.poll(timeout_ms=10_000)
        consumer.seek(PART, 3)
        assert values(consumer.poll(timeout_ms=10_000)) == [{"user": "a", "count": 1}]


def test_a_refused_schema_sends_nothing(broker: Broker, fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url)
    avro_serde(registry, CLICK).serialize({"user": "a", "count": 1}, "clicks")
    changed = {**CLICK, "fields": [{"name": "user", "type": "long"}]}
    serde = avro_serde(registry, changed)
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, value_serializer=serde.serialize
    ) as producer:
        with pytest.raises(IncompatibleSchemaError, match="clicks-value"):
            producer.send("clicks", {"user": 1})
        with pytest.raises(IncompatibleSchemaError, match="clicks-value"):
            producer.send_many("clicks", [{"user": 1}])


def test_structures_without_a_serializer_are_json(broker: Broker) -> None:
    from onceflow.sdk.serde import struct_serde

    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("clicks", {"user": "a", "count": 1})
        producer.send("clicks", Click("b", 2))
        with pytest.raises(SerializationError, match="key must be bytes or a string"):
            producer.send("clicks", b"", key={"a": 1})
        with pytest.raises(SerializationError, match="value must be bytes or a string, not float"):
            producer.send("clicks", 1.5)
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer=struct_serde(Click).deserialize,
    ) as consumer:
        consumer.assign([PART])
        assert values(consumer.poll(timeout_ms=10_000)) == [Click("a", 1), Click("b", 2)]
