"""Tasks: one processor's share of one input partition, with the state that belongs to it.

A task opens its store when the partition is assigned, replays the changelog while the partition is
paused, and runs after that. Uncommitted writes are sent to the changelog before each commit, and
reach the store only when the commit is known. Who owns which partition is decided by the group.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from onceflow.processors.outputs import Sends
from onceflow.processors.restoration import ChangelogReader, Restoration
from onceflow.processors.state import StateStore
from onceflow.processors.stores.base import StoreIdentity, TaskStore
from onceflow.processors.stores.memory import MemoryTaskStore
from onceflow.processors.topology import ProcessorSpec, StoreKind, Topology
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.clients import SentRun

logger: logging.Logger = logging.getLogger("onceflow.processors.state")

COMPLETE_NOTED_S = 600.0
"""How often a running worker notes that its stores are complete; see ``TaskStore``."""


class TaskStatus(enum.Enum):
    """Where a task stands."""

    OPENING = "waiting for a former owner to release the store"
    RESTORING = "replaying the changelog"
    RUNNING = "processing"


class Task:
    """One processor's share of one partition.

    Attributes:
        spec: The processor.
        partition: The input partition.
        status: Where it stands.
        states: Its states by name; empty until the store is open.
    """

    __slots__ = ("_sent", "partition", "spec", "states", "status", "store")

    def __init__(self, spec: ProcessorSpec, partition: TopicPartition) -> None:
        self.spec: ProcessorSpec = spec
        self.partition: TopicPartition = partition
        self.status = TaskStatus.OPENING if spec.states else TaskStatus.RUNNING
        self.store: TaskStore | None = None
        self.states: dict[str, StateStore] = {}
        self._sent: dict[str, SentRun] = {}

    def use(self, store: TaskStore) -> None:
        """Take an open store."""
        self.store = store
        self.states = {
            state.name: StateStore(state.name, state.codec, store) for state in self.spec.states
        }
        self.status = TaskStatus.RESTORING

    def changelogs(self) -> dict[TopicPartition, str]:
        """Changelog partitions and the names of their states."""
        return {
            TopicPartition(state.changelog, self.partition.partition): state.name
            for state in self.spec.states
        }

    def send_changes(self, session: Sends) -> None:
        """Send what changed since the last time, the latest value of each key."""
        for state in self.spec.states:
            store = self.states.get(state.name)
            if store is not None and store.unsent:
                self._sent[state.name] = session.send_many(
                    state.changelog,
                    list(store.unsent.values()),
                    list(store.unsent),
                    partition=self.partition.partition,
                )
                store.unsent.clear()

    def committed(self) -> None:
        """The transaction is committed: values and changelog offsets reach the store at once."""
        if not self._sent or self.store is None:
            return
        writes = {name: self.states[name].overlay for name in self._sent}
        offsets = {name: sent.result(0)[-1].offset + 1 for name, sent in self._sent.items()}
        self.store.apply(writes, offsets)
        self._sent.clear()
        for state in self.states.values():
            state.drop()

    def aborted(self) -> None:
        """The transaction is aborted: its writes are void."""
        self._sent.clear()
        for state in self.states.values():
            state.drop()

    def note_complete(self, wall_ms: int) -> None:
        """The store holds all that is committed, deletions included, as of now."""
        if self.store is not None:
            self.store.note_complete(wall_ms)

    def close(self) -> None:
        """Release the store; uncommitted writes are dropped."""
        self.aborted()
        store, self.store = self.store, None
        if store is not None:
            store.close()


OpenStore = Callable[[ProcessorSpec, TopicPartition], TaskStore | None]


def memory_stores(spec: ProcessorSpec, partition: TopicPartition) -> TaskStore:
    """Stores in memory, whatever the processor declares."""
    return MemoryTaskStore()


class StoreOpener:
    """Opens stores below one directory.

    Args:
        directory: Directory of the application.
        identities: What each processor's stores must belong to.
        wall_ms: Wall clock in milliseconds.
    """

    def __init__(
        self,
        directory: Path,
        identities: Mapping[str, StoreIdentity],
        wall_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._identities = identities
        self._wall_ms = wall_ms

    def __call__(self, spec: ProcessorSpec, partition: TopicPartition) -> TaskStore | None:
        """The store of one task, or None while somebody else holds it."""
        if spec.store is StoreKind.MEMORY:
            return MemoryTaskStore()
        from onceflow.processors.stores.lmdb import open_store

        return open_store(
            self._directory / spec.name / str(partition.partition),
            [state.name for state in spec.states],
            self._identities[spec.name],
            self._wall_ms(),
        )


class Tasks:
    """All tasks of a worker.

    Args:
        topology: The application.
        open_store: Opens the store of a task.
        reader: Makes a reader of changelogs, at the first restoration.
        clock: Monotonic seconds.
        wall_ms: Wall clock in milliseconds.
    """

    def __init__(
        self,
        topology: Topology,
        open_store: OpenStore,
        reader: Callable[[], ChangelogReader],
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._clock = clock
        self._wall_ms = wall_ms
        self._noted_s = clock()
        self._specs = {spec.input_topic: spec for spec in topology.processors}
        self._open_store = open_store
        self._restoration = Restoration(reader, clock)
        self._tasks: dict[TopicPartition, Task] = {}
        self._opening: list[Task] = []
        self._stateful: list[Task] = []

    def __getitem__(self, partition: TopicPartition) -> Task:
        return self._tasks[partition]

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._tasks

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._tasks)

    def is_running(self, partition: TopicPartition) -> bool:
        """Whether records of the partition may be processed."""
        task = self._tasks.get(partition)
        return task is not None and task.status is TaskStatus.RUNNING

    def assign(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Make tasks for new partitions.

        Returns:
            Those that must stay paused until ``advance`` names them.
        """
        waiting = []
        for partition in partitions:
            if partition in self._tasks:
                continue
            task = self._tasks[partition] = Task(self._specs[partition.topic], partition)
            if task.status is TaskStatus.OPENING:
                self._opening.append(task)
                self._stateful.append(task)
                waiting.append(partition)
        return waiting

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Close the tasks of partitions that are gone, before anybody else opens them."""
        gone = [self._tasks.pop(p) for p in partitions if p in self._tasks]
        errors: list[Exception] = []
        for task in gone:
            if task in self._stateful:
                self._stateful.remove(task)
            if task in self._opening:
                self._opening.remove(task)
            self._restoration.drop(task.partition)
            try:
                task.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed too
                errors.append(error)
        if errors:
            raise errors[0]

    @property
    def restoring(self) -> bool:
        """Whether any task is not running yet."""
        return bool(self._opening) or self._restoration.active

    def advance(self, timeout_ms: int) -> list[TopicPartition]:
        """Open stores and replay changelogs for a while.

        Returns:
            Partitions that are ready to run.
        """
        for task in list(self._opening):
            store = self._open_store(task.spec, task.partition)
            if store is not None:
                self._opening.remove(task)
                task.use(store)
                self._restoration.add(task.partition, store, task.changelogs())
        ready = self._restoration.step(timeout_ms)
        for partition in ready:
            task = self._tasks[partition]
            task.status = TaskStatus.RUNNING
            task.note_complete(self._wall_ms())
        return ready

    def send_changes(self, session: Sends) -> None:
        """Send the state changes of all tasks."""
        for task in self._stateful:
            task.send_changes(session)

    def committed(self) -> None:
        """The transaction is committed."""
        for task in self._stateful:
            task.committed()
        if self._stateful and self._clock() - self._noted_s >= COMPLETE_NOTED_S:
            self._note_complete()

    def _note_complete(self) -> None:
        self._noted_s = self._clock()
        for task in self._stateful:
            if task.status is TaskStatus.RUNNING:
                task.note_complete(self._wall_ms())

    def aborted(self) -> None:
        """The transaction is aborted."""
        for task in self._stateful:
            task.aborted()

    def close(self) -> None:
        """Close all tasks and the reader."""
        try:
            self.release(list(self._tasks))
        finally:
            self._restoration.close()
