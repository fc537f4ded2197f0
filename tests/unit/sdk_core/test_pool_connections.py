"""Goal: whatever the bootstrap list and the network look like, the pool finds a broker or says why.

Method: the pool over real sockets against scripted brokers, and against ports where nobody listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from producer_peer import Fate, ScriptedBroker, scripted_broker

from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.flow import Coordinator, Flow, Forget, Sleep, ask
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ClientClosedError,
    CoordinatorNotAvailableError,
    IllegalStateError,
    KafkaError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.groups import HeartbeatRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.settings.config import ClientConfig


def config_for(*servers: str, **settings: int) -> ClientConfig:
    """A configuration with short waits."""
    quick = {
        "request_timeout_ms": 1_000,
        "default_api_timeout_ms": 20_000,
        "retry_backoff_ms": 5,
        "retry_backoff_max_ms": 20,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 20,
        "socket_connection_setup_timeout_ms": 5_000,
    }
    return ClientConfig(bootstrap_servers=list(servers), **{**quick, **settings})  # type: ignore[arg-type]


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A scripted broker."""
    async with scripted_broker() as found:
        yield found


@pytest.fixture
async def pool(broker: ScriptedBroker) -> AsyncIterator[ConnectionPool]:
    """A started pool."""
    found = ConnectionPool(config_for(broker.address))
    await found.start()
    yield found
    await found.close()


async def test_the_cluster_is_learned_and_the_advertised_address_used(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    assert set(pool.metadata.nodes) == {1}
    view = await pool.refresh_metadata(["t"])
    assert view.partition_count("t") == 1
    assert pool.api_version(1, MetadataRequest) == MetadataRequest.versions[1]
    assert pool.api_version(9, MetadataRequest) is None


@pytest.mark.parametrize(
    ("listens", "form"),
    [
        ("127.0.0.1", "localhost:{port}"),
        ("127.0.0.1", "127.0.0.1:{port}"),
        ("::1", "localhost:{port}"),
        ("::1", "[::1]:{port}"),
    ],
)
async def test_the_family_that_listens_is_found(listens: str, form: str) -> None:
    async with scripted_broker(host=listens) as broker:
        pool = ConnectionPool(config_for(form.format(port=broker.port)))
        try:
            await pool.start()
            assert (await pool.refresh_metadata(["t"])).partition_count("t") == 1
        finally:
            await pool.close()


async def test_all_dead_entries_are_listed() -> None:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1], two.getsockname()[1]]
        pool = ConnectionPool(config_for(*[f"127.0.0.1:{port}" for port in ports]))
        with pytest.raises(NoBrokersAvailableError) as caught:
            await pool.start(timeout_ms=200)
    for port in ports:
        assert f"127.0.0.1:{port} (connection refused)" in str(caught.value)


async def test_a_broker_that_stays_away_is_told_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    pool = ConnectionPool(config_for(f"127.0.0.1:{port}", default_api_timeout_ms=1_000))
    with caplog.at_level("DEBUG", "onceflow.pool"), pytest.raises(NoBrokersAvailableError):
        await pool.start()
    # A client of another test may still be looking for its own broker in a thread.
    own = [r for r in caplog.records if f"127.0.0.1:{port}" in r.getMessage() and r.args]
    tries = [r.args[0] for r in own if r.msg.startswith("no connection")]
    told = [r.args[0] for r in own if r.levelname == "WARNING"]
    assert tries == list(range(1, len(tries) + 1))
    assert told == [count for count in (4, 8, 16, 32, 64, 128) if count <= len(tries)]
    assert told
    assert f"127.0.0.1:{port}" in caplog.text


async def test_a_name_that_does_not_resolve_says_so() -> None:
    pool = ConnectionPool(config_for("no-such-host.invalid:9092"))
    with pytest.raises(NoBrokersAvailableError, match="does not resolve"):
        await pool.start(timeout_ms=500)


async def test_a_peer_that_says_nothing_is_given_up(broker: ScriptedBroker) -> None:
    broker.next(ApiVersionsRequest, *[Fate.SWALLOW] * 50)
    pool = ConnectionPool(config_for(broker.address, socket_connection_setup_timeout_ms=50))
    with pytest.raises(NoBrokersAvailableError):
        await pool.start(timeout_ms=300)


async def test_an_old_broker_is_asked_again_in_its_own_version(broker: ScriptedBroker) -> None:
    broker.next(
        ApiVersionsRequest,
        lambda _: ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[]),
    )
    pool = ConnectionPool(config_for(broker.address))
    await pool.start()
    await pool.close()
    assert broker.requests(ApiVersionsRequest)


async def test_requests_of_a_purpose_have_a_socket_of_their_own(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    broker.next(FindCoordinatorRequest, Fate.SWALLOW)
    slow = asyncio.ensure_future(
        pool.request(
            1,
            FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]),
            connection="group",
            timeout_ms=5_000,
        )
    )
    reply = await pool.request(1, MetadataRequest(topics=[]))
    assert isinstance(reply, MetadataResponse)
    assert not slow.done()
    slow.cancel()


async def test_a_request_without_an_answer_closes_its_connection(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    broker.next(MetadataRequest, Fate.SWALLOW)
    before = await pool.connect(1)
    with pytest.raises(RequestTimedOutError, match="not answered in time"):
        await pool.request(1, MetadataRequest(topics=[]), timeout_ms=50)
    assert not before.is_open
    await pool.request(1, MetadataRequest(topics=[]))


async def test_a_request_that_the_broker_does_not_know_is_refused_here(
    pool: ConnectionPool,
) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    with pytest.raises(UnsupportedVersionError, match="Heartbeat"):
        await pool.request(1, request)


async def test_an_unknown_node_is_named(pool: ConnectionPool) -> None:
    with pytest.raises(BrokerConnectionError, match="node 9"):
        await pool.request(9, MetadataRequest(topics=[]))


async def test_a_throttled_connection_waits(broker: ScriptedBroker, pool: ConnectionPool) -> None:
    broker.next(MetadataRequest, MetadataResponse(brokers=[], topics=[], throttle_time_ms=120))
    await pool.request(1, MetadataRequest(topics=[]))
    assert pool.open_connection(1, "default") is None
    began = pool.now_ms()
    await pool.request(1, MetadataRequest(topics=[]))
    assert pool.now_ms() - began >= 100


async def test_those_who_want_the_same_metadata_share_one_request(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    before = len(broker.requests(MetadataRequest))
    await asyncio.gather(*(pool.refresh_metadata(["t"]) for _ in range(5)))
    assert len(broker.requests(MetadataRequest)) == before + 1


async def test_a_caller_that_is_cancelled_leaves_the_request_to_the_others(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    first = asyncio.ensure_future(pool.refresh_metadata(["t"]))
    second = asyncio.ensure_future(pool.refresh_metadata(["t"]))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).partition_count("t") == 1


async def test_listeners_hear_of_each_new_view(pool: ConnectionPool) -> None:
    seen: list[ClusterMetadata] = []
    pool.metadata_listeners.append(seen.append)
    await pool.refresh_metadata(["t"])
    pool.apply_metadata(pool.metadata)
    assert len(seen) == 1


async def test_metadata_is_refreshed_when_it_is_old(broker: ScriptedBroker) -> None:
    pool = ConnectionPool(config_for(broker.address, metadata_max_age_ms=30))
    await pool.start()
    before = len(broker.requests(MetadataRequest))
    deadline = pool.now_ms() + 5_000
    while len(broker.requests(MetadataRequest)) < before + 2:
        assert pool.now_ms() < deadline
        await asyncio.sleep(0)
    await pool.close()


async def test_a_broker_may_send_us_back_to_the_bootstrap_servers(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    broker.next(
        MetadataRequest,
        MetadataResponse(brokers=[], topics=[], error_code=ErrorCode.REBOOTSTRAP_REQUIRED),
    )
    await pool.refresh_metadata(["t"])
    assert set(pool.metadata.nodes) == {1}


async def test_an_idle_connection_is_not_used_again(broker: ScriptedBroker) -> None:
    pool = ConnectionPool(config_for(broker.address, connections_max_idle_ms=30))
    await pool.start()
    first = await pool.connect(1)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)
    second = await pool.connect(1)
    assert second is not first
    assert not first.is_open
    await pool.close()


# coordinators


async def test_a_coordinator_is_remembered_until_it_is_forgotten(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    for _ in range(3):
        assert await pool.find_coordinator("g", 0) == 1
    assert len(broker.requests(FindCoordinatorRequest)) == 1
    pool.forget_coordinator("g", 0)
    assert await pool.find_coordinator("g", CoordinatorType.GROUP) == 1
    assert len(broker.requests(FindCoordinatorRequest)) == 2


def _coordinator_answer(code: int) -> FindCoordinatorResponse:
    found = FindCoordinatorResponse.Coordinator(
        key="g", node_id=-1, host="", port=-1, error_code=code, error_message="not yet"
    )
    return FindCoordinatorResponse(coordinators=[found])


async def test_a_coordinator_that_is_being_made_is_waited_for(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    busy = _coordinator_answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    broker.next(FindCoordinatorRequest, busy, busy)
    assert await pool.find_coordinator("g", 0) == 1


async def test_a_coordinator_that_never_comes_is_an_error_in_time(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    busy = _coordinator_answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    broker.next(FindCoordinatorRequest, *[busy] * 1_000)
    with pytest.raises((CoordinatorNotAvailableError, RequestTimedOutError)):
        await pool.find_coordinator("g", 0, timeout_ms=100)


async def test_a_group_that_may_not_be_used_is_refused_at_once(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    broker.next(FindCoordinatorRequest, _coordinator_answer(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaError) as caught:
        await pool.find_coordinator("g", 0)
    assert getattr(caught.value, "code", 0) == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_an_old_broker_is_asked_for_one_coordinator(broker: ScriptedBroker) -> None:
    broker.max_versions[FindCoordinatorRequest] = 3
    pool = ConnectionPool(config_for(broker.address))
    await pool.start()
    broker.next(
        FindCoordinatorRequest,
        FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=broker.port),
    )
    assert await pool.find_coordinator("g", 0) == 1
    assert broker.requests(FindCoordinatorRequest)[0].key == "g"
    await pool.close()


# flows


async def test_a_flow_talks_to_the_coordinator_and_may_forget_it(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    target = Coordinator("g", CoordinatorType.GROUP)

    def flow() -> Flow[int]:
        yield from ask(MetadataRequest(topics=[]), MetadataResponse, target)
        yield Forget(target)
        yield Sleep(1)
        reply = yield from ask(MetadataRequest(topics=[]), MetadataResponse, target)
        return len(reply.brokers)

    assert await pool.run(flow()) == 1
    assert len(broker.requests(FindCoordinatorRequest)) == 2


async def test_a_flow_out_of_time_is_told_inside(pool: ConnectionPool) -> None:
    def flow() -> Flow[str]:
        try:
            yield Sleep(10_000)
        except RequestTimedOutError as error:
            return error.message
        return "slept"

    assert "gave up after 50 ms" in await pool.run(flow(), timeout_ms=50)


async def test_a_caller_out_of_time_does_not_cost_the_others_their_connection(
    broker: ScriptedBroker, pool: ConnectionPool
) -> None:
    def flow() -> Flow[MetadataResponse]:
        return (yield from ask(MetadataRequest(topics=[]), MetadataResponse, 1))

    channel = await pool.connect(1)
    broker.next(MetadataRequest, Fate.SWALLOW)
    with pytest.raises(RequestTimedOutError, match="no answer"):
        await pool.run(flow(), timeout_ms=20)
    assert channel.is_open


# life


async def test_a_pool_that_is_not_started_or_closed_says_so(broker: ScriptedBroker) -> None:
    pool = ConnectionPool(config_for(broker.address))
    with pytest.raises(IllegalStateError, match="not started"):
        await pool.request(1, MetadataRequest(topics=[]))
    await pool.start()
    await pool.start()
    assert pool.is_started
    await pool.close()
    await pool.close()
    for call in (pool.start, lambda: pool.connect(1)):
        with pytest.raises(ClientClosedError):
            await call()


async def test_closing_ends_what_waits(broker: ScriptedBroker) -> None:
    pool = ConnectionPool(config_for(broker.address))
    await pool.start()
    broker.next(ProduceRequest, Fate.SWALLOW)
    request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[])
    waiting = asyncio.ensure_future(pool.request(1, request, timeout_ms=60_000))
    async with asyncio.timeout(30):
        await broker.wait_for(ProduceRequest)
    await pool.close()
    with pytest.raises(BrokerConnectionError):
        await waiting


async def test_a_coordinator_that_was_forgotten_at_once_is_looked_for_again(
    pool: ConnectionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by twenty kills under load: the task of a group ended with a KeyError."""
    search = pool._find_coordinator
    searches: list[str] = []

    async def forgotten(key: str, kind: CoordinatorType, limit_ms: int) -> None:
        await search(key, kind, limit_ms)
        searches.append(key)
        if len(searches) == 1:
            pool.forget_coordinator(key, kind)

    monkeypatch.setattr(pool, "_find_coordinator", forgotten)
    assert await pool.find_coordinator("x", CoordinatorType.TRANSACTION) == 1
    assert len(searches) == 2
