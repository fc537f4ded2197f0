"""The polled records that are not committed yet, by partition.

This module only keeps offsets: where uncommitted work begins, to which an abort goes back, and
where it ends. The session decides when to commit or drop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions.clients import Records


@dataclass(slots=True)
class Progress:
    """Records of one partition that were polled and are not committed.

    Attributes:
        first: Offset of the first one.
        next: Offset after the last one.
        leader_epoch: Leader epoch of the last one.
    """

    first: int
    next: int
    leader_epoch: int


class UncommittedWork(dict[TopicPartition, Progress]):
    """The uncommitted records of all partitions."""

    def polled(self, records: Records) -> None:
        """Add polled records."""
        for partition, batch in records.items():
            last = batch[-1]
            progress = self.get(partition)
            if progress is None:
                self[partition] = Progress(batch[0].offset, last.offset + 1, last.leader_epoch)
            else:
                progress.next = last.offset + 1
                progress.leader_epoch = last.leader_epoch

    def ends(self) -> dict[TopicPartition, int]:
        """Offset after the last polled record by partition."""
        return {partition: progress.next for partition, progress in self.items()}

    def cut(self, partition: TopicPartition, offset: int) -> None:
        """Forget the records from an offset on: they were not handed out."""
        progress = self[partition]
        if offset > progress.first:
            progress.next = offset
        else:
            del self[partition]

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Remove committed work; later records stay."""
        for partition, committed in offsets.items():
            progress = self.get(partition)
            if progress is not None and committed.offset < progress.next:
                progress.first = committed.offset
            else:
                self.pop(partition, None)
