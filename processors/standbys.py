"""Copies of the state of tasks that other workers process (``num_standby_replicas``).

A copy is a replay of the task's changelogs without an end. When this worker becomes the task's
owner, it gets the copy's map and restores only the rest. Committed changes alone are read, so what
a worker wrote that lost the task never counts. A copy that cannot be kept is left out with a
warning: it must not end a worker that processes its own tasks well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from onceflow.processors.changelog import Restorer
from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.state.task_state import TaskState
from onceflow.processors.task import TaskId
from onceflow.sdk.errors import RetriableError

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

STEPPED_S: Final = 0.05
"""How often changes are taken while records are processed."""
MEASURED_S: Final = 2.0
"""How often the ends of the changelogs are asked for."""
PUT_OFF_S: Final = 1.0
"""How long copies wait after brokers did not answer."""


class Standbys:
    """The copies of one worker.

    Args:
        make_state: Makes the state of a task, without a map.
        open_map: Opens the map of a task; None while another worker of this host has it.
        restorer: Replays changelogs.
        clock: Monotonic seconds.
        wall_ms: Wall clock.
    """

    def __init__(
        self,
        make_state: Callable[[TaskId], TaskState],
        open_map: Callable[[TaskId], ByteMap | None],
        restorer: Restorer,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._make_state = make_state
        self._open_map = open_map
        self._restorer = restorer
        self._clock = clock
        self._wall_ms = wall_ms
        self._copies: dict[TaskId, TaskState] = {}
        self._refused: set[TaskId] = set()
        self._lags: dict[TaskState, int] = {}
        self._stepped_s = self._measured_s = clock() - MEASURED_S

    @property
    def active(self) -> bool:
        """Whether there is any copy."""
        return bool(self._copies)

    @property
    def lags(self) -> dict[TaskId, int]:
        """By how many offsets each copy is behind, as measured last."""
        return {id: self._lags[state] for id, state in self._copies.items() if state in self._lags}

    def sums(self) -> Mapping[TaskId, int]:
        """Offsets of the changelogs that each copy holds, together."""
        return {id: state.offset_sum for id, state in self._copies.items()}

    def forgive(self) -> None:
        """Try copies again that could not be kept: the group was divided again."""
        self._refused.clear()

    async def follow(self, wanted: Collection[TaskId], own: Collection[TaskId]) -> None:
        """Keep these copies and no others.

        Args:
            wanted: Tasks.
            own: Tasks of this worker itself.
        """
        for id in [each for each in self._copies if each not in wanted]:
            self._drop(id)
        for id in wanted:
            if id not in self._copies and id not in own and id not in self._refused:
                await self._begin(id)

    async def _begin(self, id: TaskId) -> None:
        opened: ByteMap | None = None
        state = self._make_state(id)
        try:
            opened = self._open_map(id)
            if opened is None:
                return  # Its former owner here has not closed it, or another worker here owns it.
            state.use(opened)
            self._copies[id] = state
            await self._restorer.add(state, id.partition, follow=True)
        except StateDirectoryError as error:
            self._refuse(id, error)
            if opened is not None and id not in self._copies:
                opened.close()
        except BaseException:
            if self._copies.pop(id, None) is None and opened is not None:
                opened.close()
            state.close()
            raise

    def _refuse(self, id: TaskId, error: object) -> None:
        logger.warning("no copy of the state of %s is kept: %s", id, error)
        self._refused.add(id)
        self._drop(id)

    def _drop(self, id: TaskId) -> None:
        state = self._copies.pop(id, None)
        if state is not None:
            self._restorer.drop(state)
            self._lags.pop(state, None)
            state.close()

    def give(self, id: TaskId) -> ByteMap | None:
        """Hand over the map of a copy, which ends it; None without one.

        Args:
            id: A task that this worker processes from now on.
        """
        state = self._copies.pop(id, None)
        if state is None:
            return None
        self._restorer.drop(state)
        self._lags.pop(state, None)
        return state.hand_over()

    async def step(self) -> bool:
        """Take changes, and measure from time to time.

        Returns:
            Whether the lags were measured.
        """
        now_s = self._clock()
        if not self._copies or now_s < self._stepped_s + STEPPED_S:
            return False
        self._stepped_s = now_s
        try:
            await self._restorer.step(0)
            for state in self._restorer.take_broken():
                broken = [id for id, each in self._copies.items() if each is state]
                for id in broken:
                    self._refuse(id, "its changelog does not go on where it ended")
            if now_s < self._measured_s + MEASURED_S:
                return False
            self._measured_s = now_s
            self._lags = await self._restorer.measure(self._wall_ms())
        except RetriableError as error:
            logger.info("copies of state wait: %s", error)
            self._stepped_s = now_s + PUT_OFF_S
            return False
        return True

    def close(self) -> None:
        """Close all copies; what they hold stays on the disk."""
        for id in [*self._copies]:
            self._drop(id)
