"""Goal: consumers with ``group_protocol="consumer"`` (KIP-848) share partitions and lose nothing.

Method: as in `test_consumer_groups`, against the bundled broker and, where asked for, Apache Kafka:
blocking consumers that the test polls in turn, under deadlines.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, poll_until, read, running_broker, write

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import Admin, AsyncConsumer, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import (
    CommitFailedError,
    ConfigError,
    IllegalGenerationError,
    IllegalStateError,
    InvalidRegularExpressionError,
)
from onceflow.sdk.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest


@pytest.fixture(scope="module", params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


class Heard:
    """What a consumer's callbacks heard."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.partitions: list[tuple[int, ...]] = []

    def __call__(self, name: str, partitions: list[TopicPartition]) -> None:
        self.names.append(name)
        self.partitions.append(tuple(sorted(p.partition for p in partitions)))


def member(
    bootstrap: str, group: str, topic: str, heard: Heard | None = None, **settings: object
) -> Consumer:
    settings = {"auto_offset_reset": "earliest", "group_protocol": "consumer"} | settings
    consumer = Consumer(bootstrap_servers=bootstrap, group_id=group, **settings)
    if heard is None:
        consumer.subscribe([topic])
    else:
        consumer.subscribe(
            [topic],
            on_assigned=lambda partitions: heard("assigned", partitions),
            on_revoked=lambda partitions: heard("revoked", partitions),
            on_lost=lambda partitions: heard("lost", partitions),
        )
    return consumer


def share(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_only_what_has_to_move_moves_and_nothing_is_read_twice(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    for partition in range(4):
        write(bootstrap, topic, [f"{partition}-{i}" for i in range(25)], partition)
    heard = Heard()
    with member(bootstrap, group, topic, heard, max_poll_records=10) as first:
        values = read(first, 30)
        with member(bootstrap, group, topic, max_poll_records=10) as second:
            values += poll_until(lambda: share(first, second) == [2, 2], first, second)
            deadline = time.monotonic() + 60
            while len(values) < 100 and time.monotonic() < deadline:
                for consumer in (first, second):
                    for records in consumer.poll(20).values():
                        values += [record.value.decode() for record in records]  # type: ignore[attr-defined]
        assert heard.names[:2] == ["assigned", "revoked"]
        assert len(heard.partitions[1]) == 2
        poll_until(lambda: share(first) == [4], first)
    assert sorted(values) == sorted(f"{p}-{i}" for p in range(4) for i in range(25))


def test_callbacks_may_commit_before_the_partitions_go(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    write(bootstrap, topic, ["a", "b", "c"])
    partition = TopicPartition(topic, 0)

    def on_revoked(partitions: list[TopicPartition]) -> None:
        first.ensure_membership()
        if partition in partitions:
            first.commit({partition: 2})

    first = member(bootstrap, group, topic, enable_auto_commit=False)
    first.subscribe([topic], on_revoked=on_revoked)
    with first:
        read(first, 3)
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group)[partition].offset == 2


async def test_asynchronous_consumer(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic, ["a", "b"])
    async with AsyncConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=fresh("group"),
        group_protocol="consumer",
        auto_offset_reset="earliest",
    ) as consumer:
        values = []
        async for record in consumer:
            values.append(record.value)
            if len(values) == 2:
                break
        await consumer.commit()
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
    assert values == [b"a", b"b"]


def test_slow_application_loses_its_partitions_and_its_commit_fails(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(5)])
    heard = Heard()
    settings = {"enable_auto_commit": False}
    slow = member(
        bootstrap, group, topic, heard, max_poll_interval_ms=800, max_poll_records=1, **settings
    )
    with slow, member(bootstrap, group, topic, **settings) as quick:
        assert read(slow, 1) == ["0"]
        stale = slow.group_metadata()
        poll_until(lambda: bool(quick.assignment()), quick)
        with pytest.raises(CommitFailedError):
            slow.commit({partition: 1})
        with pytest.raises(IllegalStateError, match="no member"):
            slow.group_metadata()
        with pytest.raises(CommitFailedError):
            slow.ensure_membership(stale)
        poll_until(lambda: quick.position(partition) == 5, quick)
        quick.commit()
        poll_until(lambda: "lost" in heard.names, slow, quick)
        assert "revoked" not in heard.names


def test_static_member_that_comes_back_keeps_its_partitions(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    heard = Heard()
    first = member(bootstrap, group, topic, group_instance_id="i1")
    with member(bootstrap, group, topic, heard, group_instance_id="i2") as second:
        poll_until(lambda: share(first, second) == [2, 2], first, second)
        held = first.assignment()
        quiet = len(heard.names)
        first.close()
        with member(bootstrap, group, topic, group_instance_id="i1") as again:
            poll_until(lambda: share(again) == [2], again, second)
            assert again.assignment() == held
            assert len(heard.names) == quiet


def test_pattern_is_resolved_by_the_coordinator(bootstrap: str) -> None:
    prefix = fresh("pattern")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([f"{prefix}-a"])
        with Consumer(
            bootstrap_servers=bootstrap,
            group_id=fresh("group"),
            group_protocol="consumer",
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.subscribe(pattern=f"{prefix}-[ab]")
            poll_until(lambda: share(consumer) == [1], consumer)
            admin.create_topics([f"{prefix}-b", f"{prefix}-c"])
            write(bootstrap, f"{prefix}-b", ["x"])
            assert poll_until(lambda: share(consumer) == [2], consumer) or read(consumer, 1)
            assert consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}
            consumer.subscribe([f"{prefix}-c"])
            wanted = {TopicPartition(f"{prefix}-c", 0)}
            poll_until(lambda: consumer.assignment() == wanted, consumer)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_internal_topics_are_left_out_of_a_pattern_unless_asked_for(
    bootstrap: str, protocol: str
) -> None:
    """A coordinator that resolves the pattern assigns them; the application never sees them."""
    topic, group = make_topic(bootstrap), fresh("group")
    pattern = rf"{re.escape(topic)}|__consumer_offsets"
    write(bootstrap, topic, ["x"])
    with Consumer(topic, bootstrap_servers=bootstrap, group_id=fresh("other")) as first:
        poll_until(lambda: bool(first.assignment()), first)  # Now there are internal topics.
        first.commit({TopicPartition(topic, 0): 0})
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
    }
    heard: list[TopicPartition] = []
    with Consumer(group_id=group, **settings) as consumer:
        consumer.subscribe(
            pattern=pattern, on_assigned=heard.extend, on_revoked=heard.extend, on_lost=heard.extend
        )
        assert read(consumer, 1) == ["x"]
        consumer.commit()
        assert consumer.subscription() == {topic}
        assert consumer.assignment() == {TopicPartition(topic, 0)}
        consumer.unsubscribe()
    assert {p.topic for p in heard} == {topic}
    with Consumer(group_id=group, exclude_internal_topics=False, **settings) as consumer:
        consumer.subscribe(pattern=pattern)
        seen: set[str] = set()
        while "__consumer_offsets" not in seen:
            seen |= {partition.topic for partition in consumer.poll(100)}
        assert consumer.subscription() == {topic, "__consumer_offsets"}


@pytest.mark.parametrize("divided_by", ["range", "cooperative-sticky", "coordinator"])
@pytest.mark.parametrize("form", ["poll", "iteration", "columns"])
def test_no_record_of_a_topic_comes_after_it_was_unsubscribed(
    bootstrap: str, divided_by: str, form: str
) -> None:
    kept, dropped = make_topic(bootstrap), make_topic(bootstrap)
    back = TopicPartition(dropped, 0)
    settings: dict[str, Any] = {"auto_offset_reset": "earliest"}
    if divided_by == "coordinator":
        settings["group_protocol"] = "consumer"
    else:
        settings["partition_assignment_strategy"] = [divided_by]
    for topic in (kept, dropped):
        write(bootstrap, topic, ["0"])
    with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(bootstrap_servers=bootstrap, group_id=fresh("group"), **settings) as consumer,
    ):
        consumer.subscribe([kept, dropped])
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        for number in range(3):
            producer.send_many(dropped, [b"%d" % number] * 3, partition=0)
            while not consumer.poll(100, max_records=1).get(back):
                pass  # The others of these records wait in the client from now on.
            consumer.subscribe([kept])
            mark = b"mark %d" % number
            producer.send(kept, mark).result(20)
            seen: list[tuple[str, bytes]] = []
            while mark not in [value for _, value in seen]:
                if form == "iteration":
                    record = next(consumer)
                    seen.append((record.topic, record.value))
                elif form == "poll":
                    polled = consumer.poll(50)
                    seen += [(r.topic, r.value) for rs in polled.values() for r in rs]
                else:
                    columns = consumer.poll_columns(50)
                    seen += [(p.topic, v) for p, c in columns.items() for v in c.values]
            assert {topic for topic, _ in seen} == {kept}
            consumer.subscribe([kept, dropped])
            poll_until(lambda: back in consumer.assignment(), consumer)


def test_pattern_that_the_coordinator_refuses_is_raised_by_the_poll(bootstrap: str) -> None:
    with Consumer(
        bootstrap_servers=bootstrap, group_id=fresh("group"), group_protocol="consumer"
    ) as consumer:
        consumer.subscribe(pattern="(?=x)y")
        with pytest.raises(InvalidRegularExpressionError, match="Perl syntax"):
            poll_until(lambda: False, consumer)


@pytest.mark.parametrize(
    ("pattern", "remedy"),
    [
        (re.compile("a b # one or two", re.VERBOSE), "leave out blanks"),
        (re.compile("(?x)a b"), "leave out blanks"),
        ("x{,2}", "write {0,n}"),
        (re.compile(r"\\{,2}"), "write {0,n}"),
        ("[a[:alpha:]", "class"),
    ],
)
@pytest.mark.filterwarnings("ignore:Possible nested set")
def test_pattern_that_re2_reads_differently_is_refused(
    bootstrap: str, pattern: str | re.Pattern[str], remedy: str
) -> None:
    with Consumer(
        bootstrap_servers=bootstrap, group_id=fresh("group"), group_protocol="consumer"
    ) as consumer:
        with pytest.raises(ConfigError, match=re.escape(remedy)):
            consumer.subscribe(pattern=pattern)
        assert consumer.subscription() == set()
        consumer.subscribe(pattern=r"x\{,2}|[:a]b{0,2}")  # means the same to both
    with Consumer(bootstrap_servers=bootstrap, group_id=fresh("group")) as classic:
        classic.subscribe(pattern=pattern)


def test_a_broker_without_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with (
        Broker() as broker,
        Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", group_protocol="consumer"
        ) as consumer,
    ):
        consumer.subscribe(pattern="a.*")
        with pytest.raises(InvalidRegularExpressionError, match=r"onceflow\[re2\].*by names"):
            poll_until(lambda: False, consumer)


def test_assignor_of_choice(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    settings = {"group_remote_assignor": "range"}
    with (
        member(bootstrap, group, topic, **settings) as first,
        member(bootstrap, group, topic, **settings) as second,
    ):
        poll_until(lambda: share(first, second) == [2, 2], first, second)
        numbers = sorted(sorted(p.partition for p in c.assignment()) for c in (first, second))
        assert numbers == [[0, 1], [2, 3]]


def test_both_protocols_in_one_group(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    for partition in range(4):
        write(bootstrap, topic, [f"{partition}-{i}" for i in range(10)], partition)
    classic = {
        "group_protocol": "classic",
        "heartbeat_interval_ms": 100,
        "partition_assignment_strategy": ["cooperative-sticky"],
    }
    with member(bootstrap, group, topic, **classic) as old:
        values = read(old, 40)
        with member(bootstrap, group, topic) as new:
            values += poll_until(lambda: share(old, new) == [2, 2], old, new)
        values += poll_until(lambda: share(old) == [4], old)
    assert sorted(values) == sorted(f"{p}-{i}" for p in range(4) for i in range(10))


def test_offsets_of_a_transaction_under_a_member_epoch(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, ["a", "b"])
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=fresh("txn")) as producer,
        member(bootstrap, group, topic, enable_auto_commit=False) as consumer,
    ):
        read(consumer, 2)
        with producer.transaction():
            producer.send_offsets_to_transaction({partition: 2}, consumer.group_metadata())
        found = consumer.committed([partition])[partition]
        assert found is not None
        assert found.offset == 2
        stale = consumer.group_metadata()._replace(generation_id=99)
        producer.begin_transaction()
        with pytest.raises(IllegalGenerationError):
            producer.send_offsets_to_transaction({partition: 1}, stale)
        producer.abort_transaction()


async def test_a_question_about_the_membership_never_overtakes_a_heartbeat() -> None:
    """Each says what the member owns; the older word coming last could free what is held still."""
    quick = {
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": "50",
    }
    async with Broker(settings=quick) as broker:
        await asyncio.to_thread(write, broker.bootstrap_servers, "t", ["x"])
        consumer = AsyncConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, group_id="g", group_protocol="consumer"
        )
        async with consumer:
            while not consumer.assignment():
                await consumer.poll(50)
            rule = broker.faults.add(ConsumerGroupHeartbeatRequest, Fault.HOLD, times=None)
            while not rule.held:
                await consumer.poll(20)
            asking = asyncio.ensure_future(consumer.ensure_membership())
            for _ in range(10):
                await consumer.poll(20)
            assert len(rule.held) == 1
            assert not asking.done()
            broker.faults.release(rule)
            await asking


def test_broker_restarts_in_the_middle(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.start()
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    bootstrap = broker.bootstrap_servers
    topic, group = make_topic(bootstrap, 4), fresh("group")
    heard = Heard()
    with member(bootstrap, group, topic, heard) as first, member(bootstrap, group, topic) as second:
        poll_until(lambda: share(first, second) == [2, 2], first, second)
        before = (first.assignment(), second.assignment(), list(heard.names))
        broker.stop()
        with Broker(tmp_path, port=port):
            write(bootstrap, topic, [str(i) for i in range(4)])
            values: list[str] = []
            deadline = time.monotonic() + 60
            while len(values) < 4 and time.monotonic() < deadline:
                for consumer in (first, second):
                    for records in consumer.poll(50).values():
                        values += [record.value.decode() for record in records]  # type: ignore[attr-defined]
            assert sorted(values) == ["0", "1", "2", "3"]
            first.commit()
            assert (first.assignment(), second.assignment(), heard.names) == before
            first.close()
            second.close()


def test_beginning_some_time_ago(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for hours in (5, 3, 1):
            stamp = now_ms - hours * 3_600_000
            producer.send(topic, f"{hours} h ago".encode(), timestamp_ms=stamp)
    for policy, count in (("PT2H", 1), ("PT4H", 2), ("P1D", 3), ("PT0.5S", 0)):
        with Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=fresh("group"),
            auto_offset_reset=f"by_duration:{policy}",
        ) as consumer:
            assert len(read(consumer, count)) == count
            poll_until(lambda c=consumer: bool(c.assignment()), consumer)  # type: ignore[misc]
            assert consumer.position(TopicPartition(topic, 0)) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_offset_reset": "by_duration:1h"},
        {"auto_offset_reset": "by_duration:P"},
        {"auto_offset_reset": "by_duration:-PT1H"},
        {"auto_offset_reset": "sometimes"},
        {"group_remote_assignor": "range"},
        {"group_protocol": "consumer", "session_timeout_ms": 10_000},
        {"group_protocol": "consumer", "heartbeat_interval_ms": 1_000},
        {"group_protocol": "consumer", "partition_assignment_strategy": ["range"]},
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Consumer("t", bootstrap_servers="localhost:1", group_id="g", **settings)
