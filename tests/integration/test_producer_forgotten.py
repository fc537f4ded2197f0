"""Goal: a program that ends without closing its producer is told how many records were not sent,
and one that ends without closing its consumer that the group waits for it: one line each, and no
traces; and the blocking producer that is closed for it does not rage.

Method: small programs, whose standard error is read.
"""

from __future__ import annotations

import re
import subprocess
import sys

ASYNC = """
import asyncio
from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncProducer

async def main(servers):
    producer = AsyncProducer(bootstrap_servers=servers)
    await producer.start()
    for _ in range(3):
        await producer.send("t", b"x")

async def closing(servers):
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        await producer.send("t", b"x")

async def cancelling(servers):
    async with AsyncProducer(bootstrap_servers=servers) as producer:
        sent = await producer.send("t", b"x")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    print((await sent).offset)

with Broker() as broker:
    asyncio.run(main(broker.bootstrap_servers))
    asyncio.run(closing(broker.bootstrap_servers))
    asyncio.run(cancelling(broker.bootstrap_servers))
    asyncio.run(main(broker.bootstrap_servers))
"""
FORKING = """
import asyncio, atexit, os
from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncProducer

with Broker() as broker:
    loop = asyncio.new_event_loop()
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)
    loop.run_until_complete(producer.start())
    child = os.fork()
    if child == 0:
        atexit._run_exitfuncs()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    loop.run_until_complete(producer.close())
    loop.close()
"""
CONSUMERS = """
import asyncio
from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncConsumer, Consumer, Producer

async def main(group, close):
    consumer = AsyncConsumer("t", group_id=group, **settings)
    await consumer.start()
    print((await anext(consumer)).value)
    if close:
        await consumer.close()

broker = Broker()
broker.start()
servers = broker.bootstrap_servers
settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest"}
with Producer(bootstrap_servers=servers) as producer:
    producer.send("t", b"x")
asyncio.run(main("asyncio", False))
asyncio.run(main("closed", True))
with Consumer("t", group_id="with", **settings) as consumer:
    print(next(consumer).value)
static = Consumer("t", group_id="static", group_instance_id="a", **settings)
print(next(static).value)
forgotten = Consumer("t", group_id="blocking", **settings)
print(next(forgotten).value)
"""
BLOCKING = """
from onceflow.broker_lite import Broker
from onceflow.sdk import Producer
from onceflow.sdk.sync import producer as module

module.EXIT_TIMEOUT_MS = 400
with Broker() as broker:
    address = broker.bootstrap_servers.replace("127.0.0.1", "localhost")
    producer = Producer(bootstrap_servers=address)
    producer.send("t", b"x").result()
producer.send("t", b"y")
"""


def stderr_of(program: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines(), done.stdout


def test_an_asyncio_producer_that_was_not_closed_says_what_was_not_sent() -> None:
    lines, out = stderr_of(ASYNC)
    assert [re.findall("not closed, and 3 records", line) for line in lines] == [
        ["not closed, and 3 records"]
    ] * 2, lines
    assert out == "1\n"  # whoever cancels all tasks and closes then sends what waits


def test_a_blocking_producer_is_closed_at_the_end_without_brokers_in_few_lines() -> None:
    lines, _ = stderr_of(BLOCKING)
    assert "Traceback" not in "\n".join(lines)
    told = [line for line in lines if not line.startswith("no connection after")]
    assert [line.split(":")[0] for line in told] == [
        "a producer was not closed; closing it at the end of the program",
        "closing with 1 batches unsent",
        "records of a producer that was not closed are lost",
    ]
    # Of the tries the 4th, 8th, 16th and so on are told, however long they go on.
    assert len(lines) < 20, lines


def test_a_consumer_that_was_not_closed_says_that_its_group_waits() -> None:
    lines, out = stderr_of(CONSUMERS)
    assert out == "b'x'\n" * 5
    told = [re.findall("consumer of group (.*) was not closed", line) for line in lines]
    assert sorted(group for found in told for group in found) == ["asyncio", "blocking"], lines
    assert "Traceback" not in "\n".join(lines)


def test_a_forked_child_says_nothing_of_its_parents_producers() -> None:
    lines, _ = stderr_of(FORKING)
    warned = re.compile("DeprecationWarning: .* use of fork|os.fork")  # Since Python 3.12.
    assert [line for line in lines if not warned.search(line)] == []
