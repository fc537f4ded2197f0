"""All groups of the broker, in memory and in ``__consumer_offsets``.

Each change is written to the log before it is made in memory. A reload replays the log in order;
offsets of a transaction are pending until its marker is read. The callers decide what to write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup
from onceflow.broker_lite.coordinators.classic.states import GroupState
from onceflow.broker_lite.coordinators.consumer.draft import GroupDraft
from onceflow.broker_lite.coordinators.consumer.group import (
    FIRST_EPOCH,
    ConsumerGroup,
    EpochChange,
)
from onceflow.broker_lite.coordinators.consumer.records import (
    ConsumerKey,
    decode_change,
    encode_change,
)
from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.coordinators.group_records import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from onceflow.broker_lite.coordinators.offsets import CommittedOffset
from onceflow.broker_lite.coordinators.state_log import KeyValue, StateLog, StoredBatch
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.batch_header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.coordinators.group")

Group: TypeAlias = ClassicGroup | ConsumerGroup
"""A group of either protocol."""


class GroupTable:
    """Groups by id."""

    __slots__ = ("_groups", "_log", "_open")

    def __init__(self, log: StateLog) -> None:
        self._log = log
        self._groups: dict[str, Group] = {}
        # Which groups have pending offsets of a producer, by partition and producer: a marker
        # names only those.
        self._open: dict[tuple[int, int], set[str]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def classic(self) -> list[ClassicGroup]:
        """Groups of the classic protocol, and those that only hold offsets."""
        return [group for group in self._groups.values() if isinstance(group, ClassicGroup)]

    def consumers(self) -> list[ConsumerGroup]:
        """Groups of the consumer protocol."""
        return [group for group in self._groups.values() if isinstance(group, ConsumerGroup)]

    def find(self, group_id: str) -> Group | None:
        """Return the group of either protocol; None if there is no such group."""
        return self._groups.get(group_id)

    def get(self, group_id: str) -> ClassicGroup | None:
        """Return the classic group; None if there is no such group."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def get_consumer(self, group_id: str) -> ConsumerGroup | None:
        """Return the consumer group; None if there is no such group."""
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def get_or_create(self, group_id: str) -> ClassicGroup:
        """Return the classic group; a new one is only in memory until something is written."""
        group = self.find_or_create(group_id)
        assert isinstance(group, ClassicGroup), f"{group_id} is a consumer group"
        return group

    def find_or_create(self, group_id: str) -> Group:
        """Return the group of either protocol, or a new one as `get_or_create` makes it."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ClassicGroup(group_id)
        return group

    def discard(self, group: Group) -> None:
        """Forget a group that was never written."""
        if self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]

    def partition_for(self, group_id: str) -> int:
        """Return the partition of ``__consumer_offsets`` for a group (trap 51)."""
        return coordinator_partition(group_id, self._log.partition_count)

    # --- writing

    def write_generation(
        self, group: ClassicGroup, now_ms: int, assignments: dict[str, bytes] | None = None
    ) -> None:
        """Write the group's members and generation.

        Raises:
            StateLogError: Nothing was written.
        """
        self._append(group.group_id, [group_record(group, assignments)], now_ms)

    def write_draft(self, draft: GroupDraft, now_ms: int) -> None:
        """Write the changes of a consumer group in one batch, then make them in memory.

        Raises:
            StateLogError: Nothing was written, and nothing changed.
        """
        group_id = draft.origin.group_id
        records = draft.before + [encode_change(group_id, change) for change in draft.changes]
        self._append(group_id, records, now_ms)
        draft.origin.adopt(draft.group)
        self._groups[group_id] = draft.origin
        if draft.on_written is not None:
            draft.on_written(now_ms)

    def write_downgrade(
        self, group: ConsumerGroup, successor: ClassicGroup, now_ms: int, *, with_members: bool
    ) -> None:
        """Write the end of a consumer group and the classic group that replaces it.

        Raises:
            StateLogError: Nothing was written, and nothing changed.
        """
        group_id = group.group_id
        records = [encode_change(group_id, change) for change in group.dissolution()]
        if with_members:
            records.append(group_record(successor))
        self._append(group_id, records, now_ms)
        successor.offsets = group.offsets
        self._groups[group_id] = successor

    def commit(
        self,
        group: Group,
        offsets: Sequence[tuple[TopicPartition, CommittedOffset]],
        now_ms: int,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> None:
        """Write offsets, then make them visible; those of a transaction wait for its marker.

        Raises:
            StateLogError: Nothing was written.
        """
        group_id = group.group_id
        base_offset = self._append(
            group_id,
            [offset_record(group_id, partition, offset) for partition, offset in offsets],
            now_ms,
            producer_id,
            producer_epoch,
        )
        partition_index = self.partition_for(group_id)
        for position, (partition, offset) in enumerate(offsets):
            self._note(
                group, partition_index, producer_id, partition, offset, base_offset + position
            )

    def forget_offsets(
        self, group: Group, partitions: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """Write tombstones for offsets, then drop them.

        Raises:
            StateLogError: Nothing was written.
        """
        doomed = list(partitions)
        if not doomed:
            return
        records = [offset_tombstone(group.group_id, partition) for partition in doomed]
        self._append(group.group_id, records, now_ms)
        for partition in doomed:
            group.offsets.forget(partition)

    def remove(self, group: Group, now_ms: int) -> None:
        """Write tombstones for a group and its offsets, then forget it.

        Raises:
            StateLogError: Nothing was written.
        """
        group_id = group.group_id
        records = [
            offset_tombstone(group_id, partition) for partition in group.offsets.partitions()
        ]
        if isinstance(group, ConsumerGroup):
            records += [encode_change(group_id, change) for change in group.dissolution()]
        elif group.generation_id > 0:
            records.append(group_tombstone(group_id))
        if records:
            self._append(group_id, records, now_ms)
        self._groups.pop(group_id, None)

    def _append(
        self,
        group_id: str,
        records: Sequence[KeyValue],
        now_ms: int,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
    ) -> int:
        return self._log.append(
            self.partition_for(group_id),
            records,
            now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    def _note(
        self,
        group: Group,
        partition_index: int,
        producer_id: int,
        partition: TopicPartition,
        offset: CommittedOffset,
        log_offset: int,
    ) -> None:
        placed = CommittedOffset(
            offset.committed_offset,
            offset.committed_leader_epoch,
            offset.committed_metadata,
            offset.commit_timestamp_ms,
            offset.expire_timestamp_ms,
            log_offset,
            offset.topic_id,
        )
        if producer_id == NO_PRODUCER_ID:
            group.offsets.commit(partition, placed)
        else:
            group.offsets.commit_pending(producer_id, partition, placed)
            self._open.setdefault((partition_index, producer_id), set()).add(group.group_id)

    def end_transaction(self, partition_index: int, producer_id: int, committed: bool) -> None:
        """Keep or drop a producer's pending offsets in a partition, after its marker."""
        for group_id in self._open.pop((partition_index, producer_id), ()):
            group = self._groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, committed)

    # --- loading

    def load(self, now_ms: int) -> None:
        """Read the topic: the last record of a key counts, in transactions only after a commit."""
        self._log.prepare(now_ms)
        self._groups.clear()
        self._open.clear()
        for partition_index in range(self._log.partition_count):
            for batch in self._log.batches(partition_index):
                if batch.committed is None:
                    self._replay(partition_index, batch)
                else:
                    self.end_transaction(partition_index, batch.producer_id, batch.committed)
        for group in list(self._groups.values()):
            # Drop the empty groups that tombstones without an earlier record have made.
            if group.members or group.offsets:
                continue
            if isinstance(group, ConsumerGroup):
                if group.group_epoch == FIRST_EPOCH:
                    del self._groups[group.group_id]
            elif group.generation_id == 0:
                del self._groups[group.group_id]

    def _replay(self, partition_index: int, batch: StoredBatch) -> None:
        producer_id = batch.producer_id if batch.transactional else NO_PRODUCER_ID
        for log_offset, key_bytes, value in batch.records:
            try:
                key = decode_key(key_bytes)
                if isinstance(key, OffsetKey):
                    group = self.find_or_create(key.group_id)
                    if value is None:
                        group.offsets.forget(key.partition)
                    else:
                        offset = decode_offset(value, log_offset)
                        self._note(
                            group, partition_index, producer_id, key.partition, offset, log_offset
                        )
                elif isinstance(key, GroupKey):
                    self._replay_group(key.group_id, None if value is None else decode_group(value))
                elif isinstance(key, ConsumerKey):
                    self._replay_change(key, value)
            except (RemoteProtocolError, ValueError) as error:
                logger.error(
                    "__consumer_offsets-%d: record at %d is not readable: %s",
                    partition_index,
                    log_offset,
                    error,
                )

    def _replay_group(self, group_id: str, stored: StoredGroup | None) -> None:
        old = self._groups.get(group_id)
        if stored is None and isinstance(old, ConsumerGroup):
            return  # The tombstone of the classic group that this consumer group replaced.
        group = ClassicGroup(group_id)
        if old is not None:
            group.offsets = old.offsets
        self._groups[group_id] = group
        if stored is None:
            return
        group.protocol_type = stored.protocol_type or None
        group.generation_id = stored.generation_id
        group.protocol_name = stored.protocol_name
        group.state_timestamp_ms = stored.state_timestamp_ms
        for member in stored.members:
            group.add(member)
        group.leader = stored.leader if stored.leader in group.members else None
        group.note_subscriptions()
        if group.members:
            # The table of states has no step from Empty to Stable. The members agreed on this
            # generation before the restart, so the group continues without a rebalance.
            group.state = GroupState.STABLE

    def _replay_change(self, key: ConsumerKey, value: bytes | None) -> None:
        old = self._groups.get(key.group_id)
        change = decode_change(key, value)
        if isinstance(old, ConsumerGroup):
            group = old
        elif value is None:
            return  # A tombstone of the consumer group that this classic group replaced.
        else:
            group = ConsumerGroup(key.group_id)
            if old is not None:
                group.offsets = old.offsets
            self._groups[key.group_id] = group
        group.apply(change)
        if isinstance(change, EpochChange) and change.epoch is None:
            shell = self._groups[key.group_id] = ClassicGroup(key.group_id)
            shell.offsets = group.offsets
