"""The tasks of a worker's assigned partitions, and the assignor that moves whole tasks.

A task needs the same partition number of all its inputs, so one member must get all of these.
Under the classic protocol ``CoPartitioned`` ensures that; under the consumer protocol (KIP-848) the
broker's ``range`` assignor does.
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
        """Return the task of an input partition; None while others of its inputs are missing."""
        return self._by_partition.get(partition)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """All partitions that the group assigned to this worker."""
        return frozenset(self._owned)

    @property
    def incomplete(self) -> set[TopicPartition]:
        """Partitions whose task has further inputs, which this worker does not own."""
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
        """Add partitions, and make the tasks that have all of their inputs now.

        Returns:
            Partitions to pause: their task must be restored first, or lacks inputs.
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
        """Close the tasks of partitions that are gone, before other workers open their stores."""
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
            except Exception as error:  # noqa: BLE001 - close the others too
                errors.append(error)
        if errors:
            raise errors[0]

    def release_all(self) -> None:
        """Close all tasks."""
        self.release(list(self._owned))


class CoPartitioned:
    """Assigns whole tasks to members, cooperatively (KIP-429).

    One member gets all inputs of a task. Tasks are assigned as by the cooperative-sticky assignor:
    evenly, with as few moves as possible.

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
