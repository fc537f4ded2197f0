"""Goal: field cases of transactions (T2): all of a transaction, or nothing, and a way to go on.

Method: our producer and the published ones against our broker and Apache Kafka, raw frames for the
codes, a relay that forges an answer; time is skipped where a transaction must run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

import pytest
from broker_requests import fetch, produce
from broker_wire import Wire, batch
from case_clients import OURS, SkippableClock, read, values
from case_proxy import Action, Proxy
from coordinator_client import CoordinatorClient
from processor_processes import wait_for

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    ConsumerGroupMetadata,
    IsolationLevel,
    NewTopic,
    Producer,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.errors import (
    ConfigError,
    FatalError,
    InvalidTransactionTimeoutError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortedError,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

RC, RU = "read_committed", "read_uncommitted"


def ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """Last stable offset and high watermark of partition 0."""
    partition = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=bootstrap) as admin:
        stable, high = (
            admin.list_offsets({partition: "latest"}, isolation_level=level)[partition].offset
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
    return stable, high


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


async def test_fc08_empty_transactions(cluster: str, topic: str) -> None:
    await asyncio.to_thread(empty_transactions, cluster, topic)
    async with Wire(address(cluster)) as wire:
        client = CoordinatorClient(wire)
        identity = await client.identity(f"{topic}-raw")
        for version in (1, 4):
            assert (await client.end(f"{topic}-raw", identity, True, version))[0] == (
                "INVALID_TXN_STATE"
            )


def empty_transactions(cluster: str, topic: str) -> None:
    with Producer(bootstrap_servers=cluster, transactional_id=topic) as producer:
        for _ in range(2):
            producer.begin_transaction()
            producer.commit_transaction()
            producer.begin_transaction()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({}, ConsumerGroupMetadata("nobody"))
            producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"only")
    assert ends(cluster, topic) == (2, 2)


@pytest.mark.foreign
@pytest.mark.parametrize("client", ["confluent-kafka", "aiokafka"])
async def test_fc08_with_a_stock_producer(broker: Broker, name: str, client: str) -> None:
    broker.create_topic(name)
    bootstrap = broker.bootstrap_servers
    if client == "aiokafka":
        import aiokafka

        async_producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name
        )
        await async_producer.start()
        try:
            async with async_producer.transaction():
                pass
            await async_producer.begin_transaction()
            await async_producer.abort_transaction()
            async with async_producer.transaction():
                await async_producer.send_and_wait(name, b"only")
        finally:
            await async_producer.stop()
    else:
        import confluent_kafka

        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name}
        )
        await asyncio.to_thread(producer.init_transactions, 10)
        producer.begin_transaction()
        await asyncio.to_thread(producer.commit_transaction, 10)
        producer.begin_transaction()
        await asyncio.to_thread(producer.abort_transaction, 10)
        producer.begin_transaction()
        producer.produce(name, b"only")
        await asyncio.to_thread(producer.commit_transaction, 10)
    assert await asyncio.to_thread(ends, bootstrap, name) == (2, 2)


async def test_fc09_takeover_while_the_old_instance_has_an_open_transaction(
    cluster: str, topic: str
) -> None:
    old = await asyncio.to_thread(take_over, cluster, topic)
    async with Wire(address(cluster)) as wire:
        records = batch(
            b"zombie",
            producer_id=old.producer_id,
            producer_epoch=old.producer_epoch,
            base_sequence=1,
            transactional=True,
            timestamp_ms=int(time.time() * 1000),
        )
        answer = await produce(wire, topic, records, transactional_id=topic)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        client = CoordinatorClient(wire)
        identity = (old.producer_id, old.producer_epoch)
        for version in (2, 4):
            code, _ = await client.end(topic, identity, True, version)
            assert code == "PRODUCER_FENCED"
        code, _ = await client.end(topic, identity, True, 1)
        assert code == "INVALID_PRODUCER_EPOCH"


def take_over(cluster: str, topic: str) -> ProducerIdentity:
    """The steps of case 9; gives the old instance's identity."""
    first = Producer(bootstrap_servers=cluster, transactional_id=topic)
    try:
        first.begin_transaction()
        assert first.send(topic, b"a").result(20).offset == 0
        old = first.identity
        assert old is not None
        started = time.monotonic()
        with Producer(bootstrap_servers=cluster, transactional_id=topic) as second:
            second.begin_transaction()
            assert time.monotonic() - started < 20
            assert second.send(topic, b"b").result(20).offset == 2
            second.commit_transaction()
            first.send(topic, b"c")
            with pytest.raises(ProducerFencedError) as caught:
                first.commit_transaction()
            assert isinstance(caught.value, FatalError)
            with pytest.raises(ProducerFencedError):
                first.send(topic, b"d")
            with pytest.raises(ProducerFencedError):
                first.commit_transaction()
            with pytest.raises(ProducerFencedError):
                first.begin_transaction()
            with second.transaction():
                pass  # The new one is not harmed.
    finally:
        with_failure_ignored(first)
    assert values(read(OURS, cluster, topic)) == [b"b"]
    uncommitted = read(OURS, cluster, topic, RU)
    assert [(row.offset, row.value) for row in uncommitted] == [(0, b"a"), (2, b"b")]
    assert ends(cluster, topic) == (4, 4)
    return old


@pytest.mark.foreign
def test_fc09_with_stock_producers(broker: Broker, name: str) -> None:
    import confluent_kafka

    broker.create_topic(name)

    def instance() -> confluent_kafka.Producer:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name}
        )
        started = time.monotonic()
        producer.init_transactions(30)
        assert time.monotonic() - started < 20
        producer.begin_transaction()
        return producer

    first = instance()
    first.produce(name, b"a")
    assert first.flush(30) == 0
    second = instance()
    second.produce(name, b"b")
    second.commit_transaction(10)
    first.produce(name, b"c")
    for _ in range(2):
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            first.commit_transaction(10)
        error = caught.value.args[0]
        assert error.fatal()
        assert error.code() == confluent_kafka.KafkaError._FENCED
    assert values(read("confluent-kafka", broker.bootstrap_servers, name)) == [b"b"]
    assert ends(broker.bootstrap_servers, name) == (4, 4)


def with_failure_ignored(producer: Producer) -> None:
    """Close a producer that is broken already."""
    with contextlib.suppress(KafkaError):
        producer.close(1_000)


def test_fc10_transaction_outlives_its_timeout(
    cluster: str, topic: str, broker: Broker, clock: SkippableClock
) -> None:
    ours = cluster == broker.bootstrap_servers
    with Producer(
        bootstrap_servers=cluster, transactional_id=topic, transaction_timeout_ms=2_000
    ) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x").result(20)
        assert ends(cluster, topic) == (0, 1)
        if ours:
            clock.skip(broker, 3_900)
        # Apache Kafka looks for timed-out transactions every ten seconds.
        wait_for(lambda: ends(cluster, topic) == (2, 2), "the abort")
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        assert values(read(OURS, cluster, topic)) == []
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"y")
        assert values(read("confluent-kafka", cluster, topic)) == [b"y"]
        assert values(read(OURS, cluster, topic)) == [b"y"]


def test_fc10_timeout_above_the_brokers_maximum_is_refused_at_start(cluster: str) -> None:
    with pytest.raises(InvalidTransactionTimeoutError) as caught:
        Producer(bootstrap_servers=cluster, transactional_id="t", transaction_timeout_ms=900_001)
    assert caught.value.code == 50
    with pytest.raises(ConfigError, match="transaction_timeout_ms"):
        Producer(bootstrap_servers=cluster, transactional_id="t", transaction_timeout_ms=0)


def test_fc12_commit_fails_when_a_record_was_refused(cluster: str, name: str) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 1, 1, {"max.message.bytes": "1000000"})])
    with Producer(
        bootstrap_servers=cluster, transactional_id=name, max_request_size=10_000_000
    ) as producer:
        producer.begin_transaction()
        producer.send(name, b"a").result(20)
        producer.send(name, os.urandom(3_000_000))
        with pytest.raises(KafkaError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(name, b"c")
    for client in (OURS, "confluent-kafka"):
        assert values(read(client, cluster, name)) == [b"c"]
    assert len(set(ends(cluster, name))) == 1


@pytest.mark.parametrize("error", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_fc12_commit_fails_or_holds_everything_after_a_lost_sequence(
    cluster: str, topic: str, proxy: Proxy, error: ErrorCode
) -> None:
    with Producer(bootstrap_servers=proxy.bootstrap_servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"a2").result(20)
        rule = proxy.add(ProduceRequest, Action.ANSWER, times=1, error=error)
        producer.send(topic, b"b2")
        wanted = [b"a2", b"b2", b"c"]
        try:
            producer.commit_transaction()
        except KafkaError:
            producer.abort_transaction()
            wanted = [b"c"]
        assert rule.hits == 1
        with producer.transaction():
            producer.send(topic, b"c")
    assert values(read(OURS, cluster, topic)) == wanted
    assert values(read("confluent-kafka", cluster, topic)) == wanted


async def test_fc12_aborted_data_is_not_resurrected(broker: Broker, name: str) -> None:
    """The rule behind: what an older epoch wrote never belongs to a later transaction."""
    broker.create_topic(name)
    async with Wire(broker) as wire:
        client = CoordinatorClient(wire)
        identity = await client.identity(name)

        async def send(value: bytes, sequence: int, who: tuple[int, int]) -> int:
            records = batch(
                value,
                producer_id=who[0],
                producer_epoch=who[1],
                base_sequence=sequence,
                transactional=True,
                timestamp_ms=int(time.time() * 1000),
            )
            return (await produce(wire, name, records, transactional_id=name)).error_code

        await client.add(name, identity, (name, [0]))
        assert await send(b"orphan", 0, identity) == 0
        bumped = (await client.init(name, identity))[1:]
        while bumped[1] < 0:
            bumped = (await client.init(name, identity))[1:]
        assert bumped[1] > identity[1]
        await client.add(name, bumped, (name, [0]))
        assert await send(b"kept", 0, bumped) == 0
        assert (await client.end(name, bumped, True, 4))[0] == "NONE"
        data = await fetch(wire, name, isolation_level=1)
        assert [
            (each.producer_id, each.first_offset) for each in data.aborted_transactions or []
        ] == [(identity[0], 0)]
    assert await asyncio.to_thread(lambda: values(read(OURS, broker.bootstrap_servers, name))) == [
        b"kept"
    ]
