"""Records that were decoded ahead and not returned to the application yet.

Iteration and the blocking consumer decode many records at once but return fewer. The partition's
position stays before a record until it is returned, so that a commit never covers a record that the
application has not got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from onceflow.sdk.core.consume.subscription import PartitionState, Subscription
from onceflow.sdk.model.columns import AnyColumns, RecordColumns
from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import TopicPartition


class _Run:
    __slots__ = (
        "count",
        "end_epoch",
        "end_position",
        "index",
        "records",
        "stamp",
        "state",
        "values_only",
    )

    def __init__(self, state: PartitionState, records: list[AnyRecord] | AnyColumns) -> None:
        self.state = state
        self.stamp = state.stamp
        self.records = records
        self.count = len(records)
        self.values_only = isinstance(records, RecordColumns) and records.values_only
        self.index = 0
        self.end_position = state.position
        self.end_epoch = state.position_epoch
        state.position = records[0].offset
        state.position_epoch = -1  # The known epoch is that of a record after the position.

    def move_to(self, index: int) -> None:
        """Count the records before `index` as returned."""
        state = self.state
        if index >= self.count:
            # The position also moves over hidden batches after the last record.
            state.position = self.end_position
            state.position_epoch = self.end_epoch
        else:
            last = self.records[index - 1]
            state.position = last.offset + 1
            state.position_epoch = last.leader_epoch
        self.index = index  # Last, because Ctrl-C may interrupt the lines above.

    def move_back(self, index: int) -> None:
        """Count the records from `index` on as not returned."""
        if isinstance(self.records, list):
            del self.records[self.count :]  # Records of another run.
        self.index = index
        state = self.state
        if state.stamp == self.stamp:
            state.position = self.records[index].offset
            state.position_epoch = self.records[index - 1].leader_epoch if index else -1


class RecordCursor:
    """Returns records, unless their partitions were revoked or moved meanwhile.

    The blocking face takes from it in the caller's thread while the loop's thread fetches. That is
    safe because only polls, of which there is one at a time, load it or move positions.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._runs: deque[_Run] = deque()
        self._taken: list[tuple[_Run, int]] | None = None

    def load(self, polled: Mapping[TopicPartition, list[AnyRecord] | AnyColumns]) -> None:
        """Take over the result of a poll; move the positions back before it."""
        for partition, records in polled.items():
            state = self._subscription.get(partition)
            if state is not None and records:
                self._runs.append(_Run(state, records))

    @property
    def has_records(self) -> bool:
        """Whether there is a record to return."""
        return self._current(values_only=True) is not None

    def next(self) -> AnyRecord | None:
        """Return the next record, or None if another poll is needed."""
        run = self._current()
        if run is None:
            return None
        record = run.records[run.index]
        run.move_to(run.index + 1)
        return record

    def take(self, max_records: int) -> dict[TopicPartition, list[AnyRecord]]:
        """Return all remaining records, up to a limit, as a poll returns them."""
        taken: dict[TopicPartition, list[AnyRecord]] = {}
        left = max_records
        while left > 0 and (run := self._current()) is not None:
            records = self._take_of(run, left)
            left -= len(records)
            before = taken.get(run.state.topic_partition)
            if before is not None:
                before.extend(records)
            else:
                whole = records if isinstance(records, list) else list(records)
                taken[run.state.topic_partition] = whole
        return taken

    def take_columns(
        self, max_records: int, *, values_only: bool
    ) -> dict[TopicPartition, AnyColumns]:
        """Return columns in place of records, one run of each partition.

        Args:
            max_records: Most records wanted.
            values_only: Whether offsets and values are enough.
        """
        taken: dict[TopicPartition, AnyColumns] = {}
        left = max_records
        while left > 0 and (run := self._current(values_only)) is not None:
            partition = run.state.topic_partition
            if partition in taken:
                break
            records = self._take_of(run, _alike(run, left))
            left -= len(records)
            columns = RecordColumns.from_records(records) if isinstance(records, list) else records
            taken[partition] = columns.only_values() if values_only else columns
        return taken

    def begin_taking(self) -> None:
        """Note the records taken from now on, until `end_taking`."""
        self._taken = []

    def end_taking(self) -> None:
        """Note that the application got the taken records."""
        self._taken = None

    def take_back(self) -> None:
        """Put back taken records that did not reach the application; the next call returns them."""
        taken, self._taken = self._taken or [], None
        for run, index in reversed(taken):
            run.move_back(index)
            if not (self._runs and self._runs[0] is run):
                self._runs.appendleft(run)

    def _take_of(self, run: _Run, limit: int) -> list[AnyRecord] | AnyColumns:
        """Take records of the first run; a whole run is returned without a copy."""
        records = run.records
        if run.index or len(records) > limit:
            records = records[run.index : run.index + limit]
        if self._taken is not None:
            self._taken.append((run, run.index))
        run.move_to(run.index + len(records))
        if run.index >= run.count:
            self._runs.popleft()  # The application may change the list that it gets.
        return records

    def _current(self, values_only: bool = False) -> _Run | None:
        """Return the first run with records for the application; skip runs of held partitions.

        A run with only values is decoded again, from its present place, if more fields are wanted.
        """
        for _ in range(len(self._runs)):
            run = self._runs[0]
            state = run.state
            current = self._subscription.get(state.topic_partition) is state
            if not current or state.stamp != run.stamp or run.index >= run.count:
                self._runs.popleft()
            elif not values_only and run.values_only:
                partition = state.topic_partition
                self._subscription.seek(partition, state.position, state.position_epoch)
                self._runs.popleft()
            elif state.held_back:
                self._runs.rotate(-1)
            else:
                return run
        return None


def _alike(run: _Run, limit: int) -> int:
    """Return how many of the next records fit into the same columns; a run may join batches."""
    records = run.records
    if isinstance(records, RecordColumns):
        return limit
    ahead = records[run.index : run.index + limit]
    epoch, kind = ahead[0].leader_epoch, ahead[0].timestamp_type
    for count, record in enumerate(ahead):
        if record.leader_epoch != epoch or record.timestamp_type != kind:
            return count
    return limit
