"""Goal: an error that every call raises until something is done costs the same each time.

Method: calls that go on failing, and what they raise is counted: its trace, with the frames and
all that these hold, must not become longer with each raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import AsyncConsumer, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import KafkaError, NoOffsetForPartitionError, ProducerFencedError
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

P0 = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def frames(error: BaseException) -> int:
    count, trace = 0, error.__traceback__
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


def lengths(call: Callable[[], object], kind: type[KafkaError], times: int = 4) -> list[int]:
    """Length of the trace at each of some calls that all fail."""
    found = []
    for _ in range(times):
        with pytest.raises(kind) as caught:
            call()
        found.append(frames(caught.value))
    return found[1:]  # The first one may come another way.


def test_polls_without_a_position(broker: Broker) -> None:
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="none",
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign([P0])
        for call in (
            lambda: consumer.poll(10_000),
            lambda: consumer.poll_columns(10_000),
            lambda: next(consumer),
            lambda: consumer.position(P0),
        ):
            assert len(set(lengths(call, NoOffsetForPartitionError))) == 1


async def test_polls_of_an_asyncio_consumer(broker: Broker) -> None:
    async with AsyncConsumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="none",
        enable_auto_commit=False,
    ) as consumer:
        consumer.assign([P0])
        found = set()
        for _ in range(4):
            with pytest.raises(NoOffsetForPartitionError) as caught:
                await consumer.poll(10_000)
            found.add(frames(caught.value))
        assert len(found) == 1


def test_calls_of_a_fenced_producer(broker: Broker) -> None:
    address = broker.bootstrap_servers
    fenced = Producer(bootstrap_servers=address, transactional_id="x")
    with Producer(bootstrap_servers=address, transactional_id="x"):

        def transact() -> None:
            with fenced.transaction():
                fenced.send("t", value=b"v")

        for call in (
            transact,
            lambda: fenced.send("t", value=b"v"),
            lambda: fenced.send_many("t", [b"v"] * 3),
            fenced.begin_transaction,
            fenced.flush,
        ):
            assert len(set(lengths(call, ProducerFencedError))) == 1
    fenced.close()


def test_deliveries_that_share_a_failure(broker: Broker) -> None:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.faults.add(ProduceRequest, Fault.ERROR, times=None, error=code)
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=50) as producer:
        deliveries = [producer.send("t", value=b"%d" % number) for number in range(20)]
        found = [lengths(delivery.result, KafkaError, 2)[0] for delivery in deliveries]
    assert len(set(found)) == 1
