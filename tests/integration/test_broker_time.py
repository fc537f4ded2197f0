"""Goal: every timer of the broker obeys the one clock, and that clock can be moved while real
clients are connected.

Method: a broker whose clock also runs by itself is moved past each timer, and what it does is seen
at once; a look at the sources finds whoever else reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import confluent_kafka
import house_rules
import pytest
from broker_requests import fetch, fetch_request, produce
from broker_wire import Wire, batch, until

from onceflow.broker_lite import Broker
from onceflow.sdk import AsyncProducer
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.groups import JoinGroupRequest, JoinGroupResponse

DAY_MS = 86_400_000
MAY_READ_CLOCKS = {
    "broker_lite/security/jwks.py",  # How long another server takes to tell its keys.
    "broker_lite/clock.py",  # The clock itself, and how long a handler works.
    "broker_lite/net/server.py",  # The alarm of the event loop.
    "broker_lite/daemon/repeated_messages.py",  # What the daemon says, not what it does.
    "broker_lite/coordinators/consumer/topic_regex.py",  # How much CPU time a pattern takes.
    "broker_lite/testing/container.py",  # Waits for another process.
    "broker_lite/testing/control.py",  # How long a peer that sends nothing is heard.
}
CLOCKS = re.compile(
    r"\btime\.(time|monotonic|perf_counter|thread_time|process_time)|"
    r"call_later\(|call_at\(|\.utcnow\(|datetime\.now\(|"
    r"asyncio\.sleep\((?!0\))|\btime\.sleep\("
)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(journal=True) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


def test_nobody_but_the_server_reads_a_clock() -> None:
    found = set()
    for path in house_rules.source_files():
        name = house_rules.name_of(path)
        if name.startswith("broker_lite/"):
            code = re.sub(r'""".*?"""', "", path.read_text(), flags=re.S)
            if CLOCKS.search(code):
                found.add(name)
    assert found == MAY_READ_CLOCKS


async def test_long_poll_ends(broker: Broker, wire: Wire) -> None:
    wire.send(fetch_request("t", 0, max_wait_ms=3_600_000), 12)
    await until(lambda: len(broker.state.purgatory) == 1)
    broker.advance(3_600_000)
    assert isinstance(await wire.receive(), FetchResponse)


async def test_what_is_left_after_a_jump_is_not_waited_for_twice(
    broker: Broker, wire: Wire
) -> None:
    wire.send(fetch_request("t", 0, max_wait_ms=3_600_000), 12)
    await until(lambda: len(broker.state.purgatory) == 1)
    broker.advance(3_599_950)
    # The rest passes by itself; an alarm that was set before the jump would ring in an hour.
    assert isinstance(await wire.receive(), FetchResponse)


async def test_idle_connection_is_closed(broker: Broker, wire: Wire) -> None:
    await produce(wire, "t", batch(b"a"))
    broker.advance(600_001)
    assert await wire.closed()


async def test_old_segments_are_removed(broker: Broker, wire: Wire) -> None:
    broker.create_topic("short", configs={"retention.ms": "1000", "segment.ms": "1000"})
    await produce(wire, "short", batch(b"a", timestamp_ms=broker.now_ms()))
    broker.advance(60_000)
    broker.advance(300_000)
    topic = broker.state.topics.get("short")
    assert topic is not None
    assert topic.partitions[0].log_start_offset == 1


async def test_producers_are_forgotten(broker: Broker, wire: Wire) -> None:
    await produce(wire, "t", batch(b"a", producer_id=77, producer_epoch=0, base_sequence=0))
    topic = broker.state.topics.get("t")
    assert topic is not None
    log = topic.partitions[0]
    assert [producer.producer_id for producer in log.producers()] == [77]
    broker.advance(DAY_MS)
    broker.advance(600_000)
    assert not list(log.producers())


async def test_silent_member_is_expelled(broker: Broker, wire: Wire) -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    first = await wire.ask(request, 3, JoinGroupResponse)
    broker.advance(30_001)
    again = await wire.ask(request, 3, JoinGroupResponse)
    assert again.leader == again.member_id != first.member_id


async def test_open_transaction_is_given_up(broker: Broker, wire: Wire) -> None:
    producer = AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id="x",
        transaction_timeout_ms=60_000,
    )
    async with producer:
        await producer.begin_transaction()
        await (await producer.send("t", b"open"))
        assert (await fetch(wire, "t")).last_stable_offset == 0
        broker.advance(80_000)
        async with Wire(broker) as other:
            assert (await fetch(other, "t")).last_stable_offset == 2


def test_a_published_client_meets_its_timeout_at_once() -> None:
    with Broker(journal=True) as broker:
        broker.create_topic("t")
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "session.timeout.ms": 45_000,
                "heartbeat.interval.ms": 100,
            }
        )
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(0.1)
        joins = len(broker.journal.select("JoinGroup"))
        broker.advance(45_001)
        while len(broker.journal.select("JoinGroup")) == joins:
            consumer.poll(0.1)  # It learns that it is no member any more, and joins again.
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.close()
