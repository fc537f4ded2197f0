"""Goal: field cases of groups (T4): who may commit, who is a copy, who notices new partitions.

Method: our consumers beside each other, each polled by a thread of its own, against our broker; raw
requests with the identity of a former member.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from broker_wire import Wire
from coordinator_client import CoordinatorClient
from processor_processes import fill, wait_for

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    Consumer,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import CommitFailedError, FencedInstanceIdError, KafkaError


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


class Polling:
    """A consumer that a thread polls until it is told to stop or an error ends it."""

    def __init__(self, *topics: str, commits: bool = False, **settings: object) -> None:
        self.records: list[ConsumerRecord] = []
        self.revoked: list[TopicPartition] = []
        self.error: KafkaError | None = None
        self.consumer = Consumer(**settings)  # type: ignore[arg-type]
        self.consumer.subscribe(topics, on_revoked=self.revoked.extend)
        self._commits = commits
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> set[int]:
        """What it owns now."""
        return {partition.partition for partition in self.consumer.assignment()}

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                for records in self.consumer.poll(50).values():
                    self.records += records
                    if self._commits:
                        self.consumer.commit()
        except KafkaError as error:
            self.error = error

    def stop(self, *, close: bool = True) -> None:
        """End the thread, and leave the group unless `close` is False."""
        self._stopped.set()
        self._thread.join(30)
        if close:
            self.consumer.close()


@contextmanager
def polling(*topics: str, commits: bool = False, **settings: object) -> Iterator[Polling]:
    """A polled consumer for the time of a block."""
    running = Polling(*topics, commits=commits, **settings)
    try:
        yield running
    finally:
        running.stop()


def test_fc25_handler_slower_than_the_poll_interval(cluster: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    fill(cluster, topic, [b"%d" % number for number in range(5)])
    settings: dict[str, object] = {
        "bootstrap_servers": cluster,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 100,
    }
    slow = Consumer(topic, max_poll_interval_ms=600, **settings)
    try:
        deadline = time.monotonic() + 60
        while not (polled := slow.poll(50, 1)):
            assert time.monotonic() < deadline
        assert [record.offset for record in polled[partition]] == [0]
        former = slow.group_metadata()
        with polling(topic, commits=True, max_poll_interval_ms=10_000, **settings) as other:
            # The handler of the slow one works and works: it does not poll.
            wait_for(lambda: len(other.records) == 5, "the other member to take over")
            assert other.records[0].offset == 0
            with pytest.raises(CommitFailedError):
                slow.commit({partition: 1})
            wait_for(
                lambda: other.consumer.committed([partition])[partition] is not None, "its commit"
            )
            committed = other.consumer.committed([partition])[partition]
            assert isinstance(committed, OffsetAndMetadata)
            assert committed.offset == 5

            async def raw() -> str:
                async with Wire(address(cluster)) as wire:
                    return await CoordinatorClient(wire).commit(
                        topic, 1, former.generation_id, former.member_id, topic=topic
                    )

            assert asyncio.run(raw()) in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
        assert slow.poll(0) == {}  # What it had fetched as the former owner is not delivered.
        deadline = time.monotonic() + 60
        while slow.assignment() != {partition}:
            assert slow.poll(50) == {}
            assert time.monotonic() < deadline, "it did not join again by itself"
        assert slow.position(partition) == 5
        assert slow.group_metadata().generation_id > former.generation_id
    finally:
        slow.close()


def test_fc26_static_members_restart_and_copied_id(broker: Broker, name: str) -> None:
    broker.create_topic(name, partitions=4)
    bootstrap = broker.bootstrap_servers

    def member(instance: str) -> Polling:
        return Polling(
            name,
            bootstrap_servers=bootstrap,
            group_id=name,
            group_instance_id=instance,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=100,
            auto_offset_reset="earliest",
        )

    first, second = member("i1"), member("i2")
    started: list[Polling] = [first, second]
    try:
        wait_for(lambda: len(first.partitions) == len(second.partitions) == 2, "two and two")
        before = first.partitions, second.partitions
        generation = second.consumer.group_metadata().generation_id
        assert before[0].isdisjoint(before[1])
        second.revoked.clear()
        # Ends without a leave, as a killed process: static members do not leave on close.
        first.stop()
        again = member("i1")
        started.append(again)
        wait_for(lambda: again.partitions == before[0], "the same partitions")
        assert second.partitions == before[1]
        assert again.consumer.group_metadata().generation_id == generation
        assert second.consumer.group_metadata().generation_id == generation
        assert second.revoked == []
        copy = member("i1")
        started.append(copy)
        wait_for(lambda: again.error is not None, "the older one is fenced")
        assert isinstance(again.error, FencedInstanceIdError)
        assert again.error.code == 82
        wait_for(lambda: copy.partitions == before[0], "the newer one goes on")
        delivered = len(again.records)
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(4):
                producer.send(name, b"x", partition=number)
        wait_for(lambda: len(copy.records) + len(second.records) == 4, "each record once")
        assert len(again.records) == delivered
        with pytest.raises(FencedInstanceIdError):
            again.consumer.poll(0)
    finally:
        for each in started:
            each.stop()


@pytest.mark.foreign
def test_fc26_stock_static_member_restarts_without_a_rebalance(broker: Broker, name: str) -> None:
    import confluent_kafka

    broker.create_topic(name, partitions=4)
    with polling(
        name,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=name,
        group_instance_id="ours",
        heartbeat_interval_ms=100,
        session_timeout_ms=10_000,
        partition_assignment_strategy=["range"],
    ) as ours:

        def stock() -> confluent_kafka.Consumer:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": name,
                    "group.instance.id": "stock",
                    "session.timeout.ms": 10_000,
                    "heartbeat.interval.ms": 100,
                    "partition.assignment.strategy": "range",
                }
            )
            consumer.subscribe([name])
            return consumer

        consumer = stock()
        wait_for(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2, "half")
        wait_for(lambda: len(ours.partitions) == 2, "the other half")
        generation = ours.consumer.group_metadata().generation_id
        ours.revoked.clear()
        consumer.close()
        consumer = stock()
        wait_for(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2, "again")
        assert ours.consumer.group_metadata().generation_id == generation
        assert ours.revoked == []
        consumer.close()


def test_fc28_partitions_added_under_running_groups(cluster: str, name: str) -> None:
    with Admin(bootstrap_servers=cluster) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    settings: dict[str, object] = {
        "bootstrap_servers": cluster,
        "metadata_max_age_ms": 500,
        "heartbeat_interval_ms": 100,
    }
    with (
        polling(name, group_id=f"{name}-A", auto_offset_reset="earliest", **settings) as first,
        polling(name, group_id=f"{name}-B", auto_offset_reset="latest", **settings) as second,
        Producer(bootstrap_servers=cluster, metadata_max_age_ms=500) as keyed,
        Producer(bootstrap_servers=cluster) as writer,
        Admin(bootstrap_servers=cluster) as admin,
    ):
        wait_for(lambda: len(first.partitions) == len(second.partitions) == 2, "both groups")
        assert {keyed.send(name, b"k", key=b"%d" % n).result(20).partition for n in range(40)} == {
            0, 1,
        }  # fmt: skip
        admin.create_partitions({name: 4})

        def write_ten(prefix: bytes) -> None:
            for partition in (2, 3):
                for number in range(10):
                    writer.send(name, b"%s%d" % (prefix, number), partition=partition)
            writer.flush()

        wait_for(lambda: len(writer.partitions_for(name)) == 4, "the writer")
        write_ten(b"first")
        wait_for(lambda: len(first.partitions) == len(second.partitions) == 4, "four each")
        for partition in (2, 3):  # "latest" is looked up when the partition is owned already
            second.consumer.position(TopicPartition(name, partition))
        wait_for(
            lambda: {keyed.partition_for(name, b"%d" % n) for n in range(40)} == {0, 1, 2, 3},
            "the keyed producer",
            4,
        )
        write_ten(b"second")

        def new(group: Polling) -> list[ConsumerRecord]:
            return [record for record in group.records if record.partition >= 2]

        wait_for(lambda: len(new(first)) == 40, "all new records in A")
        wait_for(
            lambda: sum(bytes(r.value).startswith(b"second") for r in new(second)) == 20,  # type: ignore[call-overload]
            "the second twenty in B",
        )
