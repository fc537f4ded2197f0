"""Goal: an admin client does not ask for topics for ever that were named once.

Method: a pool with a short limit against a broker in process; what it asks for at each refresh is
in its view of the cluster. A topic that is named again and again stays.
"""

from __future__ import annotations

import asyncio

from onceflow.broker_lite import Broker
from onceflow.sdk import AdminConfig, AsyncAdmin, TopicPartition
from onceflow.sdk.aio.admin.base import TOPICS_IDLE_MS
from onceflow.sdk.aio.connection.pool import ConnectionPool

DEADLINE_S = 30


async def test_topics_that_are_named_no_more_are_forgotten() -> None:
    with Broker() as broker:
        broker.create_topic("used")
        broker.create_topic("left")
        config = AdminConfig(bootstrap_servers=broker.bootstrap_servers, metadata_max_age_ms=100)
        pool = ConnectionPool(config, topics_idle_ms=1_000)
        await pool.start()
        try:
            await pool.refresh_metadata(["used", "left", "missing"])
            assert set(pool.metadata.topics) == {"used", "left", "missing"}
            async with asyncio.timeout(DEADLINE_S):
                while set(pool.metadata.topics) != {"used"}:
                    pool.remember_topics(["used"])
                    await asyncio.sleep(0.05)
        finally:
            await pool.close()


async def test_an_admin_client_has_the_limit_of_producers() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            await admin.list_offsets({TopicPartition("t", 0): "latest"})
            pool = admin._pool
            assert pool._topics_idle_ms == TOPICS_IDLE_MS == 300_000
            assert "t" in pool.metadata.topics
            pool._topics["t"] -= TOPICS_IDLE_MS + 1_000
            pool._leave_idle_topics()
            assert "t" not in pool.metadata.topics
            # It is found again when a call names it.
            found = await admin.list_offsets({TopicPartition("t", 0): "latest"})
            assert found[TopicPartition("t", 0)].offset == 0
