"""Goal: every call of a client that is closed, not started, or used in another loop or thread says
so, changes nothing, and leaves the client fit for use where it belongs.

Method: the calls of each asyncio client in a table, made in each of these ways.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import (
    ClientClosedError,
    ConfigError,
    IllegalStateError,
    InvalidTopicError,
)

PART = TopicPartition("t", 0)
CALLS: dict[type, dict[str, Callable[[Any], Any]]] = {
    AsyncProducer: {
        "send": lambda p: p.send("t", b"x"),
        "send_many": lambda p: p.send_many("t", [b"x"]),
        "flush": lambda p: p.flush(),
        "partitions_for": lambda p: p.partitions_for("t"),
    },
    AsyncConsumer: {
        "poll": lambda c: c.poll(),
        "poll_columns": lambda c: c.poll_columns(),
        "iteration": lambda c: anext(c),
        "commit": lambda c: c.commit({PART: 0}),
        "committed": lambda c: c.committed([PART]),
        "end_offsets": lambda c: c.end_offsets([PART]),
        "topics": lambda c: c.topics(),
        "ensure_membership": lambda c: c.ensure_membership(),
    },
    AsyncAdmin: {
        "list_topics": lambda a: a.list_topics(),
        "list_groups": lambda a: a.list_groups(),
        "create_topics": lambda a: a.create_topics(["t"]),
    },
}
BEFORE_THE_START: dict[str, Callable[[Any], Any]] = {
    "subscribe": lambda c: c.subscribe(["t"]),
    "assign": lambda c: c.assign([PART]),
    "seek": lambda c: c.seek(PART, 0),
    "seek_to_beginning": lambda c: c.seek_to_beginning([PART]),
    "pause": lambda c: c.pause([PART]),
}
"""Calls of a consumer that a client that is not started takes."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def make(kind: type, broker: Broker) -> Any:
    group = {"group_id": "g"} if kind is AsyncConsumer else {}
    return kind(bootstrap_servers=broker.bootstrap_servers, **group)


def calls(kind: type) -> dict[str, Callable[[Any], Any]]:
    return CALLS[kind] | (BEFORE_THE_START if kind is AsyncConsumer else {})


async def warm_up(client: Any) -> None:
    """Bring a client to where its calls take their shortest ways: topics known, batches open."""
    if isinstance(client, AsyncProducer):
        await client.send_and_wait("t", b"x")


async def outcome(call: Callable[[Any], Any], client: Any) -> object:
    """What a call raises, or the text "nothing"."""
    try:
        async with asyncio.timeout(10):
            result = call(client)
            if inspect.isawaitable(result):
                await result
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        return type(error)
    return "nothing"


@pytest.mark.parametrize("kind", CALLS)
async def test_a_closed_client_says_so(broker: Broker, kind: type) -> None:
    client = make(kind, broker)
    await client.start()
    await client.close()
    await client.close()
    found = {name: await outcome(call, client) for name, call in calls(kind).items()}
    assert found == dict.fromkeys(calls(kind), ClientClosedError)


@pytest.mark.parametrize("kind", CALLS)
async def test_a_client_that_is_not_started_says_so(broker: Broker, kind: type) -> None:
    client = make(kind, broker)
    found = {name: await outcome(call, client) for name, call in CALLS[kind].items()}
    assert found == dict.fromkeys(CALLS[kind], IllegalStateError)
    await client.close()


@pytest.mark.parametrize("kind", CALLS)
async def test_another_loop_or_thread_is_refused_and_hurts_nothing(
    broker: Broker, kind: type
) -> None:
    client = make(kind, broker)
    await client.start()
    await warm_up(client)
    tried = calls(kind) | {"start": lambda c: c.start(), "close": lambda c: c.close()}
    found: dict[str, object] = {}

    def elsewhere() -> None:
        for name, call in tried.items():
            found[name] = asyncio.run(outcome(call, client))
        if kind is AsyncConsumer:  # and without any loop
            with pytest.raises(IllegalStateError, match="event loop or thread"):
                client.subscribe(["t"])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == dict.fromkeys(tried, IllegalStateError)
    await client.start()  # it is open, and goes on here
    if kind is AsyncConsumer:
        client.assign([PART])
    else:
        assert await outcome(next(iter(CALLS[kind].values())), client) == "nothing"
    await client.close()


def test_what_may_be_used_elsewhere_works_there_at_once(broker: Broker) -> None:
    """A consumer's wake-up in another thread, a delivery awaited in another loop; debug mode."""
    servers = broker.bootstrap_servers

    async def main() -> int:
        async with AsyncConsumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TopicPartition("empty", 0)])
            poll = asyncio.create_task(consumer.poll(600_000))
            await asyncio.sleep(0)
            await asyncio.to_thread(consumer.wakeup)
            assert await poll == {}
        async with AsyncProducer(bootstrap_servers=servers, linger_ms=200) as producer:
            delivery = await producer.send("t", b"x")

            async def elsewhere() -> int:
                return (await delivery).offset

            return await asyncio.to_thread(asyncio.run, elsewhere())

    assert asyncio.run(asyncio.wait_for(main(), 30), debug=True) >= 0


def test_arguments_of_other_clients_are_refused_by_name(broker: Broker) -> None:
    """Seconds for milliseconds, a list for a topic, a group's name for its membership."""
    address = broker.bootstrap_servers
    with Consumer(bootstrap_servers=address, group_id="g") as consumer:
        consumer.assign([PART])
        for call in (
            lambda: consumer.poll(1.0),  # type: ignore[arg-type]
            lambda: consumer.position(PART, timeout_ms=1.0),  # type: ignore[arg-type]
            lambda: consumer.end_offsets([PART], timeout_ms=1.0),  # type: ignore[arg-type]
            lambda: consumer.close(1.0),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError, match=r"timeout_ms=1\.0.*1\.0 seconds are 1000"):
                call()
        for lists in (consumer.committed, consumer.end_offsets, consumer.seek_to_end):
            with pytest.raises(ConfigError, match="must be a list of partitions"):
                lists(PART)
        for mappings in (consumer.commit, consumer.commit_async, consumer.offsets_for_times):
            with pytest.raises(ConfigError, match="must be a dictionary"):
                mappings([PART])  # type: ignore[operator]
        with pytest.raises(ConfigError, match="timeout_ms=-1: must be 0"):
            consumer.poll(-1)
        consumer.unsubscribe()
        for read in (consumer.poll, consumer.poll_columns, consumer.__next__):
            with pytest.raises(IllegalStateError, match=r"call subscribe\(\[...\]\)"):
                read()
    with Producer(bootstrap_servers=address, transactional_id="arguments") as producer:
        with pytest.raises(ConfigError, match=r"10\.5 seconds are 10500"):
            producer.flush(10.5)  # type: ignore[arg-type]
        with producer.transaction():
            for topic in (["t"], {"t": 1}, 5):
                with pytest.raises(InvalidTopicError, match="is not allowed"):
                    producer.send(topic, b"x")  # type: ignore[arg-type]
                with pytest.raises(InvalidTopicError, match="is not allowed"):
                    producer.send(topic, "x", partition=0)  # type: ignore[arg-type]
                with pytest.raises(InvalidTopicError, match="is not allowed"):
                    producer.send_many(topic, [b"x"])  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=r"consumer\.group_metadata\(\)"):
                producer.send_offsets_to_transaction({PART: 1}, "g")  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="must be a dictionary"):
                producer.send_offsets_to_transaction([PART], ConsumerGroupMetadata("g"))  # type: ignore[arg-type]
