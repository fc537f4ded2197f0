"""Goal: a session is exactly-once under the consumer group protocol too (KIP-848).

Method: sessions in this process on the in-process broker, polled in turn, while members come and
go; the member epoch takes the place of the generation in what is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from processor_processes import committed_values, fill

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, Consumer
from onceflow.transactions import SessionConfig, TransactionSession

VALUES = [b"%d" % n for n in range(60)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {
        "group.consumer.session.timeout.ms": 2_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.heartbeat.interval.ms": 200,
    }
    with Broker(settings=settings) as broker:
        broker.create_topic("in", partitions=4)
        broker.create_topic("out", partitions=1)
        yield broker


def session(broker: Broker, slot: str, **changes: object) -> TransactionSession:
    settings: dict[str, object] = {
        "topics": ["in"],
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "g",
        "slot": slot,
        "transaction_timeout_ms": 2_000,
        "consumer_settings": {"group_protocol": "consumer"},
    }
    return TransactionSession(SessionConfig(**(settings | changes)))  # type: ignore[arg-type]


def outputs(broker: Broker) -> list[bytes]:
    """What a reader of committed data sees."""
    return committed_values(broker.bootstrap_servers, "out")


def work(member: TransactionSession) -> bool:
    """One round: poll, send, commit; True when something was committed."""
    batches = member.poll(50, 5)
    for records in batches.values():
        for record in records:
            member.send("out", record.value, key=record.key)
    return bool(batches) and member.commit()


def test_members_come_and_go_and_each_record_has_its_effect_once(broker: Broker) -> None:
    fill(broker.bootstrap_servers, "in", VALUES)
    with session(broker, "0") as first:
        while not work(first):
            pass
        with session(broker, "1") as second:
            deadline = time.monotonic() + 60
            while not second.assignment():
                assert time.monotonic() < deadline
                work(first)
                work(second)
            work(first)
            work(second)
        deadline = time.monotonic() + 60
        while len(outputs(broker)) < len(VALUES):
            assert time.monotonic() < deadline
            work(first)
    values = outputs(broker)
    assert sorted(values) == sorted(VALUES)


def test_member_that_was_thought_dead_commits_nothing(broker: Broker) -> None:
    fill(broker.bootstrap_servers, "in", VALUES)
    with session(broker, "0", max_poll_interval_ms=2_000, revoke_budget_ms=500) as sleeper:
        deadline = time.monotonic() + 60
        while not (batches := sleeper.poll(100, 5)):
            assert time.monotonic() < deadline
        for records in batches.values():
            for record in records:
                sleeper.send("out", record.value)
        with session(broker, "1") as other:
            deadline = time.monotonic() + 60
            while len(outputs(broker)) < len(VALUES):
                assert time.monotonic() < deadline
                work(other)
            assert not sleeper.commit(), "its partitions were given to others"
    values = outputs(broker)
    assert sorted(values) == sorted(VALUES)


def test_a_newcomer_that_takes_nothing_costs_no_abort(broker: Broker) -> None:
    """The member epoch rises in a heartbeat between poll and commit; the partition stays."""
    broker.create_topic("one", partitions=1)
    fill(broker.bootstrap_servers, "one", VALUES[:5])
    newcomer = Consumer(
        "one", bootstrap_servers=broker.bootstrap_servers, group_id="g", group_protocol="consumer"
    )
    with (
        session(broker, "0", topics=["one"]) as first,
        newcomer,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        deadline = time.monotonic() + 60
        while not (batches := first.poll(100)):
            assert time.monotonic() < deadline
        for record in next(iter(batches.values())):
            first.send("out", record.value)
        group = admin.describe_groups(["g"])["g"]
        while (len(group.members), group.state) != (2, "Stable"):
            assert time.monotonic() < deadline
            newcomer.poll(20)
            group = admin.describe_groups(["g"])["g"]
        assert first.commit(), first.last_abort
    assert outputs(broker) == VALUES[:5]
