"""Goal: an unexpected error in a client's background work is logged and made up for, never silent.

Method: a fault of the library itself is planted once in each of the tasks that no caller awaits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from broker_wire import until

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncConsumer, AsyncProducer, SecurityConfig
from onceflow.sdk.aio.connection import authentication
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.settings.config import ClientConfig


class Planted(Exception):
    """No error that a client knows."""


def fails_once(work: Callable[..., Any], at_call: int = 1) -> Callable[..., Any]:
    """`work`, but one of its calls raises."""
    calls = 0

    def instead(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at_call:
            raise Planted
        return work(*args, **options)

    return instead


def planted_errors(caplog: pytest.LogCaptureFixture) -> int:
    """How many log lines carry the planted error's traceback."""
    return sum(line.exc_info is not None and line.exc_info[0] is Planted for line in caplog.records)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "onceflow.sasl.scram.credentials": "ann:secret",
        "connections.max.reauth.ms": 1_200,
    }
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    async with Broker(listeners=listeners, settings=settings) as running:
        yield running


async def test_the_pool_goes_on_to_refresh_its_metadata(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "onceflow")
    servers = broker.bootstrap_servers_of("PLAINTEXT")
    pool = ConnectionPool(ClientConfig(bootstrap_servers=servers, metadata_max_age_ms=10))
    await pool.start()
    try:
        monkeypatch.setattr(pool, "refresh_metadata", fails_once(pool.refresh_metadata))
        async with asyncio.timeout(30):
            await until(lambda: planted_errors(caplog) > 0)
            seen_ms = pool.metadata.updated_at_ms
            await until(lambda: pool.metadata.updated_at_ms > seen_ms)
    finally:
        await pool.close()


async def test_a_consumer_goes_on_to_look_for_topics(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "onceflow")
    servers = broker.bootstrap_servers_of("PLAINTEXT")
    async with AsyncConsumer(
        bootstrap_servers=servers,
        group_id="readers",
        auto_offset_reset="earliest",
        metadata_max_age_ms=50,
        retry_backoff_ms=5,
    ) as consumer:
        pool = consumer._engine.pool
        monkeypatch.setattr(pool, "refresh_metadata", fails_once(pool.refresh_metadata))
        consumer.subscribe(pattern="order.*")
        async with asyncio.timeout(60):
            while not planted_errors(caplog):
                await consumer.poll(timeout_ms=10)
            async with AsyncProducer(bootstrap_servers=servers) as producer:
                await (await producer.send("orders", b"1"))
            while not (polled := await consumer.poll(timeout_ms=50)):
                pass
        assert [record.value for batch in polled.values() for record in batch] == [b"1"]


async def test_what_waits_for_a_renewed_session_is_sent_again(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR, "onceflow")
    how = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="ann",
        sasl_password="secret",
    )
    servers = broker.bootstrap_servers_of("SASL_PLAINTEXT")
    async with AsyncProducer(bootstrap_servers=servers, security=how) as producer:
        await (await producer.send("orders", b"first"))
        flow = authentication.authenticate_scram
        monkeypatch.setattr(authentication, "authenticate_scram", breaks_off_once(flow))
        sent = 1
        async with asyncio.timeout(20):  # Less than request_timeout_ms: nothing waits for that.
            while not planted_errors(caplog):
                await (await producer.send("orders", b"next"))
                sent += 1
            last = await (await producer.send("orders", b"last"))
    assert last.offset == sent, "nothing is lost, and nothing is written twice"


def breaks_off_once(flow: Callable[..., Any]) -> Callable[..., Any]:
    """A flow of requests that breaks off after its first answer, once."""
    begun = 0

    def instead(*args: Any) -> Any:
        nonlocal begun
        begun += 1
        steps = flow(*args)
        if begun == 1:
            yield next(steps)
            raise Planted
        return (yield from steps)

    return instead
