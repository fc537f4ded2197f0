"""Makes and opens the state of tasks, and of copies of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from onceflow.processors.errors import StateDirectoryError
from onceflow.processors.graph.specs import StoreKind
from onceflow.processors.graph.topology import Topology
from onceflow.processors.provisioning import Provisioned
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.bytemap import ByteMap
from onceflow.processors.state.task_state import StateRules, TaskState
from onceflow.processors.task import TaskId


class TaskStores:
    """The state of all tasks on this host.

    Args:
        topology: The application.
        settings: How it runs.
        services: Opens maps.

    Attributes:
        topics: The topics as they were found; None before the worker has looked.
    """

    def __init__(self, topology: Topology, settings: AppSettings, services: Services) -> None:
        self._parts = {part.name: part for part in topology.sub_topologies}
        self._topology = topology
        self._settings = settings
        self._services = services
        self.topics: Provisioned | None = None

    @property
    def found(self) -> Provisioned:
        """The topics, once the worker has looked."""
        assert self.topics is not None, "the topics are looked at first"
        return self.topics

    def partitions_of(self, part: str) -> int:
        """How many tasks a sub-topology has."""
        return self.found.partitions[self._parts[part].input_topics[0]]

    def keeps(self, id: TaskId) -> bool:
        """Whether a task is one of this version of the application, and has state."""
        part = self._parts.get(id.part)
        if part is None or not part.states:
            return False
        return id.partition < self.partitions_of(id.part)

    def stays(self, id: TaskId) -> bool:
        """Whether state stays after its map is closed."""
        return self._parts[id.part].store is not StoreKind.MEMORY

    def make_state(self, id: TaskId) -> TaskState:
        """Make the state of a task, without a map."""
        part = self._parts[id.part]
        rules = StateRules(
            self._topology.group,
            self.partitions_of(id.part),
            self.found.topic_ids,
            self._settings.on_state_gap == "continue",
            frozenset(self._settings.dropped_states),
            self._settings.repeats,
        )
        return TaskState(part.states, id.partition, rules)

    def path_of(self, id: TaskId) -> Path:
        """The directory of a task's map."""
        directory = self._settings.state_dir / self._topology.app / "state"
        return directory / self._topology.group / id.part / str(id.partition)

    def on_disk(self) -> dict[TaskId, int]:
        """Offsets of the changelogs that the disk holds of each task, of earlier runs.

        A map that another worker has open, or that cannot be read, is left out.
        """
        from onceflow.processors.stores.lmdb import DATA_FILE
        from onceflow.processors.stores.reading import StoredMap

        found: dict[TaskId, int] = {}
        for part in self._topology.sub_topologies:
            if not part.states or part.store is StoreKind.MEMORY:
                continue
            for file in self.path_of(TaskId(part.name, 0)).parent.glob(f"*/{DATA_FILE}"):
                path = file.parent
                if not (path.name.isascii() and path.name.isdigit()):
                    continue
                with contextlib.suppress(StateDirectoryError), StoredMap(path) as stored:
                    marks = stored.marks.stores.values()
                    found[TaskId(part.name, int(path.name))] = sum(
                        each.offset or 0 for each in marks
                    )
        return found

    def open_map(self, id: TaskId) -> ByteMap | None:
        """Open the map of a task; None while another process has locked it.

        Raises:
            StateDirectoryError: The directory cannot be used.
        """
        part = self._parts[id.part]
        age_ms = self.found.tombstone_age_ms(part)
        return self._services.open_map(part.store, self.path_of(id), age_ms)
