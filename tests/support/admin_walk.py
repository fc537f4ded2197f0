"""What an admin client can do, done once, for any broker of one node.

Everything is named freshly and undone. Asserts what a user relies on; who calls brings the client.
"""

from __future__ import annotations

import pytest
from consumer_worlds import fresh

from onceflow.sdk import (
    Admin,
    AnyName,
    Consumer,
    NewTopic,
    OffsetReset,
    Producer,
    ScramDeletion,
    ScramUpsertion,
    TopicPartition,
)
from onceflow.sdk.errors import ProducerFencedError, ResourceNotFoundError
from onceflow.sdk.model.admin import ConfigResource, ResourceType


def walk_quotas(admin: Admin) -> None:
    user, client = fresh("user"), fresh("client")
    both = {"user": user, "client-id": client}
    admin.alter_client_quotas(
        [({"user": user}, {"producer_byte_rate": 1e6}), (both, {"request_percentage": 50.5})]
    )
    wait_for_quotas(admin, user, 2)
    assert [q.quotas for q in admin.describe_client_quotas({"user": user}, strict=True)] == [
        {"producer_byte_rate": 1e6}
    ]
    (found,) = admin.describe_client_quotas({"user": user, "client-id": AnyName.ANY})
    assert (found.entity, found.quotas) == (both, {"request_percentage": 50.5})
    admin.alter_client_quotas(
        [({"user": user}, {"producer_byte_rate": None}), (both, {"request_percentage": None})]
    )
    wait_for_quotas(admin, user, 0)


def wait_for_quotas(admin: Admin, user: str, count: int) -> None:
    """Apache Kafka shows a change a moment after it was made."""
    for _ in range(200):
        if len(admin.describe_client_quotas({"user": user})) == count:
            return
    raise AssertionError(f"{user} does not get {count} quotas")


def walk_users(admin: Admin) -> None:
    user = fresh("user")
    admin.alter_user_scram_credentials([ScramUpsertion(user, "secret", "SCRAM-SHA-256", 5000)])
    for _ in range(200):
        if user in (found := admin.describe_user_scram_credentials()):
            break
    assert found[user] == {"SCRAM-SHA-256": 5000}
    admin.alter_user_scram_credentials(deletions=[ScramDeletion(user, "SCRAM-SHA-256")])
    for _ in range(200):
        if user not in admin.describe_user_scram_credentials():
            break
    with pytest.raises(ResourceNotFoundError, match=user):
        admin.describe_user_scram_credentials([user])


def walk_configs(admin: Admin) -> None:
    topic = fresh("topic")
    admin.create_topics([topic])
    broker = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().nodes[0].node_id))
    resources = admin.list_config_resources()
    assert broker in resources
    assert ConfigResource(ResourceType.TOPIC, topic) in resources
    assert admin.list_config_resources([ResourceType.BROKER]) == [broker]
    assert admin.describe_configs([broker])[broker]["node.id"].is_read_only
    name = "log.cleaner.backoff.ms"
    admin.alter_configs({broker: {name: "15001"}})
    for _ in range(200):
        entry = admin.describe_configs([broker])[broker][name]
        if entry.value == "15001":
            break
    assert (entry.value, entry.source, entry.is_read_only) == ("15001", 2, False)
    admin.alter_configs({broker: {name: None}})
    admin.delete_topics([topic])


def walk_replicas(admin: Admin) -> None:
    topic = fresh("topic")
    admin.create_topics([NewTopic(topic, 2)])
    node_id = admin.describe_cluster().nodes[0].node_id
    partitions = [TopicPartition(topic, number) for number in range(2)]
    for _ in range(200):  # A leader is known before its log is there.
        folders = admin.describe_log_dirs()[node_id]
        shown = [(p, f) for p, f in folders.items() if set(partitions) <= set(f.replicas)]
        if shown:
            break
    ((path, folder),) = shown
    assert not folder.replicas[partitions[0]].is_future
    admin.alter_replica_log_dirs(node_id, {partitions[0]: path})
    admin.elect_leaders(partitions)
    admin.elect_leaders()
    admin.alter_partition_reassignments({partitions[1]: [node_id]})
    assert admin.list_partition_reassignments(partitions) == {}
    admin.delete_topics([topic])


def walk_cluster(admin: Admin) -> None:
    features = admin.describe_features()
    low, high = features.supported["transaction.version"]
    assert low <= features.finalized["transaction.version"] <= high
    admin.update_features({"transaction.version": high}, validate_only=True)
    quorum = admin.describe_metadata_quorum()
    assert quorum.leader_id in [voter.node_id for voter in quorum.voters]


def walk_offsets(admin: Admin, bootstrap_servers: str) -> None:
    topic, group = fresh("topic"), fresh("group")
    admin.create_topics([topic])
    partition = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, timestamp_ms=1_700_000_000_000 + number)
        producer.flush()
    with Consumer(bootstrap_servers=bootstrap_servers, group_id=group) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 4)
        consumer.commit()
    plan = admin.reset_group_offsets(group, to="earliest", dry_run=True)
    assert plan == {partition: OffsetReset(4, 0)}
    assert admin.list_group_offsets(group)[partition].offset == 4, "a dry run changes nothing"
    for wish, place in (
        ({"to": "latest"}, 10),
        ({"to": 3}, 3),
        ({"to": 99}, 10),
        ({"shift_by": -2}, 8),
        ({"shift_by": -99}, 0),
        ({"to_time_ms": 1_700_000_000_006}, 6),
        ({"to_time_ms": 1_800_000_000_000}, 10),
    ):
        admin.reset_group_offsets(group, [partition], **wish)  # type: ignore[arg-type]
        assert admin.list_group_offsets(group)[partition].offset == place, wish
    assert group in [listing.group_id for listing in admin.list_groups(types=["classic"])]
    assert group not in [listing.group_id for listing in admin.list_groups(types=["consumer"])]
    admin.delete_group_offsets(group, [partition])
    assert admin.list_group_offsets(group) == {}
    admin.delete_topics([topic])


def walk_fencing(admin: Admin, bootstrap_servers: str) -> None:
    topic, name = fresh("topic"), fresh("id")
    admin.create_topics([topic])
    with Producer(bootstrap_servers=bootstrap_servers, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(topic, b"never").result()
        before = admin.describe_transactions([name])[name]
        assert before.state == "Ongoing"
        identity = admin.fence_producers([name])[name]
        assert (identity.producer_id, identity.producer_epoch) > (
            before.producer_id,
            before.producer_epoch,
        )
        assert admin.describe_transactions([name])[name].state != "Ongoing"
        with pytest.raises(ProducerFencedError, match=name):
            producer.commit_transaction()
