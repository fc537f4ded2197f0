"""Decides which partitions a worker takes no records of for now."""

from __future__ import annotations

from collections.abc import Iterable

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.ledger.base import Ledger
from onceflow.processors.task import TaskStatus
from onceflow.processors.worker.inputs import BadInputs
from onceflow.processors.worker.run_end import RunEnd
from onceflow.sdk.model.partitions import TopicPartition


class Pauses:
    """The paused partitions of one worker.

    Args:
        tasks: The worker's tasks.
        bad: Partitions that cannot be read.
        run_end: The end of a bounded run.

    Attributes:
        paused: The partitions that are paused now.
    """

    def __init__(self, tasks: Tasks, bad: BadInputs, run_end: RunEnd | None) -> None:
        self._tasks = tasks
        self._bad = bad
        self._run_end = run_end
        self.paused: set[TopicPartition] = set()

    def replace(self, gone: Iterable[TopicPartition], added: Iterable[TopicPartition] = ()) -> None:
        """Note partitions whose pauses an assignment has ended, and those that it paused.

        Args:
            gone: Not paused any more.
            added: Paused by the ledger.
        """
        self.paused.difference_update(gone)
        self.paused.update(added)

    async def pause(self, calls: Calls, ledger: Ledger, partition: TopicPartition) -> None:
        """Pause one partition at once."""
        await calls(ledger.pause([partition]))
        self.paused.add(partition)

    async def hold_back(
        self, calls: Calls, ledger: Ledger, records_max: int, now_s: float, *, held: bool
    ) -> None:
        """Pause partitions whose task waits or whose inbox is full, and resume the others.

        Args:
            calls: Runs what asks brokers.
            ledger: Pauses and resumes.
            records_max: Most records that a poll returns.
            now_s: Monotonic seconds.
            held: Whether the whole worker is paused.
        """
        wanted: set[TopicPartition] = set()
        for task in self._tasks:
            if task.status is not TaskStatus.RUNNING:
                wanted.update(task.inputs)
                continue
            if task.blocked_until_s(now_s) is not None:
                # Go on reading the empty ones of several inputs: a record that arrives may be
                # earlier than those in the inboxes (KIP-695).
                empty = task.inboxes.empty() if len(task.inputs) > 1 else []
                wanted.update(tp for tp in task.inputs if tp not in empty)
            else:
                wanted.update(task.full(records_max))
        if held:
            wanted |= self._tasks.owned
        wanted |= self._bad.held()
        if self._run_end is not None:
            wanted |= self._run_end.passed() & self._tasks.owned
        wanted |= self._tasks.incomplete
        if wanted != self.paused:
            pause, resume = wanted - self.paused, self.paused - wanted
            if pause:
                await calls(ledger.pause(sorted(pause)))
            if resume:
                owned = self._tasks.owned
                await calls(ledger.resume(sorted(resume & owned)))
            self.paused = wanted
