"""Goal: a forked child that inherits clients is told so, can close them, and harms its parent not.

Method: a process of its own forks with open clients, outside and inside a running event loop. The
child tries the calls of every client, waits for a record of the parent, and closes what it
inherited; then the parent goes on with them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic, Producer

COMMON = """
import asyncio, os, sys
from onceflow.sdk import *
from onceflow.sdk.errors import IllegalStateError
from onceflow.transactions import *

servers = sys.argv[1]

def is_refused(call):
    try:
        found = call()
    except IllegalStateError as error:
        return "fork" in str(error)
    print(call, "gave", found, file=sys.stderr, flush=True)

def in_child(run):
    # Run in a forked child; True if nothing there was missing.
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException as error:
            import traceback
            traceback.print_exc()
            os._exit(9)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
"""

BLOCKING = (
    COMMON
    + """
config = SessionConfig(topics=["in"], bootstrap_servers=servers, group_id="g")
with (
    Producer(bootstrap_servers=servers, linger_ms=60_000) as producer,
    Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as iterated,
    Admin(bootstrap_servers=servers) as admin,
    TransactionSession(config) as session,
):
    for reader in (consumer, iterated):
        reader.assign([TopicPartition("in", 0)])
    while not consumer.poll(5000, 1):
        pass
    assert next(iterated).value == b"0"  # Others wait in the cursor.
    while not session.poll(1000):
        pass
    session.send("out", b"of the session")
    waiting = producer.send("out", b"of the parent")
    several = producer.send_many("out", [b"of the parent, too"])

    def child():
        assert all(map(is_refused, (
            lambda: producer.send("out", b"child"),
            lambda: producer.send("new", b"child"),
            lambda: producer.send_many("out", [b"child"]),
            producer.flush,
            waiting.result,
            several.result,
            consumer.poll,
            consumer.poll_columns,
            lambda: next(iterated),
            lambda: consumer.position(TopicPartition("in", 0)),
            admin.list_topics,
            session.poll,
            lambda: session.send("out", b"child"),
            session.commit,
            session.abort,
        )))
        for client in (session, admin, iterated, consumer, producer):
            with client:
                pass

    assert in_child(child)
    assert [r.value for records in consumer.poll(5000, 1).values() for r in records] == [b"1"]
    assert next(iterated).value == b"1"
    assert "out" in admin.list_topics()
    assert session.commit()
    producer.flush()
    assert waiting.result().topic == several.result()[0].topic == "out"
"""
)

ASYNCIO = (
    COMMON
    + """
config = SessionConfig(topics=["in"], bootstrap_servers=servers, group_id="g")

async def main():
    async with (
        AsyncProducer(bootstrap_servers=servers, linger_ms=60_000) as producer,
        AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
        AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as iterated,
        AsyncAdmin(bootstrap_servers=servers) as admin,
        AsyncTransactionSession(config) as session,
    ):
        for reader in (consumer, iterated):
            reader.assign([TopicPartition("in", 0)])
        while not await consumer.poll(5000, 1):
            pass
        assert (await anext(iterated)).value == b"0"
        while not await session.poll(1000):
            pass
        await session.send("out", b"of the session")
        waiting = await producer.send("out", b"of the parent")
        several = await producer.send_many("out", [b"of the parent, too"])

        def child():
            # As a worker does: with a loop of its own.
            def awaited(call):
                async def run():
                    return await call()
                return is_refused(lambda: asyncio.run(run()))

            async def wait_for(delivery):
                return await delivery

            assert all(map(awaited, (
                lambda: producer.send("out", b"child"),
                lambda: producer.send("new", b"child"),
                lambda: producer.send_many("out", [b"child"]),
                producer.flush,
                lambda: wait_for(waiting),
                lambda: wait_for(several),
                consumer.poll,
                consumer.poll_columns,
                lambda: anext(iterated),
                lambda: consumer.position(TopicPartition("in", 0)),
                admin.list_topics,
                session.poll,
                lambda: session.send("out", b"child"),
                session.commit,
                session.abort,
            )))
            for client in (session, admin, iterated, consumer, producer):
                asyncio.run(client.close())

        assert in_child(child)
        polled = await consumer.poll(5000, 1)
        assert [r.value for records in polled.values() for r in records] == [b"1"]
        assert (await anext(iterated)).value == b"1"
        assert "out" in await admin.list_topics()
        assert await session.commit()
        await producer.flush()
        assert (await waiting).topic == (await several)[0].topic == "out"

asyncio.run(main())
"""
)

NOT_STARTED = (
    COMMON
    + """
async def use(producer, consumer, admin):
    async with producer, consumer, admin:
        await producer.send_and_wait("out", b"of the child")
        consumer.assign([TopicPartition("in", 0)])
        assert (await anext(consumer)).value == b"0"
        assert "out" in await admin.list_topics()

clients = (
    AsyncProducer(bootstrap_servers=servers),
    AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest"),
    AsyncAdmin(bootstrap_servers=servers),
)
assert in_child(lambda: asyncio.run(use(*clients)))
"""
)


@pytest.fixture
def servers() -> Iterator[str]:
    """Address of a broker with some input."""
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("in", 1), NewTopic("out", 1)])
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(5):
                producer.send("in", b"%d" % number)
        yield broker.bootstrap_servers


def run(script: str, servers: str) -> None:
    """Run a program; its output is the message of a failure."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, servers],
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("script", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_forked_child_is_refused_and_its_parent_goes_on(script: str, servers: str) -> None:
    run(script, servers)


def test_clients_that_were_only_made_before_a_fork_start_in_the_child(servers: str) -> None:
    run(NOT_STARTED, servers)
