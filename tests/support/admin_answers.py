"""A conversation about administration, and its answers without what differs from run to run.

Run as a program it asks an Apache Kafka and prints what `tests/vectors/kafka_admin_answers.json`
holds: `python tests/support/admin_answers.py 127.0.0.1:9092`. Only names that begin with `admin-`
are used, and everything is undone at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

from broker_wire import Wire

from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from onceflow.sdk.protocol.api.admin_cluster import (
    DescribeQuorumRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)
from onceflow.sdk.protocol.api.admin_configs import AlterConfigsRequest, ListConfigResourcesRequest
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
from onceflow.sdk.protocol.api.offsets import DeleteRecordsRequest
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Message, Request, Response

FILE = Path(__file__).parents[1] / "vectors" / "kafka_admin_answers.json"

TOPIC, OTHER, MISSING = "admin-a", "admin-b", "admin-missing"
TOPIC_TYPE, BROKER_TYPE, METRICS_TYPE, GROUP_TYPE = 2, 4, 16, 32

Case = tuple[str, Request, int]
Ask = Callable[[Request, int], Awaitable[Response | None]]


def create(name: str, count: int = 1, factor: int = 1, **configs: str | None) -> Request:
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(
                        name=key.replace("_", "."), value=value
                    )
                    for key, value in configs.items()
                ],
            )
        ]
    )


def delete(*names: str) -> Request:
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=n, topic_id=ZERO_UUID) for n in names],
        timeout_ms=10_000,
    )


def topic_cases() -> Iterator[Case]:
    yield "create", create(TOPIC, 2, retention_ms="60000"), 7
    yield "create another", create(OTHER), 7
    yield "create again", create(TOPIC), 7
    yield "create with a bad name", create("admin/a"), 7
    yield "create with a bad setting", create("admin-c", retention_ms="x"), 7
    yield "create with an unknown setting", create("admin-c", nope="x"), 7
    yield "create with a null setting", create("admin-c", retention_ms=None), 7
    yield "create with two replicas", create("admin-c", 1, 2), 7
    yield "create with no partitions", create("admin-c", 0), 7
    grow = CreatePartitionsRequest.CreatePartitionsTopic
    for label, name, count in (
        ("grow to less", TOPIC, 1),
        ("grow to the same", TOPIC, 2),
        ("grow what is missing", MISSING, 2),
    ):
        request = CreatePartitionsRequest(topics=[grow(name=name, count=count)], timeout_ms=10_000)
        yield label, request, 3
    yield "delete what is missing", delete(MISSING), 6
    wish = DeleteRecordsRequest.DeleteRecordsPartition
    topics = [
        DeleteRecordsRequest.DeleteRecordsTopic(
            name=name,
            partitions=[wish(partition_index=index, offset=offset) for index, offset in offsets],
        )
        for name, offsets in ((TOPIC, [(0, 5), (9, 0), (1, -1)]), (MISSING, [(0, 0)]))
    ]
    yield "delete records", DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2


def page_cases() -> Iterator[Case]:
    ask = DescribeTopicPartitionsRequest

    def page(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Request:
        at = None if cursor is None else ask.Cursor(topic_name=cursor[0], partition_index=cursor[1])
        return ask(
            topics=[ask.TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=at,
        )

    yield "partitions of a topic", page(TOPIC), 0
    yield "partitions of what is missing too", page(TOPIC, MISSING), 0
    yield "a topic twice", page(TOPIC, TOPIC), 0
    for limit in (-1, 0, 1, 2, 3):
        yield f"pages of {limit}", page(TOPIC, OTHER, limit=limit), 0
    for cursor in ((TOPIC, 1), (TOPIC, 2), (TOPIC, 9), (TOPIC, -1), (OTHER, 0), (MISSING, 0)):
        yield f"from {cursor}", page(TOPIC, OTHER, cursor=cursor), 0


def replica_cases() -> Iterator[Case]:
    folders = DescribeLogDirsRequest
    yield "no folders' topics", folders(topics=[]), 4
    wanted = folders.DescribableLogDirTopic
    asked = [wanted(topic=TOPIC, partitions=[0, 9, 0]), wanted(topic=MISSING, partitions=[0])]
    for version in (1, 3, 5):
        yield f"folders, version {version}", folders(topics=asked), version
    move = AlterReplicaLogDirsRequest
    goes = move.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
    lost = move.AlterReplicaLogDirTopic(name=MISSING, partitions=[0])
    for path in ("/nowhere", ""):
        folder = move.AlterReplicaLogDir(path=path, topics=[goes, lost])
        yield f"move to {path!r}", move(dirs=[folder]), 2
    elect = ElectLeadersRequest
    some = [
        elect.TopicPartitions(topic=TOPIC, partitions=[0, 1, 5, 0]),
        elect.TopicPartitions(topic=MISSING, partitions=[0]),
        elect.TopicPartitions(topic=OTHER, partitions=[]),
    ]
    yield "elect, version 0", elect(topic_partitions=some), 0
    for kind in (0, 1, 7):
        yield f"elect {kind}", elect(election_type=kind, topic_partitions=some), 2
    yield "elect all", elect(topic_partitions=None), 2
    assign = AlterPartitionReassignmentsRequest
    for label, name, index, replicas in (
        ("here", TOPIC, 0, [1]),
        ("elsewhere", TOPIC, 0, [2]),
        ("to two", TOPIC, 0, [1, 2]),
        ("twice", TOPIC, 0, [1, 1]),
        ("nowhere", TOPIC, 0, []),
        ("to -1", TOPIC, 0, [-1]),
        ("cancel", TOPIC, 0, None),
        ("cancel what is missing", TOPIC, 9, None),
        ("what is missing", MISSING, 0, [1]),
    ):
        partition = assign.ReassignablePartition(partition_index=index, replicas=replicas)
        topic = assign.ReassignableTopic(name=name, partitions=[partition])
        yield f"reassign {label}", assign(topics=[topic]), 1
    listed = ListPartitionReassignmentsRequest
    one = listed.ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=[0, 7])
    for topics in (None, [], [one]):
        yield f"reassignments of {topics and len(topics)}", listed(topics=topics), 0


def cluster_cases() -> Iterator[Case]:
    quorum = DescribeQuorumRequest
    for name, index in (("__cluster_metadata", 0), ("__cluster_metadata", 1), (MISSING, 0)):
        partition = quorum.PartitionData(partition_index=index)
        for version in (0, 2):
            topics = [quorum.TopicData(topic_name=name, partitions=[partition])]
            yield f"quorum of {name} {index}, version {version}", quorum(topics=topics), version
    yield "unregister who is not there", UnregisterBrokerRequest(broker_id=77), 0
    update = UpdateFeaturesRequest
    for name, level, kind in (
        ("admin-nope", 1, 1),
        ("transaction.version", 2, 1),
        ("transaction.version", 3, 1),
        ("transaction.version", 1, 1),
        ("transaction.version", 1, 2),
        ("transaction.version", 1, 3),
        ("transaction.version", -1, 1),
        ("transaction.version", 0, 2),
        ("transaction.version", 2, 0),
    ):
        key = update.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        request = update(feature_updates=[key], validate_only=True)
        yield f"feature {name} to {level} by {kind}", request, 2


def described(kind: int, name: str, *keys: str) -> Request:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys)
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=True)


def changed(kind: int, name: str, *changes: tuple[str, int, str | None], check: bool) -> Request:
    message = IncrementalAlterConfigsRequest
    configs = [
        message.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = message.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return message(resources=[resource], validate_only=check)


SET, DELETE, APPEND, SUBTRACT = range(4)

CHANGES: tuple[tuple[int, str, tuple[tuple[str, int, str | None], ...]], ...] = (
    (TOPIC_TYPE, TOPIC, (("retention.ms", SET, None),)),
    (TOPIC_TYPE, TOPIC, (("retention.ms", SET, "x"),)),
    (TOPIC_TYPE, TOPIC, (("retention.ms", SET, ""),)),
    (TOPIC_TYPE, TOPIC, (("retention.ms", DELETE, "7"),)),
    (TOPIC_TYPE, TOPIC, (("retention.ms", APPEND, "7"),)),
    (TOPIC_TYPE, TOPIC, (("retention.ms", SET, "7"), ("retention.ms", DELETE, None))),
    (TOPIC_TYPE, TOPIC, (("cleanup.policy", SUBTRACT, "delete"),)),
    (TOPIC_TYPE, TOPIC, (("cleanup.policy", APPEND, "compact,delete"),)),
    (TOPIC_TYPE, TOPIC, (("nope", SET, "7"),)),
    (TOPIC_TYPE, TOPIC, (("nope", DELETE, None),)),
    (TOPIC_TYPE, TOPIC, ()),
    (TOPIC_TYPE, MISSING, (("retention.ms", SET, "7"),)),
    (TOPIC_TYPE, "", (("retention.ms", SET, "7"),)),
    (BROKER_TYPE, "1", (("log.retention.ms", SET, "7"),)),
    (BROKER_TYPE, "", (("log.retention.ms", SET, "7"),)),
    (BROKER_TYPE, "1", (("log.retention.ms", SET, "x"),)),
    (BROKER_TYPE, "1", (("log.retention.ms", DELETE, None),)),
    (BROKER_TYPE, "1", (("log.cleanup.policy", APPEND, "compact"),)),
    (BROKER_TYPE, "1", (("node.id", SET, "2"),)),
    (BROKER_TYPE, "1", (("auto.create.topics.enable", SET, "false"),)),
    (BROKER_TYPE, "1", (("message.max.bytes", SET, "-1"),)),
    (BROKER_TYPE, "1", (("max.connections", SET, "500000"),)),
    (BROKER_TYPE, "77", (("log.retention.ms", SET, "7"),)),
    (BROKER_TYPE, "x", (("log.retention.ms", SET, "7"),)),
    (METRICS_TYPE, "admin-m", (("interval.ms", SET, "1000"),)),
    (METRICS_TYPE, "admin-m", (("interval.ms", SET, "1"),)),
    (METRICS_TYPE, "admin-m", (("match", SET, "client_id=x,client_source_port=12"),)),
    (METRICS_TYPE, "admin-m", (("match", SET, "bogus=1"),)),
    (METRICS_TYPE, "admin-m", (("match", SET, "client_id=a[+"),)),
    (METRICS_TYPE, "admin-m", (("metrics", SET, "a,b"),)),
    (METRICS_TYPE, "admin-m", (("nope", SET, "1"),)),
    (METRICS_TYPE, "", (("interval.ms", SET, "1000"),)),
    (GROUP_TYPE, "", (("consumer.session.timeout.ms", SET, "50000"),)),
    (GROUP_TYPE, "admin-g", (("nope", SET, "1"),)),
    (0, "x", ()),
    (77, "x", ()),
)


def config_cases() -> Iterator[Case]:
    yield "describe a topic", described(TOPIC_TYPE, TOPIC, "retention.ms", "cleanup.policy"), 4
    keys = ("flush.ms", "segment.ms", "max.message.bytes", "segment.jitter.ms")
    yield "describe defaults", described(TOPIC_TYPE, OTHER, *keys), 1
    throttled = "leader.replication.throttled.replicas"
    yield "describe throttles", described(TOPIC_TYPE, OTHER, "preallocate", throttled), 4
    yield "describe what is missing", described(TOPIC_TYPE, MISSING), 4
    yield "describe a bad topic", described(TOPIC_TYPE, "admin/a"), 4
    yield "describe no topic", described(TOPIC_TYPE, ""), 4
    for key in ("log.retention.ms", "log.retention.hours", "message.max.bytes", "quota.window.num"):
        yield f"describe a broker's {key}", described(BROKER_TYPE, "1", key), 4
    yield "describe nothing of a broker", described(BROKER_TYPE, "1", "nope"), 4
    yield "describe another broker", described(BROKER_TYPE, "77"), 4
    yield "describe a broker by a word", described(BROKER_TYPE, "x"), 4
    yield "describe a subscription", described(METRICS_TYPE, "admin-m"), 4
    yield "describe no subscription", described(METRICS_TYPE, ""), 4
    yield "describe no group", described(GROUP_TYPE, ""), 4
    for kind in (0, 3):
        yield f"describe type {kind}", described(kind, "x"), 4
    for kind, name, changes in CHANGES:
        yield f"change {kind} {name!r} {changes}", changed(kind, name, *changes, check=True), 1
    for number, (kind, name, key, value) in enumerate(
        (
            (TOPIC_TYPE, TOPIC, "retention.ms", "7000"),
            (TOPIC_TYPE, TOPIC, "cleanup.policy", "compact,delete"),
            (BROKER_TYPE, "1", "log.segment.delete.delay.ms", "61000"),
            (BROKER_TYPE, "", "log.segment.delete.delay.ms", "62000"),
            (METRICS_TYPE, "admin-m", "interval.ms", "1000"),
        )
    ):
        yield f"set {number}", changed(kind, name, (key, SET, value), check=False), 1
        shown = described(kind, name, key)
        yield f"what was set {number}", shown, 4
    inherits = described(TOPIC_TYPE, OTHER, "file.delete.delay.ms")
    yield "a topic inherits a broker's change", inherits, 4
    listed = ListConfigResourcesRequest
    yield "subscriptions", listed(), 0
    for kinds in ([], [METRICS_TYPE], [GROUP_TYPE], [TOPIC_TYPE], [0], [64]):
        yield f"resources of {kinds}", listed(resource_types=kinds), 1
    whole = AlterConfigsRequest
    for label, kind, name, pairs in (
        ("all of a topic", TOPIC_TYPE, TOPIC, [("retention.ms", "8000")]),
        ("null", TOPIC_TYPE, TOPIC, [("retention.ms", None)]),
        ("twice", TOPIC_TYPE, TOPIC, [("retention.ms", "7"), ("retention.ms", "8")]),
        ("what is missing", TOPIC_TYPE, MISSING, [("retention.ms", "7")]),
        ("nothing at all", 0, "x", []),
        ("a subscription", METRICS_TYPE, "admin-m", []),
    ):
        configs = [whole.AlterableConfig(name=key, value=value) for key, value in pairs]
        resource = whole.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=configs
        )
        yield f"replace {label}", whole(resources=[resource]), 2
    yield "after replacing", described(TOPIC_TYPE, TOPIC, "retention.ms", "cleanup.policy"), 4


Entity = list[tuple[str, str | None]]
USER: Entity = [("user", "admin-u")]
CLIENT: Entity = [("client-id", "admin-c")]
IP: Entity = [("ip", "10.9.8.7")]


def quotas(entity: Entity, *operations: tuple[str, float | None], check: bool = False) -> Request:
    message = AlterClientQuotasRequest
    entry = message.EntryData(
        entity=[message.EntityData(entity_type=t, entity_name=n) for t, n in entity],
        ops=[
            message.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in operations
        ],
    )
    return message(entries=[entry], validate_only=check)


QUOTA_CHANGES: tuple[tuple[Entity, tuple[tuple[str, float | None], ...]], ...] = (
    (USER, (("nope", 1.0),)),
    (USER, (("producer_byte_rate", 0.0),)),
    (USER, (("producer_byte_rate", -1.0),)),
    (USER, (("producer_byte_rate", 1.5),)),
    (USER, (("producer_byte_rate", 1e19),)),
    (USER, (("consumer_byte_rate", float("nan")),)),
    (USER, (("request_percentage", 0.05),)),
    (USER, (("connection_creation_rate", 5.0),)),
    (USER, (("producer_byte_rate", 5.0), ("producer_byte_rate", 6.0))),
    (USER, (("producer_byte_rate", 5.0), ("producer_byte_rate", None))),
    (USER, (("producer_byte_rate", 5.0), ("nope", None))),
    (USER, ()),
    (IP, (("producer_byte_rate", 5.0),)),
    (IP, (("connection_creation_rate", 0.0),)),
    (IP, (("connection_creation_rate", 1.5),)),
    ([("ip", "not an ip!")], (("connection_creation_rate", 5.0),)),
    ([], (("producer_byte_rate", 5.0),)),
    ([("bogus", "x")], (("producer_byte_rate", 5.0),)),
    ([("user", "")], (("producer_byte_rate", 5.0),)),
    ([("user", "a"), ("ip", "10.0.0.1")], (("producer_byte_rate", 5.0),)),
    ([("user", "admin-none")], (("producer_byte_rate", None),)),
)

FILTERS: tuple[tuple[tuple[tuple[str, int, str | None], ...], bool], ...] = (
    ((), True),
    ((("user", 0, "admin-u"),), False),
    ((("user", 0, "admin-u"),), True),
    ((("client-id", 0, "admin-c"),), False),
    ((("client-id", 0, "admin-c"),), True),
    ((("user", 2, None), ("client-id", 0, "admin-c")), False),
    ((("user", 0, "admin-u"), ("client-id", 2, None)), True),
    ((("ip", 0, "10.9.8.7"),), False),
    ((("user", 0, ""),), False),
    ((("bogus", 0, "x"),), False),
    ((("", 0, "x"),), False),
    ((("user", 7, "x"),), False),
    ((("user", 0, None),), False),
    ((("user", 1, "x"),), False),
    ((("user", 0, "a"), ("user", 0, "b")), False),
    ((("ip", 2, None), ("user", 2, None)), False),
)


def quota_cases() -> Iterator[Case]:
    yield "quotas of a user", quotas(USER, ("producer_byte_rate", 1e6)), 1
    yield "quotas of both", quotas(USER + CLIENT, ("request_percentage", 200.5)), 1
    yield "quotas of a client", quotas(CLIENT, ("controller_mutation_rate", 5.0)), 0
    yield "quotas of an address", quotas(IP, ("connection_creation_rate", 5.0)), 1
    for entity, operations in QUOTA_CHANGES:
        yield f"quota {entity} {operations}", quotas(entity, *operations, check=True), 1
    entry = quotas([("user", "admin-d")], ("producer_byte_rate", 5.0))
    assert isinstance(entry, AlterClientQuotasRequest)
    yield "an entity twice", AlterClientQuotasRequest(entries=entry.entries * 2), 1
    message = DescribeClientQuotasRequest
    for components, strict in FILTERS:
        parts = [
            message.ComponentData(entity_type=t, match_type=m, match=text)
            for t, m, text in components
        ]
        yield f"quotas by {components} {strict}", message(components=parts, strict=strict), 1


def undoing() -> Iterator[Case]:
    """Leaves everything as it was."""
    yield "undo", delete(TOPIC, OTHER), 6
    for name in ("1", ""):
        change = ("log.segment.delete.delay.ms", DELETE, None)
        yield f"undo for broker {name!r}", changed(BROKER_TYPE, name, change, check=False), 1
    for entity, key in (
        (USER, "producer_byte_rate"),
        (USER + CLIENT, "request_percentage"),
        (CLIENT, "controller_mutation_rate"),
        (IP, "connection_creation_rate"),
    ):
        yield f"undo {key}", quotas(entity, (key, None)), 1


def all_cases() -> Iterator[Case]:
    yield from topic_cases()
    yield from page_cases()
    yield from replica_cases()
    yield from cluster_cases()
    yield from config_cases()
    yield from quota_cases()
    yield from undoing()


IGNORED = {
    "error_message", "throttle_time_ms", "log_dir", "total_bytes", "usable_bytes", "nodes",
    "leader_epoch", "high_watermark", "log_end_offset", "last_fetch_timestamp",
    "last_caught_up_timestamp", "partition_size", "unknown_tagged_fields", "replica_directory_id",
}  # fmt: skip
"""Texts, times, sizes and addresses."""

NAMES = ("name", "topic", "topic_name", "resource_name")


def plain(value: object) -> object:
    """A message as JSON: without what is ignored, and in the order of names."""
    if isinstance(value, Message):
        return {name: plain(getattr(value, name)) for name in value.fields() if name not in IGNORED}
    if isinstance(value, list):
        found = [plain(item) for item in value]
        return sorted(found, key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, UUID):
        return "zero" if value == ZERO_UUID else "an id"
    if isinstance(value, float) and value != value:
        return "nan"
    return value


def only_ours(value: object) -> object:
    """Leave out what others have made: entries by names that are not used here."""
    if isinstance(value, dict):
        return {key: only_ours(item) for key, item in value.items()}
    if isinstance(value, list):
        return [only_ours(item) for item in value if not _foreign(item)]
    return value


def _foreign(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    if "resource_type" in item and "configs" not in item and "error_code" not in item:
        return not str(item["resource_name"]).startswith("admin-")
    if set(item) == {"topic", "partition_result"}:
        return not str(item["topic"]).startswith("admin-")
    return False


WITHOUT_CONFIGS = ("create",)
"""Answers whose list of settings differs, as fewer of them have an effect here."""


async def converse(ask: Ask, settled: Callable[[], Awaitable[None]]) -> dict[str, object]:
    """Say everything; gives the answers by what was said.

    Args:
        ask: Sends a request in a version; None for an answer that does not come.
        settled: Waits until what was changed shows.
    """
    answers: dict[str, object] = {}
    for label, request, version in all_cases():
        answer = only_ours(plain(await ask(request, version)))
        if isinstance(answer, dict) and label.startswith(WITHOUT_CONFIGS):
            for topic in answer["topics"]:
                topic.pop("configs")
        assert label not in answers, label
        answers[label] = answer
        if label.startswith(("create", "set", "quotas of", "replace all of")):
            await settled()
    return answers


async def converse_with(address: tuple[str, int], settle_seconds: float = 0.0) -> dict[str, object]:
    """The conversation with a broker at an address."""

    async def settled() -> None:
        await asyncio.sleep(settle_seconds)

    async with Wire(address) as wire:

        async def ask(request: Request, version: int) -> Response:
            wire.send(request, version)
            return await wire.receive()

        return await converse(ask, settled)


def main() -> None:
    """Print the answers of the broker named on the command line."""
    host, _, port = sys.argv[1].rpartition(":")
    answers = asyncio.run(converse_with((host, int(port)), settle_seconds=0.3))
    print(json.dumps(answers, indent=1, sort_keys=True))
    print(f"{len(answers)} answers, {time.strftime('%Y-%m-%d')}", file=sys.stderr)


if __name__ == "__main__":
    main()
