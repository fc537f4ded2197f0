"""Makes the state of tasks ready: opens their stores, and replays changelogs between polls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.changelog import Restorer
from onceflow.processors.copies import Copies
from onceflow.processors.errors import StateMismatchError
from onceflow.processors.ledger.base import Ledger
from onceflow.processors.notes import decode_note, latest
from onceflow.processors.task import Task, TaskStatus
from onceflow.processors.task_stores import TaskStores

logger: logging.Logger = logging.getLogger("onceflow.processors")

LOCK_TOLD_S: Final = 5.0
"""Seconds between two log lines about a store that another process has locked."""
COMPLETE_NOTED_S: Final = 600.0
"""Seconds between two notes that stores are complete. A store without such a note for longer than
``delete.retention.ms`` is rebuilt, as its changelog may lack deletions."""


class StateOpening:
    """Opens and restores the state of a worker's tasks.

    Args:
        tasks: The worker's tasks.
        stores: Opens maps.
        copies: Hands over the map of a copy.
        restorer: Replays changelogs.
        clock: Monotonic seconds.
        wall_ms: Wall clock.
    """

    def __init__(
        self,
        tasks: Tasks,
        stores: TaskStores,
        copies: Copies,
        restorer: Restorer,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._tasks = tasks
        self._stores = stores
        self._copies = copies
        self._restorer = restorer
        self._clock = clock
        self._wall_ms = wall_ms
        self._noted_s = clock()
        self._told_s = self._noted_s - LOCK_TOLD_S

    async def step(self, calls: Calls, ledger: Ledger, timeout_ms: int) -> None:
        """Open stores and replay changelogs for a while.

        Args:
            calls: Runs what asks brokers.
            ledger: Knows the notes beside the committed offsets.
            timeout_ms: Approximate duration.

        Raises:
            StateMismatchError: State, offsets and changelogs do not belong together.
            KafkaError: This worker is not a member of its group any more.
        """
        try:
            for task in self._tasks.opening:
                await self._open(calls, ledger, task)
            for state in await calls(self._restorer.step(timeout_ms)):
                for task in self._tasks:
                    if task.state is state:
                        self._complete(task)
        except StateMismatchError:
            # While this process slept or waited for the store, a successor may have moved offsets
            # and state on. Then the lost membership is the error to raise.
            await calls(ledger.check_membership())
            raise

    async def _open(self, calls: Calls, ledger: Ledger, task: Task) -> None:
        state = task.state
        assert state is not None
        state.use_note(latest(decode_note(ledger.note(tp)) for tp in task.inputs))
        opened = self._copies.give(task.id)
        if opened is None:
            opened = self._stores.open_map(task.id)
        if opened is None:
            now_s = self._clock()
            if now_s - self._told_s >= LOCK_TOLD_S:
                self._told_s = now_s
                logger.warning(
                    "state of %s waits: another process holds %s.lock; it goes on when that "
                    "process has closed it",
                    task.id,
                    self._stores.path_of(task.id),
                )
            return
        try:
            state.use(opened)
        except BaseException:
            opened.close()
            raise
        task.status = TaskStatus.RESTORING
        if await calls(self._restorer.add(state, task.id.partition)):
            self._complete(task)

    def _complete(self, task: Task) -> None:
        assert task.state is not None
        task.state.complete(self._wall_ms())
        task.run()
        logger.info("state of %s is complete", task.id)

    def note_complete(self) -> None:
        """Note in the stores of running tasks, from time to time, that they are complete."""
        now_s = self._clock()
        if now_s - self._noted_s >= COMPLETE_NOTED_S:
            self._noted_s = now_s
            for task in self._tasks:
                if task.state is not None and task.status is TaskStatus.RUNNING:
                    task.state.note_complete(self._wall_ms())
