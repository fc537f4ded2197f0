"""A worker's part in copies of state: follows what the leader says, and tells what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from onceflow.processors.calls import Calls
from onceflow.processors.changelog import Restorer
from onceflow.processors.graph.topology import Topology
from onceflow.processors.identity import host_id
from onceflow.processors.placement import PlacementRules
from onceflow.processors.settings import AppSettings
from onceflow.processors.standbys import Standbys
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.processors.task_assignor import MemberFacts, TaskAssignor
from onceflow.processors.task_stores import TaskStores
from onceflow.sdk.model.partitions import TopicPartition

PROBED_S: Final = 60.0
"""Time between two rebalances that a worker asks for because copies have caught up."""


class Copies:
    """The copies of one worker, and its part in placing tasks.

    Args:
        topology: The application.
        settings: How it runs.
        stores: Makes state and opens maps.
        restorer: Replays changelogs.
        clock: Monotonic seconds.
        wall_ms: Wall clock.

    Attributes:
        assignor: Places tasks where their state is; None where no copies are kept.
    """

    def __init__(
        self,
        topology: Topology,
        settings: AppSettings,
        stores: TaskStores,
        restorer: Restorer,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._topology = topology
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._standbys = Standbys(stores.make_state, stores.open_map, restorer, clock, wall_ms)
        self.assignor: TaskAssignor | None = None
        self._followed = 0
        self._probed_s = clock() - PROBED_S
        self._closed: dict[TaskId, int] = {}

    @property
    def active(self) -> bool:
        """Whether there is any copy."""
        return self._standbys.active

    @property
    def lags(self) -> dict[TaskId, int]:
        """By how many offsets each copy is behind, as measured last."""
        return self._standbys.lags

    def placing(self) -> TaskAssignor | None:
        """The assignor that places tasks where their state is, made once; None without copies."""
        settings = self._settings
        if self.assignor is None and settings.places_tasks:
            rules = PlacementRules(
                settings.num_standby_replicas,
                settings.acceptable_recovery_lag,
                settings.max_warmup_replicas,
            )
            directory = settings.state_dir / self._topology.app
            directory.mkdir(parents=True, exist_ok=True)
            self._closed.update(self._stores.on_disk())
            facts = MemberFacts(host_id(directory), settings.application_server, self._closed)
            self.assignor = TaskAssignor(self._topology, rules, facts)
        return self.assignor

    @property
    def servers(self) -> Mapping[TaskId, str]:
        """Query addresses of the owners of tasks, as far as the leader sent them."""
        return {} if self.assignor is None else self.assignor.given.servers

    def give(self, id: TaskId) -> ByteMap | None:
        """Hand over the map of a copy to the task; None without a copy."""
        return self._standbys.give(id)

    async def keep(self, calls: Calls, tasks: Iterable[Task]) -> None:
        """Follow what the leader said, and ask for a rebalance when that has caught up.

        Args:
            calls: Runs what asks brokers.
            tasks: The worker's own.
        """
        assignor = self.assignor
        if assignor is None:
            return
        given = assignor.given
        if given.number != self._followed:
            self._followed = given.number
            self._standbys.forgive()
        own = {task.id for task in tasks}
        wanted = [id for id in given.copies if self._stores.keeps(id)]
        await calls(self._standbys.follow(wanted, own))
        if not await calls(self._standbys.step()):
            return
        self.tell(tasks)
        lags, lag_max, now_s = self.lags, self._settings.acceptable_recovery_lag, self._clock()
        caught_up = bool(given.warmups) and all(
            id in lags and lags[id] <= lag_max for id in given.warmups
        )
        if caught_up and now_s - self._probed_s >= PROBED_S:
            self._probed_s = now_s
            named = ", ".join(map(str, given.warmups[:3]))
            assignor.rejoin(f"the state of {named} has caught up")

    def tell(self, tasks: Iterable[Task]) -> None:
        """Set the data about this worker for the leader's next assignment.

        Args:
            tasks: The worker's own.
        """
        if self.assignor is not None:
            own = {task.id: task.state.offset_sum for task in tasks if task.state is not None}
            sums = {**self._closed, **self._standbys.sums(), **own}
            self.assignor.facts = self.assignor.facts._replace(sums=sums)

    def closing(self, tasks: Iterable[Task], partitions: Sequence[TopicPartition]) -> None:
        """Remember what the disk holds of tasks that are about to be closed: they may come back.

        Args:
            tasks: The worker's own.
            partitions: Those that are gone.
        """
        gone = set(partitions)
        for task in tasks:
            if task.state is None or task.status is not TaskStatus.RUNNING:
                continue
            if gone & set(task.inputs) and self._stores.stays(task.id):
                self._closed[task.id] = task.state.offset_sum

    def close(self) -> None:
        """Close all copies; what they hold stays on the disk."""
        self._standbys.close()
