"""Ends a bounded run when all records that were there at its start are processed and committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from onceflow.processors.assign import Tasks
from onceflow.processors.calls import Calls, made
from onceflow.processors.graph.topology import Topology
from onceflow.processors.task_stores import TaskStores
from onceflow.processors.worker.connections import Connections
from onceflow.processors.worker.run_end import RunEnd
from onceflow.sdk.model.partitions import TopicPartition

OTHERS_ASKED_S: Final = 1.0
"""Seconds between two looks at the group's offsets, when a bounded run has done its own part."""


class BoundedRun:
    """Asks the brokers for the ends of a bounded run, and whether they are reached.

    Args:
        end: The ends as they are known.
        topology: The application.
        stores: Knows how many partitions topics have.
        tasks: The worker's tasks.
        connections: The worker's clients.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        end: RunEnd,
        topology: Topology,
        stores: TaskStores,
        tasks: Tasks,
        connections: Connections,
        clock: Callable[[], float],
    ) -> None:
        self._end = end
        self._topology = topology
        self._stores = stores
        self._tasks = tasks
        self._connections = connections
        self._clock = clock
        self._others_asked_s = clock() - OTHERS_ASKED_S

    async def begin(self, calls: Calls) -> None:
        """Note the ends of all inputs, once."""
        if not self._end.is_set:
            await self._take_ends(calls, self._topology.input_topics)

    async def _take_ends(self, calls: Calls, topics: Sequence[str]) -> bool:
        """Note the present ends of topics; return whether any has grown."""
        counts = self._stores.found.partitions
        wanted = [TopicPartition(topic, n) for topic in topics for n in range(counts[topic])]
        return self._end.take(await calls(made(partial(self._connections.admin.bounds, wanted))))

    async def own_part_read(self, calls: Calls) -> bool:
        """Return whether this worker has processed all of its records up to their ends."""
        tasks, ledger = self._tasks, self._connections.ledger
        owned = tasks.owned
        if tasks.restoring or tasks.incomplete or any(task.has_records for task in tasks):
            return False
        for partition in sorted(owned - self._end.passed()):
            if not self._end.note_position(partition, await calls(ledger.position(partition))):
                return False
        return True

    async def _show_ends(self, calls: Calls) -> bool:
        """Let other workers see that this one's part is done; return False if that was aborted.

        The last offsets may be markers, and the position may be behind later records already: then
        no commit of records names the end, and the others would wait for it for ever.
        """
        ledger = self._connections.ledger
        unseen = self._end.unseen(self._tasks.owned, ledger.place)
        return not unseen or await calls(ledger.reach(unseen))

    async def whole_run_done(self, calls: Calls) -> bool:
        """Return whether the group has committed everything; asked at most once a second."""
        now_s = self._clock()
        if now_s - self._others_asked_s < OTHERS_ASKED_S:
            return False
        self._others_asked_s = now_s
        if not await self._show_ends(calls):
            return False
        admin = self._connections.admin
        committed = await calls(made(partial(admin.committed, self._topology.group)))
        # The commit may have brought a rebalance.
        owned = self._tasks.owned
        if self._end.missing(owned, committed.get) or owned - self._end.passed():
            return False
        written = set(self._topology.output_topics)
        again = [topic for topic in self._topology.input_topics if topic in written]
        if again and await self._take_ends(calls, again):
            self._others_asked_s -= OTHERS_ASKED_S
            return False
        return True
