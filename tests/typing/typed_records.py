"""Goal: the types of keys and values follow from the deserializers, and are `bytes | None` else.

Method: mypy reads this file (``make check``); nothing runs it. An ignored error that mypy does not
find is an error itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from onceflow.sdk import AsyncConsumer, Consumer, ConsumerRecord, RecordColumns, TopicPartition
from onceflow.sdk.serde import JSON, STRING, struct_serde
from onceflow.transactions import AsyncTransactionSession, SessionConfig, TransactionSession

Plain = ConsumerRecord[bytes | None, bytes | None]
PARTITION = TopicPartition("t", 0)


@dataclass
class Order:
    cents: int


ORDERS = struct_serde(Order)


def records_without_deserializers_hold_bytes() -> None:
    consumer = Consumer("t", bootstrap_servers="h:1")
    assert_type(next(consumer), Plain)
    assert_type(consumer.poll(0), dict[TopicPartition, list[Plain]])
    columns = consumer.poll_columns(0)[PARTITION]
    assert_type(columns, RecordColumns[bytes | None, bytes | None])
    assert_type(columns.values, list[bytes | None])
    next(consumer).value.upper()  # type: ignore[union-attr]  # It may be a tombstone.


def records_have_the_types_that_deserializers_give() -> None:
    consumer = Consumer("t", bootstrap_servers="h:1", value_deserializer=ORDERS.deserialize)
    assert_type(next(consumer).key, bytes | None)
    assert_type(next(consumer).value, Order | None)
    both = Consumer(key_deserializer=STRING.deserialize, value_deserializer=ORDERS.deserialize)
    assert_type(next(both), ConsumerRecord[str | None, Order | None])
    json = next(Consumer("t", value_deserializer=JSON.deserialize))
    assert json.value is not None
    assert_type(json.value["cents"], Any)
    keys = Consumer(key_deserializer=STRING.deserialize)
    assert_type(next(keys), ConsumerRecord[str | None, bytes | None])


def settings_that_checkers_cannot_read_give_objects(settings: dict[str, Any]) -> None:
    assert_type(Consumer(config={"group.id": "g"}), Consumer[object, object])
    record: ConsumerRecord[object, object] = next(Consumer(**settings))
    assert record


async def asyncio_consumers_have_the_same_types() -> None:
    consumer = AsyncConsumer("t", value_deserializer=ORDERS.deserialize)
    assert_type(await anext(consumer), ConsumerRecord[bytes | None, Order | None])
    assert_type(await AsyncConsumer("t").poll(0), dict[TopicPartition, list[Plain]])


def sessions_have_the_types_of_their_configuration() -> None:
    config = SessionConfig(topics=["t"], group_id="g", value_deserializer=ORDERS.deserialize)
    with TransactionSession(config) as session:
        for records in session.poll(0).values():
            assert_type(records, list[ConsumerRecord[bytes | None, Order | None]])
    plain = TransactionSession(topics=["t"], group_id="g")
    assert_type(plain.poll(0), dict[TopicPartition, list[Plain]])
    asynchronous = AsyncTransactionSession(config)
    assert_type(asynchronous, AsyncTransactionSession[bytes | None, Order | None])
