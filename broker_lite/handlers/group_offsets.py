"""Offsets of groups: commits, plain and in transactions, and fetches.

These functions check that topics and partitions exist, and convert names, ids and versions.
``coordinators.offset_commits`` decides who may commit and what a fetch returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from onceflow.broker_lite.coordinators.offset_commits import (
    Committer,
    FetchedOffset,
    OffsetToCommit,
)
from onceflow.broker_lite.coordinators.transactions.rules import PartitionCheck
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

COMMIT_KNOWS_NO_GROUP_FROM = 9
"""First OffsetCommit version whose senders know GROUP_ID_NOT_FOUND (KIP-848)."""

COMMITS_BY_TOPIC_ID_FROM = 10
FETCHES_BY_TOPIC_ID_FROM = 10
FETCHES_SEVERAL_GROUPS_FROM = 8

TXN_COMMIT_ADDS_FROM = 5
"""First TxnOffsetCommit version that adds the group to the transaction itself (KIP-890)."""

TXN_COMMIT_ABORTABLE_FROM = 4
"""First TxnOffsetCommit version whose senders know TRANSACTION_ABORTABLE."""

_Topics = Iterable[tuple[str, Sequence[OffsetToCommit]]]
K = TypeVar("K")


def _topic_name(state: Services, name: str, topic_id: UUID, by_id: bool) -> tuple[str, ErrorCode]:
    """Return the name of a request's topic, and the code for its partitions if it is unknown."""
    if not by_id:
        known = state.topics.get(name) is not None
        return name, ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = state.topics.get_by_id(topic_id)
    return ("", ErrorCode.UNKNOWN_TOPIC_ID) if topic is None else (topic.name, ErrorCode.NONE)


def _split_known(
    state: Services, offsets: Iterable[OffsetToCommit]
) -> tuple[list[OffsetToCommit], dict[TopicPartition, ErrorCode]]:
    """Return the offsets of existing partitions, and the codes of the others (trap 49)."""
    known: list[OffsetToCommit] = []
    codes: dict[TopicPartition, ErrorCode] = {}
    for offset in offsets:
        topic, index = offset.partition
        if state.topics.partition(topic, index) is None:
            codes[offset.partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            known.append(offset)
    return known, codes


@handles(OffsetCommitRequest)
def offset_commit(
    state: Services, context: RequestContext, request: OffsetCommitRequest, now_ms: int
) -> OffsetCommitResponse:
    """Commit offsets."""
    by_id = context.api_version >= COMMITS_BY_TOPIC_ID_FROM
    names = [_topic_name(state, topic.name, topic.topic_id, by_id) for topic in request.topics]
    offsets = [
        OffsetToCommit(
            TopicPartition(name, partition.partition_index),
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata,
        )
        for topic, (name, code) in zip(request.topics, names, strict=True)
        if code is ErrorCode.NONE
        for partition in topic.partitions
    ]
    known, codes = _split_known(state, offsets)
    committer = Committer(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        request.group_instance_id,
    )
    codes |= state.groups.offsets.commit(
        committer,
        known,
        now_ms,
        retention_ms=request.retention_time_ms,
        no_group_code=ErrorCode.GROUP_ID_NOT_FOUND
        if context.api_version >= COMMIT_KNOWS_NO_GROUP_FROM
        else ErrorCode.ILLEGAL_GENERATION,
        knows_member_epochs=context.api_version >= COMMIT_KNOWS_NO_GROUP_FROM,
    )
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=code
                        if code is not ErrorCode.NONE
                        else codes[TopicPartition(name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic, (name, code) in zip(request.topics, names, strict=True)
        ]
    )


@handles(TxnOffsetCommitRequest)
def txn_offset_commit(
    state: Services, context: RequestContext, request: TxnOffsetCommitRequest, now_ms: int
) -> TxnOffsetCommitResponse:
    """Commit offsets in a transaction; they become visible when it commits."""
    offsets = [
        OffsetToCommit(
            TopicPartition(topic.name, partition.partition_index),
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    known, codes = _split_known(state, offsets)
    refused = _check_transaction(state, context, request, now_ms) if known else ErrorCode.NONE
    if refused is not ErrorCode.NONE:
        codes |= {offset.partition: refused for offset in known}
    elif known:
        committer = Committer(
            request.group_id, request.member_id, request.generation_id, request.group_instance_id
        )
        codes |= state.groups.offsets.commit_transactional(
            committer, request.producer_id, request.producer_epoch, known, now_ms
        )
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _check_transaction(
    state: Services, context: RequestContext, request: TxnOffsetCommitRequest, now_ms: int
) -> ErrorCode:
    """Check if the producer may write to the group's partition of the offsets topic (KIP-890)."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if context.api_version >= TXN_COMMIT_ADDS_FROM:
        check = PartitionCheck.ADD
    elif context.api_version >= TXN_COMMIT_ABORTABLE_FROM:
        check = PartitionCheck.REFUSE
    else:
        check = PartitionCheck.REFUSE_OLD
    partition = TopicPartition(OFFSETS_TOPIC, state.groups.partition_for(request.group_id))
    code = state.transactions.check_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        check,
        now_ms,
    ).get(partition, ErrorCode.NONE)
    # Clients retry this code with the same coordinator, and do not expect the other one here.
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NOT_ENOUGH_REPLICAS else code


@handles(OffsetFetchRequest)
def offset_fetch(
    state: Services, context: RequestContext, request: OffsetFetchRequest, now_ms: int
) -> OffsetFetchResponse:
    """Fetch committed offsets, of one group or (from version 8 on) of several."""
    if context.api_version < FETCHES_SEVERAL_GROUPS_FROM:
        return _fetch_one_group(state, request)
    # A repeated request for all partitions of a group is answered once, so that repetitions
    # cannot make the answer large.
    wishes = {
        (group.group_id, index if group.topics is not None else -1): group
        for index, group in enumerate(request.groups)
    }
    return OffsetFetchResponse(
        groups=[
            _fetch_group(state, group, context.api_version, request.require_stable)
            for group in wishes.values()
        ]
    )


def _fetch_one_group(state: Services, request: OffsetFetchRequest) -> OffsetFetchResponse:
    partitions = None
    if request.topics is not None:
        partitions = [
            TopicPartition(topic.name, index)
            for topic in request.topics
            for index in topic.partition_indexes
        ]
    fetched = state.groups.offsets.fetch(
        request.group_id, partitions, require_stable=request.require_stable
    )
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=offset.committed_offset,
                        committed_leader_epoch=offset.committed_leader_epoch,
                        metadata=offset.committed_metadata,
                        error_code=offset.error_code,
                    )
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in _by_topic(fetched).items()
        ]
    )


def _fetch_group(
    state: Services,
    group: OffsetFetchRequest.OffsetFetchRequestGroup,
    api_version: int,
    require_stable: bool,
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    by_id = api_version >= FETCHES_BY_TOPIC_ID_FROM
    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=[])
    refused = state.groups.offsets.check_reader(group.group_id, group.member_id, group.member_epoch)
    if refused is not ErrorCode.NONE:
        response.error_code = refused
        return response
    if group.topics is None:
        fetched = state.groups.offsets.fetch(group.group_id, None, require_stable=require_stable)
        for name, offsets in _by_topic(fetched).items():
            topic = state.topics.get(name)
            if topic is not None:
                topic_id = topic.topic_id if by_id else ZERO_UUID
                response.topics.append(_fetched_topic(name, topic_id, offsets))
        return response
    for wanted in group.topics:
        name, code = wanted.name, ErrorCode.NONE
        if by_id:
            name, code = _topic_name(state, "", wanted.topic_id, by_id)
        partitions = [TopicPartition(name, index) for index in wanted.partition_indexes]
        if code is ErrorCode.NONE:
            fetched = state.groups.offsets.fetch(
                group.group_id, partitions, require_stable=require_stable
            )
        else:
            fetched = dict.fromkeys(partitions, FetchedOffset(code))
        offsets = {partition.partition: offset for partition, offset in fetched.items()}
        response.topics.append(_fetched_topic(name, wanted.topic_id, offsets))
    return response


def _fetched_topic(
    name: str, topic_id: UUID, offsets: Mapping[int, FetchedOffset]
) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    return OffsetFetchResponse.OffsetFetchResponseTopics(
        name=name,
        topic_id=topic_id,
        partitions=[
            OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=offset.committed_offset,
                committed_leader_epoch=offset.committed_leader_epoch,
                metadata=offset.committed_metadata,
                error_code=offset.error_code,
            )
            for index, offset in offsets.items()
        ],
    )


def _by_topic(
    fetched: Mapping[TopicPartition, FetchedOffset],
) -> dict[str, dict[int, FetchedOffset]]:
    topics: dict[str, dict[int, FetchedOffset]] = {}
    for (name, index), offset in fetched.items():
        topics.setdefault(name, {})[index] = offset
    return topics


@handles(OffsetDeleteRequest)
def offset_delete(
    state: Services, context: RequestContext, request: OffsetDeleteRequest, now_ms: int
) -> OffsetDeleteResponse:
    """Delete offsets for topics that the group does not read (KIP-496)."""
    asked = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    codes = {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for partition in asked
        if state.topics.partition(*partition) is None
    }
    known = [partition for partition in asked if partition not in codes]
    outcome = state.groups.admin.delete_offsets(request.group_id, known, now_ms)
    if isinstance(outcome, ErrorCode):
        return OffsetDeleteResponse(error_code=outcome)
    codes |= outcome
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
