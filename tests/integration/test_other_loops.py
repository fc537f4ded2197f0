"""Goal: clients and broker work on any event loop, such as uvloop, which web servers bring along.

Method: uvloop for the asyncio clients; and as the process's policy, in a process of its own, for
the blocking clients and the broker, which make loops of their own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic

uvloop = pytest.importorskip("uvloop", reason="uvloop has no wheel for this platform")

WHOLE_PROGRAM = """
import asyncio, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition
with Broker() as broker:
    servers = broker.bootstrap_servers
    broker.create_topic("t", partitions=1)
    with Producer(bootstrap_servers=servers, transactional_id="x") as producer:
        producer.init_transactions()
        for kept in (True, False, True):
            producer.begin_transaction()
            producer.send("t", b"kept" if kept else b"dropped" * 100_000)
            producer.commit_transaction() if kept else producer.abort_transaction()
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found = []
        while len(found) < 2:
            for records in consumer.poll(1000).values():
                found += [record.value for record in records]
    broker.restart()
print(found)
"""


def test_asyncio_clients_on_uvloop() -> None:
    async def main(servers: str) -> list[bytes | None]:
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            await admin.create_topics([NewTopic("t", partitions=3)])
        async with AsyncProducer(bootstrap_servers=servers, transactional_id="x") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for number in range(100):
                    await producer.send("t", b"%d" % number, key=b"%d" % number)
        values: list[bytes | None] = []
        async with AsyncConsumer(
            "t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            while len(values) < 100:
                for records in (await consumer.poll(1000)).values():
                    values += [record.value for record in records]
            await consumer.commit()
        return values

    with Broker() as broker:
        loop = uvloop.new_event_loop()
        try:
            values = loop.run_until_complete(main(broker.bootstrap_servers))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
    assert sorted(values) == sorted(b"%d" % number for number in range(100))


def test_blocking_clients_and_broker_where_uvloop_is_the_policy() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(WHOLE_PROGRAM)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[b'kept', b'kept']"
    assert done.stderr == ""
