"""Goal: our clients, sessions and processors do the same against our broker and Apache Kafka.

Method: the scenarios that published clients play (``stock_scenarios``), by our blocking and asyncio
clients; then sessions, a processor app and what our admin client adds. Every body runs against the
daemon on a folder and against Apache Kafka, so that a difference shows by itself.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from stock_clients import Kit, Row, wait_until
from stock_confluent import ConfluentKit
from stock_onceflow import OurAsyncKit, OurKit
from stock_scenarios import (
    SCENARIOS,
    Scenario,
    make_topic,
    numbered,
    produce,
    read_all,
    values,
)

from onceflow.processors import App, OnError, State
from onceflow.sdk import Admin, Consumer, IsolationLevel, Producer, TopicPartition
from onceflow.sdk.errors import IllegalStateError
from onceflow.transactions import SessionConfig, TransactionSession


@pytest.mark.parametrize("kit", [OurKit(), OurAsyncKit()], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_our_clients(scenario: Scenario, kit: Kit, bootstrap: str, name: str) -> None:
    scenario(kit, bootstrap, name)


def test_what_our_producer_wrote_is_read_by_confluent_kafka(bootstrap: str, name: str) -> None:
    make_topic(bootstrap, name, 2)
    for codec in OurKit.codecs:
        produce(OurKit(), bootstrap, name, numbered(0, 100, codec), codec=codec)
    found = read_all(ConfluentKit(), bootstrap, name, 100 * len(OurKit.codecs))
    expected = [row for codec in OurKit.codecs for row in numbered(0, 100, codec)]
    assert sorted(values(found), key=repr) == sorted(values(expected), key=repr)


def test_joined_producer_writes_into_its_owners_transaction(bootstrap: str, name: str) -> None:
    """As Spark's tasks do: the owner begins and ends, others produce under its identity."""
    make_topic(bootstrap, name, 2)
    with Producer(bootstrap_servers=bootstrap, transactional_id=name) as owner:
        for outcome in ("kept", "dropped"):
            owner.begin_transaction()
            with Producer(bootstrap_servers=bootstrap, joined_identity=owner.identity) as joined:
                joined.send(name, outcome.encode(), partition=1)
                joined.flush()
            owner.note_partitions([TopicPartition(name, 1)])
            if outcome == "kept":
                owner.commit_transaction()
            else:
                owner.abort_transaction()
    assert values(read_all(OurKit(), bootstrap, name, 1)) == [b"kept"]


def test_admin_sees_and_ends_a_transaction_that_hangs(bootstrap: str, name: str) -> None:
    make_topic(bootstrap, name, 1)
    partition = TopicPartition(name, 0)
    producer = Producer(bootstrap_servers=bootstrap, transactional_id=name)
    with Admin(bootstrap_servers=bootstrap) as admin:
        producer.begin_transaction()
        producer.send(name, b"open", partition=0)
        producer.flush()
        assert admin.describe_transactions([name])[name].state == "Ongoing"
        assert name in {found.transactional_id for found in admin.list_transactions()}
        (state,) = admin.describe_producers([partition])[partition]
        assert state.transaction_start_offset == 0
        assert [end(admin, partition, level) for level in IsolationLevel] == [1, 0]
        with pytest.raises(IllegalStateError, match="not hanging"):
            admin.abort_transaction(partition, producer_id=state.producer_id)
        admin.abort_transaction(partition, producer_id=state.producer_id, force=True)
        committed = IsolationLevel.READ_COMMITTED
        wait_until(lambda: end(admin, partition, committed) == 2, "the marker")
    producer.abort_transaction()
    producer.close()


def end(admin: Admin, partition: TopicPartition, level: IsolationLevel) -> int:
    return admin.list_offsets({partition: "latest"}, isolation_level=level)[partition].offset


def test_admin_lists_groups_and_moves_their_offsets(bootstrap: str, name: str) -> None:
    make_topic(bootstrap, name, 2)
    produce(OurKit(), bootstrap, name, numbered(0, 10))
    zero = TopicPartition(name, 0)
    with Admin(bootstrap_servers=bootstrap) as admin:
        with Consumer(
            name, bootstrap_servers=bootstrap, group_id=name, auto_offset_reset="earliest"
        ) as consumer:
            wait_until(lambda: consumer.poll(100) != {}, "records")
            description = admin.describe_groups([name])[name]
            assert description.state == "Stable"
            assert len(description.members[0].assignment) == 2
        assert name in {group.group_id for group in admin.list_groups()}
        admin.alter_group_offsets(name, {zero: 3})
        assert admin.list_group_offsets(name)[zero].offset == 3
        admin.delete_records({zero: 4})
        assert admin.list_offsets({zero: "earliest"})[zero].offset == 4
        admin.delete_groups([name])
        assert name not in {group.group_id for group in admin.list_groups()}


def test_session_commits_outputs_with_offsets(bootstrap: str, name: str) -> None:
    """Two members one after the other; the first one's last transaction is aborted."""
    source = f"{name}-in"
    make_topic(bootstrap, source, 2)
    make_topic(bootstrap, name, 2)
    produce(OurKit(), bootstrap, source, numbered(0, 100))
    config = SessionConfig(topics=[source], bootstrap_servers=bootstrap, group_id=name)
    with TransactionSession(config) as session:
        pass_on(session, name, 100)
        session.abort()
    with TransactionSession(config) as session:
        pass_on(session, name, 100)
        assert session.commit()
    assert sorted(values(read_all(OurKit(), bootstrap, name, 100)), key=repr) == sorted(
        values(numbered(0, 100)), key=repr
    )


def pass_on(session: TransactionSession, topic: str, count: int) -> None:
    taken = 0

    def enough() -> bool:
        nonlocal taken
        for records in session.poll(200).values():
            for record in records:
                session.send(topic, record.value, key=record.key)
            taken += len(records)
        return taken >= count

    wait_until(enough, f"{count} records")


def test_app_transforms_counts_and_sets_aside(bootstrap: str, name: str, tmp_path: Path) -> None:
    """State with its changelog, a dead letter, two lives: each input counted once."""
    source, letters = f"{name}-in", f"{name}-dead"
    make_topic(bootstrap, source, 2)
    produce(OurKit(), bootstrap, source, [*numbered(0, 100), Row(0, b"poison", b"p")])
    for life in range(2):
        app = App(name, bootstrap_servers=bootstrap, state_dir=tmp_path / str(life))

        @app.processor(source, to=name, on_error=OnError.DEAD_LETTER, dead_letter=letters)
        def count(value: str, key: str, seen: State[int]) -> str:
            number = int(value)
            seen.set(seen.get(0) + 1)
            return f"{number}:{seen.get()}"

        run_until_committed(app, bootstrap, name, source, 101 + 100 * life)
        if life == 0:
            produce(OurKit(), bootstrap, source, numbered(0, 100))
    found = consumed(bootstrap, name)
    assert sorted(found) == sorted(f"{n}:{i}".encode() for n in range(100) for i in (1, 2))
    assert consumed(bootstrap, letters) == [b"poison"]


def run_until_committed(app: App, bootstrap: str, group: str, topic: str, count: int) -> None:
    """Run an app until its group has committed that many input records, markers not counted."""
    failures: list[BaseException] = []

    def watch() -> None:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        try:
            with Admin(bootstrap_servers=bootstrap) as admin:

                def done() -> bool:
                    offsets = admin.list_group_offsets(group)
                    return sum(offsets[p].offset for p in partitions if p in offsets) >= count

                wait_until(done, f"{count} input records committed")
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)
        finally:
            app.stop()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        app.run()
    finally:
        watcher.join()
    if failures:
        raise failures[0]


def consumed(bootstrap: str, topic: str) -> list[object]:
    """All committed values of a topic."""
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = [
            TopicPartition(topic, number)
            for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[object] = []

        def at_end() -> bool:
            for records in consumer.poll(100).values():
                found.extend(record.value for record in records)
            return all(consumer.position(p) >= ends[p] for p in partitions)

        wait_until(at_end, f"the end of {topic}")
    return found
