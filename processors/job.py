"""The calls of one record or due row: which are done, and which are left.

A job makes each call in its own frame, on the frame of the record. Its driver decides what follows
a failed call, and when the frame of the record reaches the unit: the task drives one job after the
other, ``overlap`` drives several at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onceflow.processors.frame import Due, Frame, Item
from onceflow.processors.inbox import Inbox
from onceflow.processors.nodes.base import Program, Stores, WorkNode
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition


class Waiting(NamedTuple):
    """A record that failed and is tried again later.

    Attributes:
        partition: Its input partition.
        offset: Its offset.
        call: Number of the call that failed, from 0.
        attempt: Attempts so far.
        not_before_s: When the next attempt is due.
    """

    partition: TopicPartition
    offset: int
    call: int
    attempt: int
    not_before_s: float


class Doomed(NamedTuple):
    """A record whose outputs the brokers refuse.

    Attributes:
        partition: Its input partition.
        offset: Its offset.
    """

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


class DoomedRow(NamedTuple):
    """A due row whose outputs the brokers refuse.

    Attributes:
        store: Name of its store.
        row: Its key in there.
    """

    store: str
    row: bytes

    def __str__(self) -> str:
        return f"a row of {self.store}"


class Job:
    """The calls of one record, or of one due row.

    Args:
        inbox: The inbox of the record; None for a due row.
        record: The record; for a due row, the record that stands for it.
        roots: The nodes that take it.
        due: The due row; None for a record.
        after: The frame of an earlier record of the same key that has not reached the unit.

    Attributes:
        record: The record.
        inbox: The inbox of the record, or None.
        partition: Its partition.
        frame: The effects of its calls.
        due: The due row, or None.
        agenda: Calls that are left; the next one is the last.
        calls: How many calls are done.
    """

    __slots__ = ("agenda", "calls", "due", "frame", "inbox", "partition", "record")

    def __init__(
        self,
        inbox: Inbox | None,
        record: ConsumerRecord,
        roots: Iterable[WorkNode],
        due: Due | None = None,
        after: Frame | None = None,
    ) -> None:
        self.record: ConsumerRecord = record
        self.inbox: Inbox | None = inbox
        self.partition: TopicPartition = (
            record.topic_partition if inbox is None else inbox.partition
        )
        self.frame: Frame = Frame(record, record, after=after)
        self.agenda: list[tuple[WorkNode, Item]] = []
        self.due: Due | None = due
        item: Item = record if due is None else due
        self.agenda.extend((node, item) for node in reversed(tuple(roots)))
        self.calls: int = 0

    async def make_call(self, program: Program, stores: Stores, attempt: int) -> None:
        """Make the next call in its own frame, and add calls for its results.

        Args:
            program: The nodes that run.
            stores: The stores of the task.
            attempt: 1 for the first attempt at this call.
        """
        node, item = self.agenda[-1]
        frame = Frame(self.record, item, attempt, self.frame)
        try:
            if node.is_async:
                await node.call_async(frame, stores)
            else:
                node.call(frame, stores)
        except BaseException:
            frame.drop()
            raise
        frame.keep()
        node.failures.tally.processed += 1
        if node.failures.counts:
            node.failures.good(self.record.partition)
        self.call_done()
        children = program.children.get(node.name, ())
        self.agenda.extend(
            (child, result) for result in reversed(frame.results) for child in reversed(children)
        )

    @property
    def where(self) -> Doomed | DoomedRow:
        """Names the record or row, for the case that its outputs are refused."""
        if self.due is not None:
            return DoomedRow(self.due.store, self.due.row)
        return Doomed(self.partition, self.record.offset)

    def call_done(self) -> None:
        """Go on to the next call of the record."""
        self.agenda.pop()
        self.calls += 1

    def attempt(self, waiting: Waiting | None) -> int:
        """Return the number of the next attempt at the next call.

        Args:
            waiting: The failed attempt before, if there was one.
        """
        if (
            waiting is not None
            and waiting.offset == self.record.offset
            and waiting.partition == self.partition
            and waiting.call == self.calls
        ):
            return waiting.attempt + 1
        item = self.agenda[-1][1]
        return item.attempt + 1 if isinstance(item, Due) else 1
