"""Goal: the relay between clients and brokers does exactly what its rules say.

Method: a raw client on the relay, the in-process broker behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from broker_requests import fetch, produce, topic_metadata
from broker_wire import Wire, batch, until, values_of
from case_proxy import Action, Proxy

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Response


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker.bootstrap_servers) as relay:
        yield relay


def wire(proxy: Proxy) -> Wire:
    return Wire(("127.0.0.1", proxy.port))


async def end_offset(broker: Broker) -> int:
    async with Wire(broker) as direct:
        return (await fetch(direct, "t", 0)).high_watermark


async def test_it_relays_and_tells_its_own_address(proxy: Proxy) -> None:
    async with wire(proxy) as client:
        metadata = await client.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
        assert [(node.host, node.port) for node in metadata.brokers] == [("127.0.0.1", proxy.port)]
        for version in (3, 4):
            request = (
                FindCoordinatorRequest(key="g")
                if version < 4
                else FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            )
            found = await client.ask(request, version, FindCoordinatorResponse)
            assert (found.coordinators[0].port if version > 3 else found.port) == proxy.port
    assert proxy.count(MetadataRequest) == 1


async def test_dropped_reply_was_carried_out(broker: Broker, proxy: Proxy) -> None:
    before = await end_offset(broker)
    rule = proxy.add(ProduceRequest, Action.DROP_REPLY, every=2, delay_ms=50)
    async with wire(proxy) as client:
        assert (await produce(client, "t", batch(b"a"))).base_offset == before
        started = time.monotonic()
        with pytest.raises(ConnectionError):
            await produce(client, "t", batch(b"b"))
        assert time.monotonic() - started >= 0.045
    assert rule.hits == 1
    assert await end_offset(broker) == before + 2


async def test_cut_request_was_not_carried_out(broker: Broker, proxy: Proxy) -> None:
    before = await end_offset(broker)
    proxy.add(ProduceRequest, Action.CUT, times=1)
    async with wire(proxy) as client:
        with pytest.raises(ConnectionError):
            await produce(client, "t", batch(b"a"))
    assert await end_offset(broker) == before
    async with wire(proxy) as client:
        assert (await produce(client, "t", batch(b"a"))).error_code == 0


async def test_swallowed_request_leaves_its_connection_mute(broker: Broker, proxy: Proxy) -> None:
    before = await end_offset(broker)
    proxy.add(ProduceRequest, Action.SWALLOW, times=1)
    async with wire(proxy) as client, wire(proxy) as other:
        client.send(MetadataRequest(topics=[]), 12)
        await client.receive()
        await topic_metadata(other, "t")
        client.send(ProduceRequest(acks=-1, timeout_ms=1, topic_data=[]), 9)
        await until(lambda: proxy.count(ProduceRequest) == 1)
        assert (await produce(other, "t", batch(b"a"))).base_offset == before
        proxy.swallow_all()
        other.send(MetadataRequest(topics=[]), 12)
        client.send(MetadataRequest(topics=[]), 12)
        async with wire(proxy) as third:
            await topic_metadata(third, "t")
        assert client.reader._buffer == other.reader._buffer == b""


async def test_forged_error_keeps_the_order_of_answers(broker: Broker, proxy: Proxy) -> None:
    before = await end_offset(broker)
    proxy.add(FetchRequest, Action.DELAY, delay_ms=100)
    proxy.add(ProduceRequest, Action.ANSWER, times=1, error=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    async with wire(proxy) as client:
        started = time.monotonic()
        fetched = await fetch(client, "t")
        assert time.monotonic() - started >= 0.095
        assert values_of(fetched.records) is not None
        answer = await produce(client, "t", batch(b"a"))
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await produce(client, "t", batch(b"a"))).base_offset == before


async def test_edited_answer_and_new_target(broker: Broker, proxy: Proxy) -> None:
    def without_topics(response: Response) -> Response:
        assert isinstance(response, MetadataResponse)
        response.topics = []
        return response

    proxy.add(MetadataRequest, Action.EDIT, times=1, edit=without_topics)
    async with wire(proxy) as client:
        assert (await client.ask(MetadataRequest(topics=None), 12, MetadataResponse)).topics == []
        assert (await client.ask(MetadataRequest(topics=None), 12, MetadataResponse)).topics != []
        proxy.cut_all()
        assert await client.closed()
    with Broker() as second:
        proxy.target = second.bootstrap_servers
        async with wire(proxy) as client:
            assert (
                await client.ask(MetadataRequest(topics=None), 12, MetadataResponse)
            ).topics == []
