"""Which tasks a worker has: from the partitions that the group gave it, and how the group divides.

A task needs the same partition number of all its inputs, so the group has to give these to one
member: ``CoPartitioned`` does that where this side divides (classic protocol), and the broker's
``range`` assignor where the broker does (KIP-848).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onceflow.processors.changelog import Restorer
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.sdk import CooperativeStickyAssignor, MemberSubscription
from onceflow.sdk.model.partitions import TopicPartition

MakeTask = Callable[[SubTopology, int], Task]


class Tasks:
    """The tasks of a worker.

    Args:
        topology: The application.
        make_task: Makes the task of a sub-topology and a partition number.
        restorer: Restores state.
    """

    def __init__(self, topology: Topology, make_task: MakeTask, restorer: Restorer) -> None:
        self._parts: dict[str, SubTopology] = {
            topic: part for part in topology.sub_topologies for topic in part.input_topics
        }
        self._make_task = make_task
        self.restorer: Restorer = restorer
        self._owned: set[TopicPartition] = set()
        self._by_partition: dict[TopicPartition, Task] = {}
        self._by_id: dict[TaskId, Task] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, partition: TopicPartition) -> Task | None:
        """The task of an input partition, if all of its inputs are here."""
        return self._by_partition.get(partition)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """All partitions that the group gave this worker."""
        return frozenset(self._owned)

    @property
    def incomplete(self) -> set[TopicPartition]:
        """Partitions whose task has inputs that are elsewhere."""
        return self._owned - self._by_partition.keys()

    @property
    def opening(self) -> list[Task]:
        """Tasks whose store is not open yet."""
        return [task for task in self._by_id.values() if task.status is TaskStatus.OPENING]

    @property
    def restoring(self) -> bool:
        """Whether any task is not ready to run yet."""
        waiting = (TaskStatus.OPENING, TaskStatus.RESTORING)
        return any(task.status in waiting for task in self._by_id.values())

    def assign(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Make the tasks that are complete now.

        Returns:
            Partitions that must stay paused: their task has to be restored first, or has inputs
            that are elsewhere.
        """
        added = list(partitions)
        self._owned.update(added)
        paused = []
        for partition in added:
            part = self._parts[partition.topic]
            id = TaskId(part.name, partition.partition)
            inputs = [TopicPartition(topic, id.partition) for topic in part.input_topics]
            if id not in self._by_id and self._owned.issuperset(inputs):
                task = self._by_id[id] = self._make_task(part, id.partition)
                self._by_partition.update(dict.fromkeys(inputs, task))
                if task.status is not TaskStatus.RUNNING:
                    paused += inputs
            elif id not in self._by_id:
                paused.append(partition)
        return [partition for partition in paused if partition in self._owned]

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Close the tasks of partitions that are gone, before anybody else opens their stores."""
        gone = list(partitions)
        self._owned.difference_update(gone)
        tasks = {id(task): task for p in gone if (task := self._by_partition.get(p)) is not None}
        errors: list[Exception] = []
        for task in tasks.values():
            for partition in task.inputs:
                self._by_partition.pop(partition, None)
            self._by_id.pop(task.id, None)
            try:
                if task.state is not None:
                    self.restorer.drop(task.state)
                task.close()
            except Exception as error:  # noqa: BLE001 - the others are to be closed too
                errors.append(error)
        if errors:
            raise errors[0]

    def release_all(self) -> None:
        """Close all tasks."""
        self.release(list(self._owned))


class CoPartitioned:
    """Divides the tasks of an application, cooperatively (KIP-429), and so its partitions.

    The inputs of a task go to one member. Among members it is the sticky division: as even as can
    be, moving as few tasks as possible.

    Args:
        topology: The application.
    """

    name = "onceflow-co-partitioned"
    cooperative = True
    sends_owned_in_user_data = False

    def __init__(self, topology: Topology) -> None:
        self._part_of = {
            topic: part.name for part in topology.sub_topologies for topic in part.input_topics
        }
        self._sticky = CooperativeStickyAssignor()

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        """Divide all partitions of all subscribed topics.

        Args:
            partition_counts: By topic.
            members: Who takes part.

        Returns:
            Partitions by member id.
        """
        topics: dict[str, list[str]] = {}
        for topic in partition_counts:
            topics.setdefault(self._part(topic), []).append(topic)
        tasks = {part: max(partition_counts[t] for t in found) for part, found in topics.items()}
        divided = self._sticky.assign(tasks, [self._by_task(member) for member in members])
        reads = {member.member_id: member.topics for member in members}
        return {
            member_id: sorted(
                TopicPartition(topic, task.partition)
                for task in assigned
                for topic in topics[task.topic]
                if task.partition < partition_counts[topic] and topic in reads[member_id]
            )
            for member_id, assigned in divided.items()
        }

    def _part(self, topic: str) -> str:
        """The sub-topology of a topic; a topic of another version of the application is its own."""
        return self._part_of.get(topic, topic)

    def _by_task(self, member: MemberSubscription) -> MemberSubscription:
        """A member as if each sub-topology were one topic."""
        owned = {
            TopicPartition(self._part(tp.topic), tp.partition) for tp in member.owned_partitions
        }
        return replace(
            member,
            topics=frozenset(self._part(topic) for topic in member.topics),
            owned_partitions=tuple(sorted(owned)),
        )
