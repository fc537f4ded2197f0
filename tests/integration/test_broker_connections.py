"""Goal: one peer's input, however bad, costs that peer its connection and nobody else anything.

Method: a broker on a real socket, raw bytes and raw frames, and a second client that keeps working.
"""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import struct
import warnings
from collections.abc import AsyncIterator

import pytest
from broker_requests import (
    FETCH_BY_NAME,
    create_topic,
    fetch_request,
    fetched,
    produce,
    produce_request,
    topic_metadata,
)
from broker_wire import Wire, batch, until, values_of

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.broker import BrokerState
from onceflow.broker_lite.registry import Registration
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.frame import encode_request
from onceflow.sdk.protocol.schema import Request

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(settings={"socket.request.max.bytes": 100_000}) as running:
        yield running


async def works(wire: Wire) -> bool:
    response = await wire.ask(HELLO, 4, ApiVersionsResponse)
    return response.error_code == 0


def reading_paused(broker: Broker) -> bool:
    server = broker._running().server
    return any(connection._paused_reading for connection in server._connections)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(api_key: int, api_version: int, rest: bytes = b"") -> bytes:
    return framed(struct.pack(">hhih", api_key, api_version, 7, -1) + rest)


async def test_too_new_api_versions_is_answered_in_form_0_and_the_connection_goes_on(
    broker: Broker,
) -> None:
    """Trap 61, FC-45: error 35 with the range of key 18, whatever the body is."""
    async with Wire(broker) as wire:
        wire.send_bytes(header(18, 99, b"\x00" + b"\xfe garbage"))
        frame = await wire.receive_frame()
        assert struct.unpack(">i", frame[:4]) == (7,)
        response, end = ApiVersionsResponse.decode(frame, 0, 4)
        assert end == len(frame)
        assert response.error_code == 35
        assert [(e.api_key, e.min_version, e.max_version) for e in response.api_keys] == [
            (18, 0, 4)
        ]
        assert (await wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code == 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(header(0, 99), id="produce version 99"),
        pytest.param(header(999, 0), id="unknown key"),
        pytest.param(header(7, 0), id="key that Kafka 4 dropped"),
        pytest.param(framed(b""), id="length 0"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", 2**31 - 1), id="huge length"),
        pytest.param(struct.pack(">i", 100_001), id="a byte too long"),
        pytest.param(framed(b"\x00"), id="no header"),
        pytest.param(header(3, 1, b"\x7f\xff\xff\xff"), id="array beyond the frame"),
        pytest.param(header(3, 9, b"\x00\xff\xff\xff\xff\x0f"), id="compact array beyond it"),
        pytest.param(header(3, 9, b"\x00" + b"\xff" * 11), id="endless varint"),
        pytest.param(header(10, 0, b"\x7f\xff"), id="string beyond the frame"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="another protocol"),
    ],
)
async def test_malformed_input_closes_that_connection_only(broker: Broker, data: bytes) -> None:
    """Traps 62 and 69."""
    async with Wire(broker) as other, Wire(broker) as wire:
        assert await works(other)
        wire.send_bytes(data)
        assert await wire.closed()
        assert await works(other)


async def test_random_bytes_never_hurt_another_connection(broker: Broker) -> None:
    """Trap 69: whatever comes, the broker goes on."""
    rng = random.Random(4)
    async with Wire(broker) as other:
        for _ in range(60):
            async with Wire(broker) as wire:
                keys = rng.choice([0, 1, 2, 3, 8, 9, 10, 11, 14, 18, 19, 22, 24, 26, 28, 32])
                wire.send_bytes(header(keys, rng.randrange(8), rng.randbytes(rng.randrange(200))))
                wire.writer.write_eof()
                await wire.reader.read()
        assert await works(other)
    assert broker.connection_count <= 1


async def test_answers_before_a_malformed_request_are_sent(broker: Broker) -> None:
    async with Wire(broker) as wire:
        wire.send(HELLO, 4)
        wire.send_bytes(header(999, 0))
        response = await wire.receive()
        assert isinstance(response, ApiVersionsResponse)
        assert await wire.closed()


async def test_pipelined_requests_are_answered_in_order(broker: Broker) -> None:
    """Trap 64."""
    async with Wire(broker) as wire:
        for number in range(300):
            if number % 2:
                wire.send(HELLO, number % 5)
            else:
                wire.send(MetadataRequest(topics=[]), number % 13 or 1)
        for number in range(300):
            response = await wire.receive()
            assert isinstance(response, ApiVersionsResponse if number % 2 else MetadataResponse)


async def test_request_in_single_bytes_is_understood(broker: Broker) -> None:
    async with Wire(broker) as wire:
        data = b"".join(encode_request(HELLO, api_version=3, correlation_id=1, client_id="slow"))
        for position in range(len(data)):
            wire.send_bytes(data[position : position + 1])
            await wire.writer.drain()
            await asyncio.sleep(0)
        assert struct.unpack(">i", (await wire.receive_frame())[:4]) == (1,)


async def test_parked_fetch_holds_back_what_follows_on_its_connection_only(
    broker: Broker,
) -> None:
    """Trap 64: the produce behind a parked fetch waits; one on another connection does not."""
    broker.create_topic("t")
    async with Wire(broker) as wire, Wire(broker) as other:
        wire.send(fetch_request("t", 0, max_wait_ms=30_000), FETCH_BY_NAME)
        wire.send(produce_request("t", batch(b"behind")), 9)
        await wire.writer.drain()
        await produce(other, "t", batch(b"other"))
        first = fetched(await wire.receive())
        assert values_of(first[0].records) == [b"other"]
        await wire.receive()
        assert broker.state.topics.get("t").partitions[0].log_end_offset == 2  # type: ignore[union-attr]


async def test_flood_behind_a_parked_fetch_is_not_read_without_bound(broker: Broker) -> None:
    """Trap 69: reading pauses, and every request is answered in the end."""
    broker.create_topic("t")
    count = 3_000
    async with Wire(broker) as wire, Wire(broker) as other:
        wire.send(fetch_request("t", 0, max_wait_ms=30_000), FETCH_BY_NAME)
        for _ in range(count):
            wire.send(produce_request("t", batch(b"x" * 1000), acks=1), 9)
        await until(lambda: reading_paused(broker))
        await produce(other, "t", batch(b"wake"))
        for _ in range(count + 1):
            await wire.receive()


async def test_peer_that_goes_away_while_parked_is_forgotten(broker: Broker) -> None:
    """Trap 71."""
    broker.create_topic("t")
    async with Wire(broker) as wire:
        wire.send(fetch_request("t", 0, max_wait_ms=600_000), FETCH_BY_NAME)
        await wire.writer.drain()
        await until(lambda: len(broker.state.purgatory) > 0)
    await until(lambda: broker.connection_count == 0)
    assert len(broker.state.purgatory) == 0


async def test_large_answer_reaches_a_slow_reader_whole(broker: Broker) -> None:
    """An answer beyond the socket's buffer is sent in pieces, in order, before the next one."""
    broker.create_topic("t")
    async with Wire(broker) as wire:
        value = bytes(range(256)) * 300
        for _ in range(200):
            await produce(wire, "t", batch(value))
        wire.send(fetch_request("t", 0, partition_max_bytes=50_000_000), FETCH_BY_NAME)
        wire.send(HELLO, 4)
        await wire.writer.drain()
        for _ in range(50):
            await asyncio.sleep(0)
        records = fetched(await wire.receive())[0].records
        assert values_of(records) == [value] * 200
        assert isinstance(await wire.receive(), ApiVersionsResponse)


async def test_connections_over_the_limit_are_closed() -> None:
    async with Broker(settings={"max.connections": 2}) as broker:
        async with Wire(broker) as first, Wire(broker) as second:
            assert await works(first)
            assert await works(second)
            async with Wire(broker) as third:
                assert await third.closed()
            assert await works(first)
        await until(lambda: broker.connection_count == 0)
        async with Wire(broker) as again:
            assert await works(again)


async def test_idle_connection_is_closed_and_a_parked_one_is_not() -> None:
    """Trap 71: connections.max.idle.ms."""
    clock = VirtualClock()
    async with Broker(clock=clock, settings={"connections.max.idle.ms": 1000}) as broker:
        broker.create_topic("t")
        async with Wire(broker) as idle, Wire(broker) as parked:
            assert await works(idle)
            parked.send(fetch_request("t", 0, max_wait_ms=60_000), FETCH_BY_NAME)
            await parked.writer.drain()
            await until(lambda: len(broker.state.purgatory) > 0)
            clock.advance(999)
            assert await works(idle)
            clock.advance(1000)
            clock.advance(1000)
            assert await idle.closed()
            assert broker.connection_count == 1


async def test_a_peer_that_takes_nothing_is_idle_and_gone_for_good() -> None:
    """Its unread answer and what waits behind it are no life; there is nothing to wait for."""
    clock = VirtualClock()
    async with Broker(clock=clock, settings={"connections.max.idle.ms": 1000}) as broker:
        broker.create_topic("t")
        topic = broker.state.topics.get("t")
        assert topic is not None
        for _ in range(20):
            topic.partitions[0].append(batch(bytes(1_000_000)), now_ms=clock())
        async with Wire(broker) as deaf, Wire(broker) as deaf_and_talking:
            for peer, requests in ((deaf, 1), (deaf_and_talking, 3)):
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
                for _ in range(requests):
                    peer.send(fetch_request("t", 0, partition_max_bytes=2**30), FETCH_BY_NAME)
            await until(lambda: broker.state.unsent_bytes > 20_000_000)
            clock.advance(999)
            assert broker.connection_count == 2
            clock.advance(1000)
            await until(lambda: broker.connection_count == 0)
            assert broker.state.unsent_bytes == 0


async def test_stopping_closes_every_connection() -> None:
    broker = Broker()
    await broker.start_async()
    broker.create_topic("t")
    async with Wire(broker) as wire:
        wire.send(fetch_request("t", 0, max_wait_ms=600_000), FETCH_BY_NAME)
        await wire.writer.drain()
        await until(lambda: len(broker.state.purgatory) > 0)
        await broker.stop_async()
        assert await wire.closed()


async def test_advertised_address_is_the_one_that_listens(broker: Broker) -> None:
    """FC-44, trap 67."""
    async with Wire(broker) as wire:
        response = await wire.ask(DescribeClusterRequest(), 2, DescribeClusterResponse)
        assert [(node.broker_id, node.host, node.port) for node in response.brokers] == [
            (1, "127.0.0.1", broker.port)
        ]


async def test_wildcard_listener_advertises_the_address_that_was_reached() -> None:
    """FC-44: never 0.0.0.0."""
    trusted = {"onceflow.allow.insecure.network": True}
    async with (
        Broker(host="0.0.0.0", settings=trusted) as broker,
        Wire(("127.0.0.1", broker.port)) as wire,
    ):
        response = await wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
        assert (response.brokers[0].host, response.brokers[0].port) == ("127.0.0.1", broker.port)


async def test_configured_advertised_address_is_told() -> None:
    """FC-44, 3: behind a proxy."""
    settings = {"advertised.listeners": "PLAINTEXT://proxy.example:19092"}
    async with Broker(settings=settings) as broker, Wire(broker) as wire:
        response = await wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
        assert (response.brokers[0].host, response.brokers[0].port) == ("proxy.example", 19092)


SASL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "onceflow.sasl.plain.credentials": "alice:secret,bob:hidden",
}


async def sasl(wire: Wire, token: bytes) -> SaslAuthenticateResponse:
    handshake = await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    assert handshake.error_code == 0
    return await wire.ask(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)


async def test_sasl_plain_lets_the_right_password_in() -> None:
    """Trap 70: ApiVersions may come first, everything else after the token."""
    async with Broker(settings=SASL) as broker, Wire(broker) as wire:
        assert await works(wire)
        assert (await sasl(wire, b"\0alice\0secret")).error_code == 0
        assert (await topic_metadata(wire, "t")).error_code == 3


async def test_sasl_refuses_a_wrong_password_and_keeps_asking_for_one() -> None:
    async with Broker(settings=SASL) as broker, Wire(broker) as wire:
        assert (await sasl(wire, b"\0alice\0guess")).error_code == 58
        wire.send(MetadataRequest(topics=[]), 12)
        with pytest.raises(ConnectionError):
            await wire.receive()


async def test_request_before_authentication_closes_the_connection() -> None:
    """Trap 70."""
    async with Broker(settings=SASL) as broker, Wire(broker) as wire:
        wire.send(MetadataRequest(topics=[]), 12)
        with pytest.raises(ConnectionError):
            await wire.receive()


async def test_sasl_without_an_enabled_mechanism_is_refused(broker: Broker) -> None:
    async with Wire(broker) as wire:
        handshake = await wire.ask(
            SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse
        )
        assert handshake.error_code == 34


async def test_splitter_of_the_test_client_finds_hostile_lengths() -> None:
    with pytest.raises(RemoteProtocolError):
        Wire(("127.0.0.1", 1))._splitter.feed(struct.pack(">i", -5))


async def test_topics_are_made_over_the_wire(broker: Broker) -> None:
    async with Wire(broker) as wire:
        assert (await create_topic(wire, "made", partitions=2)).error_code == 0
        assert len((await topic_metadata(wire, "made")).partitions) == 2


class FaultyInterceptor:
    """Makes each request but ApiVersions fail as a bug in a handler would."""

    def handle(
        self,
        registration: Registration,
        state: BrokerState,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        if isinstance(request, ApiVersionsRequest):
            return registration.handler(state, context, request, now_ms)
        raise ZeroDivisionError("a bug")


async def test_fault_of_a_handler_costs_that_connection_only(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    async with Wire(broker) as other, Wire(broker) as wire:
        broker.state.interceptor = FaultyInterceptor()
        wire.send(MetadataRequest(topics=[]), 12)
        assert await wire.closed()
        assert await works(other)
    assert "request failed" in caplog.text


async def test_answer_that_cannot_be_encoded_costs_that_connection_only(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    class Unencodable(FaultyInterceptor):
        def handle(self, *arguments: object) -> object:
            return MetadataResponse(brokers=[], topics=None)  # type: ignore[arg-type]

    async with Wire(broker) as wire:
        broker.state.interceptor = Unencodable()
        wire.send(MetadataRequest(topics=[]), 12)
        assert await wire.closed()
        broker.state.interceptor = None
        async with Wire(broker) as other:
            assert await works(other)
    assert "cannot be encoded" in caplog.text


async def test_fault_of_a_timer_or_a_parked_request_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    ran: list[str] = []

    def fail(now_ms: int) -> bool:
        raise ZeroDivisionError("a bug")

    async with Broker(clock=clock) as broker:
        state = broker.state
        state.timers.schedule(clock() + 10, fail)
        state.timers.schedule(clock() + 10, lambda now_ms: ran.append("timer"))
        clock.advance(10)
        clock.advance(0)
        for key, look in (("a", fail), ("a", lambda now_ms: bool(ran.append("parked") or True))):
            state.purgatory.park([key], clock() + 1000, look, lambda now_ms: None)
        state.purgatory.wake("a")
        await until(lambda: "parked" in ran)
        async with Wire(broker) as wire:
            assert await works(wire)
    assert ran == ["timer", "parked"]
    assert "a timer failed" in caplog.text
    assert "a parked request failed" in caplog.text


async def test_name_with_several_addresses_listens_on_one_port() -> None:
    """FC-44, 2: localhost may be an IPv4 and an IPv6 address."""
    async with Broker(host="localhost") as broker, Wire(("localhost", broker.port)) as wire:
        response = await wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
        assert (response.brokers[0].host, response.brokers[0].port) == ("localhost", broker.port)


async def test_each_listener_tells_its_own_address_and_asks_its_own_questions() -> None:
    """KIP-103: Metadata, FindCoordinator and DescribeCluster answer for the listener in use."""
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    async with Broker(listeners=listeners, settings=SASL) as broker:
        for name in ("PLAINTEXT", "SASL_PLAINTEXT"):
            host, _, port = broker.bootstrap_servers_of(name).rpartition(":")
            async with Wire((host, int(port))) as wire:
                if name == "SASL_PLAINTEXT":
                    assert (await sasl(wire, b"\0alice\0secret")).error_code == 0
                metadata = await wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
                assert [node.port for node in metadata.brokers] == [int(port)]
                described = await wire.ask(DescribeClusterRequest(), 2, DescribeClusterResponse)
                assert [node.port for node in described.brokers] == [int(port)]
                found = await wire.ask(
                    FindCoordinatorRequest(coordinator_keys=["g"]), 4, FindCoordinatorResponse
                )
                assert [each.port for each in found.coordinators] == [int(port)]


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_was_just_accepted_is_closed_by_a_stop(turns: int) -> None:
    running = Broker()
    await running.start_async()
    host, port = running.bootstrap_servers.rsplit(":", 1)
    with warnings.catch_warnings(record=True) as told, socket.socket() as client:
        warnings.simplefilter("always", ResourceWarning)
        client.setblocking(False)
        client.connect_ex((host, int(port)))  # The system answers; the broker need not.
        for _ in range(turns):
            await asyncio.sleep(0)
        await running.stop_async()
        gc.collect()
    assert [str(each.message) for each in told] == []
