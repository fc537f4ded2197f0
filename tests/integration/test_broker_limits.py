"""Goal: what one peer asks for is bounded, so that the others are not held up.

Method: requests as large as the limits allow and one step larger, on a real socket, beside a second
connection; answers to requests that name one thing very often.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from broker_requests import FETCH_BY_NAME, fetch_request, fetched
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker
from onceflow.broker_lite.dispatch import MAX_REQUEST_VALUES
from onceflow.broker_lite.handlers.fetch import COUNTED_AT_ONCE_BYTES
from onceflow.broker_lite.registry import Registration, load_handlers
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.services import Services
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.groups import DescribeGroupsRequest, DescribeGroupsResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request

POLICY_VIOLATION = ErrorCode.POLICY_VIOLATION
NAMES_MAX = MAX_REQUEST_VALUES // 4


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


def of_names(count: int) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[f"g{number}" for number in range(count)])


async def test_request_with_too_many_values_costs_its_connection_only(
    broker: Broker, wire: Wire
) -> None:
    response = await wire.ask(of_names(NAMES_MAX), 5, DescribeGroupsResponse)
    assert len(response.groups) == NAMES_MAX
    async with Wire(broker) as greedy:
        greedy.send(of_names(NAMES_MAX + 1), 5)
        assert await greedy.closed()
    assert (await wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)).error_code == 0


async def test_every_partition_of_the_largest_topic_fits_into_one_request(
    broker: Broker, wire: Wire
) -> None:
    broker.create_topic("t", partitions=2)
    asked = fetch_request("t", partitions=dict.fromkeys(range(10_000), 0))
    assert len(fetched(await wire.ask(asked, FETCH_BY_NAME, FetchResponse))) == 10_000


def test_no_struct_of_a_request_is_too_wide_for_that() -> None:
    """10,000 of any one kind of element fit, so partitions of the largest topic always do."""
    served = {entry.request_type for entry in load_handlers().registrations()}
    for message_type in served:
        for field in message_type.fields().values():
            if field.element is not None and field.element.struct_type is not None:
                assert len(field.element.struct_type.fields()) * 10_000 <= MAX_REQUEST_VALUES


async def test_what_is_named_often_is_described_once(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t", partitions=2)
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    metadata = await wire.ask(MetadataRequest(topics=[topic] * 1_000), 12, MetadataResponse)
    assert [described.name for described in metadata.topics] == ["t"]
    groups = await wire.ask(DescribeGroupsRequest(groups=["g"] * 1_000), 5, DescribeGroupsResponse)
    assert len(groups.groups) == 1
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=None
    )
    configs = await wire.ask(
        DescribeConfigsRequest(resources=[resource] * 1_000), 4, DescribeConfigsResponse
    )
    assert len(configs.results) == 1


async def test_partition_fetched_often_is_sent_once(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    request = fetch_request("t", 0)
    partition = request.topics[0].partitions[0]
    request.topics[0].partitions = [partition] * 1_000
    response = await wire.ask(request, FETCH_BY_NAME, FetchResponse)
    assert [len(topic.partitions) for topic in response.responses] == [1]


async def test_one_request_makes_10000_partitions_at_most(broker: Broker, wire: Wire) -> None:
    """As Kafka's controller, over all topics of the request."""
    wishes = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
        )
        for name, count in (("a", 6_000), ("b", 4_001), ("c", 4_000))
    ]
    created = await wire.ask(
        CreateTopicsRequest(topics=wishes, validate_only=True), 7, CreateTopicsResponse
    )
    assert [topic.error_code for topic in created.topics] == [0, POLICY_VIOLATION, 0]
    for name in ("a", "b"):
        broker.create_topic(name)
    grown = await wire.ask(
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=name, count=6_000, assignments=None
                )
                for name in ("a", "b")
            ],
            timeout_ms=1,
            validate_only=True,
        ),
        3,
        CreatePartitionsResponse,
    )
    assert [topic.error_code for topic in grown.results] == [0, POLICY_VIOLATION]


async def test_waiting_for_many_bytes_reads_no_more_than_can_matter(
    broker: Broker, wire: Wire
) -> None:
    """A Fetch that waits for 2 GB looks at what is there in small pieces, and each piece once."""
    broker.create_topic("t")
    sizes: list[int] = []
    topic = broker.state.topics.get("t")
    assert topic is not None
    log = topic.partitions[0]
    for _ in range(3):
        log.append(batch(bytes(900_000)), now_ms=1_700_000_000_000)
    read = log.read

    def watched(offset: int, max_bytes: int, **options: object) -> object:
        sizes.append(max_bytes)
        return read(offset, max_bytes, **options)  # type: ignore[arg-type]

    log.read = watched  # type: ignore[method-assign,assignment]
    request = fetch_request(
        "t", 0, min_bytes=2**31 - 1, max_wait_ms=50, partition_max_bytes=2**31 - 1
    )
    response = await wire.ask(request, FETCH_BY_NAME, FetchResponse)
    assert len(fetched(response)[0].records or b"") > 2_700_000
    assert all(size <= COUNTED_AT_ONCE_BYTES for size in sizes[:-1])


async def test_unauthenticated_peers_may_send_little() -> None:
    """As Kafka's sasl.server.max.receive.size; trap 70."""
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "onceflow.sasl.plain.credentials": "alice:secret",
    }
    async with Broker(settings=settings) as broker:
        async with Wire(broker) as stranger:
            stranger.send_bytes((524_289).to_bytes(4, "big"))
            assert await stranger.closed()
        async with Wire(broker) as wire:
            await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
            await wire.ask(
                SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2, SaslAuthenticateResponse
            )
            large = ProduceRequest(
                acks=1,
                timeout_ms=1,
                topic_data=[
                    ProduceRequest.TopicProduceData(
                        name="t",
                        partition_data=[
                            ProduceRequest.PartitionProduceData(index=0, records=bytes(600_000))
                        ],
                    )
                ],
            )
            assert len((await wire.ask(large, 9, ProduceResponse)).responses) == 1


async def test_strangers_get_one_request_a_turn() -> None:
    """Many of them, each with many requests at hand, do not hold up who was let in."""
    turn = 0
    turns: list[int] = []

    def tick() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(tick)

    class Noting:
        """Stands before the handlers, and notes the turn in which each request is handled."""

        def handle(
            self,
            registration: Registration,
            state: Services,
            context: RequestContext,
            request: Request,
            now_ms: int,
        ) -> object:
            turns.append(turn)
            return registration.handler(state, context, request, now_ms)

    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "onceflow.sasl.plain.credentials": "alice:secret",
    }
    async with Broker(settings=settings) as broker, Wire(broker) as stranger:
        broker.state.interceptor = Noting()
        loop = asyncio.get_running_loop()
        loop.call_soon(tick)
        for _ in range(20):
            stranger.send(ApiVersionsRequest(), 0)
        for _ in range(20):
            await stranger.receive()
    assert len(turns) == 20
    assert len(set(turns)) == 20


async def test_peers_that_do_not_read_cannot_fill_the_memory(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.broker_lite.handlers.fetch.UNSENT_BYTES_MAX", 30_000_000)
    broker.create_topic("t")
    topic = broker.state.topics.get("t")
    assert topic is not None
    for _ in range(25):
        topic.partitions[0].append(batch(bytes(1_000_000)), now_ms=1_700_000_000_000)
    request = fetch_request("t", 0, partition_max_bytes=2**31 - 1)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            peer = await stack.enter_async_context(Wire(broker))
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            before = broker.state.unsent_bytes
            peer.send(request, FETCH_BY_NAME)
            await wire.ask(ApiVersionsRequest(), 0, ApiVersionsResponse)
            assert broker.state.unsent_bytes - before <= max(30_000_000 - before, 0) + 1_100_000
        assert 20_000_000 < broker.state.unsent_bytes < 60_000_000
        some = await wire.ask(request, FETCH_BY_NAME, FetchResponse)
        assert len(fetched(some)[0].records or b"") >= 1_000_000, "nobody is starved"
    await until(lambda: broker.state.unsent_bytes == 0)
