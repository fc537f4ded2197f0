"""Reports of a run, by task: records, outputs, dead letters, commits.

Only committed work counts; aborted work counts when it is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onceflow.processors.lanes import Lane, Lanes
from onceflow.processors.policies import DeadLetterMeter
from onceflow.processors.task import Task, TaskId


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The work of a run in one task.

    Attributes:
        name: The sub-topology, by its first input topic.
        partition: Partition number.
        records: Processed records.
        outputs: Records written to topics, without dead letters and changelogs.
        dead_letters: Dead letters.
        commits: Commits with work of this task.
    """

    name: str
    partition: int
    records: int = 0
    outputs: int = 0
    dead_letters: int = 0
    commits: int = 0


@dataclass(frozen=True, slots=True)
class RunReport:
    """The work of a run.

    Attributes:
        tasks: By sub-topology and partition.
        reached_end: Whether a bounded run has processed all records of its start; False for a run
            without an end.
        aborts: Aborted units, whose records were read again.
    """

    tasks: Sequence[TaskReport] = ()
    reached_end: bool = False
    aborts: int = 0

    @property
    def records(self) -> int:
        """Processed records."""
        return sum(task.records for task in self.tasks)

    @property
    def outputs(self) -> int:
        """Records written to topics, without dead letters and changelogs."""
        return sum(task.outputs for task in self.tasks)

    @property
    def dead_letters(self) -> int:
        """Dead letters."""
        return sum(task.dead_letters for task in self.tasks)

    def __str__(self) -> str:
        end = "to the end" if self.reached_end else "stopped before the end"
        return (
            f"{end}: {self.records} records in, {self.outputs} out, {self.dead_letters} dead "
            f"letters, {self.aborts} aborts"
        )


def merged(reports: Sequence[RunReport]) -> RunReport:
    """One report of the workers that took each other's places.

    Args:
        reports: Theirs, the last one last.
    """
    tasks: dict[tuple[str, int], TaskReport] = {}
    for task in (task for report in reports for task in report.tasks):
        known = tasks.get((task.name, task.partition), TaskReport(task.name, task.partition))
        tasks[task.name, task.partition] = TaskReport(
            task.name,
            task.partition,
            known.records + task.records,
            known.outputs + task.outputs,
            known.dead_letters + task.dead_letters,
            known.commits + task.commits,
        )
    reached = bool(reports) and reports[-1].reached_end
    aborts = sum(report.aborts for report in reports)
    return RunReport([tasks[place] for place in sorted(tasks)], reached, aborts)


class _Counts:
    __slots__ = ("commits", "dead_letters", "outputs", "records")

    def __init__(self) -> None:
        self.records = self.outputs = self.dead_letters = self.commits = 0

    def add(self, other: _Counts) -> None:
        self.records += other.records
        self.outputs += other.outputs
        self.dead_letters += other.dead_letters
        self.commits += 1


class Tally:
    """Counts the committed work of tasks.

    Args:
        lanes: Collect the outputs of the unit.
        dead_letters: Topics of dead letters.
        meters: Count dead letters against their limits.
    """

    def __init__(
        self, lanes: Lanes, dead_letters: Iterable[str], meters: Iterable[DeadLetterMeter] = ()
    ) -> None:
        self._meters = list(meters)
        self.aborts: int = 0
        self._lanes = lanes
        self._dead: list[Lane] = [lanes.declared(topic) for topic in dict.fromkeys(dead_letters)]
        self._open: dict[TaskId, _Counts] = {}
        self._committed: dict[TaskId, _Counts] = {}
        self._outputs = self._letters = self._records = 0

    def before(self, task: Task) -> None:
        """Note the counts before a step of a task."""
        self._outputs, self._letters = self._lanes.size, self._dead_size()
        self._records = task.taken

    def _dead_size(self) -> int:
        return sum(len(lane.values) for lane in self._dead)

    def after(self, task: Task) -> None:
        """Count the step, which has ended with or without an error."""
        counts = self._open.get(task.id)
        if counts is None:
            counts = self._open[task.id] = _Counts()
        letters = self._dead_size() - self._letters
        counts.dead_letters += letters
        counts.outputs += self._lanes.size - self._outputs - letters
        counts.records += task.taken - self._records

    def committed(self) -> None:
        """Add the counts of the committed unit."""
        for meter in self._meters:
            meter.committed()
        for id, counts in self._open.items():
            if counts.records or counts.outputs or counts.dead_letters:
                self._committed.setdefault(id, _Counts()).add(counts)
        self._open.clear()

    def dropped(self) -> None:
        """Drop the counts of an aborted or emptied unit."""
        for meter in self._meters:
            meter.dropped()
        self.aborts += any(counts.records for counts in self._open.values())
        self._open.clear()

    def report(self, *, reached_end: bool) -> RunReport:
        """Return the report so far.

        Args:
            reached_end: Whether a bounded run has reached its end.
        """
        return RunReport(
            [
                TaskReport(*id, counts.records, counts.outputs, counts.dead_letters, counts.commits)
                for id, counts in sorted(self._committed.items())
            ],
            reached_end,
            self.aborts,
        )
