"""Goal: field cases of the idempotent producer (T1): nothing is stored twice, nothing is lost.

Method: a relay that loses answers before our broker and Apache Kafka; raw frames for the rules of
sequences; the broker's clock is moved where a case waits for state to expire.
"""

from __future__ import annotations

import asyncio
import random
import threading

import pytest
from broker_requests import fetch, produce
from broker_wire import Wire, batch
from case_clients import OURS, SkippableClock, read, values
from case_proxy import Action, Proxy
from coordinator_client import CoordinatorClient

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, AsyncProducer, Producer, TopicPartition
from onceflow.sdk.protocol.api.produce import ProduceRequest


def test_fc01_lost_acknowledgement_does_not_duplicate(
    cluster: str, topic: str, proxy: Proxy
) -> None:
    lost = proxy.add(ProduceRequest, Action.DROP_REPLY, every=3, delay_ms=450)
    with Producer(
        bootstrap_servers=proxy.bootstrap_servers,
        request_timeout_ms=300,
        delivery_timeout_ms=60_000,
        batch_size=1_000,
    ) as producer:
        sent = [producer.send(topic, str(number)) for number in range(1_000)]
        offsets = [delivery.result(60).offset for delivery in sent]
    assert offsets == list(range(1_000))
    assert lost.hits > 5
    wanted = [b"%d" % number for number in range(1_000)]
    assert values(read("confluent-kafka", cluster, topic)) == wanted


@pytest.mark.foreign
def test_fc01_with_a_stock_producer(broker: Broker, name: str) -> None:
    import confluent_kafka

    broker.create_topic(name)
    offsets: dict[int, int] = {}
    with Proxy(broker.bootstrap_servers) as proxy:
        lost = proxy.add(ProduceRequest, Action.DROP_REPLY, every=3, delay_ms=450)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "enable.idempotence": True,
                "socket.timeout.ms": 300,
                "request.timeout.ms": 300,
                "retry.backoff.ms": 10,
                "reconnect.backoff.ms": 10,
                "batch.num.messages": 100,
                "log_level": 0,
            }
        )
        for number in range(1_000):
            producer.produce(
                name,
                b"%d" % number,
                on_delivery=lambda error, message, number=number: offsets.__setitem__(
                    number, -1 if error else message.offset()
                ),
            )
        assert producer.flush(60) == 0
    assert lost.hits > 1
    assert offsets == {number: number for number in range(1_000)}
    wanted = [b"%d" % number for number in range(1_000)]
    assert values(read("kafka-python", broker.bootstrap_servers, name)) == wanted


async def test_fc02_the_broker_remembers_exactly_five_batches(broker: Broker, name: str) -> None:
    broker.create_topic(name)
    async with Wire(broker) as wire:
        code, producer_id, epoch = await CoordinatorClient(wire).init(None)
        assert code == "NONE"

        async def send(sequence: int) -> tuple[int, int]:
            records = batch(
                b"%d" % sequence,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            answer = await produce(wire, name, records)
            return answer.error_code, answer.base_offset

        for sequence in range(6):
            assert await send(sequence) == (0, sequence)
        for sequence in (5, 4, 3, 2, 1):
            assert await send(sequence) == (0, sequence)
        assert (await send(0))[0] in (45, 46)
        assert await send(6) == (0, 6)
        assert (await send(8))[0] == 45
        assert (await fetch(wire, name)).high_watermark == 7


async def test_fc03_ten_thousand_sends_without_awaiting(
    cluster: str, topic: str, proxy: Proxy
) -> None:
    proxy.add(None, Action.DELAY, delay_ms=20)
    chance = random.Random(3)
    cuts_at = sorted(chance.sample(range(2, 14), 5))
    done = threading.Event()

    def cut() -> None:
        for number in cuts_at:
            while proxy.count(ProduceRequest) < number and not done.wait(0.005):
                pass
            proxy.cut_all()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        async with AsyncProducer(
            bootstrap_servers=proxy.bootstrap_servers, linger_ms=0, batch_size=16_384
        ) as producer:

            async def fire(task: int) -> None:
                sent = []
                for number in range(2_500):
                    sent.append(await producer.send(topic, f"{task}:{number}"))
                    if not number % 50:
                        await asyncio.sleep(0)
                for delivery in sent:
                    await delivery

            await asyncio.gather(*(fire(task) for task in range(4)))
    finally:
        done.set()
        cutter.join()
    found = values(await asyncio.to_thread(read, OURS, cluster, topic))
    assert len(found) == 10_000
    for task in range(4):
        prefix = b"%d:" % task
        numbers = [int(value[2:]) for value in found if value is not None and value[:2] == prefix]
        assert numbers == list(range(2_500))


async def test_fc05_idle_producer_with_expired_state_and_deleted_records(name: str) -> None:
    clock = SkippableClock()
    with Broker(settings={"producer.id.expiration.ms": 2_000}, clock=clock) as broker:
        broker.create_topic(name)
        async with AsyncProducer(bootstrap_servers=broker.bootstrap_servers) as producer:

            async def send(count: int) -> list[int]:
                sent = [await producer.send(name, b"x") for _ in range(count)]
                return [(await delivery).offset for delivery in sent]

            assert await send(2) == [0, 1]
            clock.skip(broker, 6_000)
            assert await send(2) == [2, 3]
            await asyncio.to_thread(delete_before, broker.bootstrap_servers, name, 4)
            assert await send(1) == [4]
            clock.skip(broker, 6_000_000)
            assert await send(1) == [5]
        async with Wire(broker) as wire:
            _, producer_id, epoch = await CoordinatorClient(wire).init(None)
            records = batch(
                b"7", producer_id=producer_id, producer_epoch=epoch, base_sequence=7,
                timestamp_ms=clock(),
            )  # fmt: skip
            assert (await produce(wire, name, records)).error_code == 0


def test_fc05_on_apache_kafka_and_ours_after_deleted_records(cluster: str, topic: str) -> None:
    with Producer(bootstrap_servers=cluster) as producer:
        assert [producer.send(topic, b"x").result(20).offset for _ in range(4)] == [0, 1, 2, 3]
        delete_before(cluster, topic, 4)
        assert producer.send(topic, b"x").result(20).offset == 4


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    """Delete the records before an offset."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): offset})
