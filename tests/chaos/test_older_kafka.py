"""Goal: our clients work with older brokers, and our broker stands for each of them by its profile.

Method: released versions of Apache Kafka are started one after the other, and beside each of them
our broker under the profile of that release. Both are asked the same; what a release lacks must be
refused by an error that says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import real_kafka
from kafka_api_versions import asked, recorded
from stock_clients import Kit, wait_until
from stock_onceflow import OurAsyncKit, OurKit
from stock_scenarios import (
    SCENARIOS,
    Scenario,
    consume_transform_produce_survives_a_restart,
    make_topic,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    Consumer,
    ConsumerGroupMetadata,
    IsolationLevel,
    NewTopic,
    Producer,
    ScramUpsertion,
    TopicPartition,
)
from onceflow.sdk.errors import (
    ProducerFencedError,
    TransactionAbortedError,
    UnsupportedVersionError,
)
from onceflow.sdk.model.admin import ResourceType
from onceflow.transactions import SessionConfig, TransactionSession

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

RELEASES = ("2.1.1", "2.5.1", "2.8.2", "3.3.2", "3.5.2", "3.9.1", "4.0.0")
KITS = (OurKit(), OurAsyncKit())


class Older(NamedTuple):
    """A running broker.

    Attributes:
        bootstrap_servers: Its address.
        release: What it is, or stands for.
        is_kafka: Whether it is Apache Kafka itself.
    """

    bootstrap_servers: str
    release: str
    is_kafka: bool

    def has(self, release: str) -> bool:
        """Whether something that came with a release is there."""
        return numbers(self.release) >= numbers(release)


def numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


@pytest.fixture(
    scope="module",
    params=[(release, is_kafka) for release in RELEASES for is_kafka in (True, False)],
    ids=lambda param: f"{'kafka' if param[1] else 'profile'}-{param[0]}",
)
def older(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Older]:
    release, is_kafka = request.param
    settings = real_kafka.anybody_may(release)
    if not is_kafka:
        # As in `real_kafka`, so that transactions end soon after their time.
        cleanup = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        settings = real_kafka.ANYBODY_MAY | {cleanup: "200"}
        with Broker(profile=release.rpartition(".")[0], settings=settings) as broker:
            yield Older(broker.bootstrap_servers, release, is_kafka)
        return
    if reason := real_kafka.unavailable_reason(release):
        if os.environ.get("ONCEFLOW_REQUIRE_KAFKA"):
            pytest.fail(f"Apache Kafka {release} is required here: {reason}")
        pytest.skip(f"Apache Kafka {release} cannot run here: {reason}")
    folder = tmp_path_factory.mktemp(f"kafka-{release}")
    with real_kafka.ApacheKafka(folder, settings=settings, version=release) as kafka:
        yield Older(kafka.bootstrap_servers, release, is_kafka)


@pytest.fixture
def name() -> str:
    """A name that is free for topics, groups and transactional ids."""
    return f"older-{uuid4().hex[:12]}"


@pytest.mark.parametrize("kit", KITS, ids=["blocking", "asyncio"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_our_clients(scenario: Scenario, kit: Kit, older: Older, name: str) -> None:
    if scenario is consume_transform_produce_survives_a_restart and not older.has("2.5"):
        with pytest.raises(UnsupportedVersionError, match=r"KIP-447.*from 2\.5 on"):
            scenario(kit, older.bootstrap_servers, name)
        return
    scenario(kit, older.bootstrap_servers, name)


def test_it_answers_as_was_recorded(older: Older) -> None:
    """The vectors that `make test` compares our table of releases with."""
    if older.is_kafka:
        assert asked(older.bootstrap_servers) == recorded()[older.release]


# --- administration ---

FIRST_MS = 1_700_000_000_000

Call = Callable[[Admin, TopicPartition], object]

CALLS: dict[str, tuple[str, Call]] = {
    "broker's default partitions": ("2.4", lambda a, p: a.create_topics([f"{p.topic}-default"])),
    "alter_configs": ("2.3", lambda a, p: a.alter_configs({p.topic: {"retention.ms": "3600000"}})),
    "elect_leaders": ("2.4", lambda a, p: a.elect_leaders([p], election_type="unclean")),
    "reassignments": ("2.4", lambda a, p: a.list_partition_reassignments([p])),
    "groups by state": ("2.6", lambda a, p: a.list_groups(states=["Empty"])),
    "quotas": ("2.6", lambda a, p: a.describe_client_quotas()),
    "describe_producers": ("2.8", lambda a, p: a.describe_producers([p])),
    "list_transactions": ("3.0", lambda a, p: a.list_transactions()),
    "max_timestamp": ("3.0", lambda a, p: a.list_offsets({p: "max_timestamp"})),
    "quorum": ("3.3", lambda a, p: a.describe_metadata_quorum()),
    "groups by type": ("3.8", lambda a, p: a.list_groups(types=["classic"])),
    "list_config_resources": ("4.1", lambda a, p: a.list_config_resources()),
    "config resources by type": ("4.1", lambda a, p: a.list_config_resources([ResourceType.TOPIC])),
}
"""What came with a release after 2.1."""


@pytest.mark.parametrize("what", CALLS)
def test_what_came_later_is_there_or_refused_with_its_release(
    what: str, older: Older, name: str
) -> None:
    since, call = CALLS[what]
    make_topic(older.bootstrap_servers, name, 1)
    with Admin(bootstrap_servers=older.bootstrap_servers) as admin:
        if older.has(since):
            call(admin, TopicPartition(name, 0))
            return
        with pytest.raises(UnsupportedVersionError) as caught:
            call(admin, TopicPartition(name, 0))
    (told,) = re.findall(r"Apache Kafka serves from ([0-9.]+) on", str(caught.value))
    # A request may have come before what is asked of it here.
    assert numbers(older.release) < numbers(told) <= numbers(since)


def test_passwords_came_with_zookeeper_and_again_with_kraft(older: Older, name: str) -> None:
    def alter(admin: Admin) -> None:
        admin.alter_user_scram_credentials([ScramUpsertion(name, "secret", "SCRAM-SHA-256", 4096)])

    with Admin(bootstrap_servers=older.bootstrap_servers) as admin:
        if older.release.startswith("2.8") or older.has("3.5"):
            alter(admin)
            wait_until(lambda: name in admin.describe_user_scram_credentials(), "the user")
            return
        with pytest.raises(UnsupportedVersionError, match=r"serves from 3\.5 on"):
            alter(admin)


def test_an_administrator_does_what_every_release_has(older: Older, name: str) -> None:
    servers = older.bootstrap_servers
    partition = TopicPartition(name, 0)
    with Admin(bootstrap_servers=servers) as admin:
        cluster = admin.describe_cluster()
        assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [servers]
        assert cluster.cluster_id
        admin.create_topics([NewTopic(name, 1, 1, {"cleanup.policy": "compact"})])
        admin.create_partitions({name: 2})
        wait_until(lambda: admin.describe_topics([name])[name].partition_count == 2, "grown")
        config = admin.describe_configs([name])[name]
        assert config["cleanup.policy"].value == "compact"
        with Producer(bootstrap_servers=servers) as producer:
            for number in range(10):
                producer.send(name, b"v", key=b"k", partition=0, timestamp_ms=FIRST_MS + number)
        found = [
            admin.list_offsets({partition: wish})[partition].offset
            for wish in ("earliest", "latest", FIRST_MS + 4, FIRST_MS + 99)
        ]
        assert found == [0, 10, 4, -1]
        assert admin.describe_groups(["nobody"])["nobody"].state == "Dead"
        admin.alter_group_offsets(name, {partition: 7})
        assert admin.list_group_offsets(name)[partition].offset == 7
        assert name in {group.group_id for group in admin.list_groups()}
        admin.delete_groups([name])
        assert admin.describe_acls() == []
        assert list(admin.describe_log_dirs()) == [cluster.nodes[0].node_id]
    with Admin(bootstrap_servers=servers) as admin:
        admin.alter_group_offsets(name, {partition: 1})
        plain = TopicPartition(f"{name}-plain", 0)
        admin.create_topics([NewTopic(plain.topic, 1, 1)])
        with Producer(bootstrap_servers=servers) as producer:
            producer.send(plain.topic, b"gone")
            producer.send(plain.topic, b"kept")
        assert admin.delete_records({plain: 1}) == {plain: 1}
        assert admin.list_offsets({plain: "earliest"})[plain].offset == 1


# --- groups ---


def member(older: Older, name: str, **settings: Any) -> Consumer:
    return Consumer(
        name,
        bootstrap_servers=older.bootstrap_servers,
        group_id=name,
        auto_offset_reset="earliest",
        **settings,
    )


def holds(consumer: Consumer, count: int) -> bool:
    consumer.poll(50)
    return len(consumer.assignment()) == count


def both_hold_one(first: Consumer, second: Consumer) -> bool:
    return holds(first, 1) & holds(second, 1)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_share_and_leave(assignor: str, older: Older, name: str) -> None:
    """Nobody waits for a session to end: the group is empty as soon as its members are closed."""
    make_topic(older.bootstrap_servers, name, 2)
    settings = {"partition_assignment_strategy": [assignor], "heartbeat_interval_ms": 100}
    with member(older, name, **settings) as first:
        wait_until(lambda: holds(first, 2), "the first has all")
        with member(older, name, **settings) as second:
            wait_until(lambda: both_hold_one(first, second), "they share")
        wait_until(lambda: holds(first, 2), "the first has all again", 20)
    with Admin(bootstrap_servers=older.bootstrap_servers) as admin:
        assert admin.describe_groups([name])[name].state == "Empty"


def test_a_static_member_keeps_its_place(older: Older, name: str) -> None:
    make_topic(older.bootstrap_servers, name, 1)
    with member(older, name, group_instance_id="one") as consumer:
        if not older.has("2.3"):
            with pytest.raises(UnsupportedVersionError, match=r"group_instance_id.*from 2\.3 on"):
                wait_until(lambda: holds(consumer, 1), "the refusal")
            return
        wait_until(lambda: holds(consumer, 1), "a member")
        generation = consumer.group_metadata().generation_id
    with member(older, name, group_instance_id="one") as consumer:
        wait_until(lambda: holds(consumer, 1), "the member again")
        # Before 2.4 (KIP-345's second part) each return of the leader is a rebalance.
        assert consumer.group_metadata().generation_id in (generation, generation + 1)


def test_consumer_protocol(older: Older, name: str) -> None:
    """KIP-848: served from 4.0 on, announced and refused by default from 3.7 on."""
    make_topic(older.bootstrap_servers, name, 2)
    with member(older, name, group_protocol="consumer") as first:
        if not older.has("4.0"):
            with pytest.raises(UnsupportedVersionError, match=r"Apache Kafka.*4\.0 on"):
                wait_until(lambda: holds(first, 2), "the refusal")
            return
        wait_until(lambda: holds(first, 2), "the first has all")
        with member(older, name, group_protocol="consumer") as second:
            wait_until(lambda: both_hold_one(first, second), "they share", 60)


# --- transactions ---


def test_a_stale_member_is_fenced_where_the_release_can(older: Older, name: str) -> None:
    make_topic(older.bootstrap_servers, name, 1)
    offsets = {TopicPartition(name, 0): 1}
    with (
        Producer(bootstrap_servers=older.bootstrap_servers, transactional_id=name) as producer,
        member(older, name) as consumer,
    ):
        wait_until(lambda: holds(consumer, 1), "a member")
        producer.begin_transaction()
        producer.send(name, b"first")
        if older.has("2.5"):
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.commit_transaction()
        else:
            with pytest.raises(UnsupportedVersionError, match=r"KIP-447.*from 2\.5 on"):
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.abort_transaction()
            with producer.transaction():
                producer.send(name, b"again")
                producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(name))
        wait_until(lambda: bool(consumer.committed(list(offsets))), "the offsets")
    with Admin(bootstrap_servers=older.bootstrap_servers) as admin:
        if older.has("3.0"):
            described = admin.describe_transactions([name])[name]
            assert described.state == "CompleteCommit"


def test_a_transaction_that_was_open_for_too_long(older: Older, name: str) -> None:
    """Who ended it can be asked from 3.0 on; 4.0.0 raises the epoch as far as a takeover would."""
    make_topic(older.bootstrap_servers, name, 1)
    partition = TopicPartition(name, 0)
    cannot_tell = not older.has("3.0") or (older.is_kafka and older.release == "4.0.0")
    with (
        Admin(bootstrap_servers=older.bootstrap_servers) as admin,
        Producer(
            bootstrap_servers=older.bootstrap_servers,
            transactional_id=name,
            transaction_timeout_ms=1_000,
        ) as producer,
    ):
        producer.begin_transaction()
        producer.send(name, b"late", partition=0).result()
        level = IsolationLevel.READ_COMMITTED
        latest: dict[TopicPartition, str | int] = {partition: "latest"}
        wait_until(
            lambda: admin.list_offsets(latest, isolation_level=level)[partition].offset == 2,
            "the coordinator's marker",
        )
        with pytest.raises(ProducerFencedError if cannot_tell else TransactionAbortedError):
            producer.commit_transaction()
    again = Producer(bootstrap_servers=older.bootstrap_servers, transactional_id=name)
    with again, again.transaction():
        again.send(name, b"again", partition=0)
    with Consumer(
        bootstrap_servers=older.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign([partition])
        assert taken(consumer, 1) == [b"again"]


def taken(consumer: Consumer, count: int) -> list[object]:
    found: list[object] = []

    def enough() -> bool:
        for records in consumer.poll(100).values():
            found.extend(record.value for record in records)
        return len(found) >= count

    wait_until(enough, f"{count} records")
    return found


def pass_on(session: TransactionSession, topic: str, count: int) -> None:
    passed = 0

    def enough() -> bool:
        nonlocal passed
        for records in session.poll(200).values():
            for record in records:
                session.send(topic, record.value)
                passed += 1
        return passed >= count

    wait_until(enough, f"{count} records")


def test_a_session_is_exactly_once(older: Older, name: str) -> None:
    """The first life ends in the middle of a transaction, the second does its work again."""
    source = f"{name}-in"
    make_topic(older.bootstrap_servers, source, 1)
    make_topic(older.bootstrap_servers, name, 1)
    sent = [b"%d" % number for number in range(50)]
    with Producer(bootstrap_servers=older.bootstrap_servers) as producer:
        producer.send_many(source, sent)
    config = SessionConfig(
        topics=[source], bootstrap_servers=older.bootstrap_servers, group_id=name
    )
    with TransactionSession(config) as session:
        pass_on(session, name, len(sent))
        session.abort()
    with TransactionSession(config) as session:
        pass_on(session, name, len(sent))
        if not older.has("2.5"):
            with pytest.raises(UnsupportedVersionError, match=r"KIP-447.*from 2\.5 on"):
                session.commit()
            return
        assert session.commit()
    with Consumer(
        bootstrap_servers=older.bootstrap_servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign([TopicPartition(name, 0)])
        assert taken(consumer, len(sent)) == sent


# --- their clients on our broker ---

TOPIC_COMMAND = "kafka.admin.TopicCommand"


def test_its_own_tool_makes_topics_on_our_broker(older: Older, name: str) -> None:
    """Java clients of that release, on all that our broker serves and on the release's profile."""
    if older.is_kafka or numbers(older.release) < (2, 2):  # Before, the tool asked ZooKeeper.
        return
    if reason := real_kafka.unavailable_reason(older.release):
        pytest.skip(f"the tools of Apache Kafka {older.release} cannot run here: {reason}")
    command = TOPIC_COMMAND if not older.has("3.6") else "org.apache.kafka.tools.TopicCommand"
    with Broker() as newest:
        for servers in (newest.bootstrap_servers, older.bootstrap_servers):
            where = ("--bootstrap-server", servers)
            real_kafka.tool(
                command, *where, "--create", "--topic", name, "--partitions", "2",
                "--replication-factor", "1", version=older.release,
            )  # fmt: skip
            with Admin(bootstrap_servers=servers) as admin:
                assert admin.describe_topics([name])[name].partition_count == 2
