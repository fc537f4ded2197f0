"""Goal: topics are found, created, changed and deleted by Kafka's rules, with Kafka's errors.

Method: raw requests against a broker in process, in every version of the request.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from broker_requests import create_topic, produce, topic_metadata
from broker_wire import Wire, batch

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
BAD_NAMES = ["a/b", " lead", "täst", "", ".", "..", "x" * 250]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as running:
        yield running


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with Wire(broker) as connected:
        yield connected


# --- Metadata


@pytest.mark.parametrize("api_version", range(14))
async def test_metadata_in_each_version(broker: Broker, wire: Wire, api_version: int) -> None:
    broker.create_topic("t", partitions=2)
    topic = await topic_metadata(wire, "t", create=True, api_version=api_version)
    assert (topic.error_code, topic.name) == (0, "t")
    assert [
        (p.partition_index, p.leader_id, list(p.replica_nodes), list(p.isr_nodes))
        for p in topic.partitions
    ] == [(0, 1, [1], [1]), (1, 1, [1], [1])]


async def test_all_none_or_named_topics(broker: Broker, wire: Wire) -> None:
    """Trap 67: in version 0 an empty list means all, later null means all and empty means none."""
    broker.create_topic("t")

    async def names(topics: list[MetadataRequest.MetadataRequestTopic] | None, v: int) -> list[str]:
        response = await wire.ask(MetadataRequest(topics=topics), v, MetadataResponse)
        return [topic.name or "" for topic in response.topics]

    assert await names([], 0) == ["t"]
    for api_version in range(1, 14):
        assert await names([], api_version) == []
        assert await names(None, api_version) == ["t"]


async def test_unknown_topic_is_created_only_when_both_allow_it(wire: Wire) -> None:
    """Trap 67."""
    assert (await topic_metadata(wire, "made")).error_code == 3
    made = await topic_metadata(wire, "made", create=True)
    assert (made.error_code, len(made.partitions)) == (0, 1)
    async with (
        Broker(settings={"auto.create.topics.enable": False}) as strict,
        Wire(strict) as other,
    ):
        assert (await topic_metadata(other, "made", create=True)).error_code == 3
        assert (await topic_metadata(other, "made", api_version=3, create=True)).error_code == 3


async def test_topic_by_id(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    topic_id = (await topic_metadata(wire, "t")).topic_id

    async def by_id(wanted: uuid.UUID) -> MetadataResponse.MetadataResponseTopic:
        response = await wire.ask(
            MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(topic_id=wanted)]),
            12,
            MetadataResponse,
        )
        return response.topics[0]

    found = await by_id(topic_id)
    assert (found.error_code, found.name) == (0, "t")
    missing = await by_id(uuid.UUID(int=99))
    assert (missing.error_code, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("create", [True, False])
async def test_bad_name_is_invalid_at_once_and_others_go_on(
    wire: Wire, name: str, create: bool
) -> None:
    """FC-41."""
    assert (await topic_metadata(wire, name, create=create)).error_code == 17
    assert (await create_topic(wire, name)).error_code == 17
    assert (await topic_metadata(wire, "good", create=True)).error_code == 0


async def test_longest_name_is_accepted_and_colliding_ones_are_not(wire: Wire) -> None:
    """FC-41."""
    assert (await create_topic(wire, "x" * 249)).error_code == 0
    assert (await create_topic(wire, "a.b")).error_code == 0
    collision = await create_topic(wire, "a_b")
    assert collision.error_code == 17
    assert "a.b" in (collision.error_message or "")
    assert (await topic_metadata(wire, "a_b", create=True)).error_code == 17
    assert (await create_topic(wire, "a-b")).error_code == 0


# --- CreateTopics, CreatePartitions, DeleteTopics


@pytest.mark.parametrize("api_version", range(2, 8))
async def test_create_in_each_version(wire: Wire, api_version: int) -> None:
    created = await create_topic(
        wire, "t", partitions=3, configs={"retention.ms": "5"}, api_version=api_version
    )
    assert created.error_code == 0
    if api_version >= 5:
        assert (created.num_partitions, created.replication_factor) == (3, 1)
        shown = {config.name: config for config in created.configs or []}
        assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
        assert shown["cleanup.policy"].config_source == 5
    if api_version >= 7:
        assert created.topic_id == (await topic_metadata(wire, "t")).topic_id


@pytest.mark.parametrize(
    ("partitions", "replication_factor", "configs", "code"),
    [
        (0, 1, {}, ErrorCode.INVALID_PARTITIONS),
        (-2, 1, {}, ErrorCode.INVALID_PARTITIONS),
        (10_001, 1, {}, ErrorCode.POLICY_VIOLATION),
        (1, 2, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 0, {}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 1, {"no.such": "1"}, ErrorCode.INVALID_CONFIG),
        (1, 1, {"segment.bytes": "1048575"}, ErrorCode.INVALID_CONFIG),
        (1, 1, {"retention.ms": None}, ErrorCode.INVALID_CONFIG),
        (1, 1, {"cleanup.policy": "shred"}, ErrorCode.INVALID_CONFIG),
    ],
)
async def test_bad_wish_is_refused_with_a_reason_and_makes_nothing(
    wire: Wire,
    partitions: int,
    replication_factor: int,
    configs: dict[str, str | None],
    code: ErrorCode,
) -> None:
    result = await create_topic(
        wire, "t", partitions=partitions, replication_factor=replication_factor, configs=configs
    )
    assert result.error_code == code
    assert result.error_message
    assert (await topic_metadata(wire, "t")).error_code == 3


async def test_defaults_existing_names_and_validation_only(wire: Wire) -> None:
    checked = await create_topic(wire, "t", partitions=-1, replication_factor=-1,
                                 validate_only=True)  # fmt: skip
    assert (checked.error_code, checked.num_partitions, checked.topic_id) == (0, 1, ZERO_UUID)
    assert (await topic_metadata(wire, "t")).error_code == 3
    assert (await create_topic(wire, "t", partitions=-1, replication_factor=-1)).error_code == 0
    assert (await create_topic(wire, "t")).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    internal = await create_topic(wire, "__consumer_offsets")
    assert internal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_topic_twice_in_one_request_is_refused_once(wire: Wire) -> None:
    wish = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    other = CreateTopicsRequest.CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    response = await wire.ask(
        CreateTopicsRequest(topics=[wish, other, wish]), 5, CreateTopicsResponse
    )
    assert {topic.name: topic.error_code for topic in response.topics} == {"t": 42, "u": 0}


@pytest.mark.parametrize(
    ("assignments", "code"),
    [
        ({0: [1], 1: [1]}, 0),
        ({0: [1], 2: [1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [2]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_assignment_must_fit_the_one_broker(
    wire: Wire, assignments: dict[int, list[int]], code: int
) -> None:
    wish = CreateTopicsRequest.CreatableTopic(
        name="t",
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in assignments.items()
        ],
    )
    response = await wire.ask(CreateTopicsRequest(topics=[wish]), 5, CreateTopicsResponse)
    assert response.topics[0].error_code == code


async def grow(wire: Wire, name: str, count: int, *, validate_only: bool = False) -> int:
    response = await wire.ask(
        CreatePartitionsRequest(
            topics=[CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count)],
            timeout_ms=1000,
            validate_only=validate_only,
        ),
        3,
        CreatePartitionsResponse,
    )
    return response.results[0].error_code


async def test_topic_grows_and_never_shrinks(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t", partitions=2)
    assert await grow(wire, "t", 3, validate_only=True) == 0
    assert len((await topic_metadata(wire, "t")).partitions) == 2
    assert await grow(wire, "t", 3) == 0
    assert len((await topic_metadata(wire, "t")).partitions) == 3
    assert (await produce(wire, "t", batch(b"a"), partition=2)).error_code == 0
    assert await grow(wire, "t", 3) == ErrorCode.INVALID_PARTITIONS
    assert await grow(wire, "t", 1) == ErrorCode.INVALID_PARTITIONS
    assert await grow(wire, "nowhere", 3) == 3


@pytest.mark.parametrize("api_version", range(1, 7))
async def test_delete_in_each_version(broker: Broker, wire: Wire, api_version: int) -> None:
    broker.create_topic("t")
    if api_version >= 6:
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
                for name in ("t", "nowhere")
            ],
            timeout_ms=1000,
        )
    else:
        request = DeleteTopicsRequest(topic_names=["t", "nowhere"], timeout_ms=1000)
    response = await wire.ask(request, api_version, DeleteTopicsResponse)
    assert {result.name: result.error_code for result in response.responses} == {
        "t": 0,
        "nowhere": 3,
    }
    assert (await topic_metadata(wire, "t")).error_code == 3


async def test_delete_by_id(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    topic_id = (await topic_metadata(wire, "t")).topic_id
    response = await wire.ask(
        DeleteTopicsRequest(
            topics=[
                DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id),
                DeleteTopicsRequest.DeleteTopicState(topic_id=uuid.UUID(int=7)),
            ],
            timeout_ms=1000,
        ),
        6,
        DeleteTopicsResponse,
    )
    assert [(result.name, result.error_code) for result in response.responses] == [
        ("t", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


async def test_deletion_may_be_disabled_and_spares_internal_topics(wire: Wire) -> None:
    assert (await topic_metadata(wire, "__consumer_offsets", create=True)).error_code == 0
    request = DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=1000)
    response = await wire.ask(request, 5, DeleteTopicsResponse)
    assert response.responses[0].error_code == 42
    async with Broker(settings={"delete.topic.enable": False}) as fixed, Wire(fixed) as other:
        fixed.create_topic("t")
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        for api_version, code in ((1, 42), (3, 73)):
            response = await other.ask(request, api_version, DeleteTopicsResponse)
            assert response.responses[0].error_code == code


# --- settings


async def describe(
    wire: Wire,
    resource_type: int,
    name: str,
    *,
    keys: list[str] | None = None,
    api_version: int = 4,
) -> DescribeConfigsResponse.DescribeConfigsResult:
    response = await wire.ask(
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=resource_type, resource_name=name, configuration_keys=keys
                )
            ],
            include_synonyms=True,
            include_documentation=api_version >= 3,
        ),
        api_version,
        DescribeConfigsResponse,
    )
    return response.results[0]


async def alter(wire: Wire, name: str, *changes: tuple[str, int, str | None],
                resource_type: int = TOPIC, validate_only: bool = False) -> int:  # fmt: skip
    response = await wire.ask(
        IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=resource_type,
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsRequest.AlterableConfig(
                            name=key, config_operation=operation, value=value
                        )
                        for key, operation, value in changes
                    ],
                )
            ],
            validate_only=validate_only,
        ),
        1,
        IncrementalAlterConfigsResponse,
    )
    return response.responses[0].error_code


@pytest.mark.parametrize("api_version", range(1, 5))
async def test_settings_of_a_topic_with_sources_and_synonyms(
    broker: Broker, wire: Wire, api_version: int
) -> None:
    broker.create_topic("t", configs={"max.message.bytes": "2000"})
    result = await describe(wire, TOPIC, "t", api_version=api_version)
    configs = {config.name: config for config in result.configs}
    limit = configs["max.message.bytes"]
    assert (limit.value, limit.config_source, limit.read_only) == ("2000", 1, False)
    assert [(place.name, place.value, place.source) for place in limit.synonyms] == [
        ("max.message.bytes", "2000", 1),
        ("message.max.bytes", "1048588", 5),
    ]
    assert configs["retention.ms"].value == "604800000"
    if api_version >= 3:
        assert limit.config_type == 3
        assert limit.documentation


async def test_chosen_settings_only(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    result = await describe(wire, TOPIC, "t", keys=["cleanup.policy", "no.such"])
    assert [config.name for config in result.configs] == ["cleanup.policy"]


async def test_settings_of_the_broker_are_shown_read_only() -> None:
    settings = {
        "num.partitions": 3,
        "sasl.enabled.mechanisms": "",
        "onceflow.sasl.plain.credentials": "alice:secret",
    }
    async with Broker(settings=settings) as broker, Wire(broker) as wire:
        configs = {config.name: config for config in (await describe(wire, BROKER, "1")).configs}
        assert (configs["num.partitions"].value, configs["num.partitions"].config_source) == (
            "3",
            4,
        )
        assert configs["num.partitions"].read_only
        secret = configs["onceflow.sasl.plain.credentials"]
        assert (secret.is_sensitive, secret.value) == (True, None)
        assert (await describe(wire, BROKER, "2")).error_code == 42
        assert await alter(wire, "1", ("num.partitions", SET, "4"), resource_type=BROKER) == 42


async def test_unknown_resources_are_told(wire: Wire) -> None:
    assert (await describe(wire, TOPIC, "nowhere")).error_code == 3
    assert (await describe(wire, TOPIC, "a/b")).error_code == 17
    assert (await describe(wire, 99, "x")).error_code == 42


async def test_changed_setting_is_in_force_at_once(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    assert (await produce(wire, "t", batch(b"x" * 500))).error_code == 0
    assert await alter(wire, "t", ("max.message.bytes", SET, "100")) == 0
    assert (await produce(wire, "t", batch(b"x" * 500))).error_code == 10
    assert await alter(wire, "t", ("max.message.bytes", DELETE, None)) == 0
    assert (await produce(wire, "t", batch(b"x" * 500))).error_code == 0


async def test_lists_are_appended_to_and_subtracted_from(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")

    async def policy() -> str | None:
        return (await describe(wire, TOPIC, "t", keys=["cleanup.policy"])).configs[0].value

    assert await alter(wire, "t", ("cleanup.policy", APPEND, "compact")) == 0
    assert await policy() == "delete,compact"
    assert await alter(wire, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert await policy() == "compact"
    assert await alter(wire, "t", ("cleanup.policy", SUBTRACT, "compact")) == 0
    assert await policy() == ""
    assert await alter(wire, "t", ("retention.ms", APPEND, "5")) == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("segment.ms", SET, "0")], ErrorCode.INVALID_CONFIG),
    ],
)
async def test_bad_change_changes_nothing(
    broker: Broker, wire: Wire, changes: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    broker.create_topic("t")
    assert await alter(wire, "t", *changes) == code
    kept = await describe(wire, TOPIC, "t", keys=["retention.ms"])
    assert kept.configs[0].config_source == 5


async def test_change_may_be_checked_only(broker: Broker, wire: Wire) -> None:
    broker.create_topic("t")
    assert await alter(wire, "t", ("retention.ms", SET, "1"), validate_only=True) == 0
    kept = await describe(wire, TOPIC, "t", keys=["retention.ms"])
    assert kept.configs[0].config_source == 5
