"""What was polled and is not committed yet, by partition.

Bookkeeping of offsets only: where uncommitted work begins, so that an abort can go back there, and
where it ends. When it is committed or dropped is decided by the session.
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
        first: Offset of the first of them.
        next: Offset behind the last of them.
        leader_epoch: Leader epoch of the last one.
    """

    first: int
    next: int
    leader_epoch: int


class UncommittedWork(dict[TopicPartition, Progress]):
    """All of it."""

    def polled(self, records: Records) -> None:
        """Note polled records."""
        for partition, batch in records.items():
            last = batch[-1]
            progress = self.get(partition)
            if progress is None:
                self[partition] = Progress(batch[0].offset, last.offset + 1, last.leader_epoch)
            else:
                progress.next = last.offset + 1
                progress.leader_epoch = last.leader_epoch

    def ends(self) -> dict[TopicPartition, int]:
        """Offset behind the last polled record by partition."""
        return {partition: progress.next for partition, progress in self.items()}

    def cut(self, partition: TopicPartition, offset: int) -> None:
        """Forget the records from an offset on: they were not handed out."""
        progress = self[partition]
        if offset > progress.first:
            progress.next = offset
        else:
            del self[partition]

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Offsets were committed; what lies behind them stays."""
        for partition, committed in offsets.items():
            progress = self.get(partition)
            if progress is not None and committed.offset < progress.next:
                progress.first = committed.offset
            else:
                self.pop(partition, None)
