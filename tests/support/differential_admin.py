"""Random steps about quotas, users, ACLs, log folders, elections and transactions that time out.

Everything is about names of this conversation, and what lists more asks for these names only: the
brokers serve others at the same time. Nobody is locked out, since the client is a super user where
there is an authorizer.
"""

from __future__ import annotations

from typing import Any

import differential_steps as records
from differential_steps import Plan, Step

Plain = Any

USERS = ("u0", "u1", "u2")
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage",
          "controller_mutation_rate")  # fmt: skip
TRANSACTION_TIMEOUT_MS = 300

# --- client quotas


def quota_entity(plan: Plan) -> list[Plain]:
    rng = plan.rng
    kinds = rng.choice((["user"], ["client-id"], ["user", "client-id"], ["ip"]))
    if plan.chance(0.12):
        kinds = rng.choice(([], ["user", "user"], ["ip", "user"], ["group"], ["user", ""]))
    return [{"entity_type": kind, "entity_name": entity_name(plan, kind)} for kind in kinds]


def entity_name(plan: Plan, kind: str) -> str:
    if kind == "ip":
        return plan.rng.choice(("192.0.2.7", "192.0.2.8"))
    return "" if plan.chance(0.02) else f"$name:{plan.rng.choice(USERS)}"


def alter_quotas(plan: Plan) -> Step:
    rng = plan.rng
    entries: list[dict[str, Plain]] = []
    for _ in range(rng.choice((1, 1, 2))):
        entity = quota_entity(plan)
        if any(sorted(entity, key=repr) == sorted(one["entity"], key=repr) for one in entries):
            continue  # Kafka refuses it, and makes the first change.
        names = ("connection_creation_rate",) if entity[:1] == [ip_of(entity)] else QUOTAS
        if plan.chance(0.08):
            names = ("connection_creation_rate", "no_such_rate", "")
        ops = [
            {
                "key": rng.choice(names),
                "value": rng.choice((1e9, 1e9, 5e6, 1234.0)),
                "remove": plan.chance(0.25),
            }
            for _ in range(rng.choice((1, 1, 2)))
        ]
        if plan.chance(0.08):
            ops[0]["value"] = rng.choice((0.0, -1.0, 0.5, 1e300))
        entries.append({"entity": entity, "ops": ops})
    body = {"entries": entries, "validate_only": plan.chance(0.2)}
    return plan.step(49, body)


def ip_of(entity: list[Plain]) -> Plain:
    return next((part for part in entity if part["entity_type"] == "ip"), None)


def describe_quotas(plan: Plan) -> Step:
    rng = plan.rng
    kind = rng.choice(("user", "user", "client-id"))
    components = [{"entity_type": kind, "match_type": 0, "match": f"$name:{rng.choice(USERS)}"}]
    other = "client-id" if kind == "user" else "user"
    if plan.chance(0.5):
        match = rng.choice(
            (
                {"match_type": 2, "match": None},
                {"match_type": 1, "match": None},
                {"match_type": 0, "match": f"$name:{rng.choice(USERS)}"},
            )
        )
        components.append({"entity_type": other, **match})
    if plan.chance(0.08):
        odd = rng.choice(
            (
                {"entity_type": kind, "match_type": 0, "match": "$name:u0"},
                {"entity_type": "group", "match_type": 0, "match": "$name:u0"},
                {"entity_type": other, "match_type": 7, "match": None},
                {"entity_type": "ip", "match_type": 2, "match": None},
                {"entity_type": "", "match_type": 0, "match": "$name:u0"},
            )
        )
        components.append(odd)
    return plan.step(48, {"components": components, "strict": plan.chance(0.5)})


# --- users


def alter_users(plan: Plan) -> Step:
    rng = plan.rng
    upsertions = [
        {
            "name": f"$name:{rng.choice(USERS)}",
            "mechanism": rng.choice((1, 2)) if plan.chance(0.95) else rng.choice((0, 3)),
            "iterations": rng.choice((4096, 8192))
            if plan.chance(0.9)
            else rng.choice((0, 4095, 16384, 16385)),
            "salt": {"hex": "0102"},
            "salted_password": {"hex": "aa" * 32} if plan.chance(0.95) else {"hex": ""},
        }
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    deletions = [
        {"name": f"$name:{rng.choice(USERS)}", "mechanism": rng.choice((1, 2, 1, 2, 0))}
        for _ in range(rng.choice((0, 0, 1)))
    ]
    if plan.chance(0.04):
        deletions.append({"name": "", "mechanism": 1})
    return plan.step(51, {"deletions": deletions, "upsertions": upsertions})


def describe_users(plan: Plan) -> Step:
    rng = plan.rng
    users = [{"name": f"$name:{name}"} for name in rng.sample(USERS, rng.choice((1, 2, 3)))]
    if plan.chance(0.1):
        users.append(users[0])
    if plan.chance(0.04):
        users.append({"name": ""})
    return plan.step(50, {"users": users})


# --- ACLs


def acl(plan: Plan) -> dict[str, Plain]:
    rng = plan.rng
    kind = rng.choice((2, 2, 3, 5))
    own = {2: plan.topics[0], 3: plan.groups[0], 5: "x0"}[kind]
    return {
        "resource_type": kind,
        "resource_name": f"$name:{rng.choice((own, ''))}",
        "resource_pattern_type": rng.choice((3, 3, 4)),
        "principal": rng.choice(("User:alice", "User:bob", "User:*")),
        "host": rng.choice(("*", "192.0.2.1")),
        "operation": rng.choice((2, 3, 4, 8, 10)),
        "permission_type": rng.choice((2, 3)),
    }


def create_acls(plan: Plan) -> Step:
    creations = [acl(plan) for _ in range(plan.rng.choice((1, 1, 2, 3)))]
    if plan.chance(0.1):
        field, value = plan.rng.choice(
            (
                ("principal", "alice"), ("principal", ""), ("host", ""), ("resource_name", ""),
                ("operation", 9), ("operation", 13),
            )
        )  # fmt: skip
        creations[0][field] = value
    return plan.step(30, {"creations": creations})


def acl_filter(plan: Plan) -> dict[str, Plain]:
    rng = plan.rng
    wanted = acl(plan)
    return {
        "resource_type_filter": wanted["resource_type"] if plan.chance(0.7) else 1,
        "resource_name_filter": wanted["resource_name"],
        "pattern_type_filter": rng.choice((1, 2, 3, 4)),
        "principal_filter": wanted["principal"] if plan.chance(0.3) else None,
        "host_filter": wanted["host"] if plan.chance(0.3) else None,
        "operation": wanted["operation"] if plan.chance(0.3) else 1,
        "permission_type": wanted["permission_type"] if plan.chance(0.3) else 1,
    }


def describe_acls(plan: Plan) -> Step:
    return plan.step(29, acl_filter(plan))


def delete_acls(plan: Plan) -> Step:
    filters = [acl_filter(plan) for _ in range(plan.rng.choice((1, 1, 2)))]
    return plan.step(31, {"filters": filters})


# --- the cluster


def describe_log_dirs(plan: Plan) -> Step:
    topics = [
        {"topic": f"$name:{topic}", "partitions": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    return plan.step(35, {"topics": topics})


def elect_leaders(plan: Plan) -> Step:
    topics = [
        {"topic": f"$name:{topic}", "partitions": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    kind = plan.rng.choice((0, 0, 1)) if plan.chance(0.95) else 5
    return plan.step(43, {"election_type": kind, "topic_partitions": topics, "timeout_ms": 5_000})


def reassign(plan: Plan) -> Step:
    rng = plan.rng
    topics = [
        {
            "name": f"$name:{topic}",
            "partitions": [
                {"partition_index": p, "replicas": rng.choice((None, [1], [1], [1, 1], [7], []))}
                for p in plan.some_partitions(topic)
            ],
        }
        for topic in plan.some_topics()
    ]
    return plan.step(45, {"topics": topics, "timeout_ms": 5_000})


def list_reassignments(plan: Plan) -> Step:
    topics = [
        {"name": f"$name:{topic}", "partition_indexes": plan.some_partitions(topic)}
        for topic in plan.some_topics()
    ]
    return plan.step(46, {"topics": topics, "timeout_ms": 5_000})


def several_configs(plan: Plan) -> Step:
    """IncrementalAlterConfigs of several settings, and of resources beside topics."""
    rng = plan.rng
    if plan.chance(0.5):
        kind, name = 2, f"$name:{plan.topic()}"
        entries: tuple[tuple[str, str | None], ...] = (
            ("cleanup.policy", "compact"), ("cleanup.policy", "delete"),
            ("retention.ms", "5000000"), ("retention.bytes", "x"), ("segment.ms", "1"),
            ("delete.retention.ms", "-1"), ("message.timestamp.type", "CreateTime"),
            ("max.compaction.lag.ms", "0"),
            ("segment.bytes", "1048576"), ("unclean.leader.election.enable", "maybe"), ("", "1"),
        )  # fmt: skip
    else:
        kind, name = 32, f"$name:{plan.group()}"
        entries = (
            ("consumer.session.timeout.ms", "50000"), ("consumer.session.timeout.ms", "10"),
            ("consumer.heartbeat.interval.ms", "6000"), ("no.such", "1"),
            ("consumer.heartbeat.interval.ms", "x"),
        )  # fmt: skip
    configs: list[Plain] = []
    for setting, value in rng.sample(entries, rng.choice((1, 2, 3))):
        if plan.chance(0.9) and any(setting == one["name"] for one in configs):
            continue
        operation = rng.choice((0, 0, 0, 1, 2, 3))
        configs.append({"name": setting, "config_operation": operation, "value": value})
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return plan.step(44, {"resources": [resource], "validate_only": plan.chance(0.2)})


def describe_other_configs(plan: Plan) -> Step:
    rng = plan.rng
    keys = rng.choice((None, ["consumer.session.timeout.ms"], ["no.such"]))
    resource = {
        "resource_type": 32,
        "resource_name": f"$name:{plan.group()}",
        "configuration_keys": keys,
    }
    return plan.step(32, {"resources": [resource], "include_synonyms": plan.chance(0.5)})


def list_config_resources(plan: Plan) -> Step:
    kinds = plan.rng.choice(([2], [32], [2, 32], [16], [2, 2], [99]))
    return plan.step(74, {"resource_types": kinds})


# --- transactions that nobody ends


def time_out(plan: Plan) -> list[Step]:
    """A transaction that times out, and what its producer is told afterwards."""
    producer = plan.rng.choice([*plan.transactional] or plan.producers)
    transactional_id = plan.transactional.get(producer, "x9")
    begin = {
        "transactional_id": f"$name:{transactional_id}",
        "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
    }
    wait = {"do": "await transaction", "transactional_id": transactional_id}
    later = [records.end_transaction, records.add_partitions, records.init_producer,
             records.add_offsets, records.describe_transactions]  # fmt: skip
    return [
        plan.step(22, begin, binds=producer),
        records.add_partitions(plan, producer),
        wait,
        records.describe_transactions(plan),
        *(plan.rng.choice(later)(plan) for _ in range(plan.rng.choice((1, 2)))),
        # What follows is not to time out.
        plan.step(22, begin | {"transaction_timeout_ms": 60_000}, binds=producer),
    ]
