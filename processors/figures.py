"""A worker's counters, and a snapshot of its tasks about once a second.

Only the worker's loop writes; any thread may read. A snapshot is complete before it replaces the
previous one. The exporters decide which figures to show, and under which names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from onceflow.processors.lanes import Run
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import AbortReason

PICTURED_S: Final = 1.0
"""Seconds between two snapshots of the tasks."""
COMMIT_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of commit times."""


@dataclass(frozen=True, slots=True)
class TaskPicture:
    """A snapshot of one task.

    Attributes:
        name: Its sub-topology and partition.
        status: Name of its status: OPENING, RESTORING or RUNNING.
        state_bytes: Size of its committed state; None without state, or if it is not known.
    """

    name: str
    status: str
    state_bytes: int | None


@dataclass(frozen=True, slots=True)
class WorkerPicture:
    """A snapshot of one worker.

    Attributes:
        at_s: Its time, by the monotonic clock.
        joined: Whether the worker is a member of its group and has its partitions.
        tasks: Its tasks.
        places: Committed offset by input partition.
        restoring: Offsets that are left to replay, by changelog partition.
        copies: Offsets by which the copy of another worker's task is behind, by task.
    """

    at_s: float
    joined: bool
    tasks: tuple[TaskPicture, ...] = ()
    places: Mapping[TopicPartition, int] = field(default_factory=dict)
    restoring: Mapping[TopicPartition, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        """Whether it is in its group and its state is restored."""
        return self.joined and all(task.status == "RUNNING" for task in self.tasks)


@dataclass(slots=True)
class FunctionCounts:
    """Calls of one function by their outcome; those of aborted units count too.

    Attributes:
        processed: Calls that succeeded, for records and for rows that fell due.
        failed: Calls that failed, each attempt.
        dead_letters: Records that became dead letters.
    """

    processed: int = 0
    failed: int = 0
    dead_letters: int = 0


@dataclass
class WorkerFigures:
    """Counters of a process's workers, one after the other, and the latest snapshot.

    Attributes:
        dead_letter_topics: Topics of dead letters.
        polled: Polled records by topic; those that are read again count again.
        latest_ms: Timestamp of the last polled record, by partition.
        committed_records: Records of committed units.
        committed_units: Committed units.
        aborted_units: Aborted units by reason.
        outputs: Committed outputs by topic, including changelogs and dead letters.
        commit_classes: Commits by the first of ``COMMIT_BOUNDS_S`` that they did not exceed.
        commit_seconds: Duration of all commits together.
        commit_takers: Called with the seconds of each commit, in the worker's thread.
        functions: Calls by name of the function.
        picture: The latest snapshot; None before the first.
    """

    dead_letter_topics: Collection[str] = ()
    polled: Counter[str] = field(default_factory=Counter)
    latest_ms: dict[TopicPartition, int] = field(default_factory=dict)
    committed_records: int = 0
    committed_units: int = 0
    aborted_units: Counter[AbortReason] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    commit_classes: list[int] = field(default_factory=lambda: [0] * (len(COMMIT_BOUNDS_S) + 1))
    commit_seconds: float = 0.0
    commit_takers: list[Callable[[float], None]] = field(default_factory=list)
    functions: dict[str, FunctionCounts] = field(default_factory=dict)
    picture: WorkerPicture | None = None
    _pending: Counter[str] = field(default_factory=Counter)

    def begin(
        self, dead_letter_topics: Collection[str], functions: Iterable[str]
    ) -> dict[str, FunctionCounts]:
        """Keep the counters and drop the former worker's snapshot, because a worker begins.

        Args:
            dead_letter_topics: Topics of dead letters.
            functions: Names of its functions.

        Returns:
            The counts of its functions.
        """
        self.dead_letter_topics = dead_letter_topics
        self.picture = None
        self.latest_ms.clear()
        self._pending.clear()
        found = {name: self.functions.get(name, FunctionCounts()) for name in functions}
        self.functions = found  # Replaced as a whole, because other threads read it.
        return found

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for another snapshot.

        Args:
            now_s: Monotonic seconds.
        """
        return self.picture is None or now_s - self.picture.at_s >= PICTURED_S

    def took(self, records: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Count polled records.

        Args:
            records: By partition, in order.
        """
        for partition, found in records.items():
            if found:
                self.polled[partition.topic] += len(found)
                self.latest_ms[partition] = found[-1].timestamp_ms

    def sent(self, runs: Iterable[Run]) -> None:
        """Count outputs of the open unit.

        Args:
            runs: The outputs.
        """
        for run in runs:
            self._pending[run.topic] += len(run.values)

    def committed(self, records: int) -> None:
        """Count a committed unit.

        Args:
            records: How many records it held.
        """
        self.committed_units += 1
        self.committed_records += records
        self.outputs.update(self._pending)
        self._pending.clear()

    def aborted(self, reason: AbortReason) -> None:
        """Count an aborted unit.

        Args:
            reason: The cause.
        """
        self.aborted_units[reason] += 1
        self._pending.clear()

    def commit_took(self, seconds: float) -> None:
        """Count the duration of a commit.

        Args:
            seconds: The duration.
        """
        place = next(
            (n for n, bound in enumerate(COMMIT_BOUNDS_S) if seconds <= bound),
            len(COMMIT_BOUNDS_S),
        )
        self.commit_classes[place] += 1
        self.commit_seconds += seconds
        for take in self.commit_takers:
            take(seconds)

    @property
    def dead_letters(self) -> int:
        """Committed dead letters."""
        return sum(self.outputs[topic] for topic in self.dead_letter_topics)
