"""Commits and fetches offsets of groups, plain and within transactions.

It decides who may commit (generation and member checks, KIP-447) and what a fetch returns while a
transaction is open. The handlers have checked that the topics exist, and that the producer may use
the transactional id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup
from onceflow.broker_lite.coordinators.classic.rebalance import Rebalancer
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.consumer.group import ConsumerGroup
from onceflow.broker_lite.coordinators.consumer.member import ConsumerMember
from onceflow.broker_lite.coordinators.consumer.topics import TopicsView
from onceflow.broker_lite.coordinators.group_table import GroupTable
from onceflow.broker_lite.coordinators.offsets import CommittedOffset
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.offsets")


class OffsetToCommit(NamedTuple):
    """One offset of a commit request."""

    partition: TopicPartition
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class Committer(NamedTuple):
    """The sender of a commit.

    Attributes:
        group_id: Group whose offsets are committed.
        member_id: Member id; empty for a consumer outside of group management.
        generation_id: Generation; -1 outside of group management.
        group_instance_id: Name of a static member, or None.
    """

    group_id: str
    member_id: str = ""
    generation_id: int = -1
    group_instance_id: str | None = None

    @property
    def is_member(self) -> bool:
        """Whether the committer claims to be a member, which is then checked."""
        return self.generation_id >= 0 or bool(self.member_id) or self.group_instance_id is not None


class FetchedOffset(NamedTuple):
    """Answer of OffsetFetch for one partition; offset -1 if none is committed."""

    error_code: ErrorCode = ErrorCode.NONE
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    committed_metadata: str = ""


_NOTHING = FetchedOffset()
_UNSTABLE = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)


def _java_length(text: str) -> int:
    """Return the length as Kafka counts it: characters above U+FFFF count as two."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


class OffsetCommits:
    """Offsets of every group of the broker."""

    __slots__ = ("_rebalancer", "_settings", "_table", "_topics", "_touch_consumer")

    def __init__(
        self,
        settings: GroupSettings,
        table: GroupTable,
        rebalancer: Rebalancer,
        touch_consumer: Callable[[ConsumerGroup, ConsumerMember, int], None],
        topics: TopicsView,
    ) -> None:
        """Make the object.

        Args:
            settings: Limits.
            table: The groups.
            rebalancer: Sessions of classic members, which a commit keeps alive.
            touch_consumer: The same for members of consumer groups that speak the classic protocol.
            topics: The broker's topics, for the ids of partitions that members own.
        """
        self._settings = settings
        self._table = table
        self._rebalancer = rebalancer
        self._touch_consumer = touch_consumer
        self._topics = topics

    def commit(
        self,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        now_ms: int,
        *,
        retention_ms: int = -1,
        no_group_code: ErrorCode = ErrorCode.ILLEGAL_GENERATION,
        knows_member_epochs: bool = True,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets at once.

        Args:
            committer: The sender of the commit.
            offsets: The offsets, of partitions that exist.
            now_ms: Wall milliseconds.
            retention_ms: Retention that the client asks for (OffsetCommit below 5), -1 for the
                broker's rule.
            no_group_code: Error code for a member of a group that does not exist.
            knows_member_epochs: Whether the version of the request (9 and above) has member
                epochs. With older ones a member of a consumer group may not commit (trap 37).

        Returns:
            A code per partition.
        """
        consumers = self._table.get_consumer(committer.group_id)
        if consumers is not None:
            return self._commit_for_consumer(
                consumers, committer, offsets, now_ms, retention_ms, knows_member_epochs
            )
        group = self._table.get(committer.group_id)
        code = self._check_committer(group, committer, no_group_code)
        if code is ErrorCode.NONE:
            code = self._check_plain(group, committer)
        if code is not ErrorCode.NONE:
            return {offset.partition: code for offset in offsets}
        result = self._write(
            committer, offsets, now_ms, now_ms + retention_ms if retention_ms >= 0 else -1
        )
        if group is not None and group.state is GroupState.STABLE:
            member = group.members.get(committer.member_id)
            if member is not None:
                self._rebalancer.touch(group, member, now_ms)
        return result

    def _commit_for_consumer(
        self,
        group: ConsumerGroup,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        now_ms: int,
        retention_ms: int,
        knows_member_epochs: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        member = group.members.get(committer.member_id)
        code = self._check_member(group, committer, offsets)
        new_protocol = member is not None and member.classic is None
        if new_protocol and not knows_member_epochs:
            code = ErrorCode.UNSUPPORTED_VERSION
        if code is not ErrorCode.NONE:
            return {offset.partition: code for offset in offsets}
        expires_ms = now_ms + retention_ms if retention_ms >= 0 else -1
        result = self._write(committer, offsets, now_ms, expires_ms)
        if member is not None and member.classic is not None:
            self._touch_consumer(group, member, now_ms)
        return result

    def _check_member(
        self, group: ConsumerGroup, committer: Committer, offsets: Sequence[OffsetToCommit]
    ) -> ErrorCode:
        """Check whether a member of a consumer group may commit in this epoch (traps 37, 58)."""
        epoch = committer.generation_id
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(committer.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        for offset in offsets:
            topic = self._topics.get(offset.partition.topic)
            topic_id = None if topic is None else topic.topic_id
            if not member.may_commit(epoch, topic_id, offset.partition.partition):
                classic = member.classic is not None
                return ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def check_reader(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Check whether a member may read the group's offsets in this epoch (KIP-848).

        A request without a member may. A member of a consumer group must name its current epoch.
        """
        group = self._table.get_consumer(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return ErrorCode.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.member_epoch == member_epoch:
            return ErrorCode.NONE
        classic = member.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH

    def commit_transactional(
        self,
        committer: Committer,
        producer_id: int,
        producer_epoch: int,
        offsets: Sequence[OffsetToCommit],
        now_ms: int,
    ) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets that become visible when the producer's transaction commits (trap 49).

        Members are checked as in plain commits. The state of the group is not: a processor may
        commit its transaction while the group rebalances (trap 55). An outdated member epoch gets
        ILLEGAL_GENERATION, since producers do not know the code for member epochs.
        """
        consumers = self._table.get_consumer(committer.group_id)
        if consumers is not None:
            code = ErrorCode.NONE
            if committer.is_member:
                code = self._check_member(consumers, committer, offsets)
            if code is ErrorCode.STALE_MEMBER_EPOCH:
                code = ErrorCode.ILLEGAL_GENERATION
            if code is not ErrorCode.NONE:
                return {offset.partition: code for offset in offsets}
            return self._write(committer, offsets, now_ms, -1, producer_id, producer_epoch)
        group = self._table.get(committer.group_id)
        code = self._check_committer(group, committer, ErrorCode.ILLEGAL_GENERATION)
        if code is not ErrorCode.NONE:
            return {offset.partition: code for offset in offsets}
        return self._write(committer, offsets, now_ms, -1, producer_id, producer_epoch)

    @staticmethod
    def _check_committer(
        group: ClassicGroup | None, committer: Committer, no_group_code: ErrorCode
    ) -> ErrorCode:
        if group is None:
            # The group was deleted after it gave out this generation.
            return no_group_code if committer.generation_id >= 0 else ErrorCode.NONE
        if not committer.is_member:
            return ErrorCode.NONE
        if committer.generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        code = group.check_identity(committer.member_id, committer.group_instance_id)
        if code is ErrorCode.NONE and committer.generation_id != group.generation_id:
            code = ErrorCode.ILLEGAL_GENERATION
        return code

    @staticmethod
    def _check_plain(group: ClassicGroup | None, committer: Committer) -> ErrorCode:
        """Check the group's state, which only plain commits depend on (traps 37, 55)."""
        if group is None:
            return ErrorCode.NONE
        if not committer.is_member and group.state is not GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _write(
        self,
        committer: Committer,
        offsets: Sequence[OffsetToCommit],
        now_ms: int,
        expire_timestamp_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> dict[TopicPartition, ErrorCode]:
        result: dict[TopicPartition, ErrorCode] = {}
        accepted: list[tuple[TopicPartition, CommittedOffset]] = []
        for partition, offset, leader_epoch, metadata in offsets:
            text = metadata or ""
            if _java_length(text) > self._settings.offset_metadata_max_bytes:
                result[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            result[partition] = ErrorCode.NONE
            topic = self._topics.get(partition.topic)
            committed = CommittedOffset(
                offset,
                leader_epoch,
                text,
                now_ms,
                expire_timestamp_ms,
                topic_id=ZERO_UUID if topic is None else topic.topic_id,
            )
            accepted.append((partition, committed))
        if not accepted:
            return result
        existed = self._table.find(committer.group_id) is not None
        group = self._table.find_or_create(committer.group_id)
        try:
            self._table.commit(
                group, accepted, now_ms, producer_id=producer_id, producer_epoch=producer_epoch
            )
        except StateLogError as error:
            logger.error("%s: offsets were not written: %s", committer.group_id, error)
            if not existed:
                self._table.discard(group)
            result.update((partition, error.code) for partition, _ in accepted)
        return result

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool,
    ) -> dict[TopicPartition, FetchedOffset]:
        """Read committed offsets (KIP-447).

        Args:
            group_id: Group; an unknown one has no offsets and is not an error (trap 36).
            partitions: Partitions to read; None for all that have an offset.
            require_stable: Answer UNSTABLE_OFFSET_COMMIT for each partition, and only for those,
                whose offset an open transaction may change.
        """
        group = self._table.find(group_id)
        if group is None:
            return dict.fromkeys(partitions or (), _NOTHING)
        offsets = group.offsets
        wanted = sorted(offsets.committed) if partitions is None else partitions
        if partitions is None and require_stable:
            wanted = offsets.partitions()
        result: dict[TopicPartition, FetchedOffset] = {}
        for partition in wanted:
            committed = offsets.committed.get(partition)
            if require_stable and offsets.pending and offsets.is_unstable(partition):
                result[partition] = _UNSTABLE
            elif committed is None:
                result[partition] = _NOTHING
            else:
                result[partition] = FetchedOffset(
                    ErrorCode.NONE,
                    committed.committed_offset,
                    committed.committed_leader_epoch,
                    committed.committed_metadata,
                )
        return result
