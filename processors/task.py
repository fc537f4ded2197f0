"""A task: one sub-topology on one partition number, with its records, state and progress.

Inbox, current record, state and progress are in the task and nowhere else, so they all go when its
partition is lost. A record that waits for another attempt holds up only its own task. Tasks never
wait and read only the unit's clock; the worker drives them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from onceflow.processors.errors import (
    ParkingFullError,
    ProcessingError,
    StateCorruptedError,
    StateDirectoryError,
)
from onceflow.processors.frame import Due
from onceflow.processors.inbox import Inbox, Inboxes
from onceflow.processors.job import Doomed, DoomedRow, Job, Waiting
from onceflow.processors.nodes.base import Program, WorkNode
from onceflow.processors.overlap import InFlight, Overlap
from onceflow.processors.state.store import Store
from onceflow.processors.state.task_state import TaskState
from onceflow.processors.unit import DueRows, Place, Unit
from onceflow.sdk.errors import RecordError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition

logger: logging.Logger = logging.getLogger("onceflow.processors")


class TaskId(NamedTuple):
    """Names a task within its application.

    Attributes:
        part: Name of the sub-topology.
        partition: Partition number of its inputs.
    """

    part: str
    partition: int

    def __str__(self) -> str:
        return f"{self.part}-{self.partition}"


class TaskStatus(enum.Enum):
    """Stages in the life of a task."""

    OPENING = "waiting for a former owner to release the store"
    RESTORING = "replaying the changelog"
    RUNNING = "processing"
    CLOSED = "its partition is gone"


class Task:
    """One sub-topology on one partition number.

    Args:
        id: Its name.
        program: The nodes that run.
        inputs: Its input partitions.
        state: Its state, or None if no node has any.
        idle_ms: Longest wait for an input without records, with several inputs.
        first: Inputs that are read to their ends before any other.
        in_flight: The running calls of the worker, for functions with ``concurrency=``.

    Attributes:
        id: Its name.
        inputs: Its input partitions.
        inboxes: Records that were polled and are not processed yet.
        state: Its state, or None.
        status: Its stage.
        progress: By input: the offset after the processed records that are not committed.
        fired: How many due rows were processed since the last commit.
        rows: Names its due rows in the unit's progress.
        waiting: The record that is tried again later, if any. It outlives an abort, so that
            attempts stay counted when the record is read again.
        held_until_s: Time until which it takes no records, after unexplained aborts.
        doomed: The errors of records and due rows whose outputs were refused.
        taken: Records that it has processed since it was made.
        overlap: Its overlapping calls; None if it makes one call at a time.
        stores: Its open stores.
    """

    __slots__ = (
        "_buried",
        "_given_up",
        "_job",
        "_last_row",
        "_program",
        "_rows_done",
        "_slice_nodes",
        "doomed",
        "fired",
        "held_until_s",
        "id",
        "inboxes",
        "inputs",
        "overlap",
        "progress",
        "rows",
        "state",
        "status",
        "stores",
        "taken",
        "waiting",
    )

    def __init__(
        self,
        id: TaskId,
        program: Program,
        inputs: Sequence[TopicPartition],
        state: TaskState | None,
        idle_ms: int = 0,
        first: Sequence[TopicPartition] = (),
        in_flight: InFlight | None = None,
    ) -> None:
        self.id: TaskId = id
        self.inputs: tuple[TopicPartition, ...] = tuple(inputs)
        self.inboxes: Inboxes = Inboxes(self.inputs, idle_ms, first, program.times)
        self.state: TaskState | None = state
        self.status: TaskStatus = TaskStatus.RUNNING if state is None else TaskStatus.OPENING
        self.progress: dict[TopicPartition, int] = {}
        self.fired: int = 0
        self.rows: DueRows = DueRows(str(id))
        self.taken: int = 0
        self.waiting: Waiting | None = None
        self.held_until_s: float = 0.0
        self.doomed: dict[Doomed | DoomedRow, RecordError] = {}
        self._buried: set[Doomed | DoomedRow] = set()
        self._given_up: set[Doomed | DoomedRow] = set()
        self._last_row: DoomedRow | None = None
        self._rows_done: int = 0
        self._program = program
        self._slice_nodes = {tp.topic: program.slices(tp.topic) for tp in self.inputs}
        self.stores: Mapping[str, Store] = {}
        self._job: Job | None = None
        self.overlap: Overlap | None = None
        if in_flight is not None and program.calls_max > 1:
            self.overlap = Overlap(self, program, self.inboxes, in_flight)

    def run(self) -> None:
        """Begin to process records, as the state is complete."""
        self.status = TaskStatus.RUNNING
        if self.state is not None:
            self.stores = self.state.stores

    # Records -------------------------------------------------------------------------------

    def put(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Take what a poll gave."""
        self.inboxes.put(partition, records)

    def blocked_until_s(self, now_s: float) -> float | None:
        """Until when no record may be processed; None when nothing is in the way."""
        waiting = self.waiting
        if now_s < self.held_until_s:
            return self.held_until_s
        if self.overlap is not None:
            return None  # Its other keys continue while one of its records waits.
        if waiting is not None and now_s < waiting.not_before_s and self._is_next(waiting):
            return waiting.not_before_s
        return None

    def ready_s(self, now_s: float) -> float | None:
        """When the task can continue: now, at a later time, or None if it has nothing to do."""
        if self.status is not TaskStatus.RUNNING:
            return None
        blocked_s = self.blocked_until_s(now_s)
        if blocked_s is not None:
            return blocked_s
        if self.overlap is not None:
            return self.overlap.ready_s(now_s)
        if self._job is not None or self.inboxes.next(int(now_s * 1000)) is not None:
            return now_s
        until_ms = self.inboxes.waits_until_ms()
        until_s = None if until_ms is None else until_ms / 1000
        for node in self._program.timed:
            waits_ms = node.waits_ms(self.stores)
            if waits_ms is not None:
                due_s = now_s + waits_ms / 1000
                until_s = due_s if until_s is None else min(until_s, due_s)
        return until_s

    def _is_next(self, waiting: Waiting) -> bool:
        """Whether the waiting record is the one to be processed next."""
        if self._job is not None:
            return True
        inbox = self.inboxes.by_partition.get(waiting.partition)
        head = None if inbox is None else inbox.head()
        return head is not None and head.offset >= waiting.offset

    @property
    def busy(self) -> bool:
        """Whether calls of it run while no step is awaited."""
        return self.overlap is not None and self.overlap.busy

    @property
    def has_records(self) -> bool:
        """Whether it holds records that are not in the unit."""
        if self._job is not None or any(self.inboxes.all):
            return True
        return self.overlap is not None and self.overlap.holds

    def retry_s(self) -> float | None:
        """When the next attempt at a record that failed is due."""
        if self.overlap is not None:
            return self.overlap.retry_s()
        return None if self.waiting is None else self.waiting.not_before_s

    def full(self, most: int) -> list[TopicPartition]:
        """Inputs that are to be polled no further for now.

        Args:
            most: Records of one input that are kept.
        """
        if self.overlap is not None:
            # A step may leave records in the inbox, so nothing else limits it.
            return [inbox.partition for inbox in self.inboxes.all if len(inbox) >= most]
        return self.inboxes.full(most)

    def drain(self, draining: bool) -> None:
        """Stop or resume beginning overlapping calls.

        Args:
            draining: Whether to begin none.
        """
        if self.overlap is not None:
            self.overlap.draining = draining

    async def step(self, unit: Unit) -> None:
        """Process records until none is left, the unit is due or full, or one must wait.

        Calls that overlap are begun and go on behind it; what is done reaches the unit.

        Raises:
            ProcessingError: A record failed and the policy is to stop. What precedes it is in the
                unit, and nothing of it.
            StateDirectoryError: State cannot be read; no record is to blame.
        """
        if self.overlap is not None:
            self.overlap.step(unit)
            self._note_size(unit)
            return
        while (now_s := self.ready_s(unit.clock())) is not None and now_s <= unit.clock():
            if unit.room <= 0:
                return
            if self._program.timed and self._job is None:
                self._take_due()
            if not self._took_slice(unit):
                await self._take_record(unit)
            self._note_size(unit)
            if unit.clock() >= unit.due_s:
                return

    def _note_size(self, unit: Unit) -> None:
        if self.state is not None and self.state.size_bytes >= unit.bytes_max:
            unit.due_s = 0.0  # Uncommitted state is in memory: commit.

    def _took_slice(self, unit: Unit) -> bool:
        """Process a run of records straight into the unit, if a node can; return whether."""
        if self._job is not None or self.doomed:
            return False
        inbox = self.inboxes.next(int(unit.clock() * 1000))
        node = None if inbox is None else self._slice_nodes[inbox.partition.topic]
        if inbox is None or node is None:
            return False
        waiting = self.waiting
        if waiting is None or waiting.partition != inbox.partition:
            count = self.inboxes.run_length(inbox, unit.room)
        elif inbox.records[inbox.index].offset >= waiting.offset:
            return False  # The failed record needs its count of attempts.
        else:
            count = 1
        is_parked = node.failures.is_parked
        if is_parked is not None:
            records, start = inbox.records, inbox.index
            parked = (n for n in range(count) if is_parked(self.stores, records[start + n].key))
            count = next(parked, count)
            if not count:
                return False  # Earlier records of its key are parked, so it is parked too.
        self._take_slice(unit, node, inbox, count)
        return True

    def _take_slice(self, unit: Unit, node: WorkNode, inbox: Inbox, count: int) -> None:
        records, start = inbox.records, inbox.index
        stop = start + count
        done, error = node.run_slice(records, start, stop, self.stores, unit)
        if done > start:
            node.failures.tally.processed += done - start
            unit.count += done - start
            self.taken += done - start
            self.progress[inbox.partition] = records[done - 1].offset + 1
            inbox.advance(done - start)
        if error is not None:
            self._job = job = Job(inbox, records[done], (node,))
            self._after_failure(job, node, error, 1, unit)

    def _take_due(self) -> None:
        """Take a due row, which comes before the next record."""
        for node in self._program.timed:
            due = node.next_due(self.stores, self.id.partition)
            if due is not None:
                job = self._job = Job(None, due.record, (node,), due)
                refused = self.doomed.get(job.where) if self.doomed else None
                if refused is not None:
                    self.give_up_outputs(job, refused)
                return

    async def _take_record(self, unit: Unit) -> None:
        """Make the calls of one record or due row, until all are made or one must wait."""
        job = self._job
        if job is None:
            inbox = self.inboxes.next(int(unit.clock() * 1000))
            if inbox is None:
                return
            record = inbox.records[inbox.index]
            job = self._job = Job(inbox, record, self._program.roots[record.topic])
            refused = self.doomed.get(job.where) if self.doomed else None
            if refused is not None:
                self.give_up_outputs(job, refused)
        while job.agenda:
            node = job.agenda[-1][0]
            attempt = job.attempt(self.waiting)
            try:
                await job.make_call(self._program, self.stores, attempt)
                if attempt > 1:
                    self.waiting = None
            except Exception as error:  # noqa: BLE001 - any failure of a handler meets the policy
                if not self._after_failure(job, node, error, attempt, unit):
                    return
            if self._job is not job:
                return  # The partition was lost while a handler was awaited.
        job.frame.keep()
        self.finished(job, unit)

    def finished(self, job: Job, unit: Unit) -> None:
        """Note that all calls of a record or due row are in the unit."""
        self._job = None
        unit.count += 1
        if job.inbox is None:
            self.fired += 1
            self._last_row = cast(DoomedRow, job.where)
        else:
            self.taken += 1
            self.progress[job.inbox.partition] = job.record.offset + 1
            if self.overlap is None:
                job.inbox.advance(1)
        waiting = self.waiting
        if (
            waiting is not None
            and waiting.partition == job.partition
            and waiting.offset <= job.record.offset
        ):
            self.waiting = None

    # Failures ------------------------------------------------------------------------------

    def _after_failure(
        self, job: Job, node: WorkNode, error: Exception, attempt: int, unit: Unit
    ) -> bool:
        """Apply the policy; return whether the record's other calls continue now.

        Raises:
            ProcessingError: The policy is to stop.
        """
        if isinstance(error, ProcessingError | StateDirectoryError):
            self._job = None
            if isinstance(error, StateCorruptedError) and self.state is not None:
                self.state.note_damage()
            raise error  # With the latter the state is in doubt, for all records.
        if isinstance(error, ParkingFullError):
            not_before_s = round(unit.clock() + error.wait_ms / 1000, 6)
            self.waiting = Waiting(job.partition, job.record.offset, -1, 0, not_before_s)
            self._job = None  # Otherwise the parked records would wait for this one.
            return False
        try:
            delay_ms = node.failures.retry_delay_ms(job.record, error, attempt)
            if delay_ms is not None and node.failures.parks is not None:
                item = job.agenda[-1][1]
                parked = node.failures.parks(job.frame, self.stores, item, attempt, delay_ms)
                if parked:
                    job.call_done()
                    return True
                delay_ms = delay_ms if parked is False else None
            if delay_ms is not None:
                self.waiting = Waiting(
                    job.partition,
                    job.record.offset,
                    job.calls,
                    attempt,
                    round(unit.clock() + delay_ms / 1000, 6),
                )
                return delay_ms == 0
            self.give_up(job, node, error, attempt)
        except ProcessingError:
            self._job = None
            raise
        if attempt > 1:
            self.waiting = None
        return True

    def give_up(self, job: Job, node: WorkNode, error: Exception, attempt: int) -> None:
        """Apply the policy to a call after its last attempt; the record continues without it.

        Raises:
            ProcessingError: The policy is to stop.
        """
        letter = node.failures.give_up(job.record, error, attempt)
        if letter is not None:
            job.frame.outputs.append(letter)
        item = job.agenda[-1][1]
        if isinstance(item, Due):
            item.forget(job.frame)  # Otherwise it would stay due.
        job.call_done()

    def refuse_outputs(self, place: Place, upto: int, error: RecordError) -> None:
        """Note that the brokers refuse outputs of the last record or row: give it up the next time.

        Args:
            place: Its input, or the rows of the task that fall due.
            upto: The place after it.
            error: What the brokers say.

        Raises:
            ProcessingError: It was given up already, so what they refuse is its dead letter.
        """
        where: Doomed | DoomedRow
        if isinstance(place, DueRows):
            assert self._last_row is not None
            where, topic, offset = self._last_row, self._last_row.store, -1
        else:
            where, topic, offset = Doomed(place, upto - 1), place.topic, upto - 1
        if where in self._buried:
            raise ProcessingError(
                f"neither the outputs of {where} nor its dead letter can be delivered: {error}",
                topic,
                self.id.partition,
                offset,
                1,
            ) from error
        logger.warning("outputs of %s cannot be delivered: %s", where, error)
        self.doomed[where] = error

    def give_up_outputs(self, job: Job, error: RecordError) -> None:
        """Apply the policies to a record or row whose outputs the brokers refuse."""
        self._buried.add(job.where)
        self._given_up.add(job.where)
        agenda = list(reversed(job.agenda))
        job.agenda.clear()
        for node, item in agenda:
            try:
                letter = node.failures.give_up(job.record, error, 1)
            except ProcessingError:
                self._job = None
                raise
            if letter is not None:
                job.frame.outputs.append(letter)
            if isinstance(item, Due):
                item.forget(job.frame)

    # The unit ------------------------------------------------------------------------------

    @property
    def reached(self) -> dict[Place, int]:
        """The unit's progress in this task: in its inputs, and in its due rows."""
        found: dict[Place, int] = {}
        found.update(self.progress.items())
        if self.fired:
            found[self.rows] = self._rows_done + self.fired
        return found

    def committed(self) -> bool:
        """Apply the committed unit to the state.

        Returns:
            Whether something is dealt with whose outputs were refused.
        """
        if self.state is not None and self.stores:
            self.state.committed()
        done = bool(self._given_up)
        for where in self._given_up:
            self.doomed.pop(where, None)
            self._buried.discard(where)
        self._given_up.clear()
        self.inboxes.committed(self.progress)
        self.progress.clear()
        self._rows_done += self.fired
        self.fired = 0
        return done

    def aborted(self) -> None:
        """Drop records and uncommitted state after an abort; the records are read again."""
        if self.overlap is not None:
            self.overlap.drop()
        self.inboxes.clear()
        self._job = None
        self.progress.clear()
        self._given_up.clear()
        self.fired = 0
        if self.waiting is not None and self.waiting.partition not in self.inputs:
            self.waiting = None  # It was a due row, which may not be due any more.
        if self.state is not None and self.stores:
            self.state.aborted()

    def close(self) -> None:
        """Drop all records and close the state, as the partition is gone."""
        self.status = TaskStatus.CLOSED
        if self.overlap is not None:
            self.overlap.drop()
        self.inboxes.clear()
        self._job = None
        self.progress.clear()
        self.stores = {}
        if self.state is not None:
            self.state.close()
