"""What every client must be able to do, written once: records, groups, transactions, topics.

A scenario takes a kit (`stock_clients.Kit`), the address of any broker and a name that is free
there for topics, groups and transactional ids. It asserts; it knows neither client nor broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from stock_clients import (
    DEADLINE_S,
    Kit,
    Partition,
    Row,
    StockAdmin,
    StockConsumer,
    by_partition,
    read,
    wait_until,
)
from stock_confluent import settings_for

Scenario = Callable[[Kit, str, str], None]
NOW_MS = 1_770_000_000_000
NULL_HEADER = (("nothing", None),)
ODD_ROWS = [
    Row(0, b"plain", b"key", (), NOW_MS),
    Row(1, b"no key", None, (), NOW_MS + 1),
    Row(0, b"", b"empty value", (), NOW_MS + 2),
    Row(1, None, b"null value", (), NOW_MS + 3),
    Row(0, b"empty key", b"", (), NOW_MS + 4),
    Row(1, b"headers", b"h", (("a", b"1"), ("a", b"2"), ("", b""), ("\u00e4", b"\xff")), NOW_MS),
    Row(0, b"null header", b"h", NULL_HEADER, NOW_MS - 86_400_000),
    Row(1, bytes(range(256)) * 400, b"\x00" * 300, (), NOW_MS + 5),
]  # fmt: skip


@contextlib.contextmanager
def closing(*closables: object) -> Iterator[None]:
    """Close what a scenario made, in this order, also when it failed."""
    with contextlib.ExitStack() as stack:
        for closable in reversed(closables):
            stack.callback(closable.close)  # type: ignore[attr-defined]
        yield


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic and wait until it is there, by an independent client."""
    admin = AdminClient(settings_for(bootstrap))
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_S)

    def complete() -> bool:
        found = admin.list_topics(topic, DEADLINE_S).topics[topic]
        return len(found.partitions) == partitions and all(
            partition.leader >= 0 for partition in found.partitions.values()
        )

    wait_until(complete, f"topic {topic}")


def produce(kit: Kit, bootstrap: str, topic: str, rows: list[Row], **settings: object) -> None:
    producer = kit.producer(bootstrap, **settings)  # type: ignore[arg-type]
    with closing(producer):
        for row in rows:
            producer.send(topic, row)
        producer.flush()


def read_all(
    kit: Kit, bootstrap: str, topic: str, count: int, isolation_level: str = "read_committed"
) -> list[Row]:
    """What this client reads of partitions 0 and 1 from the start."""
    consumer = kit.consumer(bootstrap, f"{topic}-reader", isolation_level=isolation_level)
    with closing(consumer):
        consumer.assign({(topic, 0): 0, (topic, 1): 0})
        return read(consumer, count)


def numbered(first: int, count: int, mark: str = "") -> list[Row]:
    return [
        Row(n % 2, b"%s%d" % (mark.encode(), n), b"%d" % n) for n in range(first, first + count)
    ]


def values(rows: list[Row]) -> list[bytes | None]:
    return [row.value for row in rows]


# --- records ---


def records_come_back_as_they_were_sent(kit: Kit, bootstrap: str, name: str) -> None:
    """Keys, values, headers and timestamps; null, empty, binary, larger than a packet."""
    make_topic(bootstrap, name, 2)
    rows = [row for row in ODD_ROWS if kit.null_headers or row.headers != NULL_HEADER]
    produce(kit, bootstrap, name, rows)
    found = by_partition(read_all(kit, bootstrap, name, len(rows)))
    for partition, sent in by_partition(rows).items():
        assert [row.without_offset() for row in found[partition]] == sent
        assert [row.offset for row in found[partition]] == list(range(len(sent)))


def every_codec_is_taken_and_given_back(kit: Kit, bootstrap: str, name: str) -> None:
    """One batch and more per codec, one codec after the other into the same log."""
    make_topic(bootstrap, name, 2)
    sent: list[Row] = []
    for codec in kit.codecs:
        rows = [
            Row(n % 2, b"%s %d " % (codec.encode(), n) * 20, b"k", (("c", codec.encode()),), NOW_MS)
            for n in range(200)
        ]
        produce(kit, bootstrap, name, rows, codec=codec, linger_ms=20)
        sent += rows
    found = by_partition(read_all(kit, bootstrap, name, len(sent)))
    for partition, rows in by_partition(sent).items():
        assert [row.without_offset() for row in found[partition]] == rows


def idempotent_producer_keeps_order_and_tells_offsets(kit: Kit, bootstrap: str, name: str) -> None:
    """Many small batches in flight: each record once, in order, at the offset that was reported."""
    make_topic(bootstrap, name, 2)
    rows = numbered(0, 2_000)
    producer = kit.producer(bootstrap, linger_ms=0)
    with closing(producer):
        for row in rows:
            producer.send(name, row)
        reported = producer.flush()
    found = by_partition(read_all(kit, bootstrap, name, len(rows)))
    for partition, sent in by_partition(rows).items():
        assert values(found[partition]) == values(sent)
    at = {(row.partition, row.offset): row.value for row in read_rows(found)}
    assert [at[place] for place in reported] == values(rows)


def read_rows(found: dict[int, list[Row]]) -> list[Row]:
    return [row for rows in found.values() for row in rows]


# --- groups ---


def group_of_two_shares_commits_and_resumes(kit: Kit, bootstrap: str, name: str) -> None:
    """Rebalance when a member joins and when it leaves; nothing is lost or read twice."""
    make_topic(bootstrap, name, 2)
    produce(kit, bootstrap, name, numbered(0, 100))
    first = kit.consumer(bootstrap, name)
    with closing(first):
        first.subscribe(name)
        assert sorted(values(read(first, 100, 0)), key=repr) == sorted(  # type: ignore[type-var]
            values(numbered(0, 100)), key=repr
        )
        first.commit()
        second = kit.consumer(bootstrap, name)
        with closing(second):
            second.subscribe(name)
            rows: list[Row] = []
            settle(rows, first, second)
            assert len(first.assignment()) == len(second.assignment()) == 1
            assert not first.assignment() & second.assignment()
            produce(kit, bootstrap, name, numbered(100, 100))
            wait_until(lambda: take(rows, first, second) >= 100, "both members read")
            assert sorted(values(rows), key=repr) == sorted(values(numbered(100, 100)), key=repr)
            both = {(name, 0): 100, (name, 1): 100}
            for member in (first, second):
                member.commit({at: both[at] for at in member.assignment()})
        rows = []
        wait_until(
            lambda: take(rows, first) >= 0 and len(first.assignment()) == 2,
            "the last member has all",
        )
        produce(kit, bootstrap, name, numbered(200, 100))
        wait_until(lambda: take(rows, first) >= 100, "the last member reads")
        assert sorted(values(rows), key=repr) == sorted(values(numbered(200, 100)), key=repr)
    third = kit.consumer(bootstrap, name)
    with closing(third):
        third.subscribe(name)
        again = read(third, 100)
        assert third.committed([(name, 0), (name, 1)]) == both
    assert sorted(values(again), key=repr) == sorted(values(numbered(200, 100)), key=repr)


def take(rows: list[Row], *members: StockConsumer) -> int:
    """Poll each member once; gives how many records there are so far."""
    for member in members:
        rows.extend(member.poll(0.05))
    return len(rows)


def settle(rows: list[Row], first: StockConsumer, second: StockConsumer) -> None:
    """Poll until each of two members has its part."""
    wait_until(
        lambda: (
            take(rows, first, second) >= 0
            and len(first.assignment()) == 1
            and len(second.assignment()) == 1
        ),
        "each member has one partition",
    )


def offsets_are_committed_by_hand_and_found_again(kit: Kit, bootstrap: str, name: str) -> None:
    """Offsets of a group without members: unknown, set, moved back; the next reader goes on."""
    make_topic(bootstrap, name, 2)
    produce(kit, bootstrap, name, numbered(0, 20))
    zero, one = (name, 0), (name, 1)
    consumer = kit.consumer(bootstrap, name)
    with closing(consumer):
        consumer.assign({zero: 0, one: 0})
        read(consumer, 20, 0)
        assert consumer.committed([zero, one]) == {zero: None, one: None}
        consumer.commit({zero: 7, one: 3})
        consumer.commit({one: 2})
        assert consumer.committed([zero, one]) == {zero: 7, one: 2}
    consumer = kit.consumer(bootstrap, name)
    with closing(consumer):
        consumer.subscribe(name)
        found = by_partition(read(consumer, 3 + 8))
    assert values(found[0]) == [b"14", b"16", b"18"]
    assert values(found[1]) == [b"%d" % n for n in range(5, 20, 2)]


# --- transactions ---


def aborted_transactions_are_seen_only_uncommitted(kit: Kit, bootstrap: str, name: str) -> None:
    """Commit, abort, commit over two partitions with offsets; offsets follow the outcome."""
    make_topic(bootstrap, name, 2)
    source = f"{name}-source"
    make_topic(bootstrap, source, 1)
    member = kit.consumer(bootstrap, f"{name}-group")
    producer = kit.producer(bootstrap, transactional_id=name)
    position: Partition = (source, 0)
    with closing(producer, member):
        member.assign({position: 0})
        for number, outcome in enumerate(("commit", "abort", "commit", "abort")):
            producer.begin()
            for row in numbered(10 * number, 10, outcome):
                producer.send(name, row)
            producer.flush()
            producer.send_offsets({position: number + 1}, member)
            getattr(producer, outcome)()
            # Apache Kafka answers before its markers are written, and not every client waits.
            expected = {position: (1, 1, 3, 3)[number]}
            wait_until(lambda e=expected: member.committed([position]) == e, "offsets")  # type: ignore[misc]
    kept = values(numbered(0, 10, "commit") + numbered(20, 10, "commit"))
    found = values(read_all(kit, bootstrap, name, 20))
    assert sorted(found, key=repr) == sorted(kept, key=repr)
    everything = values(read_all(kit, bootstrap, name, 40, "read_uncommitted"))
    assert len(everything) == 40
    assert set(kept) < set(everything)
    reader = kit.consumer(bootstrap, f"{name}-group")
    with closing(reader):
        assert reader.committed([position]) == {position: 3}


def open_transaction_holds_committed_readers_back(kit: Kit, bootstrap: str, name: str) -> None:
    """What another producer wrote behind an open transaction is seen when that one ends."""
    make_topic(bootstrap, name, 2)
    slow = kit.producer(bootstrap, transactional_id=f"{name}-slow")
    consumer = kit.consumer(bootstrap, f"{name}-reader")
    with closing(slow, consumer):
        consumer.assign({(name, 0): 0, (name, 1): 0})
        slow.begin()
        slow.send(name, Row(0, b"open", b"k"))
        slow.flush()
        produce(kit, bootstrap, name, [Row(0, b"behind", b"k"), Row(1, b"elsewhere", b"k")])
        assert values(read(consumer, 1)) == [b"elsewhere"]
        slow.commit()
        assert values(read(consumer, 2)) == [b"open", b"behind"]


def new_producer_of_an_id_fences_the_old_one(kit: Kit, bootstrap: str, name: str) -> None:
    """The old one's open transaction is aborted at once, and it cannot commit any more."""
    make_topic(bootstrap, name, 2)
    old = kit.producer(bootstrap, transactional_id=name)
    old.begin()
    old.send(name, Row(0, b"old", b"k"))
    old.flush()
    new = kit.producer(bootstrap, transactional_id=name)
    with closing(new):
        new.begin()
        new.send(name, Row(0, b"new", b"k"))
        new.commit()
        with pytest.raises(kit.fenced):
            old.commit()
        with contextlib.suppress(*kit.fenced):
            old.close()
    assert values(read_all(kit, bootstrap, name, 1)) == [b"new"]


def consume_transform_produce_survives_a_restart(kit: Kit, bootstrap: str, name: str) -> None:
    """Two lives under one id, the first one left in the middle of a transaction."""
    source = f"{name}-source"
    make_topic(bootstrap, source, 2)
    make_topic(bootstrap, name, 2)
    produce(kit, bootstrap, source, numbered(0, 60))
    done = 0
    for life in range(2):
        member = kit.consumer(bootstrap, f"{name}-group")
        producer = kit.producer(bootstrap, transactional_id=name)
        with closing(member, producer):
            member.subscribe(source)
            while done < 60:
                rows: list[Row] = []
                wait_until(lambda rows=rows: take(rows, member) > 0, "input")  # type: ignore[misc]  # noqa: B023
                producer.begin()
                for row in rows:
                    producer.send(name, Row(row.partition, b"seen " + (row.value or b""), row.key))
                producer.flush()
                if life == 0:
                    break
                ends = {(source, row.partition): row.offset + 1 for row in rows}
                producer.send_offsets(ends, member)
                producer.commit()
                done += len(rows)
            if life == 0:
                producer.abort()
    found = values(read_all(kit, bootstrap, name, 60))
    assert sorted(found, key=repr) == sorted((b"seen %d" % n for n in range(60)), key=repr)


# --- topics ---


def topics_are_created_described_grown_and_deleted(kit: Kit, bootstrap: str, name: str) -> None:
    """With settings; creating one twice fails; a deleted name is free again and empty."""
    admin = kit.admin(bootstrap)
    with closing(admin):
        admin.create(name, 2, {"retention.ms": "123456789", "cleanup.policy": "delete"})
        wait_until(lambda: admin.partition_counts().get(name) == 2, "created")
        with pytest.raises(kit.topic_exists):
            admin.create(name, 2, {})
        assert admin.config(name, "retention.ms") == "123456789"
        assert admin.config(name, "segment.bytes") == "1073741824"
        admin.grow(name, 3)
        wait_until(lambda: admin.partition_counts().get(name) == 3, "grown")
        produce(kit, bootstrap, name, [Row(2, b"old", b"k")])
        admin.delete(name)
        wait_until(lambda: name not in admin.partition_counts(), "deleted")
        wait_until(lambda: is_created(kit, admin, name), "free again")
        wait_until(lambda: admin.partition_counts().get(name) == 2, "created again")
    produce(kit, bootstrap, name, [Row(1, b"new", b"k")])
    assert values(read_all(kit, bootstrap, name, 1)) == [b"new"]


def is_created(kit: Kit, admin: StockAdmin, topic: str) -> bool:
    """With ZooKeeper a deleted topic is not shown any more for a while before its name is free."""
    try:
        admin.create(topic, 2, {})
    except kit.topic_exists:
        return False
    return True


SCENARIOS: tuple[Scenario, ...] = (
    records_come_back_as_they_were_sent,
    every_codec_is_taken_and_given_back,
    idempotent_producer_keeps_order_and_tells_offsets,
    group_of_two_shares_commits_and_resumes,
    offsets_are_committed_by_hand_and_found_again,
    aborted_transactions_are_seen_only_uncommitted,
    open_transaction_holds_committed_readers_back,
    new_producer_of_an_id_fences_the_old_one,
    consume_transform_produce_survives_a_restart,
    topics_are_created_described_grown_and_deleted,
)
