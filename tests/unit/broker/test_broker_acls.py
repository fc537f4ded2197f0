"""Goal: ACLs decide as in Apache Kafka's StandardAuthorizer, and nothing is served past them.

Method: rules in, answers out, on the authorizer itself; then every request kind under many sets of
ACLs on a socket, against the answers of Apache Kafka 4.4 (``tests/vectors/kafka_acls.json``).
"""

from __future__ import annotations

import json
from pathlib import Path

import acl_matrix
import pytest
from broker_wire import Wire, batch

from onceflow.broker_lite import Broker
from onceflow.broker_lite.cluster_metadata import ClusterMetadata
from onceflow.broker_lite.guards.access import load_guards
from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.registry import load_handlers
from onceflow.broker_lite.security.acl_model import Acl, AclFilter
from onceflow.broker_lite.security.authorizer import AclRefused, Authorizer
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.testing import VirtualClock
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.acl_enums import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from onceflow.sdk.protocol.api.admin_replicas import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchRequest, FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.security_admin import DescribeAclsRequest, DescribeAclsResponse

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "kafka_acls.json").read_text())
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS: dict[str, object] = {
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "onceflow.sasl.plain.credentials": "alice:secret",
}
LISTENERS = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)


def rule(
    operation: int = READ,
    permission: int = ALLOW,
    name: str = "t",
    *,
    prefixed: bool = False,
    principal: str = "User:alice",
    host: str = "*",
    kind: int = TOPIC,
) -> Acl:
    pattern = AclPatternType.PREFIXED if prefixed else AclPatternType.LITERAL
    return Acl(kind, name, pattern, principal, host, operation, permission)


def authorizer(*rules: Acl, **settings: object) -> Authorizer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    made = Authorizer(BrokerConfig.from_properties(named), ClusterMetadata(MemoryStorage()))
    made.add(rules)
    return made


def alice_may(rules: list[Acl], operation: int, name: str = "t", **settings: object) -> bool:
    return authorizer(*rules, **settings).allows("User:alice", "10.0.0.1", operation, TOPIC, name)


@pytest.mark.parametrize(
    ("rules", "operation", "allowed"),
    [
        ([], READ, False),
        ([rule()], READ, True),
        ([rule()], WRITE, False),
        ([rule()], DESCRIBE, True),
        ([rule(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS, True),
        ([rule(DESCRIBE)], READ, False),
        ([rule(ALL)], WRITE, True),
        ([rule(), rule(READ, DENY)], READ, False),
        ([rule(), rule(READ, DENY)], DESCRIBE, True),  # denials imply nothing
        ([rule(), rule(ALL, DENY, principal="User:*")], READ, False),
        ([rule(), rule(READ, DENY, host="10.0.0.1")], READ, False),
        ([rule(), rule(READ, DENY, host="10.0.0.2")], READ, True),
        ([rule(principal="User:bob")], READ, False),
        ([rule(principal="User:*")], READ, True),
        ([rule(principal="Group:*")], READ, False),
        ([rule(host="10.0.0.1")], READ, True),
        ([rule(host="10.0.0.2")], READ, False),
        ([rule(name="*")], READ, True),
        ([rule(name="", prefixed=True)], READ, True),
        ([rule(name="t", prefixed=True)], READ, True),
        ([rule(name="tt", prefixed=True)], READ, False),
        ([rule(name="*", prefixed=True)], READ, False),
        ([rule(), rule(READ, DENY, name="", prefixed=True)], READ, False),
        ([rule(kind=GROUP)], READ, False),
    ],
)
def test_rules(rules: list[Acl], operation: int, allowed: bool) -> None:
    assert alice_may(rules, operation) is allowed


def test_super_users_pass_every_denial() -> None:
    rules = [rule(ALL, DENY, name="*", principal="User:*")]
    assert alice_may(rules, READ, super_users="User:bob;User:alice")
    assert not alice_may(rules, READ, super_users="User:bob")


def test_everyone_may_use_what_no_rule_is_about_when_asked() -> None:
    rules = [rule(principal="User:bob", name="theirs")]
    assert alice_may(rules, WRITE, "mine", allow_everyone_if_no_acl_found=True)
    assert not alice_may(rules, WRITE, "theirs", allow_everyone_if_no_acl_found=True)
    assert not alice_may(rules, WRITE, "mine")


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule(WRITE)], True),
        ([rule(WRITE), rule(WRITE, DENY)], False),
        ([rule(WRITE, name="*"), rule(WRITE, DENY)], True),
        ([rule(WRITE, name="*"), rule(WRITE, DENY, name="*")], False),
        ([rule(WRITE), rule(ALL, DENY, name="t", prefixed=True)], False),
        ([rule(WRITE), rule(ALL, DENY, name="u", prefixed=True)], True),
        ([rule(WRITE, host="10.0.0.2")], False),
    ],
)
def test_writing_to_any_topic_gives_a_producer_id(rules: list[Acl], allowed: bool) -> None:
    """KIP-679."""
    made = authorizer(*rules)
    assert made.allows_any("User:alice", "10.0.0.1", WRITE, TOPIC) is allowed


def test_filters() -> None:
    everything = AclFilter(1, None, 1, None, None, 1, 1)
    rules = [rule(), rule(name="*"), rule(name="t", prefixed=True), rule(name="ta"),
             rule(kind=GROUP)]  # fmt: skip

    def found(**changes: object) -> list[int]:
        wanted = everything._replace(**changes)  # type: ignore[arg-type]
        return [index for index, each in enumerate(rules) if wanted.matches(each)]

    assert found() == [0, 1, 2, 3, 4]
    assert found(resource_type=TOPIC, name="t") == [0, 2]
    assert found(resource_type=TOPIC, name="ta", pattern_type=AclPatternType.MATCH) == [1, 2, 3]
    assert found(name="t", pattern_type=AclPatternType.LITERAL) == [0, 4]
    assert found(principal="User:bob") == []
    assert found(operation=WRITE) == []


def test_rules_survive_a_restart_and_removals_too() -> None:
    storage = MemoryStorage()
    config = BrokerConfig()
    first = Authorizer(config, ClusterMetadata(storage))
    first.add([rule(), rule(name="x", prefixed=True), rule()])
    again = Authorizer(config, ClusterMetadata(storage))
    assert sorted(again.acls()) == sorted([rule(), rule(name="x", prefixed=True)])
    assert again.remove([AclFilter(1, "t", 3, None, None, 1, 1)]) == [[rule()]]
    last = Authorizer(config, ClusterMetadata(storage))
    assert list(last.acls()) == [rule(name="x", prefixed=True)]


def test_a_malformed_super_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="User:NAME"):
        authorizer(super_users="alice")


# --- every request kind


def test_every_request_that_is_served_has_a_guard() -> None:
    served = {entry.request_type.api_key for entry in load_handlers().registrations()}
    assert served <= set(load_guards())


DIFFERS = {
    "Fetch as a replica": "replicas are not served; with CLUSTER_ACTION one reads as any client",
}


async def test_answers_are_those_of_apache_kafka() -> None:
    registry = load_handlers()

    def served(api_key: int, version: int) -> bool:
        entry = registry.get(api_key)
        return entry is not None and entry.min_version <= version <= entry.max_version

    async with Broker(listeners=LISTENERS, settings=SETTINGS) as broker, Wire(broker) as admin:
        port = int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2])
        found = await acl_matrix.ask_all(admin, lambda: Wire(("127.0.0.1", port)), served)
    assert found.keys() == VECTORS.keys()
    compared = 0
    wrong = []
    for name, answers in json.loads(json.dumps(found)).items():
        for request, answer in answers.items():
            if request in DIFFERS:
                continue
            compared += 1
            if answer != VECTORS[name][request]:
                wrong.append((name, request, VECTORS[name][request], answer))
    assert not wrong, f"{len(wrong)} of {compared}, such as {wrong[:3]}"
    assert compared > 1_500


async def test_a_reader_whose_right_is_taken_gets_no_more_within_its_session() -> None:
    """Also while its request waits: a fetch session outlives the request that named the topic."""
    clock = VirtualClock()
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)

    def request(session_id: int, epoch: int, wait_ms: int) -> FetchRequest:
        topics = [FetchRequest.FetchTopic(topic="t", partitions=[partition])] if not epoch else []
        return FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, topics=topics, session_id=session_id,
            session_epoch=epoch, forgotten_topics_data=[],
        )  # fmt: skip

    async with (
        Broker(listeners=LISTENERS, settings=SETTINGS, clock=clock) as broker,
        Wire(broker) as admin,
        Wire(
            ("127.0.0.1", int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2]))
        ) as reader,
    ):
        broker.create_topic("t")
        await acl_matrix.log_in(reader)
        await acl_matrix.set_acls(admin, [acl_matrix.allow(TOPIC, "t", READ)])
        opened = await reader.ask(request(0, 0, 0), 11, FetchResponse)
        assert opened.responses[0].partitions[0].error_code == 0
        reader.send(request(opened.session_id, 1, 60_000), 11)
        await acl_matrix.set_acls(admin, [])
        await admin.ask(
            ProduceRequest(
                transactional_id=None,
                acks=1,
                timeout_ms=1_000,
                topic_data=[
                    ProduceRequest.TopicProduceData(
                        name="t",
                        partition_data=[
                            ProduceRequest.PartitionProduceData(index=0, records=batch(b"secret"))
                        ],
                    )
                ],
            ),
            9,
            ProduceResponse,
        )
        answer = await reader.receive()
        assert isinstance(answer, FetchResponse)
        (told,) = answer.responses[0].partitions
        assert (told.error_code, bytes(told.records or b"")) == (29, b"")


async def test_pages_of_all_topics_tell_nothing_of_hidden_ones() -> None:
    """Neither an entry nor a cursor, nor room on a page that they would take."""
    async with Broker(listeners=LISTENERS, settings=SETTINGS) as broker, Wire(broker) as admin:
        for name in ("a-secret", "b-seen", "c-secret", "d-seen", "e-secret"):
            broker.create_topic(name)
        await acl_matrix.set_acls(
            admin, [acl_matrix.allow(TOPIC, name, DESCRIBE) for name in ("b-seen", "d-seen")]
        )
        port = int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2])
        async with Wire(("127.0.0.1", port)) as wire:
            await acl_matrix.log_in(wire)
            told: list[str] = []
            cursor = None
            for _ in range(5):
                page = await wire.ask(
                    DescribeTopicPartitionsRequest(
                        topics=[],
                        response_partition_limit=1,
                        cursor=cursor
                        and DescribeTopicPartitionsRequest.Cursor(
                            topic_name=cursor.topic_name, partition_index=cursor.partition_index
                        ),
                    ),
                    0,
                    DescribeTopicPartitionsResponse,
                )
                cursor = page.next_cursor
                told += [topic.name or "" for topic in page.topics]
                if cursor is None:
                    break
                told.append(cursor.topic_name)
    assert told == ["b-seen", "d-seen", "d-seen"]


async def test_a_pattern_selects_only_topics_that_its_member_may_describe() -> None:
    """Also of topics that are made later."""
    async with Broker(listeners=LISTENERS, settings=SETTINGS) as broker, Wire(broker) as admin:
        broker.create_topic("secret-1")
        broker.create_topic("seen-1")
        await acl_matrix.set_acls(
            admin,
            [
                acl_matrix.allow(GROUP, "g", READ),
                acl_matrix.allow(TOPIC, "seen-", DESCRIBE, acl_matrix.PREFIXED),
            ],
        )
        port = int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2])
        async with Wire(("127.0.0.1", port)) as wire:
            await acl_matrix.log_in(wire)

            async def beat(epoch: int) -> ConsumerGroupHeartbeatResponse:
                return await wire.ask(
                    ConsumerGroupHeartbeatRequest(
                        group_id="g",
                        member_id="m",
                        member_epoch=epoch,
                        rebalance_timeout_ms=60_000,
                        subscribed_topic_names=[],
                        subscribed_topic_regex="s.*",
                        topic_partitions=[],
                    ),
                    1,
                    ConsumerGroupHeartbeatResponse,
                )

            def told(answer: ConsumerGroupHeartbeatResponse) -> set[object]:
                assert answer.assignment is not None
                return {each.topic_id for each in answer.assignment.topic_partitions}

            ids = {topic.name: topic.topic_id for topic in broker.state.topics}
            joined = await beat(0)
            assert told(joined) == {ids["seen-1"]}
            broker.create_topic("secret-2")
            broker.create_topic("seen-2")
            ids = {topic.name: topic.topic_id for topic in broker.state.topics}
            assert told(await beat(joined.member_epoch)) == {ids["seen-1"], ids["seen-2"]}


async def test_a_producer_without_answers_is_told_by_its_connection() -> None:
    async with Broker(listeners=LISTENERS, settings=SETTINGS) as broker:
        broker.create_topic("t")
        port = int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2])
        async with Wire(("127.0.0.1", port)) as wire:
            await acl_matrix.log_in(wire)
            request = acl_matrix._produce(acks=0)
            wire.send(request, 9)
            assert await wire.closed()


async def test_changed_acls_change_what_a_pattern_selects() -> None:
    """ConsumerGroupHeartbeat with a pattern; ACLs that change count from the next one on."""
    async with (
        Broker(listeners=LISTENERS, settings=SETTINGS) as broker,
        Wire(broker) as admin,
        Wire(
            ("127.0.0.1", int(broker.bootstrap_servers_of("SASL_PLAINTEXT").rpartition(":")[2]))
        ) as member,
    ):
        for name in ("in-1", "in-2", "out"):
            broker.create_topic(name)
        ids = {topic.topic_id: topic.name for topic in broker.state.topics}
        await acl_matrix.log_in(member)
        rights = [acl_matrix.allow(GROUP, "g", READ), acl_matrix.allow(TOPIC, "in-1", DESCRIBE)]
        more = [*rights, acl_matrix.allow(TOPIC, "in-2", READ)]
        epoch = 0

        async def beat() -> set[str]:
            nonlocal epoch
            answer = await member.ask(
                ConsumerGroupHeartbeatRequest(
                    group_id="g", member_id="m", member_epoch=epoch, topic_partitions=[],
                    rebalance_timeout_ms=60_000, subscribed_topic_regex="in-.*",
                ), 1, ConsumerGroupHeartbeatResponse,
            )  # fmt: skip
            assert answer.error_code == 0, answer
            assert answer.assignment is not None
            epoch = answer.member_epoch
            return {ids[topic.topic_id] for topic in answer.assignment.topic_partitions}

        async def described() -> tuple[int, int]:
            request = ConsumerGroupDescribeRequest(
                group_ids=["g"], include_authorized_operations=True
            )
            (group,) = (await member.ask(request, 1, ConsumerGroupDescribeResponse)).groups
            return group.error_code, group.authorized_operations

        await acl_matrix.set_acls(admin, rights)
        assert await beat() == {"in-1"}
        assert await described() == (0, 1 << READ | 1 << DESCRIBE)
        await acl_matrix.set_acls(admin, more)
        assert await beat() == {"in-1", "in-2"}
        await acl_matrix.set_acls(admin, rights)
        assert (await described())[0] == 29  # TOPIC_AUTHORIZATION_FAILED
        assert await beat() == {"in-1"}
        assert (await described())[0] == 0


async def test_without_an_authorizer_acls_are_refused() -> None:
    look = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    async with Broker() as broker, Wire(broker) as wire:
        assert (await wire.ask(look, 3, DescribeAclsResponse)).error_code == 54


def test_there_is_a_most_also_within_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceflow.broker_lite.security.authorizer.ACLS_MAX", 3)
    made = authorizer(rule())
    made.check(rule(name="x"), 1)
    with pytest.raises(AclRefused, match="3 ACLs"):
        made.check(rule(name="x"), 2)
