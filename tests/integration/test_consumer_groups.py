"""Goal: consumers share a group's partitions through every kind of rebalance without losing order.

Method: several blocking consumers against the bundled broker, and Apache Kafka where that is asked
for, polled in turn by the test; waits are polls under a deadline. Field cases FC-25, 26 and 28 are
among the rules shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, poll_until, read, running_broker, write

from onceflow.sdk import (
    Admin,
    AsyncConsumer,
    Consumer,
    ConsumerGroupMetadata,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import CommitFailedError, FencedInstanceIdError, IllegalStateError


@pytest.fixture(scope="module", params=BROKERS)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


class Events:
    """What a consumer's callbacks heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[int, ...]]] = []

    def on(self, name: str) -> object:
        return lambda partitions: self.heard.append(
            (name, tuple(partition.partition for partition in partitions))
        )


def member(
    bootstrap: str, group: str, topic: str, events: Events | None = None, **settings: object
) -> Consumer:
    settings = {"heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"} | settings
    consumer = Consumer(bootstrap_servers=bootstrap, group_id=group, **settings)
    if events is None:
        consumer.subscribe([topic])
    else:
        consumer.subscribe(
            [topic],
            on_assigned=events.on("assigned"),  # type: ignore[arg-type]
            on_revoked=events.on("revoked"),  # type: ignore[arg-type]
            on_lost=events.on("lost"),  # type: ignore[arg-type]
        )
    return consumer


def share(*consumers: Consumer) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def test_an_eager_group_divides_and_takes_over(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    heard = Events()
    with member(bootstrap, group, topic, heard) as first:
        poll_until(lambda: share(first) == [4], first)
        with member(bootstrap, group, topic) as second:
            poll_until(lambda: share(first, second) == [2, 2], first, second)
            assert not first.assignment() & second.assignment()
        poll_until(lambda: share(first) == [4], first)
    names = [name for name, _ in heard.heard]
    assert names == ["assigned", "revoked", "assigned", "revoked", "assigned", "revoked"]
    assert heard.heard[1] == ("revoked", (0, 1, 2, 3))


def test_a_cooperative_group_moves_only_what_has_to_move(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    settings = {"partition_assignment_strategy": ["cooperative-sticky"]}
    heard = Events()
    with member(bootstrap, group, topic, heard, **settings) as first:
        poll_until(lambda: share(first) == [4], first)
        with member(bootstrap, group, topic, **settings) as second:
            poll_until(lambda: share(first, second) == [2, 2], first, second)
    revoked = [partitions for name, partitions in heard.heard if name == "revoked"]
    assert len(revoked[0]) == 2, "the other two stayed while the group was rebalancing"


def test_records_are_read_once_across_a_handover(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    for partition in (0, 1):
        write(bootstrap, topic, [f"{partition}-{i}" for i in range(50)], partition)
    with member(bootstrap, group, topic, max_poll_records=10) as first:
        values = read(first, 30)
        with member(bootstrap, group, topic, max_poll_records=10) as second:
            values += poll_until(lambda: share(first, second) == [1, 1], first, second)
            deadline = time.monotonic() + 60
            while len(values) < 100 and time.monotonic() < deadline:
                for consumer in (first, second):
                    for records in consumer.poll(20).values():
                        values += [record.value.decode() for record in records]  # type: ignore[attr-defined]
    assert sorted(values) == sorted(f"{p}-{i}" for p in (0, 1) for i in range(50))


def test_callbacks_may_use_the_consumer_and_commit_before_the_partitions_go(
    bootstrap: str,
) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    write(bootstrap, topic, ["a", "b", "c"])
    partition = TopicPartition(topic, 0)
    seen: list[ConsumerGroupMetadata] = []

    def on_revoked(partitions: list[TopicPartition]) -> None:
        seen.append(first.group_metadata())
        assert set(partitions) <= first.assignment()
        first.ensure_membership()
        if partition in partitions:  # Closing revokes what is left, which may be the other one.
            first.commit({partition: 2})
        assert first.committed([partition])[partition] is not None

    first = member(bootstrap, group, topic, enable_auto_commit=False)
    first.subscribe([topic], on_revoked=on_revoked)
    with first:
        read(first, 3)
        generation = first.group_metadata().generation_id
        with member(bootstrap, group, topic) as second:
            poll_until(lambda: share(first, second) == [1, 1], first, second)
            assert seen[0].generation_id == generation
            assert first.group_metadata().generation_id > generation
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group)[partition].offset >= 2


def test_what_a_callback_raises_comes_from_the_poll_and_the_rebalance_goes_on(
    bootstrap: str,
) -> None:
    topic, group = make_topic(bootstrap, 1), fresh("group")

    def on_assigned(partitions: list[TopicPartition]) -> None:
        raise RuntimeError(f"refused {len(partitions)}")

    with Consumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic], on_assigned=on_assigned)
        with pytest.raises(RuntimeError, match="refused 1"):
            poll_until(lambda: False, consumer)
        assert consumer.assignment() == {TopicPartition(topic, 0)}
        consumer.poll(10)


async def test_asynchronous_callbacks_are_awaited(bootstrap: str) -> None:
    topic = make_topic(bootstrap)
    write(bootstrap, topic, ["a", "b"])
    async with AsyncConsumer(bootstrap_servers=bootstrap, group_id=fresh("group")) as consumer:

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            ends = await consumer.beginning_offsets(partitions)
            for partition, offset in ends.items():
                consumer.seek(partition, offset + 1)

        consumer.subscribe([topic], on_assigned=on_assigned)
        async for record in consumer:
            assert record.value == b"b"
            break


def test_a_slow_application_loses_its_partitions_and_its_commit_fails(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(5)])
    heard = Events()
    slow = member(
        bootstrap,
        group,
        topic,
        heard,
        max_poll_interval_ms=800,
        session_timeout_ms=6_000,
        enable_auto_commit=False,
        max_poll_records=1,
    )
    with slow, member(bootstrap, group, topic, enable_auto_commit=False) as quick:
        assert read(slow, 1) == ["0"]
        stale = slow.group_metadata()
        assert poll_until(lambda: bool(quick.assignment()), quick) in (
            [],
            ["0", "1", "2", "3", "4"],
        )
        with pytest.raises(CommitFailedError):
            slow.commit({partition: 1})
        with pytest.raises(IllegalStateError, match="no member"):
            slow.group_metadata()
        with pytest.raises(CommitFailedError):
            slow.ensure_membership(stale)
        poll_until(lambda: quick.position(partition) == 5, quick)
        quick.commit()
        poll_until(lambda: ("lost", (0,)) in heard.heard, slow, quick)
        assert ("revoked", (0,)) not in heard.heard
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group)[partition].offset == 5


def test_a_commit_for_a_partition_of_others_is_refused(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    with member(bootstrap, group, topic) as first, member(bootstrap, group, topic) as second:
        poll_until(lambda: share(first, second) == [1, 1], first, second)
        (foreign,) = second.assignment()
        with pytest.raises(CommitFailedError, match=f"{foreign} is not assigned"):
            first.commit({foreign: 1})


def test_membership_that_changed_is_told_from_the_one_that_was_expected(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    with member(bootstrap, group, topic) as first:
        poll_until(lambda: share(first) == [2], first)
        before = first.group_metadata()
        first.ensure_membership(before)
        with member(bootstrap, group, topic) as second:
            poll_until(lambda: share(first, second) == [1, 1], first, second)
            with pytest.raises(CommitFailedError, match="generation"):
                first.ensure_membership(before)


def test_a_static_member_that_comes_back_keeps_its_partitions(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 4), fresh("group")
    heard = Events()
    first = member(bootstrap, group, topic, group_instance_id="i1")
    with member(bootstrap, group, topic, heard, group_instance_id="i2") as second:
        poll_until(lambda: share(first, second) == [2, 2], first, second)
        held, generation = first.assignment(), second.group_metadata().generation_id
        quiet = len(heard.heard)
        first.close()
        with member(bootstrap, group, topic, group_instance_id="i1") as again:
            poll_until(lambda: share(again) == [2], again, second)
            assert again.assignment() == held
            assert again.group_metadata().generation_id == generation
            assert len(heard.heard) == quiet


def test_a_static_member_that_dies_in_a_cooperative_rebalance_leaves_nothing_unread(
    bootstrap: str,
) -> None:
    """It gave up a partition, died before it could join for the second round, and came back to
    the coordinator's old division: neither that nor the other member would ever ask for one."""
    topic, group = make_topic(bootstrap, 2), fresh("group")
    cooperative = {"partition_assignment_strategy": ("cooperative-sticky",)}

    class DiedError(Exception):
        pass

    deaths = iter([DiedError()])

    def die(_: object) -> None:
        for death in deaths:  # The first time; then it is closed.
            raise death

    settings = {"heartbeat_interval_ms": 100, "auto_offset_reset": "earliest", **cooperative}
    first = Consumer(
        bootstrap_servers=bootstrap, group_id=group, group_instance_id="i1", **settings
    )
    first.subscribe([topic], on_revoked=die)
    poll_until(lambda: share(first) == [2], first)
    with member(bootstrap, group, topic, group_instance_id="i2", **cooperative) as second:
        with pytest.raises(DiedError):
            poll_until(lambda: False, first, second)
        first.close()
        with member(bootstrap, group, topic, group_instance_id="i1", **cooperative) as again:
            poll_until(lambda: share(again, second) == [1, 1], again, second)
            assert not again.assignment() & second.assignment()


def test_a_static_member_leaves_at_once_when_it_is_told_to(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    consumer = member(bootstrap, group, topic, group_instance_id="i1")
    poll_until(lambda: share(consumer) == [2], consumer)
    consumer.close(leave_group=True)
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.describe_groups([group])[group].state == "Empty"


def test_the_older_of_two_consumers_with_one_instance_id_is_fenced(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    heard = Events()
    with member(bootstrap, group, topic, heard, group_instance_id="i1") as older:
        poll_until(lambda: share(older) == [2], older)
        with member(bootstrap, group, topic, group_instance_id="i1") as newer:
            poll_until(lambda: share(newer) == [2], newer)
            with pytest.raises(FencedInstanceIdError, match="i1"):
                poll_until(lambda: False, older)
            with pytest.raises(FencedInstanceIdError):
                older.poll()
            assert heard.heard[-1] == ("lost", (0, 1))
            assert older.assignment() == set()


def test_added_partitions_are_found_at_metadata_max_age(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    with member(bootstrap, group, topic, metadata_max_age_ms=500) as consumer:
        poll_until(lambda: share(consumer) == [2], consumer)
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_partitions({topic: 4})
        write(bootstrap, topic, ["new"], partition=3)
        values = poll_until(lambda: share(consumer) == [4], consumer)
        assert values or read(consumer, 1) == ["new"]


def test_a_pattern_takes_in_topics_that_appear_later(bootstrap: str) -> None:
    prefix = fresh("pattern")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([f"{prefix}-a"])
        with Consumer(
            bootstrap_servers=bootstrap, group_id=fresh("group"), metadata_max_age_ms=500
        ) as consumer:
            consumer.subscribe(pattern=f"{prefix}-.*")
            poll_until(lambda: share(consumer) == [1], consumer)
            admin.create_topics([f"{prefix}-b"])
            poll_until(lambda: share(consumer) == [2], consumer)
            assert consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}


def test_a_topic_that_is_made_later_is_read(bootstrap: str) -> None:
    topic = fresh("later")
    with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=fresh("group"),
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
    ) as consumer:
        consumer.poll(100)
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([topic])
        write(bootstrap, topic, ["a"])
        assert read(consumer, 1) == ["a"]


def test_automatic_commits_follow_what_polls_returned(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, ["a", "b", "c"])
    with Admin(bootstrap_servers=bootstrap) as admin:
        with member(bootstrap, group, topic, auto_commit_interval_ms=100) as consumer:
            read(consumer, 3)
            poll_until(lambda: partition in admin.list_group_offsets(group), consumer)
            write(bootstrap, topic, ["d"])
            read(consumer, 1)
        assert admin.list_group_offsets(group)[partition].offset == 4


def test_an_exception_leaves_without_a_commit(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap), fresh("group")
    write(bootstrap, topic, ["a"])

    def fail_after_reading() -> None:
        with member(bootstrap, group, topic) as consumer:
            read(consumer, 1)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_after_reading()
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group) == {}
        assert admin.describe_groups([group])[group].state == "Empty"


def test_committed_offsets_wait_for_a_transaction_that_is_about_to_commit_them(
    bootstrap: str,
) -> None:
    topic, group = make_topic(bootstrap), fresh("group")
    partition = TopicPartition(topic, 0)
    write(bootstrap, topic, [str(i) for i in range(10)])
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=fresh("txn")) as producer,
        member(bootstrap, group, topic, enable_auto_commit=False) as first,
    ):
        read(first, 10)
        producer.begin_transaction()
        producer.send_offsets_to_transaction({partition: 5}, first.group_metadata())
        first.close()
        with member(bootstrap, group, topic) as second:
            poll_until(lambda: share(second) == [1], second)
            assert second.poll(300) == {}, "the offset is not known while it may still change"
            producer.commit_transaction()
            assert read(second, 5) == [str(i) for i in range(5, 10)]


def test_unsubscribing_gives_the_partitions_to_others(bootstrap: str) -> None:
    topic, group = make_topic(bootstrap, 2), fresh("group")
    heard = Events()
    with member(bootstrap, group, topic, heard) as first, member(bootstrap, group, topic) as second:
        poll_until(lambda: share(first, second) == [1, 1], first, second)
        first.unsubscribe()
        assert heard.heard[-1][0] == "revoked"
        assert first.assignment() == set()
        poll_until(lambda: share(second) == [2], second)
        first.subscribe([topic])
        poll_until(lambda: share(first, second) == [1, 1], first, second)
