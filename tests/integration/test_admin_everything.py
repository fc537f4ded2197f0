"""Goal: every call of the admin client does what it says, on our broker and on Apache Kafka.

Method: the walks of `admin_walk` against the bundled broker; the same against Apache Kafka with
`make conformance`. What only one of them can show (errors of single items, ACLs) follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import real_kafka
from admin_walk import (
    walk_cluster,
    walk_configs,
    walk_fencing,
    walk_offsets,
    walk_quotas,
    walk_replicas,
    walk_users,
)
from consumer_worlds import fresh, make_topic

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing.faults import Fault
from onceflow.sdk import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Admin,
    AsyncAdmin,
    ScramUpsertion,
    TopicPartition,
)
from onceflow.sdk.errors import (
    BrokerError,
    BrokerIdNotRegisteredError,
    ConfigError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    LogDirNotFoundError,
    NoReassignmentInProgressError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.protocol.api.admin_quotas import AlterClientQuotasRequest
from onceflow.sdk.protocol.error_codes import ErrorCode

WALKS: list[Callable[[Admin], None]] = [
    walk_quotas,
    walk_users,
    walk_configs,
    walk_replicas,
    walk_cluster,
]
WALKS_WITH_CLIENTS: list[Callable[[Admin, str], None]] = [walk_offsets, walk_fencing]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
        yield client


@pytest.mark.parametrize("walk", WALKS)
def test_on_our_broker(admin: Admin, walk: Callable[[Admin], None]) -> None:
    walk(admin)


@pytest.mark.parametrize("walk", WALKS_WITH_CLIENTS)
def test_on_our_broker_with_clients(
    broker: Broker, admin: Admin, walk: Callable[[Admin, str], None]
) -> None:
    walk(admin, broker.bootstrap_servers)


@pytest.mark.kafka
def test_on_apache_kafka(apache_kafka: real_kafka.ApacheKafka) -> None:
    servers = apache_kafka.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        for walk in WALKS:
            walk(admin)
        for walk_with_clients in WALKS_WITH_CLIENTS:
            walk_with_clients(admin, servers)


MISSING = TopicPartition("missing", 0)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda a: a.alter_client_quotas([({"user": "u"}, {"nope": 1.0})]), InvalidRequestError),
        (lambda a: a.alter_client_quotas([({"group": "u"}, {})]), ConfigError),
        (lambda a: a.describe_client_quotas({"group": "u"}), ConfigError),
        (lambda a: a.alter_user_scram_credentials([ScramUpsertion("u", "")]), ConfigError),
        (lambda a: a.alter_user_scram_credentials([ScramUpsertion("u", "p", "MD5")]), ConfigError),
        (
            lambda a: a.alter_user_scram_credentials([ScramUpsertion("u", "p", iterations=1)]),
            ConfigError,
        ),
        (lambda a: a.elect_leaders([MISSING]), UnknownTopicOrPartitionError),
        (lambda a: a.elect_leaders(election_type="random"), ConfigError),
        (
            lambda a: a.alter_partition_reassignments({MISSING: [1]}),
            UnknownTopicOrPartitionError,
        ),
        (lambda a: a.update_features({"transaction.version": 99}), InvalidUpdateVersionError),
        (lambda a: a.update_features({}, upgrade_type="sideways"), ConfigError),
        (lambda a: a.unregister_broker(77), BrokerIdNotRegisteredError),
        (lambda a: a.reset_group_offsets("g"), ConfigError),
        (lambda a: a.reset_group_offsets("g", to="middle"), ConfigError),
        (lambda a: a.reset_group_offsets("g", to=1, shift_by=1), ConfigError),
        (
            lambda a: a.create_acls(
                [AclBinding(AclResourceType.ANY, "t", "User:a", AclOperation.READ)]
            ),
            ConfigError,
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(
    admin: Admin, call: Callable[[Admin], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(admin)


def test_one_that_fails_does_not_hide_the_others(broker: Broker, admin: Admin) -> None:
    topic = make_topic(broker.bootstrap_servers)
    here, node_id = TopicPartition(topic, 0), admin.describe_cluster().nodes[0].node_id
    with pytest.raises(InvalidReplicaAssignmentError, match="missing") as raised:
        admin.alter_partition_reassignments({here: [77], MISSING: [node_id]})
    assert "missing" in "".join(raised.value.__notes__) + str(raised.value)
    with pytest.raises(NoReassignmentInProgressError, match=topic):
        admin.alter_partition_reassignments({here: None})
    with pytest.raises(LogDirNotFoundError, match=topic):
        admin.alter_replica_log_dirs(node_id, {here: "/nowhere"})
    user = fresh("user")
    with pytest.raises(InvalidRequestError, match="nope"):
        admin.alter_client_quotas(
            [({"user": user}, {"producer_byte_rate": 5.0}), ({"ip": "1.2.3.4"}, {"nope": 1.0})]
        )
    assert admin.describe_client_quotas({"user": user})[0].quotas == {"producer_byte_rate": 5.0}
    with pytest.raises(OffsetOutOfRangeError, match="no committed offset"):
        admin.reset_group_offsets(fresh("group"), [here], shift_by=1)


def test_a_controller_that_moved_is_found_again(broker: Broker, admin: Admin) -> None:
    user = fresh("user")
    broker.faults.add(
        AlterClientQuotasRequest, Fault.ERROR, times=2, error=ErrorCode.NOT_CONTROLLER
    )
    admin.alter_client_quotas([({"user": user}, {"producer_byte_rate": 5.0})])
    assert len(admin.describe_client_quotas({"user": user})) == 1


def test_rules_are_made_found_and_removed() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    read = AclBinding(AclResourceType.TOPIC, "t", "User:alice", AclOperation.READ)
    deny = AclBinding(AclResourceType.GROUP, "g", "User:bob", AclOperation.ALL, AclPermission.DENY)
    alices = AclFilter(principal="User:alice")
    with (
        Broker(settings=settings) as broker,
        Admin(bootstrap_servers=broker.bootstrap_servers) as admin,
    ):
        admin.create_acls([read, deny])
        assert sorted(admin.describe_acls()) == sorted([read, deny])
        assert admin.describe_acls(alices) == [read]
        assert admin.delete_acls([alices]) == {alices: [read]}
        assert admin.describe_acls() == [deny]


def test_without_an_authorizer_rules_are_refused(admin: Admin) -> None:
    with pytest.raises(BrokerError, match=r"(?i)secur|authorizer"):
        admin.describe_acls()


async def test_the_asyncio_face_does_the_same(broker: Broker) -> None:
    async with AsyncAdmin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert (await admin.describe_features()).finalized["transaction.version"] == 2
        assert await admin.list_partition_reassignments() == {}
