"""Every request kind under many sets of ACLs: what a broker answers, reduced to what ACLs decide.

The same code asks Apache Kafka, whose answers are kept in ``tests/vectors/kafka_acls.json``, and
the bundled broker. An administrator, who may do everything, comes in on a listener without
authentication; the client is ``User:alice`` by SASL PLAIN. Run as a program, it prints the vectors:

    python tests/support/acl_matrix.py ADMIN_PORT CLIENT_PORT > tests/vectors/kafka_acls.json
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping

from broker_wire import Wire, batch

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from onceflow.sdk.protocol.api.admin_cluster import (
    DescribeQuorumRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from onceflow.sdk.protocol.api.admin_configs import (
    AlterConfigsRequest,
    ListConfigResourcesRequest,
)
from onceflow.sdk.protocol.api.admin_quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from onceflow.sdk.protocol.api.admin_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from onceflow.sdk.protocol.api.cluster import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from onceflow.sdk.protocol.api.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from onceflow.sdk.protocol.api.offsets import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.api.security_admin import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
)
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Message, Request

SEEN, UNSEEN, GHOST = "seen", "unseen", "ghost"
"""Two topics that exist, one that ACLs are about, and a name that nothing has."""
GROUP, OTHER_GROUP, GHOST_GROUP = "readers", "others", "ghosts"
TXN, GHOST_TXN = "tx", "ghost-tx"

TOPIC, GROUP_TYPE, CLUSTER, TXN_TYPE = 2, 3, 4, 5
LITERAL, PREFIXED = 3, 4
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
ALL, DENY, ALLOW = 2, 2, 3
OPERATIONS = {
    "READ": READ, "WRITE": WRITE, "CREATE": CREATE, "DELETE": DELETE, "ALTER": ALTER,
    "DESCRIBE": DESCRIBE, "CLUSTER_ACTION": CLUSTER_ACTION, "DESCRIBE_CONFIGS": DESCRIBE_CONFIGS,
    "ALTER_CONFIGS": ALTER_CONFIGS, "IDEMPOTENT_WRITE": IDEMPOTENT_WRITE,
}  # fmt: skip

AclRow = tuple[int, str, int, str, str, int, int]


def allow(kind: int, name: str, operation: int, pattern: int = LITERAL) -> AclRow:
    """An ACL for alice."""
    return (kind, name, pattern, "User:alice", "*", operation, ALLOW)


def topic(name: str, operation: int) -> list[AclRow]:
    """The same operation on a topic and on the one that is not there."""
    return [allow(TOPIC, each, operation) for each in (name, GHOST)]


def configurations() -> dict[str, list[AclRow]]:
    """Sets of ACLs by name."""
    sets: dict[str, list[AclRow]] = {"nothing": []}
    for name in ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS",
                 "ALTER_CONFIGS"):  # fmt: skip
        sets[f"topic {name}"] = topic(SEEN, OPERATIONS[name])
    for name in ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"):
        sets[f"group {name}"] = [
            allow(GROUP_TYPE, each, OPERATIONS[name]) for each in (GROUP, GHOST_GROUP)
        ]
    for name in ("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS",
                 "ALTER_CONFIGS", "IDEMPOTENT_WRITE"):  # fmt: skip
        sets[f"cluster {name}"] = [allow(CLUSTER, "kafka-cluster", OPERATIONS[name])]
    for name in ("WRITE", "DESCRIBE"):
        sets[f"transactional id {name}"] = [
            allow(TXN_TYPE, each, OPERATIONS[name]) for each in (TXN, GHOST_TXN)
        ]
    group_read = sets["group READ"]
    id_write = sets["transactional id WRITE"]
    sets |= {
        "group READ, topic READ": group_read + topic(SEEN, READ),
        "group DESCRIBE, topic DESCRIBE": sets["group DESCRIBE"] + topic(SEEN, DESCRIBE),
        "group DELETE, topic READ": sets["group DELETE"] + topic(SEEN, READ),
        "id WRITE, topic WRITE": id_write + topic(SEEN, WRITE),
        "id WRITE, group READ": id_write + group_read,
        "id WRITE, group READ, topic READ": id_write + group_read + topic(SEEN, READ),
        "id DESCRIBE, topic DESCRIBE": sets["transactional id DESCRIBE"] + topic(SEEN, DESCRIBE),
        "everything": [
            allow(TOPIC, "*", ALL), allow(GROUP_TYPE, "*", ALL), allow(TXN_TYPE, "*", ALL),
            allow(CLUSTER, "kafka-cluster", ALL),
        ],
        "topics by prefix": [allow(TOPIC, "se", ALL, PREFIXED)],
        "everything but what is denied": [
            allow(TOPIC, "*", ALL), allow(GROUP_TYPE, "*", ALL), allow(TXN_TYPE, "*", ALL),
            allow(CLUSTER, "kafka-cluster", ALL),
            (TOPIC, SEEN, LITERAL, "User:*", "*", DESCRIBE, DENY),
            (TOPIC, "unse", PREFIXED, "User:alice", "127.0.0.1", READ, DENY),
            (GROUP_TYPE, GROUP, LITERAL, "User:alice", "*", ALL, DENY),
            (CLUSTER, "kafka-cluster", LITERAL, "User:alice", "*", CREATE, DENY),
        ],
        "for others": [
            (TOPIC, "*", LITERAL, "User:bob", "*", ALL, ALLOW),
            (GROUP_TYPE, "*", LITERAL, "User:alice", "10.1.2.3", ALL, ALLOW),
            (CLUSTER, "kafka-cluster", LITERAL, "User:al", "*", ALL, ALLOW),
        ],
        "topic READ for everybody": [(TOPIC, SEEN, LITERAL, "User:*", "*", READ, ALLOW)],
        "topic WRITE denied by prefix": [
            allow(TOPIC, SEEN, WRITE), (TOPIC, "s", PREFIXED, "User:alice", "*", WRITE, DENY),
        ],
    }  # fmt: skip
    return sets


# --- requests


def _produce(acks: int = -1, *, transactional: bool = False) -> ProduceRequest:
    def data(name: str) -> ProduceRequest.TopicProduceData:
        if transactional:
            records = batch(
                b"x", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
            )
        else:
            records = batch(b"x")
        # There is no such partition, so that every configuration finds the same.
        return ProduceRequest.TopicProduceData(
            name=name,
            partition_data=[ProduceRequest.PartitionProduceData(index=9, records=records)],
        )

    return ProduceRequest(
        transactional_id=TXN if transactional else None,
        acks=acks,
        timeout_ms=1_000,
        topic_data=[data(name) for name in (SEEN, UNSEEN, GHOST)],
    )


def _fetch(replica_id: int = -1) -> FetchRequest:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            FetchRequest.FetchTopic(topic=name, partitions=[partition])
            for name in (SEEN, UNSEEN, GHOST)
        ],
        session_epoch=-1,
        forgotten_topics_data=[],
    )


def _metadata(names: tuple[str, ...] | None) -> MetadataRequest:
    entry = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=None if names is None else [entry(name=name) for name in names],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )


def _offset_fetch(names: tuple[str, ...] | None) -> OffsetFetchRequest:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    entry = OffsetFetchRequest.OffsetFetchRequestTopics
    topics = None if names is None else [entry(name=name, partition_indexes=[0]) for name in names]
    return OffsetFetchRequest(
        groups=[group(group_id=name, topics=topics) for name in (GROUP, OTHER_GROUP)]
    )


def _creation(name: str) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )


def _resources(wish: type) -> list[object]:
    """One resource of each kind, for the three requests about settings."""
    extra: dict[str, object] = {}
    fields = wish.fields()  # type: ignore[attr-defined]
    if "configuration_keys" in fields:
        extra["configuration_keys"] = []
    else:
        extra["configs"] = []
    return [
        wish(resource_type=kind, resource_name=name, **extra)
        for kind, name in ((2, SEEN), (2, UNSEEN), (2, GHOST), (4, "1"), (32, GROUP))
    ]


def requests() -> Iterator[tuple[str, Request, int]]:
    """Name, request and version; none of them changes what the others find."""
    yield from _requests_about_records()
    yield from _requests_about_groups()
    yield from _requests_about_transactions()
    yield from _requests_of_administration()
    yield from _requests_about_the_cluster()


def _requests_about_records() -> Iterator[tuple[str, Request, int]]:
    names = (SEEN, UNSEEN, GHOST)
    yield "Produce", _produce(), 9
    yield "Produce transactional", _produce(transactional=True), 9
    yield "Fetch", _fetch(), 11
    yield "Fetch as a replica", _fetch(7), 11
    yield "ListOffsets", ListOffsetsRequest(replica_id=-1, topics=[
        ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[
            ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
        ]) for name in names
    ]), 7  # fmt: skip
    yield "Metadata", _metadata(names), 10
    yield "Metadata of all", _metadata(None), 10
    yield "OffsetForLeaderEpoch", OffsetForLeaderEpochRequest(replica_id=-1, topics=[
        OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[
            OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        ]) for name in names
    ]), 4  # fmt: skip
    yield "DeleteRecords", DeleteRecordsRequest(timeout_ms=1_000, topics=[
        DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=[
            DeleteRecordsRequest.DeleteRecordsPartition(partition_index=9, offset=0)
        ]) for name in names
    ]), 2  # fmt: skip
    yield "DescribeProducers", DescribeProducersRequest(topics=[
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0]) for name in names
    ]), 0  # fmt: skip
    yield "DescribeTopicPartitions", DescribeTopicPartitionsRequest(topics=[
        DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names
    ]), 0  # fmt: skip
    yield "DescribeTopicPartitions of all", DescribeTopicPartitionsRequest(topics=[]), 0


def _requests_about_groups() -> Iterator[tuple[str, Request, int]]:
    names = (SEEN, UNSEEN, GHOST)
    commit = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    yield "OffsetCommit", OffsetCommitRequest(
        group_id=GROUP, member_id="nobody", generation_id_or_member_epoch=3,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=[commit])
                for name in names],
    ), 8  # fmt: skip
    yield "OffsetFetch", _offset_fetch(names), 8
    yield "OffsetFetch of all", _offset_fetch(None), 8
    yield "OffsetFetch of one group", OffsetFetchRequest(group_id=GROUP, topics=[
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
        for name in names
    ]), 5  # fmt: skip
    yield "OffsetFetch of one group, old", OffsetFetchRequest(group_id=GROUP, topics=[
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
        for name in names
    ]), 1  # fmt: skip
    yield "OffsetDelete", OffsetDeleteRequest(group_id=GHOST_GROUP, topics=[
        OffsetDeleteRequest.OffsetDeleteRequestTopic(name=name, partitions=[
            OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        ]) for name in names
    ]), 0  # fmt: skip
    yield "JoinGroup", JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=6_000, rebalance_timeout_ms=6_000, member_id="nobody",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    ), 5  # fmt: skip
    yield "SyncGroup", SyncGroupRequest(
        group_id=GROUP, generation_id=1, member_id="nobody", assignments=[]
    ), 3  # fmt: skip
    yield "Heartbeat", HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="nobody"), 3
    yield "LeaveGroup", LeaveGroupRequest(
        group_id=GROUP, members=[LeaveGroupRequest.MemberIdentity(member_id="nobody")]
    ), 4  # fmt: skip
    yield "DescribeGroups", DescribeGroupsRequest(
        groups=[GROUP, OTHER_GROUP, GHOST_GROUP], include_authorized_operations=True
    ), 5  # fmt: skip
    yield "ListGroups", ListGroupsRequest(states_filter=[], types_filter=[]), 5
    yield "DeleteGroups", DeleteGroupsRequest(groups_names=[GHOST_GROUP, "more-ghosts"]), 2
    yield "ConsumerGroupHeartbeat", ConsumerGroupHeartbeatRequest(
        group_id=GHOST_GROUP, member_id="nobody", member_epoch=5, subscribed_topic_names=[SEEN]
    ), 0  # fmt: skip
    yield "ConsumerGroupDescribe", ConsumerGroupDescribeRequest(
        group_ids=[GHOST_GROUP, "more-ghosts"], include_authorized_operations=True
    ), 0  # fmt: skip


def _requests_about_transactions() -> Iterator[tuple[str, Request, int]]:
    names = (SEEN, UNSEEN)
    yield "FindCoordinator of groups", FindCoordinatorRequest(
        key_type=0, coordinator_keys=[GROUP, OTHER_GROUP]
    ), 4  # fmt: skip
    yield "FindCoordinator of ids", FindCoordinatorRequest(
        key_type=1, coordinator_keys=[TXN, "other"]
    ), 4  # fmt: skip
    yield "FindCoordinator of one", FindCoordinatorRequest(key=GROUP, key_type=0), 3
    yield "InitProducerId", InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    ), 4  # fmt: skip
    yield "InitProducerId transactional", InitProducerIdRequest(
        transactional_id=TXN, transaction_timeout_ms=0, producer_id=-1, producer_epoch=-1
    ), 4  # fmt: skip
    added = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    yield "AddPartitionsToTxn", AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=GHOST_TXN, v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[added(name=name, partitions=[0]) for name in (*names, GHOST)],
    ), 3  # fmt: skip
    yield "AddPartitionsToTxn of one", AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=GHOST_TXN, v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0, v3_and_below_topics=[added(name=SEEN, partitions=[0])],
    ), 3  # fmt: skip
    yield "AddPartitionsToTxn of brokers", AddPartitionsToTxnRequest(transactions=[
        AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id=GHOST_TXN, producer_id=1, producer_epoch=0, verify_only=True,
            topics=[added(name=SEEN, partitions=[0])],
        )
    ]), 4  # fmt: skip
    yield "AddOffsetsToTxn", AddOffsetsToTxnRequest(
        transactional_id=GHOST_TXN, producer_id=1, producer_epoch=0, group_id=GROUP
    ), 3  # fmt: skip
    yield "EndTxn", EndTxnRequest(
        transactional_id=GHOST_TXN, producer_id=1, producer_epoch=0, committed=False
    ), 3  # fmt: skip
    offset = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    yield "TxnOffsetCommit", TxnOffsetCommitRequest(
        transactional_id=GHOST_TXN, group_id=GROUP, producer_id=1, producer_epoch=0,
        generation_id=3, member_id="nobody", group_instance_id=None,
        topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=[offset])
                for name in (*names, GHOST)],
    ), 3  # fmt: skip
    yield "WriteTxnMarkers", WriteTxnMarkersRequest(markers=[
        WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=99, producer_epoch=0, transaction_result=False, coordinator_epoch=0,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                name=GHOST, partition_indexes=[0])],
        )
    ]), 1  # fmt: skip
    yield "DescribeTransactions", DescribeTransactionsRequest(
        transactional_ids=[TXN, GHOST_TXN]
    ), 0  # fmt: skip
    yield "ListTransactions", ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0


def _requests_of_administration() -> Iterator[tuple[str, Request, int]]:
    names = (SEEN, UNSEEN, GHOST)
    yield "CreateTopics", CreateTopicsRequest(
        topics=[_creation(name) for name in names], timeout_ms=1_000, validate_only=True
    ), 7  # fmt: skip
    yield "DeleteTopics", DeleteTopicsRequest(
        topics=[
            DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
            for name in (GHOST, "phantom")
        ],
        timeout_ms=1_000,
    ), 6  # fmt: skip
    yield "CreatePartitions", CreatePartitionsRequest(topics=[
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=2, assignments=None)
        for name in names
    ], timeout_ms=1_000, validate_only=True), 3  # fmt: skip
    yield "DescribeConfigs", DescribeConfigsRequest(
        resources=_resources(DescribeConfigsRequest.DescribeConfigsResource)  # type: ignore[arg-type]
    ), 4  # fmt: skip
    yield "IncrementalAlterConfigs", IncrementalAlterConfigsRequest(
        resources=_resources(IncrementalAlterConfigsRequest.AlterConfigsResource),  # type: ignore[arg-type]
        validate_only=True,
    ), 1  # fmt: skip
    yield "AlterConfigs", AlterConfigsRequest(
        resources=_resources(AlterConfigsRequest.AlterConfigsResource),  # type: ignore[arg-type]
        validate_only=True,
    ), 2  # fmt: skip
    yield "ListConfigResources", ListConfigResourcesRequest(resource_types=[]), 1
    yield "DescribeClientQuotas", DescribeClientQuotasRequest(components=[], strict=False), 1
    yield "AlterClientQuotas", AlterClientQuotasRequest(entries=[
        AlterClientQuotasRequest.EntryData(
            entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="x")],
            ops=[],
        )
    ], validate_only=True), 1  # fmt: skip
    yield "DescribeUserScramCredentials", DescribeUserScramCredentialsRequest(
        users=[DescribeUserScramCredentialsRequest.UserName(name="nobody")]
    ), 0  # fmt: skip
    yield "AlterUserScramCredentials", AlterUserScramCredentialsRequest(
        deletions=[
            AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="ghost", mechanism=1)
        ],
        upsertions=[],
    ), 0  # fmt: skip
    yield "DescribeAcls", DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter="nothing", pattern_type_filter=1,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    ), 3  # fmt: skip
    yield "CreateAcls", CreateAclsRequest(creations=[
        CreateAclsRequest.AclCreation(
            resource_type=2, resource_name="", principal="User:x", host="*", operation=3,
            permission_type=3,
        )
    ]), 3  # fmt: skip
    yield "DeleteAcls", DeleteAclsRequest(filters=[
        DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=2, resource_name_filter="nothing", pattern_type_filter=3,
            principal_filter=None, host_filter=None, operation=3, permission_type=3,
        )
    ]), 3  # fmt: skip


def _requests_about_the_cluster() -> Iterator[tuple[str, Request, int]]:
    yield "DescribeCluster", DescribeClusterRequest(
        include_cluster_authorized_operations=True
    ), 0  # fmt: skip
    yield "DescribeLogDirs", DescribeLogDirsRequest(topics=[]), 3
    yield "AlterReplicaLogDirs", AlterReplicaLogDirsRequest(dirs=[
        AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/nowhere", topics=[
            AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=GHOST, partitions=[0])
        ])
    ]), 2  # fmt: skip
    yield "ElectLeaders", ElectLeadersRequest(election_type=0, timeout_ms=1_000, topic_partitions=[
        ElectLeadersRequest.TopicPartitions(topic=GHOST, partitions=[0])
    ]), 2  # fmt: skip
    yield "AlterPartitionReassignments", AlterPartitionReassignmentsRequest(
        timeout_ms=1_000, topics=[]
    ), 0  # fmt: skip
    yield "ListPartitionReassignments", ListPartitionReassignmentsRequest(
        timeout_ms=1_000, topics=[]
    ), 0  # fmt: skip
    yield "DescribeQuorum", DescribeQuorumRequest(topics=[
        DescribeQuorumRequest.TopicData(topic_name="__cluster_metadata", partitions=[
            DescribeQuorumRequest.PartitionData(partition_index=0)
        ])
    ]), 0  # fmt: skip
    yield "UpdateFeatures", UpdateFeaturesRequest(
        timeout_ms=1_000, feature_updates=[], validate_only=True
    ), 1  # fmt: skip
    yield "UnregisterBroker", UnregisterBrokerRequest(broker_id=77), 0


# --- asking


def error_codes(message: Message) -> object:
    """What ACLs decide in an answer: codes and operations, each with what it is about."""
    found: dict[str, object] = {}
    for name in message.fields():
        value = getattr(message, name)
        if name.endswith(("error_code", "authorized_operations")) or name in _NAMES:
            found[name] = value
        elif name in ("configs", "config_resources"):
            continue  # Which settings there are differs.
        elif isinstance(value, list) and value and isinstance(value[0], Message):
            parts = [error_codes(each) for each in value]
            if parts := [each for each in parts if each]:
                found[name] = sorted(parts, key=lambda each: json.dumps(each, sort_keys=True))
    return found


_NAMES = {
    "name", "topic", "topic_name", "group_id", "transactional_id", "resource_name", "key", "user",
    "partition_index", "partition", "index",
}  # fmt: skip


async def log_in(wire: Wire) -> None:
    """Become alice."""
    await wire.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    reply = await wire.ask(
        SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), 2, SaslAuthenticateResponse
    )
    assert reply.error_code == 0


async def prepare(admin: Wire) -> None:
    """Make topics, groups and a transactional id."""
    for name in (SEEN, UNSEEN):
        made = await admin.ask(
            CreateTopicsRequest(topics=[_creation(name)], timeout_ms=30_000),
            7,
            CreateTopicsResponse,
        )
        assert made.topics[0].error_code in (0, 36)
    for kind, key in ((0, GROUP), (0, OTHER_GROUP), (1, TXN)):
        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

        async def found(find: FindCoordinatorRequest = find) -> int:
            return (await admin.ask(find, 4, FindCoordinatorResponse)).coordinators[0].error_code

        await _succeed(found)
    commit = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata=""
    )
    for group in (GROUP, OTHER_GROUP):
        request = OffsetCommitRequest(
            group_id=group, member_id="", generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=[commit])
                for name in (SEEN, UNSEEN)
            ],
        )  # fmt: skip

        async def committed(request: OffsetCommitRequest = request) -> int:
            answer = await admin.ask(request, 8, OffsetCommitResponse)
            return answer.topics[0].partitions[0].error_code

        await _succeed(committed)
    init = InitProducerIdRequest(
        transactional_id=TXN, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )

    async def initialised() -> int:
        return (await admin.ask(init, 4, InitProducerIdResponse)).error_code

    await _succeed(initialised)


async def _succeed(step: Callable[[], Awaitable[int]]) -> None:
    """Repeat a step until its error code is 0: a real cluster takes a moment to be ready."""
    async with asyncio.timeout(30):
        while await step():  # noqa: ASYNC110 - the broker signals nothing
            await asyncio.sleep(0.05)


async def set_acls(admin: Wire, rows: list[AclRow]) -> None:
    """Replace all ACLs, and wait until the broker acts by them."""
    everything = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    await admin.ask(DeleteAclsRequest(filters=[everything]), 3, DeleteAclsResponse)
    names = (
        "resource_type", "resource_name", "resource_pattern_type", "principal", "host",
        "operation", "permission_type",
    )  # fmt: skip
    creations = [
        CreateAclsRequest.AclCreation(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]
        for row in rows
    ]
    created = await admin.ask(CreateAclsRequest(creations=creations), 3, CreateAclsResponse)
    assert [each.error_code for each in created.results] == [0] * len(rows), created.results
    look = DescribeAclsRequest(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
        principal_filter=None, host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    async with asyncio.timeout(20):
        while True:
            found = await admin.ask(look, 3, DescribeAclsResponse)
            if sum(len(each.acls) for each in found.resources) == len(rows):
                return
            await asyncio.sleep(0.02)


async def ask_all(
    admin: Wire,
    client: Callable[[], Wire],
    served: Callable[[int, int], bool] = lambda api_key, version: api_key in API,
) -> Mapping[str, Mapping[str, object]]:
    """Answers by set of ACLs and request, of everything that is served."""
    await prepare(admin)
    found: dict[str, dict[str, object]] = {}
    for name, rows in configurations().items():
        await set_acls(admin, rows)
        answers = found[name] = {}
        async with client() as wire:
            await log_in(wire)
            for request_name, request, version in requests():
                if served(request.api_key, version):
                    wire.send(request, version)
                    try:
                        answers[request_name] = error_codes(await wire.receive())
                    except (OSError, TimeoutError) as error:
                        raise AssertionError(f"{request_name} of {name!r}: no answer") from error
    await set_acls(admin, [])
    return found


async def main() -> None:
    """Ask the broker on the given ports and print its answers."""
    admin_port, client_port = int(sys.argv[1]), int(sys.argv[2])
    async with Wire(("127.0.0.1", admin_port)) as admin:
        found = await ask_all(admin, lambda: Wire(("127.0.0.1", client_port)))
    print(json.dumps(found, indent=None, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(main())
