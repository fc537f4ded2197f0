"""Goal: the admin clients do what they are asked, and name what they could not do.

Method: every call against the bundled broker on a real socket, through the blocking face; one walk
through the asyncio face. Faults are injected where a call must be repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from consumer_worlds import fresh, make_topic, poll_until, write

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    Consumer,
    IsolationLevel,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import (
    BrokerError,
    ConfigError,
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.model.admin import ConfigResource, ResourceType
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.groups import ListGroupsRequest
from onceflow.sdk.protocol.error_codes import ErrorCode


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


# --- topics ---


def test_a_topic_lives_from_creation_to_deletion(admin: Admin) -> None:
    name = fresh("topic")
    created = admin.create_topics([NewTopic(name, 3, 1, {"retention.ms": "1000"})])
    description = admin.describe_topics([name])[name]
    assert created == {name: description.topic_id}
    assert description.partition_count == 3
    assert [p.leader for p in description.partitions] == [description.partitions[0].leader] * 3
    assert name in admin.list_topics()
    admin.create_partitions({name: 5})
    assert admin.describe_topics([name])[name].partition_count == 5
    admin.delete_topics([name])
    assert name not in admin.list_topics()


def test_a_text_is_one_name_and_not_its_letters(admin: Admin) -> None:
    admin.create_topics("ab")
    admin.create_topics(["a", "b"])
    assert set(admin.describe_topics("ab")) == {"ab"}
    admin.delete_topics("ab")
    assert {"a", "b"} == {"a", "b", "ab"} & set(admin.list_topics())
    assert set(admin.describe_groups("xy")) == {"xy"}


def test_a_dry_run_fails_where_the_real_one_would(broker: Broker, admin: Admin) -> None:
    name, group = fresh("topic"), fresh("group")
    admin.create_topics([NewTopic(name, 1)])
    partition = TopicPartition(name, 0)
    with Consumer(name, bootstrap_servers=broker.bootstrap_servers, group_id=group) as consumer:
        poll_until(lambda: bool(consumer.assignment()), consumer)
        for dry_run in (True, False):
            with pytest.raises(UnknownMemberIdError, match="has members"):
                admin.reset_group_offsets(group, [partition], to="earliest", dry_run=dry_run)


def test_a_negative_time_is_refused_before_it_means_something_else(admin: Admin) -> None:
    for time_ms in (-1, -2):
        with pytest.raises(ConfigError, match="to_time_ms"):
            admin.reset_group_offsets("g", to_time_ms=time_ms)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_group_that_committed_nothing_has_nothing_to_reset(admin: Admin, dry_run: bool) -> None:
    """Most often its name is misspelt."""
    with pytest.raises(ConfigError, match="check its name"):
        admin.reset_group_offsets(fresh("group"), to="earliest", dry_run=dry_run)


def test_no_partitions_are_not_all_partitions(admin: Admin) -> None:
    """A list that a program computed, and that came out empty, resets nothing."""
    topic, group = fresh("topic"), fresh("group")
    admin.create_topics([topic])
    partition = TopicPartition(topic, 0)
    admin.alter_group_offsets(group, {partition: 0})
    assert admin.reset_group_offsets(group, [], to=5) == {}
    assert admin.list_group_offsets(group)[partition].offset == 0


def test_a_check_creates_nothing(admin: Admin) -> None:
    name = fresh("topic")
    admin.create_topics([name], validate_only=True)
    assert name not in admin.list_topics()


def test_what_fails_is_named_and_the_rest_is_done(admin: Admin) -> None:
    old, new = fresh("topic"), fresh("topic")
    admin.create_topics([old])
    with pytest.raises(TopicAlreadyExistsError, match=old) as raised:
        admin.create_topics([old, new, "a/b"])
    assert "a/b" in "".join(raised.value.__notes__)
    assert new in admin.list_topics()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: a.create_topics(["a/b"]), InvalidTopicError),
        (lambda a: a.delete_topics(["missing"]), UnknownTopicOrPartitionError),
        (lambda a: a.describe_topics(["missing"]), UnknownTopicOrPartitionError),
        (lambda a: a.create_partitions({"missing": 2}), UnknownTopicOrPartitionError),
        (lambda a: a.describe_configs(["missing"]), UnknownTopicOrPartitionError),
        (
            lambda a: a.delete_records({TopicPartition("missing", 0): -1}),
            UnknownTopicOrPartitionError,
        ),
        (
            lambda a: a.list_offsets({TopicPartition("missing", 0): "latest"}),
            UnknownTopicOrPartitionError,
        ),
        (lambda a: a.delete_groups(["missing"]), GroupIdNotFoundError),
        (lambda a: a.describe_transactions(["missing"]), TransactionalIdNotFoundError),
    ],
)
def test_what_does_not_exist_is_named_at_once(
    admin: Admin, call: Callable[[Admin], object], error: type[BrokerError]
) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=r"missing|a/b"):
        call(admin)
    assert time.monotonic() - began < 20


def test_partitions_cannot_become_fewer(admin: Admin) -> None:
    name = fresh("topic")
    admin.create_topics([NewTopic(name, 2)])
    with pytest.raises(InvalidPartitionsError, match=name):
        admin.create_partitions({name: 1})


def test_records_are_deleted_up_to_an_offset_or_the_end(broker: Broker, admin: Admin) -> None:
    topic = make_topic(broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    write(broker.bootstrap_servers, topic, [str(i) for i in range(10)])
    assert admin.delete_records({partition: 4}) == {partition: 4}
    with pytest.raises(OffsetOutOfRangeError, match=str(partition)):
        admin.delete_records({partition: 11})
    assert admin.delete_records({partition: -1}) == {partition: 10}
    assert admin.list_offsets({partition: "earliest"})[partition].offset == 10


# --- settings ---


def test_settings_are_set_and_returned_to_the_default(broker: Broker, admin: Admin) -> None:
    topic = make_topic(broker.bootstrap_servers)
    admin.alter_configs({topic: {"retention.ms": "1234", "cleanup.policy": "compact"}})
    entries = admin.describe_configs([topic])[topic]
    assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("1234", False)
    admin.alter_configs({topic: {"retention.ms": None}})
    entries = admin.describe_configs([topic])[topic]
    assert entries["retention.ms"].is_default
    assert entries["cleanup.policy"].value == "compact"
    with pytest.raises(InvalidConfigError, match=topic):
        admin.alter_configs({topic: {"no.such.setting": "1"}})


def test_a_brokers_settings_are_asked_of_that_broker(admin: Admin) -> None:
    node = admin.describe_cluster().nodes[0]
    resource = ConfigResource(ResourceType.BROKER, str(node.node_id))
    assert admin.describe_configs([resource])[resource]


# --- groups and offsets ---


def test_a_group_is_listed_described_and_deleted_when_it_is_empty(
    broker: Broker, admin: Admin
) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), fresh("group")
    partition = TopicPartition(topic, 0)
    with Consumer(topic, bootstrap_servers=broker.bootstrap_servers, group_id=group) as consumer:
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        (listing,) = [found for found in admin.list_groups() if found.group_id == group]
        assert (listing.protocol_type, listing.state) == ("consumer", "Stable")
        description = admin.describe_groups([group])[group]
        assert description.members[0].assignment == consumer.assignment()
        with pytest.raises(NonEmptyGroupError, match=group):
            admin.delete_groups([group])
        with pytest.raises(UnknownMemberIdError, match="has members"):
            admin.alter_group_offsets(group, {partition: 1})
    admin.alter_group_offsets(group, {partition: OffsetAndMetadata(7, "note")})
    assert admin.list_group_offsets(group)[partition][:2] == (7, "note")
    assert group in {found.group_id for found in admin.list_groups(states=["Empty"])}
    admin.delete_groups([group])
    assert admin.describe_groups([group])[group].state == "Dead"
    assert admin.list_group_offsets(group) == {}


def test_offsets_by_word_and_by_time(broker: Broker, admin: Admin) -> None:
    topic = make_topic(broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for time_ms in (1_000, 3_000, 2_000):
            producer.send(topic, b"x", partition=0, timestamp_ms=time_ms)
    specs = ("earliest", "latest", "max_timestamp", 1_500, 9_000)
    found = [admin.list_offsets({partition: spec})[partition].offset for spec in specs]
    assert found == [0, 3, 1, 1, -1]
    with pytest.raises(ValueError, match="must be one of"):
        admin.list_offsets({partition: "middle"})


# --- transactions ---


def test_isolation_level_may_be_a_word_as_for_consumers(admin: Admin) -> None:
    for level in ("read_committed", "read_uncommitted", 1):
        assert admin.list_offsets({}, isolation_level=level) == {}  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'isolation_level.*"read_committed" or'):
        admin.list_offsets({}, isolation_level="committed")


def test_an_open_transaction_is_seen_from_all_sides(broker: Broker, admin: Admin) -> None:
    topic, name = make_topic(broker.bootstrap_servers), fresh("txn")
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.flush()
        description = admin.describe_transactions([name])[name]
        assert (description.state, description.partitions) == ("Ongoing", {partition})
        assert name in {t.transactional_id for t in admin.list_transactions(states=["Ongoing"])}
        (state,) = admin.describe_producers([partition])[partition]
        assert state.producer_id == description.producer_id
        assert state.transaction_start_offset == 0
        stable = admin.list_offsets(
            {partition: "latest"}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        assert stable[partition].offset == 0
        producer.commit_transaction()
    (state,) = admin.describe_producers([partition])[partition]
    assert state.transaction_start_offset is None


# --- again, and asyncio ---


def test_what_may_succeed_later_is_asked_again(broker: Broker, admin: Admin) -> None:
    for code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        broker.faults.add(ListGroupsRequest, Fault.ERROR, error=code)
    broker.faults.add(CreateTopicsRequest, Fault.DROP_REQUEST)
    assert isinstance(admin.list_groups(), list)
    name = fresh("topic")
    assert name in admin.create_topics([name])


def test_what_never_succeeds_ends_in_time_and_says_why(broker: Broker, admin: Admin) -> None:
    broker.faults.add(
        ListGroupsRequest, Fault.ERROR, times=None, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    try:
        with pytest.raises(CoordinatorLoadInProgressError) as raised:
            admin.list_groups(timeout_ms=300)
        assert "given up after 300 ms" in raised.value.__notes__
    finally:
        broker.faults.clear()


def test_the_last_try_that_runs_out_of_time_does_not_hide_what_the_broker_said(
    broker: Broker, admin: Admin
) -> None:
    broker.faults.add(
        ListGroupsRequest, Fault.ERROR, times=2, error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    )
    broker.faults.add(ListGroupsRequest, Fault.HOLD)
    try:
        with pytest.raises(CoordinatorLoadInProgressError) as raised:
            admin.list_groups(timeout_ms=1_000)
        assert "given up after 1000 ms" in raised.value.__notes__
    finally:
        broker.faults.clear()


async def test_the_asyncio_face_has_the_same_calls(broker: Broker) -> None:
    async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
        name = fresh("topic")
        await admin.create_topics([NewTopic(name, 2)])
        assert (await admin.describe_topics([name]))[name].partition_count == 2
        cluster = await admin.describe_cluster()
        assert cluster.controller_id in {node.node_id for node in cluster.nodes}


async def test_calls_about_one_topic_do_not_hide_it_from_each_other(broker: Broker) -> None:
    topics = [make_topic(broker.bootstrap_servers) for _ in range(3)]
    places = [TopicPartition(name, 0) for name in topics]
    async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:

        async def again(call: Callable[[], Awaitable[object]]) -> None:
            for _ in range(40):
                await call()

        await asyncio.gather(
            again(lambda: admin.describe_topics(topics[:2])),
            again(lambda: admin.describe_topics(topics[1:])),
            again(lambda: admin.list_topics()),
            again(lambda: admin.describe_producers(places)),
            again(lambda: admin.list_offsets(dict.fromkeys(places, "latest"))),
        )


async def test_a_described_topic_is_not_kept_fresh_for_ever(broker: Broker) -> None:
    asked, only_described = (make_topic(broker.bootstrap_servers) for _ in range(2))
    async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.describe_producers([TopicPartition(asked, 0)])
        await admin.describe_topics([asked, only_described])
        kept = admin._pool.metadata.topics
        assert (asked in kept, only_described in kept) == (True, False)
