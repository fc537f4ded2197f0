"""Goal: field cases of connections (T7): addresses, versions, long polls and peers that go silent.

Method: brokers on several addresses, raw frames in every advertised version, and a relay that goes
mute or changes its target while clients work.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from broker_requests import fetch_request, fetched, produce, topic_metadata
from broker_wire import Wire, batch, values_of
from case_clients import OURS, SkippableClock, read, values
from case_proxy import Proxy
from coordinator_client import CoordinatorClient
from processor_processes import wait_for

from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition
from onceflow.sdk.errors import NoBrokersAvailableError
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.groups import JoinGroupRequest, OffsetFetchRequest
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Request

OPEN = {"onceflow.allow.insecure.network": True}
"""For listeners on every address; tests only connect from this machine."""


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def has_ipv6() -> bool:
    """Whether ::1 can be listened on here."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- FC-44


def test_fc44_dead_bootstrap_entries(cluster: str, topic: str) -> None:
    dead = "127.0.0.1:1"
    for servers in (
        f"{dead}, {cluster}",
        f"{cluster}, {dead}",
        [dead, cluster],
        [cluster, dead],
    ):
        started = time.monotonic()
        with Producer(bootstrap_servers=servers) as producer:
            producer.send(topic, b"x").result(20)
        with Consumer(bootstrap_servers=servers) as consumer:
            assert consumer.end_offsets([TopicPartition(topic, 0)])
        assert time.monotonic() - started < 20


@pytest.mark.parametrize("first", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_fc44_name_with_two_addresses(
    host: str, first: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 on this machine")
    resolve = socket.getaddrinfo

    def both(asked: object, *args: object, **options: object) -> list[object]:
        if asked != "localhost":
            return resolve(asked, *args, **options)  # type: ignore[arg-type,return-value]
        second = "::1" if first == "127.0.0.1" else "127.0.0.1"
        return [
            found
            for each in (first, second)
            for found in resolve(each, *args, **options)  # type: ignore[arg-type]
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    with Broker(host=host) as broker:
        literal = "[::1]" if host == "::1" else host
        assert broker.bootstrap_servers == f"{literal}:{broker.port}"
        for bootstrap in (f"localhost:{broker.port}", broker.bootstrap_servers):
            started = time.monotonic()
            with Producer(bootstrap_servers=bootstrap) as producer:
                producer.send(name, b"x").result(20)
            assert time.monotonic() - started < 20


async def test_fc44_advertised_address_is_the_one_in_use(name: str) -> None:
    with Proxy("127.0.0.1:1", rewrites=False) as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap_servers}", **OPEN}
        async with Broker(host="0.0.0.0", settings=settings) as broker:
            proxy.target = f"127.0.0.1:{broker.port}"
            async with Wire(("127.0.0.1", proxy.port)) as wire:
                assert await told_addresses(wire) == {("127.0.0.1", proxy.port)}

            def use() -> int:
                with Producer(bootstrap_servers=proxy.bootstrap_servers) as producer:
                    producer.send(name, b"x").result(20)
                    # The client's connections, nothing that went past the relay.
                    return broker.connection_count - proxy.connection_count

            assert await asyncio.to_thread(use) == 0
    for host in ("0.0.0.0", "::"):
        if host == "::" and not has_ipv6():
            continue
        async with Broker(host=host, settings=OPEN) as broker:
            target = "::1" if host == "::" else "127.0.0.1"
            async with Wire((target, broker.port)) as wire:
                told = await told_addresses(wire)
        assert not {each for each, _ in told} & {"0.0.0.0", "::", ""}


async def test_a_port_that_another_program_has_on_one_address_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 on this machine: its names have one address")
    loop = asyncio.get_running_loop()
    create_server = loop.create_server
    taken: list[socket.socket] = []

    async def taken_once(factory: object, host: object, port: int, **options: object) -> object:
        if port and not taken:
            taken.append(socket.create_server(("127.0.0.1", port)))
        return await create_server(factory, host, port, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(loop, "create_server", taken_once)
    async with Broker(host="::", settings=OPEN) as broker:
        with taken[0]:
            assert broker.port != taken[0].getsockname()[1]
    with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", 0)) as other:
        async with Broker(host="::", port=other.getsockname()[1], settings=OPEN):
            pass


async def told_addresses(wire: Wire) -> set[tuple[str, int]]:
    """What Metadata and FindCoordinator tell."""
    metadata = await wire.ask(MetadataRequest(topics=[]), 12, MetadataResponse)
    found = await wire.ask(
        FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, FindCoordinatorResponse
    )
    return {(node.host, node.port) for node in metadata.brokers} | {
        (node.host, node.port) for node in found.coordinators
    }


def test_fc44_all_entries_dead() -> None:
    for make in (
        lambda servers: Producer(bootstrap_servers=servers, max_block_ms=500),
        lambda servers: Consumer(bootstrap_servers=servers, default_api_timeout_ms=500),
    ):
        started = time.monotonic()
        with pytest.raises(NoBrokersAvailableError) as caught:
            make(["127.0.0.1:1", "127.0.0.1:2"])
        assert time.monotonic() - started < 20
        for tried in ("127.0.0.1:1", "127.0.0.1:2"):
            assert tried in str(caught.value)


# --- FC-45

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
API_VERSIONS = 18


def frame(api_key: int, api_version: int, body: bytes) -> bytes:
    """A request with a flexible header and any body."""
    header = (
        api_key.to_bytes(2, "big")
        + api_version.to_bytes(2, "big")
        + (77).to_bytes(4, "big")
        + b"\x00\x04test\x00"
    )
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


async def test_fc45_unknown_api_versions_version_is_stepped_down_from(cluster: str) -> None:
    async with Wire(address(cluster)) as wire:
        wire.send_bytes(frame(API_VERSIONS, 99, b"\x05abcd\x07whatever"))
        answer = await wire.receive_frame()
        assert int.from_bytes(answer[:4], "big") == 77
        response, end = ApiVersionsResponse.decode(answer, 0, 4)
        assert end == len(answer)
        assert response.error_code == 35
        ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        assert ranges[API_VERSIONS][0] == 0
        assert ranges[API_VERSIONS][1] >= 3
        response = await wire.ask(HELLO, 0, ApiVersionsResponse)
        assert response.error_code == 0


async def test_fc45_unknown_versions_and_keys_cost_only_their_connection(cluster: str) -> None:
    async with Wire(address(cluster)) as other:
        for api_key, api_version in ((0, 99), (999, 0)):
            async with Wire(address(cluster)) as wire:
                wire.send_bytes(frame(api_key, api_version, b"whatever"))
                assert await wire.closed()
            assert (await other.ask(HELLO, 3, ApiVersionsResponse)).error_code == 0


async def test_fc45_everything_advertised_works(cluster: str, topic: str) -> None:
    async with Wire(address(cluster)) as wire:
        hello = await wire.ask(HELLO, 3, ApiVersionsResponse)
        advertised = {each.api_key: (each.min_version, each.max_version) for each in hello.api_keys}
        topic_id = (await topic_metadata(wire, topic)).topic_id
        asked = 0
        for kind, make in minimal_requests(topic, topic_id):
            low, high = advertised[kind.api_key]
            # Versions 0-2 of Produce are advertised and refused, as by Apache Kafka (KIP-896).
            low = max(low, 3) if kind is ProduceRequest else low
            for version in range(low, high + 1):
                wire.send(make(version), version)
                response = await wire.receive()
                assert type(response) is kind.response_type
                asked += 1
    assert asked > 60


Maker = Callable[[int], Request]


def minimal_requests(topic: str, topic_id: object) -> list[tuple[type[Request], Maker]]:
    """The smallest valid request of each kind, by version."""
    from broker_requests import fetch_request, produce_request

    def by_version(first: int, version: int) -> object:
        return topic_id if version >= first else topic

    def metadata(version: int) -> Request:
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        return MetadataRequest(topics=[wanted])

    def list_offsets(version: int) -> Request:
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        wanted = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])
        return ListOffsetsRequest(topics=[wanted])

    def offset_fetch(version: int) -> Request:
        if version < 8:
            old = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
            return OffsetFetchRequest(group_id="g", topics=[old])
        wanted = OffsetFetchRequest.OffsetFetchRequestTopics(
            name=topic if version < 10 else "",
            topic_id=topic_id if version >= 10 else ZERO_UUID,  # type: ignore[arg-type]
            partition_indexes=[0],
        )
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted])
        return OffsetFetchRequest(groups=[group])

    def join(version: int) -> Request:
        return CoordinatorClient.join_request(f"{topic}-{version}")

    return [
        (MetadataRequest, metadata),
        (ListOffsetsRequest, list_offsets),
        (FetchRequest, lambda version: fetch_request(by_version(13, version), 0)),  # type: ignore[arg-type]
        (
            ProduceRequest,
            lambda version: produce_request(by_version(13, version), batch(b"x")),  # type: ignore[arg-type]
        ),
        (OffsetFetchRequest, offset_fetch),
        (JoinGroupRequest, join),
    ]


# --- FC-48


@pytest.fixture
async def here() -> AsyncIterator[Broker]:
    """A broker on the test's own loop."""
    async with Broker() as running:
        running.create_topic("t")
        yield running


async def test_fc48_waiting_fetch_is_answered_by_the_data(here: Broker) -> None:
    async with Wire(here) as reader, Wire(here) as writer:
        reader.send(fetch_request("t", 0, max_wait_ms=60_000, min_bytes=1), 12)
        await topic_metadata(writer, "t")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.reader.read(1), 0.2)
        produced = time.monotonic()
        await produce(writer, "t", batch(b"x"))
        data = fetched(await reader.receive())[0]
        assert time.monotonic() - produced < 20
        assert values_of(data.records) == [b"x"]


async def test_fc48_too_little_data_is_given_when_time_is_up(here: Broker) -> None:
    async with Wire(here) as wire:
        await produce(wire, "t", batch(b"0123456789"))
        started = time.monotonic()
        request = fetch_request("t", 0, max_wait_ms=500, min_bytes=100_000)
        data = fetched(await wire.ask(request, 12, FetchResponse))[0]
        assert 0.45 < time.monotonic() - started < 20
        assert values_of(data.records) == [b"0123456789"]


async def test_fc48_marker_wakes_a_committed_reader(here: Broker) -> None:
    async with Wire(here) as reader, Wire(here) as writer:
        client = CoordinatorClient(writer)
        identity = await client.identity("tx")
        await client.add("tx", identity, ("t", [0]))
        records = batch(
            b"x", producer_id=identity[0], producer_epoch=identity[1], base_sequence=0,
            transactional=True,
        )  # fmt: skip
        assert (await produce(writer, "t", records, transactional_id="tx")).error_code == 0
        waiting = fetch_request("t", 0, max_wait_ms=500, min_bytes=1, isolation_level=1)
        started = time.monotonic()
        data = fetched(await reader.ask(waiting, 12, FetchResponse))[0]
        assert time.monotonic() - started > 0.45
        assert values_of(data.records) == []
        waiting.max_wait_ms = 60_000
        reader.send(waiting, 12)
        await topic_metadata(writer, "t")
        committed = time.monotonic()
        assert (await client.end("tx", identity, True, 4))[0] == "NONE"
        data = fetched(await reader.receive())[0]
        assert time.monotonic() - committed < 20
        assert values_of(data.records) == [b"x"]


@pytest.mark.foreign
def test_fc48_idle_stock_consumer_does_not_spin(broker: Broker, name: str) -> None:
    import confluent_kafka

    broker.create_topic(name)
    with Proxy(broker.bootstrap_servers) as proxy:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "group.id": "unused",
                "fetch.wait.max.ms": 1_000,
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
            wait_for(lambda: proxy.count(FetchRequest) > 0, "the first fetch")
            before = broker.call(lambda state, now_ms: time.thread_time())
            began = time.monotonic()
            assert consumer.poll(2) is None
            spent = broker.call(lambda state, now_ms: time.thread_time()) - before
            assert proxy.count(FetchRequest) <= 3 + time.monotonic() - began
            assert spent < 0.3
        finally:
            consumer.close()


# --- FC-49


def test_fc49_mute_connections_are_replaced(cluster: str, topic: str) -> None:
    quick = {"request_timeout_ms": 500}
    with (
        Proxy(cluster) as proxy,
        Producer(
            bootstrap_servers=proxy.bootstrap_servers, delivery_timeout_ms=20_000, **quick
        ) as producer,
        Producer(bootstrap_servers=cluster) as other,
        Consumer(
            bootstrap_servers=proxy.bootstrap_servers, fetch_max_wait_ms=300, **quick
        ) as consumer,
    ):
        producer.send(topic, b"first").result(20)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        found: list[object] = []
        reading = threading.Thread(
            target=lambda: [found.append(next(consumer).value) for _ in range(3)], daemon=True
        )
        reading.start()
        wait_for(lambda: found == [b"first"], "the first record")
        proxy.swallow_all()
        started = time.monotonic()
        producer.send(topic, b"second").result(20)
        assert time.monotonic() - started < 20
        other.send(topic, b"third").result(20)
        wait_for(lambda: len(found) == 3, "the consumer")
        reading.join(30)
    assert found == [b"first", b"second", b"third"]
    assert values(read(OURS, cluster, topic)) == [b"first", b"second", b"third"]


def test_fc49_idle_connections_closed_by_the_broker(name: str) -> None:
    clock = SkippableClock()
    with Broker(settings={"connections.max.idle.ms": 60_000}, clock=clock) as broker:
        broker.create_topic(name)
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(20):
                assert producer.send(name, b"%d" % number).result(20).offset == number
                clock.skip(broker, 120_000)
                wait_for(lambda: broker.connection_count == 0, "closing what is idle")
    assert number == 19


def test_fc49_broker_that_moved_to_another_port(name: str, tmp_path: Path) -> None:
    with Proxy("127.0.0.1:1", rewrites=False) as proxy:
        broker = Broker(data=tmp_path).start()
        try:
            broker.create_topic(name)
            proxy.target = broker.bootstrap_servers
            settings = {"bootstrap_servers": proxy.bootstrap_servers}
            with Producer(**settings) as producer, Consumer(**settings) as consumer:  # type: ignore[arg-type]
                producer.send(name, b"before").result(20)
                consumer.assign([TopicPartition(name, 0)])
                consumer.seek(TopicPartition(name, 0), 0)
                assert next(consumer).value == b"before"
                broker.stop()
                broker = Broker(data=tmp_path).start()
                proxy.target = broker.bootstrap_servers
                started = time.monotonic()
                producer.send(name, b"after").result(30)
                assert next(consumer).value == b"after"
                assert time.monotonic() - started < 30
        finally:
            broker.stop()
