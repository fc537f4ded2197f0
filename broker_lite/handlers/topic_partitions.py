"""DescribeTopicPartitions: partitions of topics, page by page (KIP-966).

A page has a limited number of partitions; its cursor says where the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.guards.access import Access
from onceflow.broker_lite.handlers.cluster import TOPIC_OPERATIONS
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.topics import TopicError, check_topic_name
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.protocol.api.admin_replicas import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.topics import Topic

PageTopic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
PagePartition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition

PAGE_PARTITIONS_MAX = 2_000
"""Most partitions on a page, as Kafka's ``max.request.partition.size.limit``."""


@handles(DescribeTopicPartitionsRequest)
def describe_topic_partitions(
    state: Services,
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
    now_ms: int,
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, from the cursor on.

    A request without names is about all topics that the client may describe. Others are neither on
    a page nor in a cursor.
    """
    cursor = request.cursor
    asked = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                PageTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name, partitions=[])
                for topic in request.topics
            ]
        )
    begin = "" if cursor is None else cursor.topic_name
    if not asked:
        access = Access(state, context)
        asked = {t.name for t in state.topics if access.topic(AclOperation.DESCRIBE, t.name)}
    names = sorted(name for name in asked if name >= begin)
    left = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    page: list[PageTopic] = []
    for name in names:
        if left <= 0:
            return _page(page, name, 0)
        topic = state.topics.get(name)
        if topic is None:
            page.append(_missing(name))
            continue
        first = cursor.partition_index if cursor is not None and name == begin else 0
        page.append(_described(state, topic, first, first + left))
        left -= len(page[-1].partitions)
        if first + len(page[-1].partitions) < len(topic.partitions):
            return _page(page, name, first + len(page[-1].partitions))
    return DescribeTopicPartitionsResponse(topics=page)


def _page(
    topics: list[PageTopic], next_topic: str, next_partition: int
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=topics,
        next_cursor=DescribeTopicPartitionsResponse.Cursor(
            topic_name=next_topic, partition_index=next_partition
        ),
    )


def _missing(name: str) -> PageTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except TopicError as error:
        code = error.code
    return PageTopic(
        error_code=code, name=name, partitions=[], topic_authorized_operations=TOPIC_OPERATIONS
    )


def _described(state: Services, topic: Topic, first: int, end: int) -> PageTopic:
    placement, name = state.placement, topic.name
    return PageTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=[
            PagePartition(
                partition_index=index,
                leader_id=placement.leader(name, index),
                leader_epoch=topic.partitions[index].leader_epoch,
                replica_nodes=list(placement.replicas(name, index)),
                isr_nodes=placement.in_sync(name, index),
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=placement.offline(name, index),
            )
            for index in range(first, min(end, len(topic.partitions)))
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
