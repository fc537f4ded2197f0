"""Random steps about groups and administration; `conversation` makes whole conversations."""

from __future__ import annotations

import random
from typing import Any

import differential_admin as admin
import differential_steps as records
from differential_steps import Action, Plan, Step

Plain = Any

PROTOCOLS = ("range", "roundrobin", "sticky")

# --- classic groups


def join(plan: Plan) -> Step:
    rng = plan.rng
    member = rng.choice(plan.members)
    names = [name for name in PROTOCOLS if plan.chance(0.6)] or ["range"]
    topics = rng.sample(plan.topics, rng.randint(1, len(plan.topics)))
    instance = f"i-{member}" if plan.chance(0.25) else None
    protocols = [{"name": name, "metadata": {"subscription": topics}} for name in names]
    body = {
        "group_id": f"$name:{rng.choice(plan.groups)}" if plan.chance(0.97) else "",
        "session_timeout_ms": 10 if plan.chance(0.03) else 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": f"$member:{member}" if plan.chance(0.95) else rng.choice(("", "nobody")),
        "group_instance_id": instance,
        "protocol_type": "consumer" if plan.chance(0.97) else "connect",
        "protocols": protocols,
    }
    version = plan.version(11, low=5 if instance else 0)
    return plan.step(11, body, version=version, connection=member, binds=member)


def sync(plan: Plan) -> Step:
    member = plan.rng.choice(plan.members)
    assignments = [
        {"member_id": f"$member:{other}", "assignment": {"hex": f"0{i}"}}
        for i, other in enumerate(plan.members)
    ]
    body = membership(plan, member) | {
        "generation_id": generation(plan, member),
        "protocol_type": plan.rng.choice(("consumer", None)) if plan.chance(0.9) else "connect",
        "protocol_name": None,
        "assignments": assignments if plan.chance(0.9) else [],
    }
    return plan.step(14, body, connection=member, after=plan.members)


def heartbeat(plan: Plan) -> Step:
    member = plan.rng.choice(plan.members)
    body = membership(plan, member) | {"generation_id": generation(plan, member)}
    return plan.step(12, body, connection=f"{member}-heart", after=plan.members)


def leave(plan: Plan) -> Step:
    member = plan.rng.choice(plan.members)
    body = membership(plan, member)
    leaving = [{"member_id": body["member_id"]}]
    if plan.chance(0.2):
        leaving = [{"member_id": "", "group_instance_id": f"i-{member}"}]
    if plan.chance(0.1):
        leaving.append({"member_id": "nobody"})
    return plan.step(13, body | {"members": leaving}, connection="admin", after=plan.members)


def membership(plan: Plan, member: str) -> dict[str, Plain]:
    return {
        "group_id": f"$name:{plan.groups[0] if plan.chance(0.9) else plan.group()}",
        "member_id": f"$member:{member}" if plan.chance(0.95) else "nobody",
        "group_instance_id": f"i-{member}" if plan.chance(0.05) else None,
    }


def generation(plan: Plan, member: str) -> Plain:
    return f"$generation:{member}" + (plan.rng.choice(("+1", "-1")) if plan.chance(0.07) else "")


def commit_offsets(plan: Plan) -> Step:
    body: dict[str, Plain] = {
        "group_id": f"$name:{plan.group()}",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": records.committed_topics(plan),
    }
    if plan.chance(0.5):
        member = plan.rng.choice(plan.members)
        body |= membership(plan, member)
        body["generation_id_or_member_epoch"] = generation(plan, member)
    return plan.step(8, body, after=plan.members)


def fetch_offsets(plan: Plan) -> Step:
    topics: Plain = [
        plan.named(topic) | {"partition_indexes": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    version = plan.version(9)
    if plan.chance(0.3) and version >= 2:
        topics = None
    group = f"$name:{plan.group()}"
    body = {
        "group_id": group,
        "topics": topics,
        "groups": [{"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}],
        "require_stable": plan.chance(0.5) and topics is not None,
    }
    return plan.step(9, body, version=version)


def describe_groups(plan: Plan) -> Step:
    return plan.step(
        15, {"groups": [f"$name:{plan.group()}"]}, connection="admin", after=plan.members
    )


def list_groups(plan: Plan) -> Step:
    body = {
        "states_filter": plan.rng.choice(([], [], ["Stable"], ["Empty"], ["stable", "Dead"])),
        "types_filter": plan.rng.choice(([], [], ["classic"], ["Consumer"])),
    }
    return plan.step(16, body, connection="admin", after=plan.members)


def delete_groups(plan: Plan) -> Step:
    body = {"groups_names": [f"$name:{plan.group()}"]}
    return plan.step(42, body, connection="admin", after=plan.members)


def delete_offsets(plan: Plan) -> Step:
    topics = [
        {
            "name": f"$name:{topic}",
            "partitions": [{"partition_index": p} for p in plan.some_partitions(topic)],
        }
        for topic in plan.some_topics()
    ]
    body = {"group_id": f"$name:{plan.group()}", "topics": topics}
    return plan.step(47, body, connection="admin", after=plan.members)


# --- the consumer protocol (KIP-848)


def consumer_heartbeat(plan: Plan) -> Step:
    rng = plan.rng
    member = rng.choice(plan.members)
    joining = plan.chance(0.4)
    epoch: Plain = 0 if joining else f"$memberepoch:{member}"
    if plan.chance(0.12):
        epoch = rng.choice((-1, -2, 1, 50))
    body: dict[str, Plain] = {
        "group_id": "$name:kip848",
        "member_id": f"$member:{member}" if plan.chance(0.5) else f"client-made-{member}",
        "member_epoch": epoch,
        "instance_id": f"i-{member}" if plan.chance(0.1) else None,
        "rebalance_timeout_ms": 60_000 if joining else -1,
        "subscribed_topic_names": [f"$name:{t}" for t in plan.topics] if joining else None,
        # Different votes may stand equal, which Kafka never comes to rest with.
        "server_assignor": plan.assignor if joining and plan.chance(0.5) else None,
        "topic_partitions": [] if joining else None,
    }
    if plan.chance(0.05):
        body["server_assignor"] = "no-such"
    if epoch == 0 and plan.chance(0.1):
        body["subscribed_topic_regex"] = "("  # Good ones are looked up some time later.
    return plan.step(68, body, connection=f"{member}-848", binds=member)


def consumer_describe(plan: Plan) -> Step:
    return plan.step(69, {"group_ids": ["$name:kip848", f"$name:{plan.group()}"]})


# --- topics and settings


def metadata(plan: Plan) -> Step:
    topics = [plan.named(topic) for topic in plan.some_topics()]
    version = plan.version(3)
    if version == 10 or version == 11 or plan.chance(0.5):
        for topic in topics:
            topic["topic_id"] = "$id:none"
    elif version >= 12:
        for topic in topics:
            topic["name"] = None  # type: ignore[assignment]
    everything = plan.chance(0.1) and version >= 1
    body = {
        "topics": None if everything else topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": plan.chance(0.2),
    }
    if version < 4 and any(t["name"] == "$name:no-such-topic" for t in topics):
        version = 4
    return plan.step(3, body, version=version)


def create_topics(plan: Plan) -> Step:
    rng = plan.rng
    name = rng.choice((plan.topics[0], "late", "late.er", "late_er", "bad name", "", "."))
    configs = [
        {"name": n, "value": v}
        for n, v in [
            ("retention.ms", "-1"), ("segment.bytes", "100"), ("cleanup.policy", "shred"),
            ("cleanup.policy", "compact"), ("no.such", "1"), ("max.message.bytes", "x"),
            ("compression.type", "zstd"), ("min.insync.replicas", "0"), ("flush.ms", None),
        ]
        if plan.chance(0.12)
    ]  # fmt: skip
    topic: dict[str, Plain] = {
        "name": f"$name:{name}" if name not in ("", ".") else name,
        "num_partitions": rng.choice((1, 2, -1, 0)),
        "replication_factor": rng.choice((1, 1, -1, 2, 0)),
        "configs": configs,
    }
    if plan.chance(0.15):
        topic["assignments"] = [{"partition_index": rng.choice((0, 1)), "broker_ids": [1]}]
        if plan.chance(0.7):
            topic |= {"num_partitions": -1, "replication_factor": -1}
    body = {"topics": [topic], "timeout_ms": 10_000, "validate_only": plan.chance(0.4)}
    return plan.step(19, body)


def delete_topics(plan: Plan) -> Step:
    topic = plan.rng.choice(("late", "late", "no-such-topic", plan.topics[-1]))
    by_id = plan.chance(0.4)
    body = {
        "topic_names": [f"$name:{topic}"],
        "topics": [
            {
                "name": None if by_id else f"$name:{topic}",
                "topic_id": f"$id:{topic if by_id else 'none'}",
            }
        ],
        "timeout_ms": 10_000,
    }
    return plan.step(20, body)


def create_partitions(plan: Plan) -> Step:
    topic = plan.topic()
    body = {
        "topics": [{"name": f"$name:{topic}", "count": plan.rng.choice((1, 2, 3, 4, 0, -1))}],
        "timeout_ms": 10_000,
        "validate_only": plan.chance(0.4),
    }
    return plan.step(37, body)


def describe_configs(plan: Plan) -> Step:
    keys = plan.rng.choice(
        (None, ["retention.ms"], ["cleanup.policy", "no.such"], ["min.insync.replicas"], [])
    )
    resource = {
        "resource_type": 2,
        "resource_name": f"$name:{plan.topic()}",
        "configuration_keys": keys,
    }
    return plan.step(32, {"resources": [resource], "include_synonyms": plan.chance(0.5)})


def alter_configs(plan: Plan) -> Step:
    rng = plan.rng
    name, value = rng.choice(
        (
            ("retention.ms", "1000000000000"), ("retention.ms", "-2"),
            ("cleanup.policy", "compact"), ("cleanup.policy", "delete"), ("cleanup.policy", ""),
            ("max.message.bytes", "250"),
            ("message.timestamp.type", "LogAppendTime"), ("compression.type", "lz4"),
            ("compression.type", "brotli"), ("no.such", "1"), ("min.insync.replicas", "1"),
            ("segment.ms", "10000"), ("flush.messages", None),
        )
    )  # fmt: skip
    operation = rng.choice((0, 0, 0, 1, 2, 3))
    resource = {
        "resource_type": 2,
        "resource_name": f"$name:{plan.topic()}",
        "configs": [{"name": name, "config_operation": operation, "value": value}],
    }
    return plan.step(44, {"resources": [resource], "validate_only": plan.chance(0.2)})


def replace_configs(plan: Plan) -> Step:
    step = alter_configs(plan)
    return plan.step(33, step["body"])


def find_coordinator(plan: Plan) -> Step:
    key = f"$name:{plan.group()}"
    body = {"key": key, "coordinator_keys": [key], "key_type": plan.rng.choice((0, 0, 1, 1, 9))}
    return plan.step(10, body)


def describe_cluster(plan: Plan) -> Step:
    return plan.step(60, {"include_cluster_authorized_operations": plan.chance(0.3)})


def describe_partitions(plan: Plan) -> Step:
    topics = [{"name": f"$name:{topic}"} for topic in plan.some_topics()]
    body = {
        "topics": topics,
        "response_partition_limit": plan.rng.choice((1, 2, 2000)),
        "cursor": None,
    }
    return plan.step(75, body)


FAMILIES: dict[str, dict[Action, int]] = {
    "produce": {records.produce: 8, records.init_producer: 1, records.describe_producers: 1},
    "transactions": {
        records.produce: 6, records.add_partitions: 4, records.end_transaction: 4,
        records.init_producer: 2, records.add_offsets: 2, records.commit_in_transaction: 2,
        records.describe_transactions: 1, records.list_transactions: 1,
    },
    "reading": {
        records.fetch: 8, records.list_offsets: 3, records.leader_epochs: 1,
        records.delete_records: 1,
    },
    "groups": {
        join: 7, sync: 6, heartbeat: 3, leave: 2, commit_offsets: 3, fetch_offsets: 2,
        describe_groups: 2, list_groups: 1, delete_groups: 1, delete_offsets: 1,
    },
    "consumer protocol": {consumer_heartbeat: 8, consumer_describe: 2, list_groups: 1},
    "offsets": {
        commit_offsets: 4, fetch_offsets: 4, delete_offsets: 1, records.commit_in_transaction: 2,
        records.add_offsets: 1, records.end_transaction: 1, delete_groups: 1,
    },
    "administration": {
        create_topics: 4, delete_topics: 1, create_partitions: 2, describe_configs: 3,
        alter_configs: 4, replace_configs: 2, metadata: 3, find_coordinator: 1,
        describe_cluster: 1, describe_partitions: 2,
    },
    "settings of several": {
        admin.several_configs: 4, admin.describe_other_configs: 2, describe_configs: 2,
        admin.list_config_resources: 1, admin.describe_log_dirs: 2, admin.elect_leaders: 2,
        admin.reassign: 2, admin.list_reassignments: 1,
    },
    "quotas and users": {
        admin.alter_quotas: 5, admin.describe_quotas: 5, admin.alter_users: 4,
        admin.describe_users: 3,
    },
    "access": {admin.create_acls: 5, admin.describe_acls: 4, admin.delete_acls: 2},
    "time-outs": {
        admin.time_out: 1, records.add_partitions: 3, records.produce: 3,
        records.end_transaction: 3, records.init_producer: 1, records.describe_transactions: 1,
    },
}  # fmt: skip


def conversation(seed: int, versions: dict[int, tuple[int, int]]) -> list[Step]:
    """The steps of one seed, for brokers that both serve `versions`."""
    rng = random.Random(seed)
    plan = Plan(rng, versions)
    actions: dict[Action, int] = {}
    for family in rng.sample(sorted(FAMILIES), rng.choice((1, 2, 2, 3))):
        actions |= FAMILIES[family]
    if records.produce in actions:
        actions |= {records.fetch: 4}
    steps = records.opening(plan)
    for _ in range(rng.choice((10, 25, 40, 60))):
        action = rng.choices([*actions], [*actions.values()])[0]
        steps += action_steps(plan, action)
    return steps


def action_steps(plan: Plan, action: Action) -> list[Step]:
    """The steps of an action; none for a request that one of the brokers does not serve."""
    try:
        made = action(plan)
    except KeyError as error:
        if error.args and isinstance(error.args[0], int):
            return []
        raise
    return made if isinstance(made, list) else [made]
