"""Goal: an admin client does not ask for topics for ever that were named once.

Method: a client against a broker in process. Topics are made old by hand in its list of what it
asks for; what it asks for is in its view of the cluster.
"""

from __future__ import annotations

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncAdmin, TopicPartition
from onceflow.sdk.aio.admin.base import TOPICS_IDLE_MS


async def test_topics_that_are_named_no_more_are_forgotten() -> None:
    with Broker() as broker:
        for name in ("used", "left"):
            broker.create_topic(name)
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
            pool = admin._pool
            await pool.refresh_metadata(["used", "left", "missing"])
            for name in ("used", "left", "missing"):
                pool._topics[name] -= TOPICS_IDLE_MS + 1_000
            await admin.list_offsets({TopicPartition("used", 0): "latest"})
            pool._leave_idle_topics()
            await pool.refresh_metadata()
            assert set(pool.metadata.topics) == {"used"}


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
