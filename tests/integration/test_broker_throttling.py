"""Goal: who is throttled is told at once and then not handled for that time, and nobody else waits.

Method: a broker on a real socket with a clock that is moved by hand, and raw requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from admin_answers import create, quotas
from broker_requests import produce_request
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.sdk.protocol.api.admin import CreateTopicsResponse
from onceflow.sdk.protocol.api.admin_quotas import AlterClientQuotasResponse
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.produce import ProduceResponse

METADATA = MetadataRequest(topics=[])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(clock=clock, settings={"connections.max.idle.ms": 5_000}) as running:
        running.create_topic("t")
        yield running


async def allow(wire: Wire, kind: str, name: str | None, key: str, value: float | None) -> None:
    answer = await wire.ask(quotas([(kind, name)], (key, value)), 1, AlterClientQuotasResponse)
    assert [entry.error_code for entry in answer.entries] == [0]


def muted(broker: Broker) -> int:
    server = broker._running().server
    return sum(connection._muted is not None for connection in server._connections)


async def test_the_answer_comes_at_once_and_the_next_one_after_the_wait(
    broker: Broker, clock: VirtualClock
) -> None:
    """KIP-219; a throttled connection is not an idle one, however long it must wait."""
    async with Wire(broker) as wire, Wire(broker) as other:
        await allow(other, "client-id", "test", "producer_byte_rate", 1000)
        request = produce_request("t", batch(b"x" * 25_000))
        answer = await wire.ask(request, 9, ProduceResponse)
        throttled = answer.throttle_time_ms
        assert 15_000 < throttled < 15_300
        wire.send(METADATA, 9)
        await wire.writer.drain()
        other.send(METADATA, 9, client_id="somebody else")
        await other.receive()
        clock.advance(throttled - 1)
        assert muted(broker) == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wire.reader.read(1)
        clock.advance(1)
        assert isinstance(await wire.receive(), MetadataResponse)


async def test_without_an_answer_the_connection_waits_all_the_same(
    broker: Broker, clock: VirtualClock
) -> None:
    async with Wire(broker) as wire:
        await allow(wire, "client-id", "test", "producer_byte_rate", 1000)
        wire.send(produce_request("t", batch(b"x" * 25_000), acks=0), 9)
        wire._sent.pop()
        wire.send(METADATA, 9)
        await wire.writer.drain()
        await until(lambda: muted(broker) == 1)
        clock.advance(20_000)
        assert isinstance(await wire.receive(), MetadataResponse)


async def test_a_throttled_peer_that_goes_away_leaves_nothing(
    broker: Broker, clock: VirtualClock
) -> None:
    async with Wire(broker) as wire:
        await allow(wire, "client-id", "test", "controller_mutation_rate", 1)
        await wire.ask(create("a", 20), 7, CreateTopicsResponse)
        answer = await wire.ask(create("b"), 7, CreateTopicsResponse)
        assert answer.topics[0].error_code == 89
        assert answer.throttle_time_ms == 9_000
    await until(lambda: broker.connection_count == 0)
    clock.advance(20_000)


async def test_too_many_connections_of_an_address_are_held_and_closed(
    broker: Broker, clock: VirtualClock
) -> None:
    """KIP-612: closed at once they would come again at once."""
    async with Wire(broker) as first:
        await allow(first, "ip", None, "connection_creation_rate", 1)
        wires = [Wire(broker) for _ in range(10)]
        for wire in wires:
            await wire.__aenter__()
            wire.send(METADATA, 9)
            assert isinstance(await wire.receive(), MetadataResponse)
        async with Wire(broker) as late:
            late.send(METADATA, 9)
            await late.writer.drain()
            await until(lambda: broker.connection_count == 12)
            clock.advance(999)
            assert broker.connection_count == 12
            clock.advance(1)
            assert await late.closed()
        await allow(first, "ip", None, "connection_creation_rate", None)
        async with Wire(broker) as again:
            again.send(METADATA, 9)
            assert isinstance(await again.receive(), MetadataResponse)
        for wire in wires:
            await wire.__aexit__(None, None, None)


async def test_connections_are_limited_by_a_setting_changed_at_run_time(broker: Broker) -> None:
    async with Wire(broker) as first:
        broker.state.dynamic_config.set_broker("1", {"max.connections": "1"})
        async with Wire(broker) as refused:
            assert await refused.closed()
        broker.state.dynamic_config.set_broker("1", {})
        async with Wire(broker) as taken:
            taken.send(METADATA, 9)
            assert isinstance(await taken.receive(), MetadataResponse)
        first.send(METADATA, 9)
        assert isinstance(await first.receive(), MetadataResponse)


@pytest.mark.parametrize("prefix", ["", "listener.name.plaintext."])
async def test_connections_beyond_the_rate_are_answered_later(prefix: str) -> None:
    """Of the broker or of a listener: none is refused, as in Apache Kafka."""
    clock = VirtualClock()
    async with Broker(clock=clock, settings={f"{prefix}max.connection.creation.rate": 1}) as broker:
        wires = [Wire(broker) for _ in range(10)]
        for wire in wires:
            await wire.__aenter__()
            wire.send(METADATA, 9)
            assert isinstance(await wire.receive(), MetadataResponse)
        async with Wire(broker) as late:
            late.send(METADATA, 9)
            await late.writer.drain()
            await until(lambda: broker.connection_count == 11)
            answer = asyncio.ensure_future(late.receive())
            clock.advance(999)
            for wire in wires:
                wire.send(METADATA, 9)
                assert isinstance(await wire.receive(), MetadataResponse)
            assert not answer.done()
            clock.advance(1)
            assert isinstance(await answer, MetadataResponse)
        for wire in wires:
            await wire.__aexit__(None, None, None)
