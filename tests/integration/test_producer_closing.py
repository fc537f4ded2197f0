"""Goal: a producer that was closed does nothing more.

Method: the look for a leader becomes due while it closes, as when a broker dies at that moment.
"""

from __future__ import annotations

import asyncio

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncProducer


async def test_a_producer_that_closes_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would end the look for another leader (found by simulation)."""
    with Broker() as broker:
        producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)
        await producer.start()
        await producer.send_and_wait("t", b"x")
        engine = producer._engine
        close = engine.pool.close

        async def slowly() -> None:
            engine.sender.metadata_stale = True
            engine.poke()
            for _ in range(5):
                await asyncio.sleep(0)
            await close()

        async def without_an_answer(**_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(engine.pool, "close", slowly)
        monkeypatch.setattr(engine.pool, "refresh_metadata", without_an_answer)
        await producer.close()
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert [name for name in names if name.startswith("onceflow-producer")] == []
