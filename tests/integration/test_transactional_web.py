"""Goal: requests of the web service that share producers commit all of their records or none.

Method: the service in this process over a broker in process, called as a client would. Faults of
the broker are planted under its requests; a second pool of the same slot stands for another
process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from processor_processes import read_all

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import AsyncProducer
from onceflow.sdk.errors import CommitOutcomeUnknownError

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # Last, because folders of the repository have common names.

from examples.transactional_web.app import make_app  # noqa: E402
from examples.transactional_web.pool import (  # noqa: E402
    PoolBusyError,
    PoolLostError,
    ProducerPool,
)

ORDER = {"customer": "ann", "article": "cup", "pieces": 1}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        for topic in ("orders", "stock"):
            running.create_topic(topic)
        yield running


def pool_of(broker: Broker, size: int = 2, **settings: int) -> ProducerPool:
    def make(transactional_id: str) -> AsyncProducer:
        return AsyncProducer(
            bootstrap_servers=broker.bootstrap_servers,
            transactional_id=transactional_id,
            linger_ms=0,
            **settings,
        )

    return ProducerPool(make, "shop", "0", size, wait_s=0.2)


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx2.AsyncClient]:
    app = make_app(pool_of(broker, 4))
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://shop") as made,
    ):
        yield made


def keys(broker: Broker, topic: str) -> Counter[str]:
    found = read_all(broker.bootstrap_servers, topic)
    return Counter(dict(record.headers)["idempotency-key"].decode() for record in found)


async def test_concurrent_requests_commit_both_records_each(
    broker: Broker, client: httpx2.AsyncClient
) -> None:
    done: list[str] = []

    async def order(number: int) -> None:
        name = str(number)
        while True:  # As a client does that is told to come again.
            answer = await client.post("/orders", json=ORDER, headers={"Idempotency-Key": name})
            if answer.status_code == 201:
                done.append(name)
                return
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")

    await asyncio.gather(*map(order, range(40)))
    wanted = Counter(done)
    assert len(wanted) == 40
    assert await asyncio.to_thread(keys, broker, "orders") == wanted
    assert await asyncio.to_thread(keys, broker, "stock") == wanted
    ready = await client.get("/ready")
    assert (ready.status_code, ready.json()) == (200, {"size": 4, "free": 4, "lost": False})


async def test_bad_requests_open_no_transaction(client: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "1"}
    assert (await client.post("/orders", json=ORDER)).status_code == 422
    wrong = {**ORDER, "pieces": 0}
    assert (await client.post("/orders", json=wrong, headers=headers)).status_code == 422


async def test_an_exception_aborts_and_gives_the_producer_back(broker: Broker) -> None:
    pool = pool_of(broker, 1)
    await pool.start()
    try:

        async def fail() -> None:
            async with pool.transaction() as producer:
                await producer.send("orders", b"never seen")
                raise LookupError

        with pytest.raises(LookupError):
            await fail()
        async with pool.transaction() as producer:
            await producer.send("orders", b"seen")
        assert pool.health.free == 1
    finally:
        await pool.close()
    found = await asyncio.to_thread(read_all, broker.bootstrap_servers, "orders")
    assert [record.value for record in found] == [b"seen"]


async def test_who_finds_no_free_producer_is_told(broker: Broker) -> None:
    pool = pool_of(broker, 1)
    await pool.start()
    try:
        async with pool.transaction():
            with pytest.raises(PoolBusyError, match="all 1 producers"):
                async with pool.transaction():
                    pytest.fail("two transactions of one producer")
    finally:
        await pool.close()


async def test_a_fenced_pool_says_so_and_does_not_fence_back(broker: Broker) -> None:
    first, second = pool_of(broker, 1), pool_of(broker, 1)
    app = make_app(first)
    transport = httpx2.ASGITransport(app)
    async with app.router.lifespan_context(app):
        await second.start()
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
                headers = {"Idempotency-Key": "1"}
                answer = await client.post("/orders", json=ORDER, headers=headers)
                assert answer.status_code == 503
                assert (await client.get("/live")).status_code == 503
                assert (await client.get("/ready")).json()["lost"]
            with pytest.raises(PoolLostError):
                async with first.transaction():
                    pytest.fail("it has lost its slot")
            async with second.transaction() as producer:
                await producer.send("orders", json.dumps(ORDER).encode())
            assert second.health.is_ready
        finally:
            await second.close()


async def test_a_commit_without_an_answer_replaces_the_producer(broker: Broker) -> None:
    pool = pool_of(broker, 1, max_block_ms=1_000, request_timeout_ms=500)
    await pool.start()
    try:
        rule = broker.faults.add("EndTxn", Fault.DROP_ANSWER, times=None)

        async def send() -> None:
            async with pool.transaction() as producer:
                await producer.send("orders", b"perhaps")

        with pytest.raises(CommitOutcomeUnknownError):
            await send()
        broker.faults.remove(rule)
        async with asyncio.timeout(30):
            while True:
                try:
                    async with pool.transaction() as producer:
                        await producer.send("orders", b"after it")
                    break
                except PoolBusyError:
                    continue
        assert pool.health.is_ready
    finally:
        await pool.close()
    found = await asyncio.to_thread(read_all, broker.bootstrap_servers, "orders")
    assert [record.value for record in found] in ([b"perhaps", b"after it"], [b"after it"])
