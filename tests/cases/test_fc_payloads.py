"""Goal: field cases of payloads (T6): null, size, codec and topic name mean one thing everywhere.

Method: our clients and the published ones against our broker and Apache Kafka; raw frames for what
no client sends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable

import cramjam
import pytest
from broker_requests import (
    create_topic,
    fetch,
    fetch_request,
    fetched,
    produce,
    topic_metadata,
)
from broker_wire import Wire, batch, values_of
from case_clients import OURS, STOCK, read, values, write
from case_proxy import Proxy

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer, NewTopic, Producer, TopicPartition
from onceflow.sdk.errors import (
    InvalidRecordError,
    InvalidTopicError,
    KafkaError,
    MessageTooLargeError,
    RecordTooLargeError,
)
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

READERS = (OURS, *STOCK)
PAIRS = [(None, b"x"), (b"", b"x"), (b"k", None), (b"k", b""), (None, None)]


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


# --- FC-35


def test_fc35_null_is_not_empty(cluster: str, topic: str) -> None:
    write(OURS, cluster, topic, PAIRS)
    for client in READERS:
        found = [(row.key, row.value) for row in read(client, cluster, topic)]
        assert found == PAIRS, client


@pytest.mark.foreign
@pytest.mark.parametrize("writer", STOCK)
def test_fc35_written_by_stock_clients(broker: Broker, name: str, writer: str) -> None:
    broker.create_topic(name)
    # aiokafka and kafka-python refuse a record with neither key nor value.
    pairs = PAIRS if writer == "confluent-kafka" else PAIRS[:4]
    write(writer, broker.bootstrap_servers, name, pairs)
    for client in READERS:
        found = [(row.key, row.value) for row in read(client, broker.bootstrap_servers, name)]
        assert found == pairs, client


def test_fc35_null_length_on_the_wire_and_serializers(cluster: str, topic: str) -> None:
    called: list[object] = []

    def serialize(value: object) -> bytes:
        called.append(value)
        return str(value).encode()

    with Producer(
        bootstrap_servers=cluster, key_serializer=serialize, value_serializer=serialize
    ) as producer:
        producer.send(topic, None, key=None)
        producer.send(topic, 1, key="")
        producer.flush()
    assert called == [1, ""] or called == ["", 1]

    def deserialize(data: bytes) -> object:
        called.append(data)
        return data.decode()

    called.clear()
    partition = TopicPartition(topic, 0)
    with Consumer(
        bootstrap_servers=cluster, key_deserializer=deserialize, value_deserializer=deserialize
    ) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[tuple[object, object]] = []
        deadline = time.monotonic() + 60
        while len(found) < 2:
            assert time.monotonic() < deadline
            for records in consumer.poll(100).values():
                found += [(record.key, record.value) for record in records]
    assert found == [(None, None), ("", "1")]
    assert sorted(called, key=repr) == [b"", b"1"]  # type: ignore[comparison-overlap]

    async def raw() -> bytes:
        async with Wire(address(cluster)) as wire:
            return bytes((await fetch(wire, topic, api_version=11)).records or b"")

    data = asyncio.run(raw())
    # Length, attributes, timestamp delta, offset delta, then -1 and -1 as zigzag varints.
    assert data[61 + 4 : 61 + 6] == b"\x01\x01"


def test_fc35_compacted_topic_refuses_a_record_without_key(cluster: str, name: str) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 1, 1, {"cleanup.policy": "compact"})])
    with Producer(bootstrap_servers=cluster) as producer:
        with pytest.raises(InvalidRecordError) as caught:
            producer.send(name, b"x").result(20)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert producer.send(name, b"x", key=b"k").result(20).offset == 0


# --- FC-37

LIMIT = 1_048_588


def test_fc37_around_and_above_one_megabyte(cluster: str, topic: str, proxy: Proxy) -> None:
    fits, zeros, large = os.urandom(900_000), bytes(2_000_000), os.urandom(2_000_000)
    small = [os.urandom(100) for _ in range(10)]
    roomy = {"bootstrap_servers": proxy.bootstrap_servers, "max_request_size": 10_000_000}
    with Producer(**roomy) as producer:  # type: ignore[arg-type]
        assert producer.send(topic, fits).result(20).offset == 0
    with Producer(compression_type="gzip", **roomy) as producer:  # type: ignore[arg-type]
        assert producer.send(topic, zeros).result(20).offset == 1
    before = proxy.count(ProduceRequest)
    with (
        Producer(**roomy) as producer,  # type: ignore[arg-type]
        pytest.raises(MessageTooLargeError) as caught,
    ):
        producer.send(topic, large).result(20)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert proxy.count(ProduceRequest) == before + 1
    with Producer(linger_ms=200, batch_size=5_000_000, **roomy) as producer:  # type: ignore[arg-type]
        sent = [producer.send(topic, value) for value in (*small[:5], large, *small[5:])]
        for number, delivery in enumerate(sent):
            if number == 5:
                with pytest.raises(MessageTooLargeError):
                    delivery.result(20)
            else:
                delivery.result(20)
    with (
        Producer(bootstrap_servers=cluster) as producer,
        pytest.raises(RecordTooLargeError, match="max_request_size"),
    ):
        producer.send(topic, large)
    partition = TopicPartition(topic, 0)
    with Consumer(
        bootstrap_servers=cluster, max_partition_fetch_bytes=1_024, fetch_max_bytes=4_096
    ) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[object] = []
        deadline = time.monotonic() + 60
        while len(found) < 12:
            assert time.monotonic() < deadline, len(found)
            for records in consumer.poll(100).values():
                found += [record.value for record in records]
    assert found == [fits, zeros, *small]


# --- FC-38

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WRITERS = (OURS, "confluent-kafka", "aiokafka")
SNAPPY_READERS = (OURS, "confluent-kafka", "aiokafka")
"""kafka-python reads snappy only with python-snappy, a library that nothing else here needs."""

ROWS = [(b"k%d" % number, b"value-%d" % number) for number in range(500)]


@pytest.mark.foreign
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_fc38_every_codec_across_clients(
    broker: Broker, name: str, writer: str, codec: str
) -> None:
    broker.create_topic(name)
    write(writer, broker.bootstrap_servers, name, ROWS, codec)
    for client in SNAPPY_READERS if codec == "snappy" else READERS:
        rows = read(client, broker.bootstrap_servers, name)
        assert [row.offset for row in rows] == list(range(500)), client
        assert [(row.key, row.value) for row in rows] == ROWS, client
        rows = read(client, broker.bootstrap_servers, name, start=250)
        assert [row.offset for row in rows] == list(range(250, 500)), client


XERIAL_MAGIC = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2


@pytest.mark.parametrize("framed", [True, False])
async def test_fc38_both_snappy_framings(cluster: str, topic: str, framed: bool) -> None:
    from onceflow.sdk.protocol.batch_header import HEADER_SIZE, pack_batch, parse_batch_header

    plain = batch(*(value for _, value in ROWS))
    header = parse_batch_header(plain, 0)
    block = bytes(cramjam.snappy.compress_raw(plain[HEADER_SIZE:]))
    body = XERIAL_MAGIC + len(block).to_bytes(4, "big") + block if framed else block
    records = bytes(pack_batch(header._replace(attributes=2), body))
    async with Wire(address(cluster)) as wire:
        assert (await produce(wire, topic, records)).error_code == 0
    for client in SNAPPY_READERS:
        rows = await asyncio.to_thread(read, client, cluster, topic)
        assert values(rows) == [value for _, value in ROWS], client


async def test_fc38_zstd_needs_newer_versions(
    broker: Broker, cluster: str, topic: str, name: str
) -> None:
    zstd = batch(b"x" * 1_000, codec=4)
    assert zstd[22] & 7 == 4
    async with Wire(address(cluster)) as wire:
        answer = await produce(wire, topic, zstd, api_version=6)
        assert answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await produce(wire, topic, zstd, api_version=7)).error_code == 0
    with_zstd = f"{name}-zstd"
    await asyncio.to_thread(
        create, cluster, NewTopic(with_zstd, 1, 1, {"compression.type": "zstd"})
    )
    async with Wire(address(cluster)) as wire:
        await produce(wire, with_zstd, batch(b"x" * 1_000), api_version=7)
        for version in (4, 9):
            response = await wire.ask(fetch_request(with_zstd, 0), version, FetchResponse)
            # Apache Kafka 4.4 no longer looks, and sends what its oldest readers cannot unpack.
            allowed = {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
            if cluster != broker.bootstrap_servers:
                allowed.add(ErrorCode.NONE)
            assert fetched(response)[0].error_code in allowed
        stored = (await fetch(wire, with_zstd, api_version=10)).records
        assert values_of(stored) == [b"x" * 1_000]
        assert bytes(stored or b"")[22] & 7 == 4


def create(bootstrap: str, topic: NewTopic) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([topic])


def test_fc38_missing_library_is_named(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from onceflow.sdk.protocol import compression

    broker.create_topic(name)
    write("confluent-kafka", broker.bootstrap_servers, name, ROWS, "lz4")
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for attribute in vars(compression):
        cached = getattr(compression, attribute)
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()
    with (
        pytest.raises(KafkaError, match="lz4"),
        Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="lz4") as producer,
    ):
        producer.send(name, b"x").result(20)
    partition = TopicPartition(name, 0)
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        with pytest.raises(KafkaError, match="lz4"):
            consumer.poll(10_000)
        assert consumer.position(partition) == 0


# --- FC-41

BAD_NAMES = ("a/b", " lead", "täst", "", ".", "..", "x" * 250)
GOOD = itertools.count()


def refused(call: Callable[[], object], bad: str) -> None:
    """The call fails at once, by the name."""
    started = time.monotonic()
    with pytest.raises(InvalidTopicError) as caught:
        call()
    assert time.monotonic() - started < 20
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert bad in str(caught.value)


def test_fc41_bad_topic_names_are_refused_at_once(cluster: str, topic: str) -> None:
    with (
        Producer(bootstrap_servers=cluster) as producer,
        Admin(bootstrap_servers=cluster) as admin,
    ):
        for bad in BAD_NAMES:
            refused(lambda bad=bad: producer.send(bad, b"x").result(20), bad)  # type: ignore[misc]
            producer.send(topic, b"good").result(20)
            refused(lambda bad=bad: admin.create_topics([NewTopic(bad, 1, 1)]), bad)  # type: ignore[misc]
            with Consumer(bootstrap_servers=cluster, group_id=topic) as consumer:

                def subscribe(bad: str = bad, consumer: Consumer = consumer) -> None:
                    consumer.subscribe([bad])
                    consumer.poll(5_000)

                refused(subscribe, bad)
                consumer.subscribe([topic])
        longest = f"{topic}-".ljust(249, "x")
        admin.create_topics([NewTopic(longest, 1, 1)])
        assert producer.send(longest, b"x").result(20).offset == 0
        admin.create_topics([NewTopic(f"{topic}.a.b", 1, 1)])
        refused(lambda: admin.create_topics([NewTopic(f"{topic}.a_b", 1, 1)]), f"{topic}.a_b")
    assert len(read(OURS, cluster, topic)) == len(BAD_NAMES)


async def test_fc41_bad_names_over_the_wire(cluster: str, topic: str) -> None:
    async with Wire(address(cluster)) as wire:
        for bad in BAD_NAMES:
            for create in (True, False):
                found = await topic_metadata(wire, bad, create=create)
                assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, bad
            result = await create_topic(wire, bad)
            assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, bad
            assert (await produce(wire, topic, batch(b"good"))).error_code == 0


@pytest.mark.foreign
def test_fc41_with_a_stock_producer(broker: Broker, name: str) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    outcomes: dict[str, object] = {}
    for bad in (*BAD_NAMES[:3], *BAD_NAMES[4:]):  # It refuses the empty name itself.
        started = time.monotonic()
        producer.produce(
            bad, b"x", on_delivery=lambda error, _, bad=bad: outcomes.__setitem__(bad, error)
        )
        assert producer.flush(30) == 0
        assert time.monotonic() - started < 20
        error = outcomes[bad]
        assert isinstance(error, confluent_kafka.KafkaError)
        assert error.code() == confluent_kafka.KafkaError.TOPIC_EXCEPTION
        producer.produce(name, b"good")
        assert producer.flush(30) == 0
    assert len(read("confluent-kafka", broker.bootstrap_servers, name)) == len(outcomes)
