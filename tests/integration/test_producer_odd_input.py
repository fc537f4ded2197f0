"""Goal: input of odd types, and a refused record in the middle of a call, lose and hold up nothing.

Method: a broker in this process; what was taken before the refused record must be stored without
any further call, and each record's fate must be told as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from producer_cluster import make_topic, running_cluster, values

from onceflow.sdk import AsyncProducer, Producer
from onceflow.sdk.errors import (
    ConfigError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    SerializationError,
)
from onceflow.sdk.model.partitions import RecordMetadata
from onceflow.sdk.observe.interceptors import ProducerInterceptor, ProducerRecord

NO_TEXT = "\ud800"
"""Half of a surrogate pair: UTF-8 has no bytes for it."""


class Tag(bytes):
    """Bytes of a class of one's own, as numpy's are."""


class Number:
    """A whole number that is no int, as numpy's are."""

    def __index__(self) -> int:
        return 1


class Watcher(ProducerInterceptor):
    """Notes what becomes of records."""

    def __init__(self) -> None:
        self.stored: list[object] = []
        self.refused: list[object] = []
        self.all_stored = threading.Event()

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        self.stored.append(record.value)
        self.all_stored.set()

    def on_error(self, record: ProducerRecord, error: KafkaError) -> None:
        self.refused.append(record.value)


class Quitter(ProducerInterceptor):
    """Ends the program from the thread that sends."""

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        raise SystemExit


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker for all tests of this file."""
    with running_cluster() as address:
        yield address


def test_a_record_from_a_clock_that_is_ahead_is_named_as_the_cause(bootstrap: str) -> None:
    topic = make_topic(bootstrap, partitions=1)
    ahead_ms = int(time.time() * 1000) + 10 * 86_400_000
    with Producer(bootstrap_servers=bootstrap, transactional_id=topic, linger_ms=1_000) as producer:
        producer.begin_transaction()
        neighbour = producer.send(topic, b"good")
        guilty = producer.send(topic, b"ahead", timestamp_ms=ahead_ms)
        with pytest.raises(InvalidTimestampError, match=str(ahead_ms)):
            producer.commit_transaction()
        producer.abort_transaction()
        with pytest.raises(InvalidTimestampError, match=str(ahead_ms)):
            guilty.result()
        with pytest.raises(InvalidRecordError, match="another record of the same batch"):
            neighbour.result()
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send(topic, b"ahead", timestamp_ms=ahead_ms)
        with pytest.raises(InvalidTimestampError, match=str(ahead_ms)):
            producer.flush()


def test_what_came_before_a_refused_record_leaves_at_once(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    watcher = Watcher()
    with Producer(bootstrap_servers=bootstrap, interceptors=[watcher]) as producer:
        with pytest.raises(SerializationError, match="record 1 "):
            producer.send_many(topic, [b"1", b"2"], headers=[[], [(NO_TEXT, b"")]])
        assert watcher.all_stored.wait(30), "the record that was taken is not sent"
        assert (watcher.stored, watcher.refused) == ([b"1"], [b"2"])
    assert values(bootstrap, topic) == [b"1"]


def test_sends_go_on_after_a_refused_record(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(SerializationError):
            producer.send_many(topic, [b"1", b"2"], headers=[[], [(NO_TEXT, b"")]])
        assert producer.send(topic, b"3").result(20).offset == 1
    assert values(bootstrap, topic) == [b"1", b"3"]


@pytest.mark.parametrize("change", [lambda given: given.append(b"late"), lambda given: given.pop()])
def test_a_sequence_that_a_serializer_changes_is_refused_as_a_whole(
    bootstrap: str, change: Callable[[list[bytes]], object]
) -> None:
    topic = make_topic(bootstrap)
    given = [b"%d" % n for n in range(10)]

    def serialize(value: object) -> bytes:
        if value == b"5":
            change(given)
        assert isinstance(value, bytes)
        return value

    with Producer(bootstrap_servers=bootstrap, value_serializer=serialize) as producer:
        with pytest.raises(ConfigError, match="keys"):
            producer.send_many(topic, given, keys=[b"k"] * 10)
        assert producer.send(topic, b"x").result(20).offset == 0
    assert values(bootstrap, topic) == [b"x"]


def test_subclasses_of_bytes_and_numbers_that_are_no_int_are_taken(bootstrap: str) -> None:
    topic = make_topic(bootstrap, partitions=2)
    with Producer(
        bootstrap_servers=bootstrap,
        partitioner=lambda *_: Number(),  # type: ignore[arg-type]
    ) as producer:
        sent = [
            producer.send(topic, Tag(b"v"), key=Tag(b"k")).result(20),
            producer.send(topic, b"v", partition=Number()).result(20),  # type: ignore[arg-type]
            *producer.send_many(topic, [Tag(b"v")], keys=[Tag(b"k")]).result(20),
        ]
    assert [(where.partition, where.offset) for where in sent] == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("given", [{"values": "abc"}, {"values": [b"a"], "keys": b"k"}])
def test_one_value_is_no_list_of_values(bootstrap: str, given: dict[str, Any]) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(ConfigError, match="one element for each record"):
            producer.send_many(topic, **given)
        assert producer.send(topic, b"first").result(20).offset == 0


TIMES: tuple[Any, ...] = (-1, -(2**62), 2**63, 1.5, "now", True)


@pytest.mark.parametrize("time_ms", TIMES, ids=repr)
@pytest.mark.parametrize("interceptors", [[], [Watcher()]], ids=["plain", "intercepted"])
def test_what_is_no_time_after_1970_is_refused(
    bootstrap: str, time_ms: Any, interceptors: list[ProducerInterceptor]
) -> None:
    """As by Kafka's own producer: -1 is what a broker gives for a record without a timestamp."""
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, interceptors=interceptors) as producer:
        for send in (
            lambda: producer.send(topic, b"x", timestamp_ms=time_ms),
            lambda: producer.send_many(topic, [b"x"], timestamps_ms=[time_ms]),
            lambda: producer.send_many(topic, [b"x", b"y"], timestamps_ms=[0, time_ms]),
        ):
            with pytest.raises((SerializationError, ConfigError)):
                send()
        assert producer.send(topic, b"first", timestamp_ms=0).result(20).timestamp_ms == 0
    assert values(bootstrap, topic) == [b"first"]


@pytest.mark.parametrize("time_ms", TIMES, ids=repr)
async def test_the_asyncio_producer_refuses_it_too(bootstrap: str, time_ms: Any) -> None:
    topic = make_topic(bootstrap)
    async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
        with pytest.raises(SerializationError):
            await producer.send(topic, b"x", timestamp_ms=time_ms)
        with pytest.raises((SerializationError, ConfigError)):
            await producer.send_many(topic, [b"x"], timestamps_ms=[time_ms])
        assert (await producer.send_and_wait(topic, b"first")).offset == 0


@pytest.mark.parametrize("field", ["value", "key"])
def test_text_that_utf_8_cannot_hold_is_named(bootstrap: str, field: str) -> None:
    topic = make_topic(bootstrap)
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        pytest.raises(SerializationError, match=f"the {field} cannot be encoded"),
    ):
        producer.send(topic, **{field: NO_TEXT})  # type: ignore[arg-type]


def test_an_interceptor_that_exits_does_not_end_the_sending(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    with Producer(bootstrap_servers=bootstrap, interceptors=[Quitter()]) as producer:
        assert [producer.send(topic, b"x").result(20).offset for _ in range(2)] == [0, 1]
