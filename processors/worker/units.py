"""Ends a worker's units, and gives the ledger what it asks for: outputs, offsets, tasks.

The ledger decides how a unit ends (``ledger``). This module decides what follows for the tasks: the
state of a committed unit reaches the maps, and an aborted one is read again. If the brokers refuse
an output, the next units are halved until the record at fault is alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.copies import Copies
from onceflow.processors.figures import WorkerFigures
from onceflow.processors.lanes import Run
from onceflow.processors.notes import encode_note
from onceflow.processors.report import Tally
from onceflow.processors.task import Task, TaskStatus
from onceflow.processors.unit import Place, Unit
from onceflow.processors.worker.connections import Connections
from onceflow.processors.worker.inputs import BadInputs
from onceflow.processors.worker.pauses import Pauses
from onceflow.processors.worker.run_end import RunEnd
from onceflow.sdk.errors import RecordError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import Abort

logger: logging.Logger = logging.getLogger("onceflow.processors")


class Units:
    """The units of one worker: the ``LedgerOwner`` of its ledger.

    Args:
        unit: The open unit.
        tasks: The worker's tasks.
        connections: The worker's clients.
        copies: Copies of the state of tasks.
        bad: Partitions that cannot be read.
        pauses: Partitions that are paused.
        run_end: The end of a bounded run.
        tally: Counts for the report.
        figures: Counts for the metrics.
        clock: Monotonic seconds.

    Attributes:
        was_aborted: Whether a unit was aborted since the worker set this to False.
        joined: Whether the group has assigned partitions in the present session.
    """

    def __init__(
        self,
        unit: Unit,
        tasks: Tasks,
        connections: Connections,
        copies: Copies,
        bad: BadInputs,
        pauses: Pauses,
        run_end: RunEnd | None,
        tally: Tally,
        figures: WorkerFigures,
        clock: Callable[[], float],
    ) -> None:
        self._unit = unit
        self._tasks = tasks
        self._connections = connections
        self._copies = copies
        self._bad = bad
        self._pauses = pauses
        self._run_end = run_end
        self._tally = tally
        self._figures = figures
        self._clock = clock
        self._failed: dict[Place, int] = {}
        self._failed_count = 0
        self.was_aborted: bool = False
        self.joined: bool = False

    # Ending units --------------------------------------------------------------------------

    async def push(self, calls: Calls) -> None:
        """Send outputs early, so that they are under way while the next records are processed."""
        if self._unit.is_careful or not self._unit.lanes.size:
            return
        runs = self._unit.lanes.take()
        self._figures.sent(runs)
        ledger = self._connections.ledger
        try:
            if not await calls(ledger.send(runs)):
                self._unit.check_exhausted(ledger.last_abort)
        except RecordError as error:
            self.suspect(error)

    async def commit(self, calls: Calls) -> bool:
        """Commit the unit; return False if it became an abort."""
        if not self._unit.count:
            return True
        began_s = self._clock()
        ledger = self._connections.ledger
        try:
            done = await calls(ledger.commit())
        except RecordError as error:
            self.suspect(error)
            return False
        if done:
            self._figures.commit_took(self._clock() - began_s)
        else:
            self._unit.check_exhausted(ledger.last_abort)
        return done

    def suspect(self, error: RecordError) -> None:
        """Find the record or due row whose outputs the brokers refuse, by halving units.

        Args:
            error: Why they refuse them.

        Raises:
            TooManyAbortsError: No unit succeeds any more.
        """
        if self._failed_count == 1 and len(self._failed) == 1:
            ((place, upto),) = self._failed.items()
            for task in self._tasks:
                if place in task.inputs or place == task.rows:
                    task.refuse_outputs(place, upto, error)
        else:
            self._unit.suspect(self._failed, self._failed_count)
        self._unit.check_exhausted(error)

    def drop(self) -> None:
        """Drop the unit, and release all tasks, as the session is over."""
        for task in self._tasks:
            task.aborted()
            self._unit.forget(task.rows)
        if self._run_end is not None:
            self._run_end.read_again(self._tasks.owned)
        self._tasks.release_all()
        self._tally.dropped()
        self._unit.clear()
        self._pauses.paused.clear()
        self._bad.clear()
        self.joined = False

    # What the ledger calls -----------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Make tasks; those with state stay paused until it is restored."""
        if partitions:
            logger.info("assigned %s", ", ".join(map(str, partitions)))
        self.joined = True
        waiting = self._tasks.assign(partitions)
        self._pauses.replace(partitions, waiting)
        return waiting

    def collect(self) -> list[Run]:
        """Return the unsent records of the unit: outputs, then state changes."""
        runs = self._unit.lanes.take()
        for task in self._tasks:
            if task.state is not None and task.status is TaskStatus.RUNNING:
                runs += task.state.collect()
        self._figures.sent(runs)
        return runs

    def offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets and notes of the unit, by the tasks' progress."""
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for task in self._tasks:
            progress = self._progress_of(task)
            if progress:
                note = "" if task.state is None else encode_note(task.state.note())
                for partition, offset in progress.items():
                    found[partition] = OffsetAndMetadata(offset, note)
        return found

    def _progress_of(self, task: Task) -> dict[TopicPartition, int]:
        """Return a task's offsets; the committed ones if the unit holds only due rows of it.

        A commit without any offset would not be refused when the partition has another owner.
        """
        if task.progress or not task.fired:
            return task.progress
        places = ((tp, self._connections.ledger.place(tp)) for tp in task.inputs)
        return {tp: place for tp, place in places if place is not None}

    def committed(self) -> None:
        """Write the committed unit's state to the maps."""
        self._tally.committed()
        progress: dict[Place, int] = {}
        for task in self._tasks:
            progress.update(task.reached)
            if task.committed():
                self._unit.found()
        self._figures.committed(self._unit.count)
        self._unit.committed(progress)

    def aborted(self, abort: Abort) -> None:
        """Drop the aborted unit and all polled records, which are read again."""
        self._failed = {}
        for task in self._tasks:
            self._failed.update(task.reached)
            task.aborted()
        self._tally.dropped()
        if self._run_end is not None:
            self._run_end.read_again(self._tasks.owned)
        self._failed_count = self._unit.count
        self._unit.aborted(abort, self._failed)
        self.was_aborted = True
        self._figures.aborted(abort.reason)

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> list[TopicPartition]:
        """Close the stores of lost or revoked partitions, before a successor opens them."""
        if partitions:
            logger.info("%s %s", "lost" if lost else "revoked", ", ".join(map(str, partitions)))
        self._pauses.replace(partitions)
        if lost and any(task.fired for task in self._tasks):
            # Without polled records the session aborts nothing, but the unit holds due rows.
            for task in self._tasks:
                task.aborted()
            self._tally.dropped()
            self._unit.clear()
        for partition in partitions:
            self._unit.forget(partition)
            owner = self._tasks.of(partition)
            if owner is not None:
                self._unit.forget(owner.rows)
            self._bad.forget(partition)
        self._copies.closing(self._tasks, partitions)
        self._tasks.release(partitions)
        self._copies.tell(self._tasks)
        # A task that lost one input is closed; polled records of its others are read again.
        if self._run_end is not None:
            self._run_end.read_again([*partitions, *self._tasks.incomplete])
        kept = sorted(self._tasks.incomplete - self._pauses.paused)
        self._pauses.replace((), kept)
        return kept
