"""Goal: batches that are encoded away from a producer arrive as if it had encoded them itself.

Method: records are encoded, pickled as an engine would move them, and sent by plain, idempotent and
transactional producers of both faces; what a consumer reads is compared with what was given.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import random
from collections.abc import Iterator

import pytest
from spark_world import read_topic

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncProducer,
    BatchEncoder,
    EncodedBatch,
    Producer,
    ProducerConfig,
    murmur2_partition,
)
from onceflow.sdk.errors import (
    ConfigError,
    RecordTooLargeError,
    SerializationError,
)

NUMBERS = itertools.count(1)
COUNT = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"encoded-{next(NUMBERS)}"
    broker.create_topic(name, partitions=COUNT)
    return name


def encoder(topic: str, **settings: object) -> BatchEncoder:
    return BatchEncoder(
        topic, COUNT, ProducerConfig.build({"bootstrap_servers": "x:1", **settings})
    )


def moved(batches: list[EncodedBatch]) -> list[EncodedBatch]:
    """As they are in another process."""
    found: list[EncodedBatch] = pickle.loads(pickle.dumps(batches))
    return found


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False}])
def test_records_arrive_by_partition_and_in_order(
    broker: Broker, topic: str, codec: str, settings: dict[str, object]
) -> None:
    seed = 5
    rng = random.Random(seed)
    keys = [rng.choice([b"a", b"b", b"c", None]) for _ in range(500)]
    values = [b"%d " % number + b"x" * rng.randrange(60) for number in range(500)]
    times = [1_600_000_000_000 + rng.randrange(1000) for _ in values]
    headers = [[("h", b"%d" % number)] for number in range(500)]
    made = encoder(topic, batch_size=900, compression_type=codec)
    batches: list[EncodedBatch] = []
    for start in range(0, 500, 77):
        part = slice(start, start + 77)
        batches += made.encode(
            values[part], keys[part], timestamps_ms=times[part], headers=headers[part]
        )
    batches += made.finish()
    assert len(batches) > 10
    assert sum(batch.records_count for batch in batches) == 500
    with Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:  # type: ignore[arg-type]
        deliveries = [producer.send_batch(topic, batch) for batch in moved(batches)]
        producer.flush()
        last = deliveries[-1].last()
    found = read_topic(broker.bootstrap_servers, topic)
    assert last.partition == batches[-1].partition
    assert last.offset == max(r.offset for r in found if r.partition == last.partition)
    wanted = list(zip(keys, values, times, headers, strict=True))
    by_value = {r.value: (r.key, r.value, r.timestamp_ms, list(r.headers)) for r in found}
    assert [by_value[value] for value in values] == wanted
    for number in range(COUNT):
        kept = [r for r in found if r.partition == number]
        for r in kept:
            assert r.key is None or murmur2_partition(r.key, COUNT) == number
        for key in (b"a", b"b", b"c"):
            order = [int(r.value.split()[0]) for r in kept if r.key == key and r.value]
            assert order == sorted(order)
    assert {r.partition for r in found if r.key is None} == set(range(COUNT))


def test_batches_and_records_keep_their_order_within_a_transaction(
    broker: Broker, topic: str
) -> None:
    made = encoder(topic)
    assert made.encode([b"1", b"2"], partitions=[0, 0], timestamps_ms=1) == []
    (first,) = made.finish()
    made.encode([b"4"], partitions=[0], timestamps_ms=1)
    (second,) = made.finish()
    servers = broker.bootstrap_servers
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        for outcome in ("abort", "commit"):
            producer.begin_transaction()
            producer.send(topic, b"0", partition=0)
            producer.send_batch(topic, first)
            producer.send(topic, b"3", partition=0)
            producer.send_batch(topic, second)
            if outcome == "abort":
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    assert [r.value for r in read_topic(servers, topic)] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(read_topic(servers, topic, "read_uncommitted")) == 10


def test_asyncio_face_sends_them_and_waits_for_memory(broker: Broker, topic: str) -> None:
    made = encoder(topic, batch_size=4_000)
    values = [b"%04d" % number + b"x" * 500 for number in range(400)]
    batches = made.encode(values, timestamps_ms=1) + made.finish()

    async def send() -> None:
        async with AsyncProducer(
            bootstrap_servers=broker.bootstrap_servers,
            buffer_memory=20_000,
            max_request_size=10_000,
        ) as producer:
            for batch in batches:
                await producer.send_batch(topic, batch)
            await producer.flush()

    asyncio.run(send())
    assert sorted(r.value or b"" for r in read_topic(broker.bootstrap_servers, topic)) == values


def test_batch_that_is_too_large_for_the_broker_is_split(broker: Broker) -> None:
    name = f"encoded-{next(NUMBERS)}"
    broker.create_topic(name, partitions=1, configs={"max.message.bytes": "2000"})
    config = ProducerConfig.build({"bootstrap_servers": "x:1", "batch_size": 10_000})
    made = BatchEncoder(name, 1, config)
    values = [b"%02d" % number + b"x" * 200 for number in range(30)]
    batches = made.encode(values, timestamps_ms=1) + made.finish()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for batch in batches:
            producer.send_batch(name, batch)
    assert [r.value for r in read_topic(broker.bootstrap_servers, name)] == values


def test_wrong_input_is_named(broker: Broker, topic: str) -> None:
    made = encoder(topic, max_request_size=2_000)
    with pytest.raises(ConfigError, match="partition=7"):
        made.encode([b"a"], partitions=[7], timestamps_ms=1)
    with pytest.raises(ConfigError, match="partitions='2 entries'"):
        made.encode([b"a"], partitions=[0, 0], timestamps_ms=1)
    with pytest.raises(ConfigError, match="keys='2 entries'"):
        made.encode([b"a"], [b"a", b"b"], timestamps_ms=1)
    with pytest.raises(SerializationError):
        made.encode([1.5], timestamps_ms=1)
    with pytest.raises(RecordTooLargeError, match="max_request_size"):
        made.encode([b"x" * 3_000], timestamps_ms=1)
    with pytest.raises(ConfigError, match="partition_count=0"):
        BatchEncoder(topic, 0, ProducerConfig.build({"bootstrap_servers": "x:1"}))


def test_bytes_that_are_not_the_batch_are_refused(broker: Broker, topic: str) -> None:
    made = encoder(topic)
    made.encode([b"a", b"b"], partitions=[1, 1], timestamps_ms=1)
    (good,) = made.finish()
    broken = bytearray(good.data)
    broken[-1] ^= 1
    wrong = [
        EncodedBatch(1, 2, bytes(broken)),
        EncodedBatch(1, 3, good.data),
        EncodedBatch(1, 2, good.data + good.data),
        EncodedBatch(1, 2, good.data[:-1]),
        EncodedBatch(1, 2, b""),
    ]
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for batch in wrong:
            with pytest.raises(ConfigError, match="BatchEncoder"):
                producer.send_batch(topic, batch)
        with pytest.raises(ConfigError, match="partition=9"):
            producer.send_batch(topic, EncodedBatch(9, 2, good.data))
    assert read_topic(broker.bootstrap_servers, topic) == []
