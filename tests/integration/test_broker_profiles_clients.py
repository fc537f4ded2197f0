"""Goal: every client works with every profile as it works with that release.

Method: each published client, and ours, plays the same scenarios against a broker of each profile.
`make test` has the shortest that touches most; `make chaos` has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from stock_aiokafka import AiokafkaKit
from stock_clients import Kit, wait_until
from stock_confluent import ConfluentKit
from stock_kafka_python import KafkaPythonKit
from stock_onceflow import OurAsyncKit, OurKit
from stock_scenarios import (
    aborted_transactions_are_seen_only_uncommitted,
    group_of_two_shares_commits_and_resumes,
    idempotent_producer_keeps_order_and_tells_offsets,
    offsets_are_committed_by_hand_and_found_again,
    records_come_back_as_they_were_sent,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    Admin,
    Consumer,
    ConsumerGroupMetadata,
    NewTopic,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import UnsupportedVersionError

pytestmark = pytest.mark.foreign

IN_MAKE_TEST = ("2.8",)
OTHERS = ("2.1", "2.5", "3.3", "3.9", "4.0", "4.4")
KITS = (ConfluentKit(), AiokafkaKit(), KafkaPythonKit(), OurKit(), OurAsyncKit())

Scenario = Callable[[Kit, str, str], None]


def play(scenario: Scenario, kit: Kit, profile: str) -> None:
    with Broker(profile=profile) as broker:
        scenario(kit, broker.bootstrap_servers, re.sub(r"\W+", "-", kit.name))


@pytest.mark.parametrize("profile", IN_MAKE_TEST)
@pytest.mark.parametrize("kit", KITS[:4], ids=lambda kit: kit.name)
def test_a_transaction_with_offsets(kit: Kit, profile: str) -> None:
    play(aborted_transactions_are_seen_only_uncommitted, kit, profile)


def joined(consumer: Consumer) -> bool:
    consumer.poll(50)
    return bool(consumer.assignment())


def test_a_member_leaves_its_group_when_it_closes() -> None:
    """Before 2.4 a LeaveGroup names one member, not a list; otherwise it lingers for a session."""
    with Broker(profile="2.1") as broker:
        servers = broker.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            admin.create_topics([NewTopic("t", 1, 1)])
            with Consumer("t", bootstrap_servers=servers, group_id="g") as consumer:
                wait_until(lambda: joined(consumer), "a member")
                assert admin.describe_groups(["g"])["g"].state == "Stable"
            assert admin.describe_groups(["g"])["g"].state == "Empty"


def test_a_transaction_that_an_older_broker_cannot_fence_can_be_aborted() -> None:
    with Broker(profile="2.4") as broker:
        servers = broker.bootstrap_servers
        broker.create_topic("t")
        with (
            Producer(bootstrap_servers=servers, transactional_id="t") as producer,
            Consumer("t", bootstrap_servers=servers, group_id="g") as consumer,
        ):
            wait_until(lambda: joined(consumer), "a member")
            producer.begin_transaction()
            producer.send("t", b"aborted")
            offsets = {TopicPartition("t", 0): 1}
            with pytest.raises(UnsupportedVersionError, match=r"KIP-447.*from 2\.5 on"):
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            producer.abort_transaction()
            with producer.transaction():
                producer.send("t", b"kept")
                group = ConsumerGroupMetadata("g")
                producer.send_offsets_to_transaction(offsets, group)
            assert consumer.committed(list(offsets))[TopicPartition("t", 0)].offset == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("profile", ["2.1", "2.8", "3.9"])
def test_an_admin_client_describes_the_cluster_and_a_group_that_there_is_not(profile: str) -> None:
    with Broker(profile=profile) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as a:
        cluster = a.describe_cluster()
        assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", broker.port)]
        assert cluster.cluster_id
        assert cluster.controller_id == cluster.nodes[0].node_id
        assert a.describe_groups(["nobody"])["nobody"].state == "Dead"


@pytest.mark.parametrize(("profile", "what"), [("2.8", "from 4.0 on"), ("3.9", "needs group_prot")])
def test_the_consumer_protocol_on_a_broker_without_it(profile: str, what: str) -> None:
    with Broker(profile=profile) as broker:
        broker.create_topic("t")
        servers = broker.bootstrap_servers
        with (
            Consumer(
                "t", bootstrap_servers=servers, group_id="g", group_protocol="consumer"
            ) as consumer,
            pytest.raises(UnsupportedVersionError, match=what),
        ):
            wait_until(lambda: joined(consumer), "the refusal")


@pytest.mark.chaos
@pytest.mark.parametrize(
    "scenario",
    [
        aborted_transactions_are_seen_only_uncommitted,
        offsets_are_committed_by_hand_and_found_again,
        records_come_back_as_they_were_sent,
        group_of_two_shares_commits_and_resumes,
        idempotent_producer_keeps_order_and_tells_offsets,
    ],
    ids=lambda scenario: scenario.__name__,
)
@pytest.mark.parametrize("profile", IN_MAKE_TEST + OTHERS)
@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.name)
def test_every_client_and_profile(scenario: Scenario, kit: Kit, profile: str) -> None:
    play(scenario, kit, profile)
