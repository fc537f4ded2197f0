"""The end of a bounded run: it processes the records that are there at its start.

The worker notes the ends of all inputs once, at its start; later records are left to the next run.
Records that follow from the processed ones belong to the run. So when all ends are reached, inputs
that the application writes itself (repartition topics, chains of topics) get new ends, until none
has more records. This module does no I/O; the worker asks the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

Bounds = Mapping[TopicPartition, tuple[int, int]]
"""Log start offset and last stable offset by partition."""


class RunEnd:
    """The ends of a bounded run.

    Args:
        written: Topics that the application writes. Their records are never cut: one that is read
            before the new end is taken follows from the run, and it is not read again.
    """

    def __init__(self, written: Iterable[str] = ()) -> None:
        self._written: frozenset[str] = frozenset(written)
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._passed: set[TopicPartition] = set()

    @property
    def is_set(self) -> bool:
        """Whether the ends are known."""
        return bool(self._ends)

    def take(self, bounds: Bounds) -> bool:
        """Set ends, at the start or later.

        Returns:
            Whether any end has grown.
        """
        grown = False
        for partition, (start, end) in bounds.items():
            self._starts[partition] = start
            known = self._ends.get(partition, start)
            if end > known:
                self._passed.discard(partition)
                grown = True
            self._ends[partition] = max(known, end)
        return grown

    def cut(self, partition: TopicPartition, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return the polled records that belong to the run."""
        end = self._ends.get(partition)
        if end is None or not records or records[-1].offset < end - 1:
            return records
        self._passed.add(partition)
        if records[-1].offset < end or partition.topic in self._written:
            return records
        return [record for record in records if record.offset < end]

    def passed(self) -> set[TopicPartition]:
        """Return the partitions that were read to their ends, which are paused."""
        return self._passed

    def read_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that partitions are read again, or belong to another worker now."""
        self._passed.difference_update(partitions)

    def note_position(self, partition: TopicPartition, position: int) -> bool:
        """Note a partition's position; return whether it is at the end or after it.

        The last offsets may be markers, which no poll returns.
        """
        if position < self._ends.get(partition, 0):
            return False
        self._passed.add(partition)
        return True

    def unseen(
        self, owned: Iterable[TopicPartition], place: Callable[[TopicPartition], int | None]
    ) -> dict[TopicPartition, int]:
        """Return the ends of this worker's partitions that no commit has named.

        Args:
            owned: Partitions of this worker.
            place: Returns the committed offset of a partition, if it is known.
        """
        return {
            partition: self._ends[partition]
            for partition in owned
            if partition in self._ends
            and max(self._starts[partition], place(partition) or 0) < self._ends[partition]
        }

    def missing(
        self, owned: Iterable[TopicPartition], committed: Callable[[TopicPartition], int | None]
    ) -> list[TopicPartition]:
        """Return partitions of other workers that are not committed up to their ends.

        Args:
            owned: Partitions of this worker.
            committed: Returns the group's offset of a partition.
        """
        mine = set(owned)
        return [
            partition
            for partition, end in self._ends.items()
            if partition not in mine
            and max(self._starts[partition], committed(partition) or 0) < end
        ]
