"""The inbox of a task: records that were polled and are not processed yet.

Polled records are in the inbox of their task and nowhere else, so a task whose partition is lost
takes all of its records with it. With several inputs the smallest timestamp comes first (KIP-695):
a task waits for an input that has records at the broker until they arrive, and for one that it has
read to its end for ``max_task_idle_ms``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

TimeOfRecord = Callable[[ConsumerRecord], int]
NO_TIMES: Final[Mapping[str, TimeOfRecord]] = {}


class Inbox:
    """Records of one input, in order.

    Args:
        partition: The input.

    Attributes:
        timed: Offset of the record whose event time is known.
        time_ms: That event time.
        idle_since_ms: When it was first seen empty and read to its end; None while it is not.
    """

    __slots__ = ("_later", "idle_since_ms", "index", "partition", "records", "time_ms", "timed")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition: TopicPartition = partition
        self.records: Sequence[ConsumerRecord] = ()
        self.index: int = 0
        self.timed: int = -1
        self.time_ms: int = 0
        self.idle_since_ms: int | None = None
        self._later: deque[Sequence[ConsumerRecord]] = deque()

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        """Add polled records."""
        self.idle_since_ms = None
        if self.index >= len(self.records) and not self._later:
            self.records, self.index = records, 0
        else:
            self._later.append(records)

    def head(self) -> ConsumerRecord | None:
        """Return the next record, or None."""
        return self.records[self.index] if self.index < len(self.records) else None

    def advance(self, count: int) -> None:
        """Remove processed records of the first batch."""
        self.index += count
        if self.index >= len(self.records) and self._later:
            self.records, self.index = self._later.popleft(), 0

    def clear(self) -> None:
        """Drop all records: they are read again, or belong to another worker."""
        self.records, self.index = (), 0
        self.idle_since_ms = None
        self._later.clear()

    def __len__(self) -> int:
        return len(self.records) - self.index + sum(map(len, self._later))

    def __bool__(self) -> bool:
        return self.index < len(self.records)


class Inboxes:
    """The inboxes of a task, and the order in which records are taken from them.

    Args:
        partitions: The inputs of the task.
        idle_ms: Wait for an input that was read to its end (``max_task_idle_ms``); -1 never waits,
            not even for records that the broker has.
        first: Inputs that are read to their ends before any other (tables).
        times: By topic: returns the time by which records are ordered, if it is not their
            timestamp.
    """

    __slots__ = (
        "_at_end",
        "_first",
        "_idle_ms",
        "_tables",
        "_times",
        "_until_ms",
        "all",
        "by_partition",
    )

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        idle_ms: int = 0,
        first: Iterable[TopicPartition] = (),
        times: Mapping[str, TimeOfRecord] = NO_TIMES,
    ) -> None:
        self._times: Mapping[str, TimeOfRecord] = times
        self._tables: frozenset[TopicPartition] = frozenset(first)
        self._first: set[TopicPartition] = set(first)
        self.by_partition: dict[TopicPartition, Inbox] = {tp: Inbox(tp) for tp in partitions}
        self.all: tuple[Inbox, ...] = tuple(self.by_partition.values())
        self._idle_ms = idle_ms
        self._until_ms: int | None = None
        self._at_end: set[TopicPartition] = set()

    def put(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Add polled records of one input."""
        self._at_end.discard(partition)  # When these are processed, more may follow.
        self.by_partition[partition].put(records)

    def next(self, now_ms: int) -> Inbox | None:
        """Return the inbox with the smallest timestamp; of equal ones the first input's.

        None means that there are no records, or that the task waits for an empty input. It waits
        once for each input that was read to its end, from when that was first seen idle until it
        gets records (KIP-353, KIP-695), also while no other input has records.
        """
        if len(self.all) == 1:
            only = self.all[0]
            return only if only else None
        if self._first:
            return next(
                (self.by_partition[tp] for tp in self._first if self.by_partition[tp]), None
            )
        found: Inbox | None = None
        stamp = 0
        misses = False
        idle_since_ms: int | None = None  # Of the input that has been idle for the shortest time.
        for inbox in self.all:
            head = inbox.head()
            if head is not None:
                time_ms = head.timestamp_ms if not self._times else self._time_of(inbox, head)
                if found is None or time_ms < stamp:
                    found, stamp = inbox, time_ms
            elif inbox.partition not in self._at_end:
                misses = True
            else:
                if inbox.idle_since_ms is None:
                    inbox.idle_since_ms = now_ms
                if idle_since_ms is None or inbox.idle_since_ms > idle_since_ms:
                    idle_since_ms = inbox.idle_since_ms
        self._until_ms = None
        if found is None or self._idle_ms < 0:
            return found
        if misses:  # The broker may have an earlier record of it.
            return None
        if idle_since_ms is None or now_ms - idle_since_ms >= self._idle_ms:
            return found
        self._until_ms = idle_since_ms + self._idle_ms
        return None

    def run_length(self, inbox: Inbox, most: int) -> int:
        """Return how many records come from an input before another input has its turn.

        Args:
            inbox: The result of ``next``.
            most: Most records to take.
        """
        if self._times:
            return 1
        until: int | None = None  # From this time on another input has its turn.
        is_before = True
        for other in self.all:
            head = other.head()
            if other is inbox:
                is_before = False
            elif head is not None:
                time_ms = head.timestamp_ms + (0 if is_before else 1)
                until = time_ms if until is None else min(until, time_ms)
        first, stop = inbox.index, min(len(inbox.records), inbox.index + most)
        if until is None:
            return stop - first
        for place in range(first + 1, stop):
            if inbox.records[place].timestamp_ms >= until:
                return place - first
        return stop - first

    def _time_of(self, inbox: Inbox, head: ConsumerRecord) -> int:
        """Return the event time of the next record, which is computed once."""
        if inbox.timed != head.offset:
            time_of = self._times.get(head.topic)
            inbox.time_ms = head.timestamp_ms if time_of is None else time_of(head)
            inbox.timed = head.offset
        return inbox.time_ms

    def waits_until_ms(self) -> int | None:
        """Return when the wait for inputs at their ends is over; None without such a wait."""
        return self._until_ms

    def note_end(self, partition: TopicPartition, at_end: bool) -> None:
        """Note whether an input was read to its end, by the broker's last answer."""
        if at_end:
            self._at_end.add(partition)
            self._first.discard(partition)
        else:
            self._at_end.discard(partition)
            self.by_partition[partition].idle_since_ms = None

    def committed(self, partitions: Iterable[TopicPartition]) -> None:
        """Note committed inputs: after the first record of a stream, tables are read by time."""
        if self._tables and not self._tables.issuperset(partitions):
            self._tables = frozenset()

    def empty(self) -> list[TopicPartition]:
        """Return the inputs without a record."""
        return [inbox.partition for inbox in self.all if not inbox]

    def full(self, most: int) -> list[TopicPartition]:
        """Return the inputs to pause, of several: they have enough records and wait for others.

        Args:
            most: Records of one input that are enough.
        """
        if len(self.all) == 1:
            return []
        return [inbox.partition for inbox in self.all if len(inbox) >= most]

    def clear(self) -> None:
        """Drop all records; tables are read to their ends again before the first other record."""
        for inbox in self.all:
            inbox.clear()
        self._at_end.clear()  # Reading continues from an earlier offset.
        self._until_ms = None
        self._first.update(self._tables)

    def __len__(self) -> int:
        return sum(map(len, self.all))
