"""What a worker does from time to time: it checks topics, takes its picture and purges records."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls
from onceflow.processors.changelog import Restorer
from onceflow.processors.copies import Copies
from onceflow.processors.errors import TopicSetupError
from onceflow.processors.figures import TaskPicture, WorkerFigures, WorkerPicture
from onceflow.processors.global_rows import GlobalRows
from onceflow.processors.graph.topology import Topology
from onceflow.processors.provisioning import watch
from onceflow.processors.task_stores import TaskStores
from onceflow.processors.worker.connections import Connections
from onceflow.processors.worker.purging import Purge
from onceflow.processors.worker.units import Units
from onceflow.sdk.errors import KafkaError

logger: logging.Logger = logging.getLogger("onceflow.processors")

TOPICS_CHECKED_S: Final = 10.0
"""Seconds between two checks of the topics of a running worker."""


class Upkeep:
    """The duties of one worker that come back every few seconds.

    Args:
        topology: The application.
        tasks: The worker's tasks.
        stores: Knows the topics as they were found.
        connections: The worker's clients.
        units: Ends the unit before the worker ends.
        copies: Copies of the state of tasks.
        restorer: Knows how much is left to replay.
        global_rows: Global tables, which read new partitions.
        figures: Holds the picture.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        topology: Topology,
        tasks: Tasks,
        stores: TaskStores,
        connections: Connections,
        units: Units,
        copies: Copies,
        restorer: Restorer,
        global_rows: GlobalRows,
        figures: WorkerFigures,
        clock: Callable[[], float],
    ) -> None:
        self._topology = topology
        self._tasks = tasks
        self._stores = stores
        self._connections = connections
        self._units = units
        self._copies = copies
        self._restorer = restorer
        self._global_rows = global_rows
        self._figures = figures
        self._clock = clock
        self._checked_s = clock()
        self._purge = Purge(topology.repartition_topics, self._checked_s)

    async def step(self, calls: Calls) -> None:
        """Do what is due.

        Args:
            calls: Runs what asks brokers.

        Raises:
            TopicSetupError: A topic is not what it was.
        """
        now_s = self._clock()
        self.take_picture()
        if now_s - self._checked_s >= TOPICS_CHECKED_S:
            await self.check_topics(calls)
        connections = self._connections
        owned, place = self._tasks.owned, connections.ledger.place
        await self._purge.step(calls, connections.admin, owned, place, now_s)

    def take_picture(self) -> None:
        """Renew what health, metrics and other workers are told, if that is due.

        A worker with slow functions is busy with one poll for minutes, so this is called between
        the commits of a poll too: otherwise its lag would not show when it grows.
        """
        now_s = self._clock()
        if self._figures.is_due(now_s):
            self._figures.picture = self._picture(now_s)
            self._copies.tell(self._tasks)

    def _picture(self, now_s: float) -> WorkerPicture:
        """Make the snapshot of the tasks that other threads read."""
        tasks = tuple(
            TaskPicture(
                str(task.id),
                task.status.name,
                None if task.state is None else task.state.disk_bytes,
            )
            for task in self._tasks
        )
        ledger = self._connections.ledger
        places = {tp: ledger.place(tp) for tp in self._tasks.owned}
        known = {tp: place for tp, place in places.items() if place is not None}
        copies = {str(id): lag for id, lag in self._copies.lags.items()}
        left = self._restorer.left
        return WorkerPicture(now_s, self._units.joined, tasks, known, left, copies)

    async def check_topics(self, calls: Calls, *, now: bool = False) -> None:
        """Check whether topics were deleted, made again, or have grown.

        Args:
            calls: Runs what asks brokers.
            now: Whether the session is broken, so that the open unit cannot be committed.

        Raises:
            TopicSetupError: One is not what it was.
        """
        self._checked_s = self._clock()
        try:
            counts = await calls(watch(self._topology, self._stores.found, self._connections.admin))
            self._global_rows.cover(counts)  # New partitions are read too.
        except TopicSetupError:
            if not now:
                await self._units.commit(calls)
            raise
        except KafkaError as error:
            logger.debug("looking at the topics: %s", error)
