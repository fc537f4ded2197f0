"""CreateTopics, DeleteTopics and CreatePartitions.

Decides what is allowed and answers for each topic; `topics.TopicRegistry` does the work.
`handlers.configs` has the settings.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.handlers.config_resources import shown_topic_config
from onceflow.broker_lite.log.log_config import PARTITIONS_MAX
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.quotas.enforcement import MutationQuota
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.settings.topic_config import TOPIC_SETTINGS, validate_overrides
from onceflow.broker_lite.slices import in_slices
from onceflow.broker_lite.topics import INTERNAL_TOPICS, Topic, TopicError
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import BROKER_DEFAULT
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services


TOPICS_BY_ID_MIN_VERSION = 6
DELETION_DISABLED_MIN_VERSION = 3

CreatableTopic = CreateTopicsRequest.CreatableTopic
CreatedTopic = CreateTopicsResponse.CreatableTopicResult
DeletedTopic = DeleteTopicsResponse.DeletableTopicResult
GrownTopic = CreatePartitionsResponse.CreatePartitionsTopicResult


@handles(CreateTopicsRequest)
def create_topics(
    state: Services, context: RequestContext, request: CreateTopicsRequest, now_ms: int
) -> CreateTopicsResponse | Deferred[CreateTopicsResponse]:
    """Create topics, or only check whether they could be created.

    Many partitions are made in slices, between which the broker serves other requests.
    """

    def failed() -> CreateTopicsResponse:
        code, names = ErrorCode.UNKNOWN_SERVER_ERROR, dict.fromkeys(t.name for t in request.topics)
        topics = [CreatedTopic(name=name, error_code=code, configs=[]) for name in names]
        return CreateTopicsResponse(topics=topics)

    work = _creating_topics(state, context, request, now_ms)
    return in_slices(state.timers, work, failed, now_ms)


def _creating_topics(
    state: Services, context: RequestContext, request: CreateTopicsRequest, now_ms: int
) -> Generator[None, None, CreateTopicsResponse]:
    named = Counter(wish.name for wish in request.topics)
    results = []
    left = PARTITIONS_MAX
    quota = state.quotas.mutations(context, context.api_version >= 6, now_ms)
    for name, wish in {wish.name: wish for wish in request.topics}.items():
        try:
            if named[name] > 1:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST, f"Topic '{name}' is in the request more than once."
                )
            made = yield from _creating_topic(
                state, wish, request.validate_only, left, quota, now_ms
            )
            results.append(made)
            left -= results[-1].num_partitions
        except TopicError as error:
            results.append(
                CreatedTopic(
                    name=name, error_code=error.code, error_message=error.message, configs=[]
                )
            )
        yield  # Topics that are only checked take time too.
    return CreateTopicsResponse(topics=results, throttle_time_ms=quota.throttle_ms)


def _creating_topic(
    state: Services,
    wish: CreatableTopic,
    validate_only: bool,
    most: int,
    quota: MutationQuota,
    now_ms: int,
) -> Generator[None, None, CreatedTopic]:
    state.topics.check_new(wish.name)
    if wish.name in INTERNAL_TOPICS:
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{wish.name}' is made by the broker itself."
        )
    try:  # Kafka looks at the settings first.
        overrides = validate_overrides({entry.name: entry.value for entry in wish.configs})
    except ConfigError as error:
        raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from None
    count = _wished_partitions(state, wish)
    _check_number(count, most)
    _check_quota(quota, count)
    topic_id = ZERO_UUID
    replication_factor = 1
    if not validate_only:
        replication_factor = _place(state, wish, count)
        topic = yield from state.topics.creating(wish.name, count, overrides, now_ms)
        topic_id = topic.topic_id
    shown = []
    for name in TOPIC_SETTINGS:
        in_force = shown_topic_config(state, name, overrides)
        shown.append(
            CreateTopicsResponse.CreatableTopicConfigs(
                name=name,
                value=in_force.value,
                read_only=False,
                config_source=in_force.source,
                is_sensitive=False,
            )
        )
    return CreatedTopic(
        name=wish.name,
        topic_id=topic_id,
        error_code=0,
        error_message=None,
        num_partitions=count,
        replication_factor=replication_factor,
        configs=shown,
    )


def _wished_partitions(state: Services, wish: CreatableTopic) -> int:
    """Return the number of partitions of a topic to create, after all checks."""
    if wish.assignments:
        if wish.num_partitions != BROKER_DEFAULT or wish.replication_factor != BROKER_DEFAULT:
            raise TopicError(
                ErrorCode.INVALID_REQUEST,
                "With an assignment, leave number of partitions and replication factor at -1.",
            )
        indexes = sorted(assignment.partition_index for assignment in wish.assignments)
        if indexes != list(range(len(indexes))):
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Partitions of an assignment must be numbered from 0 without gaps.",
            )
        _check_assignments(state, [each.broker_ids for each in wish.assignments])
        return len(indexes)
    if wish.replication_factor != BROKER_DEFAULT and wish.replication_factor <= 0:
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = wish.num_partitions
    if count == BROKER_DEFAULT:
        count = state.config.num_partitions
    if count <= 0:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions must be larger than 0, or -1 to use the default value.",
        )
    if wish.replication_factor > len(state.placement.running):
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor {wish.replication_factor} is larger than the number of running "
            f"brokers, {len(state.placement.running)}.",
        )
    return count


def _check_quota(quota: MutationQuota, partitions: int) -> None:
    """Count created or deleted partitions against the client's quota (KIP-599)."""
    if not quota.take(partitions):
        raise TopicError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
            f"Quota controller_mutation_rate is exceeded; retry in {quota.throttle_ms} ms.",
        )


def _check_number(count: int, most: int) -> None:
    """Refuse more partitions than one request may make, as Kafka's controller does."""
    if count > most:
        raise TopicError(
            ErrorCode.POLICY_VIOLATION,
            f"One request may create at most {PARTITIONS_MAX} partitions: {most} more are allowed, "
            f"{count} were asked for.",
        )


def _check_assignments(
    state: Services, assignments: Sequence[Sequence[int]], factor: int | None = None
) -> None:
    """Check replicas that a client chose, as Kafka's controller does.

    Args:
        state: The broker.
        assignments: Ids of nodes for each partition.
        factor: How many replicas the topic's other partitions have; None for a new topic.

    Raises:
        TopicError: INVALID_REPLICA_ASSIGNMENT.
    """
    nodes = state.placement.nodes
    for replicas in assignments:
        if not replicas or len({*replicas}) != len(replicas) or not {*replicas} <= {*nodes}:
            text = f"each must be one of the brokers {list(nodes)}, and only once."
        elif len(replicas) != (factor or len(assignments[0])):
            text = f"the topic's other partitions have {factor or len(assignments[0])} replicas."
        elif not any(nodes[node_id].running for node_id in replicas):
            text = "none of these brokers is running."
        else:
            continue
        raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Replicas {list(replicas)}: {text}")


def _place(state: Services, wish: CreatableTopic, count: int) -> int:
    """Choose the replicas of a new topic; return how many each partition has."""
    placement = state.placement
    for assignment in wish.assignments:
        placement.place(wish.name, assignment.partition_index, assignment.broker_ids)
    if not wish.assignments and wish.replication_factor != BROKER_DEFAULT:
        for index in range(count):
            placement.place_some(wish.name, index, wish.replication_factor)
    return len(placement.replicas(wish.name, 0))


@handles(DeleteTopicsRequest)
def delete_topics(
    state: Services, context: RequestContext, request: DeleteTopicsRequest, now_ms: int
) -> DeleteTopicsResponse | Deferred[DeleteTopicsResponse]:
    """Delete topics by name or, from version 6 on, by id; many partitions in slices."""

    def failed() -> DeleteTopicsResponse:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
        by_id = [
            DeletedTopic(name=topic.name, topic_id=topic.topic_id, error_code=code)
            for topic in request.topics
        ]
        by_name = [DeletedTopic(name=name, error_code=code) for name in request.topic_names]
        return DeleteTopicsResponse(responses=by_id + by_name)

    work = _deleting_topics(state, context, request, now_ms)
    return in_slices(state.timers, work, failed, now_ms)


def _deleting_topics(
    state: Services, context: RequestContext, request: DeleteTopicsRequest, now_ms: int
) -> Generator[None, None, DeleteTopicsResponse]:
    results = []
    if context.api_version >= TOPICS_BY_ID_MIN_VERSION:
        wishes = [(entry.name, entry.topic_id) for entry in request.topics]
    else:
        wishes = [(name, ZERO_UUID) for name in request.topic_names]
    named = Counter(wishes)
    quota = state.quotas.mutations(context, context.api_version >= 5, now_ms)
    for (name, topic_id), times in named.items():
        try:
            if times > 1:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST, "The topic is in the request more than once."
                )
            topic = _deletable(state, context, name, topic_id)
            _check_quota(quota, len(topic.partitions))
            yield from state.topics.deleting(topic, now_ms)
        except TopicError as error:
            results.append(
                DeletedTopic(
                    name=name if name is not None or context.api_version >= 6 else "",
                    topic_id=topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
            )
            continue
        results.append(DeletedTopic(name=topic.name, topic_id=topic.topic_id, error_code=0))
    return DeleteTopicsResponse(responses=results, throttle_time_ms=quota.throttle_ms)


def _deletable(
    state: Services, context: RequestContext, name: str | None, topic_id: uuid.UUID
) -> Topic:
    if not state.config.delete_topic_enable:
        code = ErrorCode.TOPIC_DELETION_DISABLED
        if context.api_version < DELETION_DISABLED_MIN_VERSION:
            code = ErrorCode.INVALID_REQUEST
        raise TopicError(code, "Deletion of topics is disabled (delete.topic.enable=false).")
    if name is not None:
        if topic_id != ZERO_UUID:
            raise TopicError(ErrorCode.INVALID_REQUEST, "Give the name or the id, not both.")
        topic = state.topics.get(name)
        if topic is None:
            raise TopicError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist."
            )
    elif topic_id == ZERO_UUID:
        raise TopicError(ErrorCode.INVALID_REQUEST, "Give the name or the id of the topic.")
    else:
        topic = state.topics.get_by_id(topic_id)
        if topic is None:
            raise TopicError(ErrorCode.UNKNOWN_TOPIC_ID, f"No topic has the id {topic_id}.")
    if topic.internal:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{topic.name}' holds the coordinators' state and cannot be deleted.",
        )
    return topic


@handles(CreatePartitionsRequest)
def create_partitions(
    state: Services, context: RequestContext, request: CreatePartitionsRequest, now_ms: int
) -> CreatePartitionsResponse | Deferred[CreatePartitionsResponse]:
    """Let topics grow to a total number of partitions; many are made in slices."""

    def failed() -> CreatePartitionsResponse:
        code, names = ErrorCode.UNKNOWN_SERVER_ERROR, dict.fromkeys(t.name for t in request.topics)
        return CreatePartitionsResponse(
            results=[GrownTopic(name=name, error_code=code) for name in names]
        )

    work = _growing_topics(state, context, request, now_ms)
    return in_slices(state.timers, work, failed, now_ms)


def _growing_topics(
    state: Services, context: RequestContext, request: CreatePartitionsRequest, now_ms: int
) -> Generator[None, None, CreatePartitionsResponse]:
    named = Counter(wish.name for wish in request.topics)
    results = []
    left = PARTITIONS_MAX
    quota = state.quotas.mutations(context, context.api_version >= 3, now_ms)
    for name, wish in {wish.name: wish for wish in request.topics}.items():
        code, message = ErrorCode.NONE, None
        try:
            if named[name] > 1:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST, f"Topic '{name}' is in the request more than once."
                )
            left -= yield from _grow(state, wish, request.validate_only, left, quota, now_ms)
        except TopicError as error:
            code, message = error.code, error.message
        results.append(GrownTopic(name=name, error_code=code, error_message=message))
        yield
    return CreatePartitionsResponse(results=results, throttle_time_ms=quota.throttle_ms)


def _grow(
    state: Services,
    wish: CreatePartitionsRequest.CreatePartitionsTopic,
    validate_only: bool,
    most: int,
    quota: MutationQuota,
    now_ms: int,
) -> Generator[None, None, int]:
    """Let one topic grow by at most `most` partitions; return by how many."""
    topic = state.topics.get(wish.name)
    if topic is None:
        raise TopicError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{wish.name}' does not exist."
        )
    if topic.internal:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"Topic '{topic.name}' cannot grow: its keys are mapped by the number of partitions.",
        )
    state.topics.check_growth(topic, wish.count)
    added = wish.count - len(topic.partitions)
    _check_number(added, most)
    if wish.assignments is not None:
        if len(wish.assignments) != added:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, but {len(wish.assignments)} are assigned.",
            )
        factor = len(state.placement.replicas(wish.name, 0))
        _check_assignments(state, [each.broker_ids for each in wish.assignments], factor)
    _check_quota(quota, added)
    if not validate_only:
        first = len(topic.partitions)
        try:
            yield from state.topics.growing(topic, wish.count, now_ms)
        finally:  # Partitions that were made before the disk failed exist too.
            _place_added(state, wish, range(first, len(topic.partitions)))
    return added


def _place_added(
    state: Services, wish: CreatePartitionsRequest.CreatePartitionsTopic, added: range
) -> None:
    """Choose replicas of added partitions: the requested ones, else as many as others have."""
    placement = state.placement
    factor = len(placement.replicas(wish.name, 0))
    for index in added:
        if wish.assignments is None:
            placement.place_some(wish.name, index, factor)
        else:
            placement.place(wish.name, index, wish.assignments[index - added.start].broker_ids)
