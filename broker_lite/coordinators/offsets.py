"""Committed offsets of one group, and offsets of open transactions.

It decides which of two commits is the later one, when a partition is unstable, and which offsets
have expired. ``offset_commits`` checks members, writes records and answers requests.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.primitives import ZERO_UUID


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset as it was committed.

    Attributes:
        committed_offset: Next offset to be read.
        committed_leader_epoch: Leader epoch of the last record read, -1 if unknown.
        committed_metadata: Text of the client.
        commit_timestamp_ms: When it was committed.
        expire_timestamp_ms: Expiry that the client chose (OffsetCommit below 5); else -1.
        log_offset: Offset of the commit's record in the log; of two commits the greater one counts.
        topic_id: Id of the topic, as Kafka writes it since 4.1; zeros where it was not written.
    """

    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str = ""
    commit_timestamp_ms: int = -1
    expire_timestamp_ms: int = -1
    log_offset: int = -1
    topic_id: UUID = ZERO_UUID


class GroupOffsets:
    """Offsets of one group.

    Attributes:
        committed: By partition.
        pending: By producer id, then by partition: committed in a transaction without marker yet.
    """

    __slots__ = ("committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[int, dict[TopicPartition, CommittedOffset]] = {}

    def __bool__(self) -> bool:
        return bool(self.committed or self.pending)

    def commit(self, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Note a commit, unless a later one in the log is known."""
        current = self.committed.get(partition)
        if current is None or current.log_offset <= offset.log_offset:
            self.committed[partition] = offset

    def commit_pending(
        self, producer_id: int, partition: TopicPartition, offset: CommittedOffset
    ) -> None:
        """Note a commit inside a transaction; it is invisible until the marker (trap 38)."""
        self.pending.setdefault(producer_id, {})[partition] = offset

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Keep or drop the producer's pending offsets, after its marker was written.

        A pending offset never replaces a plain commit that is later in the log.
        """
        offsets = self.pending.pop(producer_id, None)
        if committed and offsets:
            for partition, offset in offsets.items():
                self.commit(partition, offset)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the partition's committed and pending offsets, after a tombstone was written."""
        self.committed.pop(partition, None)
        for producer_id, offsets in list(self.pending.items()):
            offsets.pop(partition, None)
            if not offsets:
                del self.pending[producer_id]

    def is_unstable(self, partition: TopicPartition) -> bool:
        """True while a transaction that would change the partition's offset is open (trap 36)."""
        return any(partition in offsets for offsets in self.pending.values())

    def partitions(self) -> list[TopicPartition]:
        """Every partition with a committed or pending offset, in order."""
        return sorted({*self.committed, *(tp for tps in self.pending.values() for tp in tps)})

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        *,
        unused_since_ms: int | None = None,
        keep_topics: Collection[str] = (),
    ) -> list[TopicPartition]:
        """Return the partitions whose offsets are older than the retention.

        Args:
            now_ms: Wall milliseconds.
            retention_ms: ``offsets.retention.minutes`` in milliseconds.
            unused_since_ms: When the group became empty. The retention begins then, or at the
                commit if that is later. None: it begins at the commit.
            keep_topics: Topics that members still read.
        """
        result = []
        for partition, offset in self.committed.items():
            if partition.topic in keep_topics or self.is_unstable(partition):
                continue
            if offset.expire_timestamp_ms >= 0:
                expires_ms = offset.expire_timestamp_ms
            else:
                since_ms = max(offset.commit_timestamp_ms, unused_since_ms or 0)
                expires_ms = since_ms + retention_ms
            if expires_ms <= now_ms:
                result.append(partition)
        return result
