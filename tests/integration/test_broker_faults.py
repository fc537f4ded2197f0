"""Goal: faults hit exactly the requests they are meant for, and the journal tells what was asked.

Method: rules on a broker in process, raw requests, and what the broker kept afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from broker_requests import fetch, fetch_request, produce, produce_request, topic_metadata
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.testing import Fault
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.groups import HeartbeatRequest, HeartbeatResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


async def stored(broker: Broker) -> int:
    async with Wire(broker) as other:
        return (await fetch(other, "t")).high_watermark


async def test_dropped_answer_is_of_a_request_that_was_done(broker: Broker, wire: Wire) -> None:
    rule = broker.faults.add(ProduceRequest, Fault.DROP_ANSWER)
    wire.send(produce_request("t", batch(b"a")), 9)
    assert await wire.closed()
    assert (rule.hits, await stored(broker)) == (1, 1)


async def test_dropped_request_was_not_done(broker: Broker, wire: Wire) -> None:
    broker.faults.add(ProduceRequest, Fault.DROP_REQUEST)
    wire.send(produce_request("t", batch(b"a")), 9)
    assert await wire.closed()
    assert await stored(broker) == 0


async def test_error_is_answered_so_many_times_and_then_no_more(broker: Broker, wire: Wire) -> None:
    broker.faults.add(ProduceRequest, Fault.ERROR, times=2, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    codes = [(await produce(wire, "t", batch(b"a"))).error_code for _ in range(3)]
    assert codes == [6, 6, 0]
    assert await stored(broker) == 1


async def test_condition_chooses_among_the_requests(broker: Broker, wire: Wire) -> None:
    broker.faults.add(
        ProduceRequest,
        Fault.ERROR,
        times=None,
        error=ErrorCode.REQUEST_TIMED_OUT,
        condition=lambda request, context: context.api_version < 9,
    )
    assert (await produce(wire, "t", batch(b"a"), api_version=8)).error_code == 7
    assert (await produce(wire, "t", batch(b"a"), api_version=9)).error_code == 0


async def test_delayed_answer_comes_when_the_clock_says(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    broker.faults.add(ProduceRequest, Fault.DELAY, delay_ms=500)
    wire.send(produce_request("t", batch(b"a")), 9)
    wire.send(ApiVersionsRequest(), 0)
    await wire.writer.drain()
    topic = broker.state.topics.get("t")
    assert topic is not None
    await until(lambda: topic.partitions[0].high_watermark == 1)
    clock.advance(499)
    async with Wire(broker) as other:
        await topic_metadata(other, "t")
    assert not wire.reader._buffer  # type: ignore[attr-defined]
    clock.advance(1)
    await wire.receive()
    assert isinstance(await wire.receive(), ApiVersionsResponse)


async def test_held_request_is_done_when_it_is_released(broker: Broker, wire: Wire) -> None:
    rule = broker.faults.add(ProduceRequest, Fault.HOLD)
    wire.send(produce_request("t", batch(b"a")), 9)
    await wire.writer.drain()
    await until(lambda: rule.hits == 1)
    assert await stored(broker) == 0
    broker.faults.release(rule)
    await wire.receive()
    assert await stored(broker) == 1


async def test_held_long_poll_still_parks_after_its_release(broker: Broker, wire: Wire) -> None:
    rule = broker.faults.add(FetchRequest, Fault.HOLD)
    wire.send(fetch_request("t", 0, max_wait_ms=60_000), 12)
    await wire.writer.drain()
    await until(lambda: rule.hits == 1)
    broker.faults.clear()
    assert len(broker.state.purgatory) == 1
    async with Wire(broker) as other:
        await produce(other, "t", batch(b"a"))
    await wire.receive()


def test_faults_reach_a_broker_in_a_thread_and_outlive_its_restart() -> None:
    broker = Broker()
    broker.faults.add(ProduceRequest, Fault.ERROR, error=ErrorCode.REQUEST_TIMED_OUT)

    async def code() -> int:
        async with Wire(broker) as wire:
            return (await produce(wire, "t", batch(b"a"))).error_code

    with broker:
        assert asyncio.run(code()) == 7
    broker.faults.recording = True
    with broker:
        assert asyncio.run(code()) == 3
        assert len(broker.faults.requests(ProduceRequest)) == 1


async def test_journal_tells_who_asked_what(broker: Broker, wire: Wire) -> None:
    broker.faults.recording = True
    broker.faults.add(ProduceRequest, Fault.ERROR)
    await produce(wire, "t", batch(b"a"))
    await topic_metadata(wire, "t")
    entries = broker.faults.requests(ProduceRequest)
    assert [(entry.client_id, entry.api_version, entry.fault) for entry in entries] == [
        ("test", 9, Fault.ERROR)
    ]
    assert len(broker.faults.journal) == 2


async def test_error_of_a_request_with_one_at_the_top(broker: Broker, wire: Wire) -> None:
    broker.faults.add(HeartbeatRequest, Fault.ERROR, error=ErrorCode.REBALANCE_IN_PROGRESS)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert (await wire.ask(request, 4, HeartbeatResponse)).error_code == 27


async def test_topic_that_cannot_be_stored_is_refused_and_nothing_of_it_stays() -> None:
    storage = FailingStorage()
    async with Broker(storage=storage) as broker, Wire(broker) as wire:
        broker.create_topic("before")
        storage.fail_write(len(storage.writes) + 3)
        with pytest.raises(TopicError, match="cannot be stored") as caught:
            broker.create_topic("t", partitions=4, configs={"retention.ms": "5"})
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await topic_metadata(wire, "t")).error_code == 3
        assert (await produce(wire, "before", batch(b"a"))).error_code == 0
        broker.create_topic("t")
        assert (await produce(wire, "t", batch(b"a"))).error_code == 0


async def test_log_is_flushed_when_its_time_is_over(clock: VirtualClock) -> None:
    storage = FailingStorage()
    settings = {"log.flush.interval.ms": 1000, "log.flush.scheduler.interval.ms": 500}
    async with (
        Broker(storage=storage, clock=clock, settings=settings) as broker,
        Wire(broker) as wire,
    ):
        broker.create_topic("t")
        await produce(wire, "t", batch(b"a"))

        def flushes() -> int:
            return sum(write.change is Change.FLUSH for write in storage.writes)

        before = flushes()
        clock.advance(500)
        assert flushes() == before
        clock.advance(500)
        assert flushes() > before


async def test_append_that_fails_is_a_storage_error_of_that_partition() -> None:
    storage = FailingStorage()
    async with Broker(storage=storage) as broker, Wire(broker) as wire:
        broker.create_topic("t")
        broker.create_topic("u")
        storage.fail_write(len(storage.writes))
        failed = await produce(wire, "t", batch(b"a"))
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await produce(wire, "u", batch(b"a"))).error_code == 0
