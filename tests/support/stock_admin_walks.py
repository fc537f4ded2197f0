"""The walks of the three published admin clients (see `stock_admin`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import aiokafka
import aiokafka.admin
import confluent_kafka
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import admin as ca
from stock_admin import THEN, Walk, filled, open_transaction
from stock_clients import DEADLINE_S, LoopThread
from stock_confluent import settings_for
from stock_kafka_python import kafka

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import admin as ka
    from kafka.structs import OffsetAndMetadata, TopicPartition, TopicPartitionReplica

FEATURES = ("group.version", "transaction.version")


# --- kafka-python


def walk_kafka_python(walk: Walk) -> None:
    topic = filled(walk, "t")
    admin = kafka.KafkaAdminClient(bootstrap_servers=walk.bootstrap)
    try:
        _kafka_python_topics(walk, admin, topic)
        _kafka_python_configs(walk, admin, topic)
        _kafka_python_partitions(walk, admin, topic)
        _kafka_python_groups(walk, admin, topic)
        _kafka_python_users_and_rules(walk, admin, topic)
        _kafka_python_transactions(walk, admin, topic)
    finally:
        admin.close()


def _kafka_python_topics(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    made = ka.NewTopic(walk.name("made"), 1, 1, topic_configs={"retention.ms": "-1"})
    quiet = {"raise_errors": False}
    walk.ask("validate", lambda: admin.create_topics([made], validate_only=True, **quiet))
    walk.ask("create", lambda: admin.create_topics([made], **quiet))
    walk.ask_until("wait", lambda: admin.wait_for_topics([made.name]), lambda a: a is None)
    walk.ask("create again", lambda: admin.create_topics([made], **quiet))
    walk.ask("create again, raising", lambda: admin.create_topics([made]))
    wrong = ka.NewTopic(walk.name("wrong"), 1, 1, topic_configs={"no.such": "1"})
    walk.ask("create with a wrong setting", lambda: admin.create_topics([wrong], **quiet))
    walk.ask("list", lambda: [t for t in admin.list_topics() if t.startswith(walk.prefix)])
    walk.ask("describe", lambda: admin.describe_topics([topic, walk.name("none")]))
    walk.ask("partitions of", lambda: admin.describe_topic_partitions([topic]))
    grown = {made.name: 3}
    walk.ask("grow", lambda: admin.create_partitions(grown))
    walk.ask("shrink", lambda: admin.create_partitions({made.name: 1}))
    walk.ask("delete", lambda: admin.delete_topics([made.name], **quiet))
    walk.ask_until(
        "delete again",
        lambda: admin.delete_topics([made.name], **quiet),
        lambda answer: answer["topics"][0]["error_code"] == 3,
    )
    walk.ask(
        "features",
        lambda: {k: v for k, v in admin.describe_features().items() if k in FEATURES},
    )
    walk.ask("cluster", admin.describe_cluster)
    walk.ask("wrong feature", lambda: admin.update_features({"no.such": 1}))
    walk.ask("version", lambda: admin.get_broker_version_data(1) is not None)


def _kafka_python_configs(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    kind = ka.ConfigResourceType.TOPIC

    def described(*names: str) -> object:
        resource = ka.ConfigResource(kind, topic, list(names))
        return admin.describe_configs([resource], config_filter="all", include_synonyms=True)

    names = ("retention.ms", "cleanup.policy", "max.message.bytes")
    walk.ask("settings", lambda: described(*names))
    change = {"retention.ms": "777000", "max.message.bytes": (ka.AlterConfigOp.SET, "2000000")}
    walk.ask("alter", lambda: admin.alter_configs([ka.ConfigResource(kind, topic, change)]))
    walk.ask_until("altered", lambda: described(*names), lambda a: "777000" in str(a))
    wrong = ka.ConfigResource(kind, topic, {"retention.ms": "soon"})
    walk.ask("wrong value", lambda: admin.alter_configs([wrong]))
    unknown = ka.ConfigResource(kind, topic, {"no.such": "1"})
    walk.ask("unknown name", lambda: admin.alter_configs([unknown], raise_on_unknown=False))
    back = ka.ConfigResource(kind, topic, ["retention.ms"])
    walk.ask("reset", lambda: admin.reset_configs([back]))
    walk.ask_until("is reset", lambda: described(*names), lambda a: "777000" not in str(a))
    walk.ask(
        "resources",
        lambda: [
            name
            for name in admin.list_config_resources(["TOPIC"])["topic"]
            if name.startswith(walk.prefix)
        ],
    )


def _kafka_python_partitions(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    first, missing = TopicPartition(topic, 0), TopicPartition(topic, 9)
    for spec in (ka.OffsetSpec.EARLIEST, ka.OffsetSpec.LATEST, ka.OffsetSpec.MAX_TIMESTAMP, THEN):
        walk.ask(f"offset {spec}", lambda s=spec: admin.list_partition_offsets({first: s}))
    walk.ask("offset of none", lambda: admin.list_partition_offsets({missing: 0}, timeout_ms=300))
    walk.ask("delete records", lambda: admin.delete_records({first: 3}))
    walk.ask("delete too many", lambda: admin.delete_records({first: 999}))
    walk.ask("elect", lambda: admin.elect_leaders(0, {topic: [0, 1]}))
    walk.ask("elect, raising", lambda: admin.elect_leaders(0, {topic: [9]}))
    walk.ask("reassign", lambda: admin.alter_partition_reassignments({first: [1]}))
    walk.ask("reassign wrongly", lambda: admin.alter_partition_reassignments({first: [7]}))
    walk.ask("cancel", lambda: admin.alter_partition_reassignments({first: None}))
    walk.ask("reassignments", lambda: admin.list_partition_reassignments({topic: [0]}))
    walk.ask("folders", lambda: admin.describe_log_dirs({topic: [0, 1]}))
    replica = TopicPartitionReplica(topic, 0, 1)
    walk.ask("move", lambda: admin.alter_replica_log_dirs({replica: "/nowhere"}))
    walk.ask("producers", lambda: admin.describe_producers([first, missing]))


def _kafka_python_groups(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    group, first = walk.name("g"), TopicPartition(topic, 0)
    at = {
        first: OffsetAndMetadata(5, "note", -1),
        TopicPartition(topic, 1): OffsetAndMetadata(0, "", -1),
    }
    walk.ask("unknown group", lambda: admin.describe_groups([group]))
    walk.ask("commit", lambda: admin.alter_group_offsets(group, at))
    walk.ask("committed", lambda: admin.list_group_offsets({group: None}))
    walk.ask("committed of one", lambda: admin.list_group_offsets({group: [first]}))
    walk.ask(
        "move offsets", lambda: admin.reset_group_offsets(group, {first: ka.OffsetSpec.EARLIEST})
    )
    walk.ask("groups", lambda: [g for g in admin.list_groups() if g["group_id"] == group])
    for states in (["Empty"], ["Stable"]):
        walk.ask(
            f"groups {states}",
            lambda s=states: [
                g for g in admin.list_groups(states_filter=s) if g["group_id"] == group
            ],
        )
    walk.ask("group", lambda: admin.describe_groups([group]))
    gone = ka.MemberToRemove(group_instance_id="nobody")
    walk.ask("remove nobody", lambda: admin.remove_group_members(group, [gone]))
    walk.ask("delete offsets", lambda: admin.delete_group_offsets(group, [first]))
    walk.ask("delete group", lambda: admin.delete_groups([group]))
    walk.ask("delete group again", lambda: admin.delete_groups([group]))


def _kafka_python_users_and_rules(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    user, mechanism = walk.name("u"), ka.ScramMechanism.SCRAM_SHA_256
    change = ka.UserScramCredentialUpsertion(user, mechanism, "secret", 5000)
    walk.ask("set password", lambda: admin.alter_user_scram_credentials([change]))
    walk.ask_until(
        "users",
        lambda: admin.describe_user_scram_credentials([user]),
        lambda answer: "5000" in str(answer),
    )
    gone = ka.UserScramCredentialDeletion(user, mechanism)
    walk.ask("delete password", lambda: admin.alter_user_scram_credentials([gone]))
    walk.ask_until(
        "no users",
        lambda: admin.describe_user_scram_credentials([user]),
        lambda answer: "5000" not in str(answer),
    )
    weak = ka.UserScramCredentialUpsertion(user, mechanism, "secret", 4000)
    walk.ask("weak password", lambda: bool(admin.alter_user_scram_credentials([weak])[user]))
    pattern = ka.ResourcePattern(ka.ResourceType.TOPIC, topic)
    rule = ka.ACL("User:alice", "*", ka.ACLOperation.READ, ka.ACLPermissionType.ALLOW, pattern)
    every = ka.ACLFilter(
        None, None, ka.ACLOperation.ANY, ka.ACLPermissionType.ANY,
        ka.ResourcePatternFilter(ka.ResourceType.TOPIC, topic, ka.ACLResourcePatternType.MATCH),
    )  # fmt: skip
    walk.ask("allow", lambda: admin.create_acls([rule]))
    walk.ask_until("rules", lambda: admin.describe_acls(every), lambda a: "alice" in str(a))
    walk.ask("forbid", lambda: admin.delete_acls([every]))
    walk.ask_until("no rules", lambda: admin.describe_acls(every), lambda a: "alice" not in str(a))


def _kafka_python_transactions(walk: Walk, admin: kafka.KafkaAdminClient, topic: str) -> None:
    name = walk.name("tx")
    walk.ask("unknown transaction", lambda: admin.describe_transactions([name]))
    producer = open_transaction(walk, topic)

    def listed(**filters: object) -> object:
        found = admin.list_transactions(transactional_id_pattern=f"{walk.prefix}.*", **filters)
        return without_ids(walk.plain(found))

    walk.ask("open", lambda: without_ids(walk.plain(admin.describe_transactions([name]))))
    walk.ask("transactions", listed)
    walk.ask("ongoing", lambda: listed(state_filters=["Ongoing"]))
    walk.ask("long ones", lambda: listed(duration_filter_ms=3_600_000))
    second = [TopicPartition(topic, 1)]
    walk.ask("its producer", lambda: without_ids(walk.plain(admin.describe_producers(second))))
    walk.ask(
        "hanging", lambda: [h for h in admin.find_hanging_transactions([1]) if topic in str(h)]
    )
    producer.abort_transaction(DEADLINE_S)
    walk.ask_until(
        "aborted",
        lambda: without_ids(walk.plain(admin.describe_transactions([name]))),
        lambda answer: "COMPLETE_ABORT" in str(answer) or "CompleteAbort" in str(answer),
    )


def without_ids(value: object) -> object:
    """Without what the broker numbers by itself."""
    if isinstance(value, dict):
        numbered = ("producer_id", "current_txn_start_offset", "coordinator_id")
        return {k: without_ids(v) for k, v in value.items() if k not in numbered}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


# --- confluent-kafka


def walk_confluent(walk: Walk) -> None:
    topic = filled(walk, "t")
    admin = ca.AdminClient(settings_for(walk.bootstrap))
    _confluent_topics(walk, admin, topic)
    _confluent_configs(walk, admin, topic)
    _confluent_offsets_and_groups(walk, admin, topic)
    _confluent_users_and_rules(walk, admin, topic)


def result(futures: object) -> object:
    """The only value of a mapping of futures."""
    (future,) = futures.values()  # type: ignore[attr-defined]
    return future.result(DEADLINE_S)


def _confluent_topics(walk: Walk, admin: ca.AdminClient, topic: str) -> None:
    made = ca.NewTopic(walk.name("made"), 1, 1, config={"retention.ms": "-1"})
    walk.ask("validate", lambda: result(admin.create_topics([made], validate_only=True)))
    walk.ask("create", lambda: result(admin.create_topics([made])))
    walk.ask_until(
        "made",
        lambda: list(admin.list_topics(made.topic, DEADLINE_S).topics[made.topic].partitions),
        lambda answer: answer == [0],
    )
    walk.ask("create again", lambda: result(admin.create_topics([made])))
    wrong = ca.NewTopic(walk.name("wrong"), 1, 1, config={"no.such": "1"})
    walk.ask("create with a wrong setting", lambda: result(admin.create_topics([wrong])))
    walk.ask("grow", lambda: result(admin.create_partitions([ca.NewPartitions(made.topic, 3)])))
    walk.ask("shrink", lambda: result(admin.create_partitions([ca.NewPartitions(made.topic, 1)])))
    for name in (topic, walk.name("none")):
        names = confluent_kafka.TopicCollection([name])
        walk.ask(f"describe {walk.plain(name)}", lambda n=names: _partitions(admin, n))
    walk.ask("delete", lambda: result(admin.delete_topics([made.topic])))
    walk.ask_until(
        "delete again",
        lambda: result(admin.delete_topics([made.topic])),
        lambda answer: answer == "raised UNKNOWN_TOPIC_OR_PART",
    )
    walk.ask("cluster", lambda: len(admin.describe_cluster().result(DEADLINE_S).nodes))
    both = [confluent_kafka.TopicPartition(topic, 0), confluent_kafka.TopicPartition(topic, 9)]
    kind = confluent_kafka.ElectionType.PREFERRED
    walk.ask(
        "elect",
        lambda: {
            p.partition: e and e.name()
            for p, e in admin.elect_leaders(kind, both).result(DEADLINE_S).items()
        },
    )


def _partitions(admin: ca.AdminClient, names: confluent_kafka.TopicCollection) -> object:
    described = result(admin.describe_topics(names, include_authorized_operations=True))
    operations = sorted(each.name for each in described.authorized_operations)  # type: ignore[attr-defined]
    parts = described.partitions  # type: ignore[attr-defined]
    return [
        (p.id, p.leader.id, [r.id for r in p.replicas], [r.id for r in p.isr]) for p in parts
    ], operations


def _confluent_configs(walk: Walk, admin: ca.AdminClient, topic: str) -> None:
    def described() -> object:
        resource = ca.ConfigResource(ca.ResourceType.TOPIC, topic)
        found = result(admin.describe_configs([resource]))
        names = ("retention.ms", "cleanup.policy", "max.message.bytes")
        return {
            n: (found[n].value, found[n].source, found[n].is_default, found[n].is_read_only)  # type: ignore[index]
            for n in names
        }

    def alter(name: str, value: str | None, operation: ca.AlterConfigOpType) -> object:
        entry = ca.ConfigEntry(name, value, incremental_operation=operation)
        resource = ca.ConfigResource(ca.ResourceType.TOPIC, topic, incremental_configs=[entry])
        return result(admin.incremental_alter_configs([resource]))

    kind = ca.AlterConfigOpType
    walk.ask("settings", described)
    walk.ask("set", lambda: alter("retention.ms", "777000", kind.SET))
    walk.ask("append", lambda: alter("cleanup.policy", "compact", kind.APPEND))
    walk.ask_until("is set", described, lambda a: "compact" in str(a) and "777000" in str(a))
    walk.ask("subtract", lambda: alter("cleanup.policy", "compact", kind.SUBTRACT))
    walk.ask("delete setting", lambda: alter("retention.ms", None, kind.DELETE))
    walk.ask_until(
        "is back", described, lambda a: "compact" not in str(a) and "777000" not in str(a)
    )
    walk.ask("wrong value", lambda: alter("retention.ms", "soon", kind.SET))
    walk.ask("unknown name", lambda: alter("no.such", "1", kind.SET))
    walk.ask("append to a number", lambda: alter("retention.ms", "1", kind.APPEND))
    whole = ca.ConfigResource(ca.ResourceType.TOPIC, topic, set_config={"retention.ms": "888000"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        walk.ask("replace", lambda: result(admin.alter_configs([whole])))
    walk.ask_until("replaced", described, lambda a: "888000" in str(a))


def _confluent_offsets_and_groups(walk: Walk, admin: ca.AdminClient, topic: str) -> None:
    first = confluent_kafka.TopicPartition(topic, 0)
    for name in ("earliest", "latest", "max_timestamp"):
        spec = getattr(ca.OffsetSpec, name)()
        walk.ask(f"offset {name}", lambda s=spec: result(admin.list_offsets({first: s})).offset)  # type: ignore[attr-defined]
    spec = ca.OffsetSpec.for_timestamp(THEN + 1500)
    walk.ask("offset for time", lambda: result(admin.list_offsets({first: spec})).offset)  # type: ignore[attr-defined]
    for offset in (3, 999):
        cut = confluent_kafka.TopicPartition(topic, 0, offset)
        walk.ask(f"delete to {offset}", lambda c=cut: result(admin.delete_records([c])))
    group, positions = walk.name("g"), [confluent_kafka.TopicPartition(topic, 0, 5)]
    wish = confluent_kafka.ConsumerGroupTopicPartitions(group, positions)
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    walk.ask("unknown group", lambda: _state(result(admin.describe_consumer_groups([group]))))
    walk.ask("commit", lambda: result(admin.alter_consumer_group_offsets([wish])))
    walk.ask("committed", lambda: result(admin.list_consumer_group_offsets([asked])))
    walk.ask("group", lambda: _state(result(admin.describe_consumer_groups([group]))))
    for state in (
        confluent_kafka.ConsumerGroupState.EMPTY,
        confluent_kafka.ConsumerGroupState.STABLE,
    ):
        walk.ask(
            f"groups {state.name}",
            lambda s=state: [
                (g.state.name, g.is_simple_consumer_group, g.type.name)
                for g in admin.list_consumer_groups(states={s}).result(DEADLINE_S).valid
                if g.group_id == group
            ],
        )
    walk.ask("delete group", lambda: result(admin.delete_consumer_groups([group])))
    walk.ask("delete group again", lambda: result(admin.delete_consumer_groups([group])))


def _state(group: object) -> object:
    names = ("state", "is_simple_consumer_group", "members", "partition_assignor", "type")
    return {name: getattr(group, name) for name in names}


def _confluent_users_and_rules(walk: Walk, admin: ca.AdminClient, topic: str) -> None:
    user, kind = walk.name("u"), ca.ScramMechanism.SCRAM_SHA_512
    info = ca.ScramCredentialInfo(kind, 5000)

    def users() -> object:
        found = admin.describe_user_scram_credentials([user])
        return [(i.mechanism.name, i.iterations) for i in result(found).scram_credential_infos]  # type: ignore[attr-defined]

    def change(*alterations: object) -> object:
        return result(admin.alter_user_scram_credentials(list(alterations)))

    walk.ask("set password", lambda: change(ca.UserScramCredentialUpsertion(user, info, b"secret")))
    walk.ask_until("users", users, lambda answer: "5000" in str(answer))
    walk.ask("delete password", lambda: change(ca.UserScramCredentialDeletion(user, kind)))
    walk.ask_until("no users", users, lambda answer: "5000" not in str(answer))
    walk.ask("delete nobody", lambda: change(ca.UserScramCredentialDeletion(user, kind)))
    both = (ca.ResourceType.TOPIC, topic, ca.ResourcePatternType.LITERAL, "User:alice", "*")
    rule = ca.AclBinding(*both, ca.AclOperation.READ, ca.AclPermissionType.ALLOW)
    every = ca.AclBindingFilter(
        ca.ResourceType.TOPIC, topic, ca.ResourcePatternType.MATCH, None, None,
        ca.AclOperation.ANY, ca.AclPermissionType.ANY,
    )  # fmt: skip

    def rules() -> object:
        return [str(each) for each in admin.describe_acls(every).result(DEADLINE_S)]

    walk.ask("allow", lambda: result(admin.create_acls([rule])))
    walk.ask_until("rules", rules, lambda answer: "alice" in str(answer))
    walk.ask("forbid", lambda: [str(each) for each in result(admin.delete_acls([every]))])  # type: ignore[attr-defined]
    walk.ask_until("no rules", rules, lambda answer: answer == [])


# --- aiokafka


def walk_aiokafka(walk: Walk) -> None:
    topic = filled(walk, "t")
    loop = LoopThread()

    async def started() -> aiokafka.admin.AIOKafkaAdminClient:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=walk.bootstrap)
        await admin.start()
        return admin

    admin = loop.run(started)

    def ask(what: str, call: Callable[[], object]) -> None:
        walk.ask(what, lambda: loop.run(call))  # type: ignore[arg-type]

    try:
        _aiokafka_calls(walk, admin, topic, ask)
    finally:
        loop.run(admin.close)
        loop.close()


def _aiokafka_calls(
    walk: Walk,
    admin: aiokafka.admin.AIOKafkaAdminClient,
    topic: str,
    ask: Callable[[str, Callable[[], object]], None],
) -> None:
    made = aiokafka.admin.NewTopic(walk.name("made"), 1, 1, topic_configs={"retention.ms": "-1"})
    ask("validate", lambda: admin.create_topics([made], validate_only=True))
    ask("create", lambda: admin.create_topics([made]))
    ask("create again", lambda: admin.create_topics([made]))
    grown = {topic: aiokafka.admin.NewPartitions(3)}
    ask("grow", lambda: admin.create_partitions(grown))
    ask("shrink", lambda: admin.create_partitions({topic: aiokafka.admin.NewPartitions(1)}))
    ask("delete", lambda: admin.delete_topics([made.name]))
    kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
    names = {"retention.ms": None, "cleanup.policy": None}
    asked = aiokafka.admin.config_resource.ConfigResource(kind, topic, names)
    ask("settings", lambda: admin.describe_configs([asked], include_synonyms=True))
    change = aiokafka.admin.config_resource.ConfigResource(kind, topic, {"retention.ms": "777000"})
    ask("alter", lambda: admin.alter_configs([change]))
    wrong = aiokafka.admin.config_resource.ConfigResource(kind, topic, {"retention.ms": "soon"})
    ask("wrong value", lambda: admin.alter_configs([wrong]))
    first, group = aiokafka.TopicPartition(topic, 0), walk.name("g")
    ask("delete records", lambda: admin.delete_records({first: RecordsToDelete(3)}))
    ask("unknown group", lambda: admin.describe_consumer_groups([group]))
    ask("no offsets", lambda: admin.list_consumer_group_offsets(group))
    ask("of one", lambda: admin.list_consumer_group_offsets(group, partitions=[first]))
    ask("coordinator", lambda: admin.find_coordinator(group))

    async def ours() -> object:
        return [name for name in await admin.list_topics() if name == topic]

    ask("list", ours)

    async def found() -> object:
        return [g for g in await admin.list_consumer_groups() if g[0] == group]

    ask("groups", found)

    async def cluster() -> object:
        return len((await admin.describe_cluster())["brokers"])

    ask("cluster", cluster)


WALKS = {
    "aiokafka": walk_aiokafka,
    "confluent-kafka": walk_confluent,
    "kafka-python": walk_kafka_python,
}
