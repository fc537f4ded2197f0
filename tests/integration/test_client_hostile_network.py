"""Goal: where names, addresses and certificates are wrong, clients go on if they can, and else say
what is wrong and what to do.

Method: the bundled broker under certificates, names and advertised addresses that do not fit; each
error is compared with what a user has to learn from it.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tls_world import HOUR, TlsWorld

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncAdmin, AsyncConsumer, AsyncProducer, SecurityConfig, TopicPartition
from onceflow.sdk.errors import KafkaError, SslAuthenticationError

QUICK = {
    "request_timeout_ms": 300,
    "default_api_timeout_ms": 2_000,
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 10,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port of this machine on which nobody listens, and that nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


CERTIFICATES: dict[str, dict[str, Any]] = {
    "certificate has expired": {"begins": -2 * HOUR, "ends": -HOUR},
    "certificate is not yet valid": {"begins": HOUR},
    "self-signed certificate": {"self_signed": True},
    "IP address mismatch": {"hosts": ("kafka.example",)},
}


@pytest.mark.parametrize("wrong", CERTIFICATES)
async def test_a_certificate_that_is_wrong_is_told_at_once(world: TlsWorld, wrong: str) -> None:
    identity = world.issue(wrong.replace(" ", "-"), **CERTIFICATES[wrong])
    settings = {"ssl.keystore.location": str(identity.both)}
    security = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
    async with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker:
        producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers, security=security)
        with pytest.raises(SslAuthenticationError, match=wrong):
            await producer.start()
        await producer.close()


async def test_a_certificate_that_ends_while_clients_run_is_told_by_each(
    world: TlsWorld, tmp_path: Path
) -> None:
    good, ended = world.issue("good"), world.issue("ended", begins=-2 * HOUR, ends=-HOUR)
    security = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))

    def broker(port: int, certificate: Path) -> Broker:
        settings = {"ssl.keystore.location": str(certificate)}
        return Broker(data=tmp_path, listeners=f"SSL://127.0.0.1:{port}", settings=settings)

    async with broker(0, good.both) as first:
        servers, port = first.bootstrap_servers, first.port
        common: dict[str, Any] = {"bootstrap_servers": servers, "security": security, **QUICK}
        producer = AsyncProducer(**common, delivery_timeout_ms=500, linger_ms=0)
        consumer = AsyncConsumer(**common, fetch_max_wait_ms=100, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        consumer.assign([TopicPartition("t", 0)])
        await (await producer.send("t", value=b"1"))
        while not await consumer.poll(5_000):
            pass
    async with broker(port, ended.both):
        with pytest.raises(KafkaError, match="certificate has expired"):
            await (await producer.send("t", value=b"2"))
        with pytest.raises(SslAuthenticationError, match="certificate has expired"):
            await anext(consumer)
        await consumer.close(100, commit=False)
        await producer.close(100)


Call = Callable[[dict[str, Any]], Awaitable[object]]


async def produce(common: dict[str, Any]) -> None:
    async with AsyncProducer(**common, delivery_timeout_ms=400, linger_ms=0) as producer:
        await (await producer.send("t", value=b"1"))


async def begin(common: dict[str, Any]) -> None:
    async with AsyncProducer(
        **common, delivery_timeout_ms=400, max_block_ms=2_000, linger_ms=0, transactional_id="x"
    ):
        pass


async def administer(common: dict[str, Any]) -> None:
    async with AsyncAdmin(**common) as admin:
        await admin.list_groups()


async def find_position(common: dict[str, Any]) -> None:
    async with AsyncConsumer(**common, fetch_max_wait_ms=100) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        await consumer.position(TopicPartition("t", 0))


@pytest.mark.parametrize("call", [produce, begin, administer, find_position])
async def test_an_advertised_address_that_leads_nowhere_is_told(dead_port: int, call: Call) -> None:
    """The bootstrap server answers, and names an address that clients cannot reach."""
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{dead_port}"}
    async with Broker(settings=settings) as broker:
        with pytest.raises(KafkaError, match=f"{dead_port}.*advertised.listeners"):
            await call({"bootstrap_servers": broker.bootstrap_servers, **QUICK})


def two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the name kafka.test have two addresses, the first of which nobody listens on."""
    resolve = socket.getaddrinfo

    def two(host: str, port: int, *args: Any, **options: Any) -> Any:
        if host != "kafka.test" or options.get("flags"):
            return resolve(host, port, *args, **options)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two)


async def test_of_several_addresses_of_a_name_a_dead_one_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker() as broker:
        two_addresses(monkeypatch)
        servers = f"kafka.test:{broker.port}"
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            assert await admin.list_topics() == []


async def test_of_several_addresses_that_are_all_dead_each_is_told(
    dead_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_addresses(monkeypatch)
    admin = AsyncAdmin(bootstrap_servers=f"kafka.test:{dead_port}", **QUICK)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.2: connection refused, 127\.0\.0\.1: conn"):
        await admin.start()
    await admin.close()
