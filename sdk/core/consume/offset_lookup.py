"""Questions about offsets: by time, by leader epoch, and what a group committed.

Each function here is a flow of one exchange, or reads and builds its messages. The callers decide
which answers to retry, and when.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.flow import Coordinator, Flow, ask
from onceflow.sdk.errors import BrokerConnectionError
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    IsolationLevel,
    OffsetAndMetadata,
    TopicPartition,
    by_topic,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from onceflow.sdk.protocol.api.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Response

STABLE_FROM = 7
"""First version of OffsetFetch with `require_stable` (KIP-447)."""

BATCHED_GROUPS_FROM = 8
"""First version of OffsetFetch for several groups at once (KIP-709)."""

NAMES_UNTIL = 9
"""Last version of OffsetCommit and OffsetFetch that names topics instead of giving their ids."""

CONSUMER_REPLICA_ID = -1


class FoundOffset(NamedTuple):
    """A partition's answer to ListOffsets.

    Attributes:
        error_code: 0, or why there is no answer.
        offset: The offset, -1 if no record is at or after the requested time.
        timestamp_ms: Timestamp of the record there, -1 for either end of the log.
        leader_epoch: Leader epoch of the record there, -1 if unknown.
    """

    error_code: int
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """A partition's answer to OffsetForLeaderEpoch (KIP-320).

    Attributes:
        error_code: 0, or why there is no answer.
        leader_epoch: Largest epoch not above the requested one, -1 if there is none.
        end_offset: Where that epoch ends, -1 if unknown.
    """

    error_code: int
    leader_epoch: int = -1
    end_offset: int = -1


class CommittedOffset(NamedTuple):
    """A partition's answer to OffsetFetch; `committed` is None if nothing was committed."""

    error_code: int
    committed: OffsetAndMetadata | None = None


def by_leader(
    cluster: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Group partitions by leader; return those without a known leader separately."""
    known: dict[int, list[TopicPartition]] = {}
    unknown: list[TopicPartition] = []
    for partition in partitions:
        leader_id = cluster.leader(partition)
        if leader_id is None:
            unknown.append(partition)
        else:
            known.setdefault(leader_id, []).append(partition)
    return known, unknown


def list_offsets(
    node_id: int,
    targets: Mapping[TopicPartition, int],
    cluster: ClusterMetadata,
    isolation_level: IsolationLevel,
) -> Flow[dict[TopicPartition, FoundOffset]]:
    """Ask one leader for offsets by time.

    Args:
        node_id: The leader.
        targets: Timestamp in milliseconds by partition, or one of Kafka's negative codes.
        cluster: Leader epochs.
        isolation_level: Whether "latest" means the last stable offset or the high watermark.

    Returns:
        An answer for each partition; one missing in the broker's answer counts as unknown.
    """
    message = ListOffsetsRequest
    topics = by_topic(
        (
            partition.topic,
            message.ListOffsetsPartition(
                partition_index=partition.partition,
                current_leader_epoch=cluster.leader_epoch(partition),
                timestamp=timestamp,
            ),
        )
        for partition, timestamp in targets.items()
    )
    request = message(
        replica_id=CONSUMER_REPLICA_ID,
        isolation_level=isolation_level,
        topics=[message.ListOffsetsTopic(name=n, partitions=p) for n, p in topics.items()],
    )
    reply = yield from ask(request, ListOffsetsResponse, node_id)
    found = {
        TopicPartition(topic_answer.name, answer.partition_index): FoundOffset(
            answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch
        )
        for topic_answer in reply.topics
        for answer in topic_answer.partitions
    }
    missing = FoundOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return {partition: found.get(partition, missing) for partition in targets}


def epoch_ends(
    node_id: int, epochs: Mapping[TopicPartition, int], cluster: ClusterMetadata
) -> Flow[dict[TopicPartition, EpochEnd]]:
    """Ask one leader where leader epochs end, to find out whether the log lost records.

    Args:
        node_id: The leader.
        epochs: Leader epoch of the last record read, by partition.
        cluster: Present leader epochs.
    """
    message = OffsetForLeaderEpochRequest
    topics = by_topic(
        (
            partition.topic,
            message.OffsetForLeaderPartition(
                partition=partition.partition,
                current_leader_epoch=cluster.leader_epoch(partition),
                leader_epoch=leader_epoch,
            ),
        )
        for partition, leader_epoch in epochs.items()
    )
    request = message(
        replica_id=CONSUMER_REPLICA_ID,
        topics=[message.OffsetForLeaderTopic(topic=n, partitions=p) for n, p in topics.items()],
    )
    reply = yield from ask(request, OffsetForLeaderEpochResponse, node_id)
    found = {
        TopicPartition(topic_answer.topic, answer.partition): EpochEnd(
            answer.error_code, answer.leader_epoch, answer.end_offset
        )
        for topic_answer in reply.topics
        for answer in topic_answer.partitions
    }
    missing = EpochEnd(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return {partition: found.get(partition, missing) for partition in epochs}


def fetch_committed(
    group_id: str,
    partitions: Collection[TopicPartition] | None,
    *,
    require_stable: bool,
    batched: bool,
    member: ConsumerGroupMetadata | None = None,
) -> Flow[tuple[int, dict[TopicPartition, CommittedOffset]]]:
    """Ask a group's coordinator for committed offsets.

    Args:
        group_id: The group.
        partitions: Partitions; None asks for all that the group has committed.
        require_stable: Refuse partitions with a transactional commit in progress (KIP-447).
        batched: Whether the coordinator serves a version with a list of groups.
        member: The member that asks, for groups of the consumer protocol (KIP-848). The coordinator
            refuses it if it is not a member any more, or if its epoch is old.

    Returns:
        Error code of the whole answer, and an answer for each partition.
    """
    wanted = None if partitions is None else by_topic(partitions)
    coordinator = Coordinator(group_id, CoordinatorType.GROUP)
    if batched:
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group_id,
            member_id=None if member is None else member.member_id,
            member_epoch=-1 if member is None else member.generation_id,
            topics=None
            if wanted is None
            else [
                OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                for name, indexes in wanted.items()
            ],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=require_stable)
    else:
        request = OffsetFetchRequest(
            group_id=group_id,
            topics=None
            if wanted is None
            else [
                OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
                for name, indexes in wanted.items()
            ],
            require_stable=require_stable,
        )
    reply = yield from ask(request, OffsetFetchResponse, coordinator, max_version=NAMES_UNTIL)
    return read_committed_offsets(reply, batched)


def read_committed_offsets(
    reply: OffsetFetchResponse, batched: bool
) -> tuple[int, dict[TopicPartition, CommittedOffset]]:
    """Read an answer to OffsetFetch about one group."""
    found: dict[TopicPartition, CommittedOffset] = {}
    if batched:
        for group in reply.groups:
            for group_topic in group.topics:
                for answer in group_topic.partitions:
                    partition = TopicPartition(group_topic.name, answer.partition_index)
                    found[partition] = _committed(
                        answer.error_code,
                        answer.committed_offset,
                        answer.metadata,
                        answer.committed_leader_epoch,
                    )
            return group.error_code, found
        return ErrorCode.NONE, found
    for topic in reply.topics:
        for entry in topic.partitions:
            partition = TopicPartition(topic.name, entry.partition_index)
            found[partition] = _committed(
                entry.error_code,
                entry.committed_offset,
                entry.metadata,
                entry.committed_leader_epoch,
            )
    return reply.error_code, found


def _committed(
    error_code: int, offset: int, metadata: str | None, leader_epoch: int
) -> CommittedOffset:
    if error_code != ErrorCode.NONE or offset < 0:
        return CommittedOffset(error_code)
    return CommittedOffset(error_code, OffsetAndMetadata(offset, metadata or "", leader_epoch))


def commit_request(
    member: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequest:
    """Return an OffsetCommit for the group's coordinator, in a version up to ``NAMES_UNTIL``.

    Args:
        member: Group and membership; generation -1 commits from outside of the group.
        offsets: Offsets to store.
    """
    message = OffsetCommitRequest
    topics = by_topic(
        (
            topic,
            message.OffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            ),
        )
        for (topic, index), offset in offsets.items()
    )
    return message(
        group_id=member.group_id,
        generation_id_or_member_epoch=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        topics=[message.OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
    )


def read_commit_codes(reply: Response) -> dict[TopicPartition, int]:
    """Error code by partition of an answer to OffsetCommit.

    Args:
        reply: The answer.

    Raises:
        BrokerConnectionError: The answer has another type.
    """
    if not isinstance(reply, OffsetCommitResponse):
        raise BrokerConnectionError("the coordinator sent a response of another kind")
    return {
        TopicPartition(topic_answer.name, answer.partition_index): answer.error_code
        for topic_answer in reply.topics
        for answer in topic_answer.partitions
    }


def commit_offsets(
    member: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Flow[dict[TopicPartition, int]]:
    """Send an OffsetCommit to the group's coordinator.

    Args:
        member: Group and membership; generation -1 commits from outside of the group.
        offsets: Offsets to store.

    Returns:
        Error code by partition.
    """
    coordinator = Coordinator(member.group_id, CoordinatorType.GROUP)
    request = commit_request(member, offsets)
    reply = yield from ask(request, OffsetCommitResponse, coordinator, max_version=NAMES_UNTIL)
    return read_commit_codes(reply)
