"""Goal: hanging transactions are found and ended, and live ones are left to their owners.

Method: records of a transaction that its coordinator was not told of, beside live transactions, on
the broker in process. What Kafka's own tool finds there and on Apache Kafka is compared in
`tests/conformance/test_hanging_transactions.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from consumer_worlds import read
from hanging_transactions import UNVERIFIED, leave_hanging

from onceflow.broker_lite.testing import Broker, Fault
from onceflow.sdk import (
    Admin,
    Consumer,
    HangingTransaction,
    NewTopic,
    Producer,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.errors import (
    ConfigError,
    IllegalStateError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.protocol.api.transactions import ListTransactionsRequest

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
STRANGER = ProducerIdentity("nobody", 999_999, 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker that takes unannounced partitions."""
    with Broker(settings=UNVERIFIED) as running:
        # A coordinator that begins its work ends what hangs: it must have done so before.
        Producer(bootstrap_servers=running.bootstrap_servers, transactional_id="first").close()
        yield running


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    """An admin client, and two topics."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        client.create_topics([NewTopic("t", 2), NewTopic("u", 1)])
        yield client


def found(admin: Admin, *topics: str, **more: object) -> list[tuple[TopicPartition, int]]:
    """Partition and producer id of what hangs."""
    hanging = admin.find_hanging_transactions(
        topics or None,
        max_transaction_timeout_ms=-1,  # So that what was written in this millisecond counts.
        **more,  # type: ignore[arg-type]
    )
    assert all(isinstance(item, HangingTransaction) for item in hanging)
    return [(item.partition, item.producer.producer_id) for item in hanging]


def test_what_no_coordinator_will_end_is_found(broker: Broker, admin: Admin) -> None:
    assert found(admin) == []
    leave_hanging(admin, T0, STRANGER)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer:
        identity = producer.identity
        assert identity is not None
        producer.begin_transaction()
        producer.send("t", b"live", partition=1).result()
        leave_hanging(admin, U0, identity)  # Its coordinator knows the producer, and not this.
        expected = [(T0, STRANGER.producer_id), (U0, identity.producer_id)]
        assert found(admin) == expected
        assert found(admin, "t") == expected[:1]
        assert found(admin, partitions=[U0]) == expected[1:]
        assert found(admin, "t", partitions=[U0]) == expected
        assert found(admin, node_id=1) == expected
        assert found(admin, "t", node_id=7) == []
        producer.commit_transaction()
    assert found(admin) == expected


def test_what_is_young_is_not_taken_for_hanging(admin: Admin) -> None:
    leave_hanging(admin, T0, STRANGER)
    assert admin.find_hanging_transactions() == []
    assert admin.find_hanging_transactions(max_transaction_timeout_ms=60_000) == []


def test_a_topic_that_was_named_and_does_not_exist_is_an_error(admin: Admin) -> None:
    for call in (
        lambda: admin.find_hanging_transactions(["nowhere"]),
        lambda: admin.find_hanging_transactions(partitions=[TopicPartition("t", 9)]),
    ):
        with pytest.raises(UnknownTopicOrPartitionError):
            call()
    with pytest.raises(ConfigError):
        admin.find_hanging_transactions(max_transaction_timeout_ms="15 minutes")  # type: ignore[arg-type]


def test_a_hanging_transaction_is_ended_and_its_readers_go_on(broker: Broker, admin: Admin) -> None:
    leave_hanging(admin, T0, STRANGER)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("t", "behind", partition=0).result()
    (hanging,) = admin.find_hanging_transactions(max_transaction_timeout_ms=-1)
    with pytest.raises(IllegalStateError, match="no open transaction"):
        admin.abort_transaction(T0, start_offset=5)
    ended = admin.abort_transaction(
        hanging.partition, start_offset=hanging.producer.transaction_start_offset
    )
    assert ended == hanging.producer
    assert found(admin) == []
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([T0])
        assert read(consumer, 1) == ["behind"]


def test_a_live_transaction_is_not_ended_under_its_owner(broker: Broker, admin: Admin) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x") as producer:
        producer.begin_transaction()
        producer.send("t", "mine", partition=0).result()
        for where in ({"start_offset": 0}, {"producer_id": producer.identity.producer_id}):  # type: ignore[union-attr]
            with pytest.raises(IllegalStateError, match=r"knows it as 'x', Ongoing.*force=True"):
                admin.abort_transaction(T0, **where)
        producer.commit_transaction()
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([T0])
        assert read(consumer, 1) == ["mine"]


def test_a_live_transaction_can_be_ended_by_force(broker: Broker, admin: Admin) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="x")
    producer.begin_transaction()
    producer.send("t", b"mine", partition=0).result()
    ended = admin.abort_transaction(T0, start_offset=0, force=True)
    assert ended.transaction_start_offset == 0
    assert admin.describe_producers([T0])[T0][0].transaction_start_offset is None
    producer.abort_transaction()
    producer.close()


def test_a_coordinator_that_cannot_be_asked_ends_nothing(broker: Broker, admin: Admin) -> None:
    leave_hanging(admin, T0, STRANGER)
    broker.faults.add(ListTransactionsRequest, Fault.DROP_REQUEST, times=None)
    with pytest.raises(KafkaError):
        admin.abort_transaction(T0, start_offset=0, timeout_ms=500)
    assert admin.describe_producers([T0])[T0][0].transaction_start_offset == 0
