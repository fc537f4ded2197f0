"""Goal: field cases of isolation (T3): readers see what their level promises, and know the end.

Method: our clients and the published ones against our broker and Apache Kafka; raw Fetch where the
bytes of an answer matter.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from broker_requests import fetch, list_offset
from broker_wire import Wire
from case_clients import OURS, STOCK, read, values

from onceflow.sdk import (
    Consumer,
    Producer,
    TopicPartition,
)
from onceflow.sdk.protocol.batch_header import iter_batch_headers

RC, RU = "read_committed", "read_uncommitted"
LATEST = -1


def address(bootstrap: str) -> tuple[str, int]:
    """Host and port for a raw client."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def drain(consumer: Consumer, count: int, deadline_s: float = 10) -> list[bytes]:
    """The next records, at least so many."""
    found: list[bytes] = []
    deadline = time.monotonic() + deadline_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {found}"
        for records in consumer.poll(100).values():
            found += [bytes(record.value) for record in records]  # type: ignore[call-overload]
    return found


async def both_ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """End offsets by raw ListOffsets: uncommitted, committed."""
    async with Wire(address(bootstrap)) as wire:
        found = [
            (await list_offset(wire, topic, LATEST, isolation_level=level)).offset
            for level in (0, 1)
        ]
    return found[0], found[1]


def test_fc16_open_transaction_holds_back_everything_behind_it(cluster: str, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    settings = {"bootstrap_servers": cluster, "auto_offset_reset": "earliest"}
    with (
        Producer(bootstrap_servers=cluster) as plain,
        Producer(bootstrap_servers=cluster, transactional_id=topic) as transactional,
        Consumer(isolation_level=RU, **settings) as uncommitted,
        Consumer(isolation_level=RC, **settings) as committed,
        Consumer(isolation_level=RC, **settings) as from_end,
    ):
        plain.send(topic, b"r0").result(20)
        transactional.begin_transaction()
        transactional.send(topic, b"t1").result(20)
        plain.send(topic, b"r2").result(20)
        assert asyncio.run(both_ends(cluster, topic)) == (3, 1)
        for consumer in (uncommitted, committed, from_end):
            consumer.assign([partition])
        from_end.seek_to_end([partition])
        assert from_end.position(partition) == 1
        assert uncommitted.end_offsets([partition])[partition] == 3
        assert committed.end_offsets([partition])[partition] == 1
        assert drain(uncommitted, 3) == [b"r0", b"t1", b"r2"]
        assert drain(committed, 1) == [b"r0"]
        assert committed.poll(700) == {}
        assert from_end.poll(100) == {}
        transactional.commit_transaction()
        assert drain(committed, 2) == [b"t1", b"r2"]
        assert drain(from_end, 2) == [b"t1", b"r2"]
        assert asyncio.run(both_ends(cluster, topic)) == (4, 4)
        assert uncommitted.poll(100) == {}


@pytest.mark.foreign
@pytest.mark.parametrize("client", STOCK)
def test_fc16_stock_readers(broker, name: str, client: str) -> None:  # type: ignore[no-untyped-def]
    bootstrap = broker.bootstrap_servers
    broker.create_topic(name)
    with (
        Producer(bootstrap_servers=bootstrap) as plain,
        Producer(bootstrap_servers=bootstrap, transactional_id=name) as transactional,
    ):
        plain.send(name, b"r0").result(20)
        transactional.begin_transaction()
        transactional.send(name, b"t1").result(20)
        plain.send(name, b"r2").result(20)
        assert values(read(client, bootstrap, name, RU)) == [b"r0", b"t1", b"r2"]
        assert values(read(client, bootstrap, name, RC)) == [b"r0"]
        transactional.commit_transaction()
    assert values(read(client, bootstrap, name, RC)) == [b"r0", b"t1", b"r2"]


@pytest.mark.parametrize("commits", [True, False])
def test_fc17_position_and_lag_when_a_marker_is_last(
    cluster: str, topic: str, commits: bool
) -> None:
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=cluster, transactional_id=topic) as producer:
        producer.begin_transaction()
        for number in range(3):
            producer.send(topic, b"%d" % number).result(20)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()

    def consumer() -> Consumer:
        return Consumer(
            topic,
            bootstrap_servers=cluster,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    with consumer() as first:
        found: list[object] = []
        deadline = time.monotonic() + 60
        while not first.assignment():
            for records in first.poll(50).values():
                found += [record.value for record in records]
            assert time.monotonic() < deadline
        end = first.end_offsets([partition])[partition]
        deadline = time.monotonic() + 60
        while first.position(partition) < end:
            for records in first.poll(100).values():
                found += [record.value for record in records]
            assert time.monotonic() < deadline, "the position never reached the end"
        assert found == ([b"0", b"1", b"2"] if commits else [])
        assert first.position(partition) == end == 4
        assert first.lag(partition) == 0
        first.commit()
        committed = first.committed([partition])[partition]
        assert committed is not None
        assert committed.offset == 4
    with consumer() as second:
        deadline = time.monotonic() + 60
        while not second.assignment():
            assert second.poll(50) == {}
            assert time.monotonic() < deadline
        assert second.poll(1_000) == {}
        assert second.position(partition) == 4


def test_fc21_read_uncommitted_shows_aborted_data(cluster: str, topic: str) -> None:
    with Producer(bootstrap_servers=cluster, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"u1").result(20)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"u2")
    for client in (OURS, *STOCK):
        rows = read(client, cluster, topic, RU)
        assert [(row.offset, row.value) for row in rows] == [(0, b"u1"), (2, b"u2")], client
        assert values(read(client, cluster, topic, RC)) == [b"u2"], client

    async def raw() -> None:
        async with Wire(address(cluster)) as wire:
            data = await fetch(wire, topic, isolation_level=0, api_version=11)
            assert not data.aborted_transactions
            assert data.high_watermark == 4
            headers = list(iter_batch_headers(bytes(data.records or b"")))
            control = [bool(header.attributes & 0x20) for _, header in headers]
            assert control == [False, True, False, True]

    asyncio.run(raw())
