"""Leaders and replicas of a broker with several nodes over one shared log.

As the nodes share the log, a move of a leader copies nothing: it only begins a new leader epoch, as
in Kafka. A single node leads every partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from onceflow.broker_lite.placement import (
    NO_LEADER,
    NODES_MAX,
    Node,
    PlacementError,
    check_factor,
    check_replicas,
)
from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.broker_lite.topics import Topic, TopicRegistry

OnMoved = Callable[["Topic", int, int], None]
"""``on_moved(topic, partition, now_ms)``, called after a partition's leader changed."""


class SharedPlacement:
    """Leaders and replicas of every partition.

    Args:
        nodes: The nodes, at least one.

    Attributes:
        nodes: The nodes by id.
        on_moved: Called after each change of a partition's leader.
    """

    __slots__ = ("_leaders", "_order", "_replicas", "_topics", "nodes", "on_moved")

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: dict[int, Node] = {node.node_id: node for node in nodes}
        self._order = tuple(self.nodes)
        self._topics: TopicRegistry | None = None
        # Only exceptions from the rule that the first running replica leads.
        self._leaders: dict[tuple[str, int], int] = {}
        self._replicas: dict[tuple[str, int], tuple[int, ...]] = {}
        self.on_moved: list[OnMoved] = []

    def use(self, topics: TopicRegistry) -> None:
        """Place the partitions of these topics; a deleted topic is dropped."""
        self._topics = topics
        topics.on_deleted.append(lambda topic, now_ms: self._forget(topic))

    @property
    def single(self) -> bool:
        """Whether there is only one node, which leads every partition."""
        return len(self._order) == 1

    @property
    def running(self) -> list[Node]:
        """The nodes that run."""
        return [node for node in self.nodes.values() if node.running]

    @property
    def controller_id(self) -> int:
        """The node that answers name as the controller: the first running one."""
        return next((node.node_id for node in self.running), NO_LEADER)

    # --- questions

    def replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """Return the replicas of a partition, the preferred leader first."""
        if self.single:
            return self._order
        chosen = self._replicas.get((topic, partition))
        if chosen is not None:
            return chosen
        # Depends only on name and number, so that a restart keeps the leaders.
        first = (zlib.crc32(topic.encode()) + partition) % len(self._order)
        return self._order[first:] + self._order[:first]

    def in_sync(self, topic: str, partition: int) -> list[int]:
        """Return the running replicas, or the preferred leader alone if none runs."""
        replicas = self.replicas(topic, partition)
        found = [node_id for node_id in replicas if self.nodes[node_id].running]
        return found or [replicas[0]]

    def offline(self, topic: str, partition: int) -> list[int]:
        """Return the stopped replicas."""
        replicas = self.replicas(topic, partition)
        return [node_id for node_id in replicas if not self.nodes[node_id].running]

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, -1 if no replica runs."""
        if self.single:
            return self._order[0]
        leader = self._leaders.get((topic, partition))
        if leader is not None:
            return leader
        return self._first_running(topic, partition)

    def leads(self, node_id: int, topic: str, partition: int) -> bool:
        """Whether a node leads a partition."""
        return self.single or self.leader(topic, partition) == node_id

    # --- changes

    def place(self, topic: str, partition: int, replicas: Iterable[int]) -> None:
        """Set the replicas of a partition that is about to be created.

        Raises:
            PlacementError: A node is named twice, or does not exist.
        """
        self._replicas[topic, partition] = check_replicas(replicas, self.nodes)

    def place_some(self, topic: str, partition: int, factor: int) -> None:
        """Set `factor` replicas by the usual rule.

        Raises:
            PlacementError: There are fewer nodes than replicas.
        """
        check_factor(factor, self.nodes)
        self.place(topic, partition, self.replicas(topic, partition)[:factor])

    def move_leader(self, topic: Topic, partition: int, node_id: int, now_ms: int) -> None:
        """Make another node the leader of a partition, with a new leader epoch.

        Raises:
            PlacementError: The node has no replica of the partition, or is stopped.
        """
        if node_id not in self.replicas(topic.name, partition):
            raise PlacementError(
                f"node {node_id} has no replica of {topic.name}-{partition}; these have: "
                f"{list(self.replicas(topic.name, partition))}"
            )
        if not self.nodes[node_id].running:
            raise PlacementError(f"node {node_id} is stopped: start it first")
        self._lead(topic, partition, node_id, now_ms)

    def reassign(self, topic: Topic, partition: int, replicas: Iterable[int], now_ms: int) -> None:
        """Replace the replicas of a partition, and its leader if it is not among them.

        Raises:
            PlacementError: A node is named twice, or does not exist.
        """
        before = self.leader(topic.name, partition)
        self.place(topic.name, partition, replicas)
        if before not in self.replicas(topic.name, partition):
            self._lead(topic, partition, self._first_running(topic.name, partition), now_ms)
        else:
            self._leaders[topic.name, partition] = before

    def move_to_preferred(self, now_ms: int) -> int:
        """Move each partition's leader to its first running replica; return how many moved."""
        moved = 0
        for topic, partition in self._partitions():
            wanted = self._first_running(topic.name, partition)
            if wanted != self.leader(topic.name, partition):
                self._lead(topic, partition, wanted, now_ms)
                moved += 1
        return moved

    def stop_node(self, node_id: int, now_ms: int) -> None:
        """Stop a node: the next running replica of each of its partitions becomes the leader."""
        node = self._node(node_id)
        if not node.running:
            return
        led = [each for each in self._partitions() if self.leader(each[0].name, each[1]) == node_id]
        # Other partitions keep their leaders, also when an earlier replica starts again.
        self._pin_leaders()
        node.running = False
        for topic, partition in led:
            successor = self._first_running(topic.name, partition)
            self._lead(topic, partition, successor, now_ms)

    def start_node(self, node_id: int, now_ms: int) -> None:
        """Start a node: it becomes the leader of those of its partitions that have none."""
        node = self._node(node_id)
        if node.running:
            return
        self._pin_leaders()
        node.running = node.registered = True
        for topic, partition in self._partitions():
            if self.leader(topic.name, partition) == NO_LEADER:
                wanted = self._first_running(topic.name, partition)
                if wanted != NO_LEADER:
                    self._lead(topic, partition, wanted, now_ms)

    def _node(self, node_id: int) -> Node:
        node = self.nodes.get(node_id)
        if node is None:
            raise PlacementError(f"unknown node {node_id}; the nodes are {list(self.nodes)}")
        return node

    def _first_running(self, topic: str, partition: int) -> int:
        for node_id in self.replicas(topic, partition):
            if self.nodes[node_id].running:
                return node_id
        return NO_LEADER

    def _lead(self, topic: Topic, partition: int, node_id: int, now_ms: int) -> None:
        self._leaders[topic.name, partition] = node_id
        if node_id != NO_LEADER:
            log = topic.partitions[partition]
            log.begin_leader_epoch(max(log.leader_epoch, 0) + 1)
        for callback in self.on_moved:
            callback(topic, partition, now_ms)

    def _pin_leaders(self) -> None:
        for topic, partition in self._partitions():
            self._leaders[topic.name, partition] = self.leader(topic.name, partition)

    def _partitions(self) -> list[tuple[Topic, int]]:
        topics = self._topics
        if topics is None:
            return []
        return [(topic, index) for topic in topics for index in range(len(topic.partitions))]

    def _forget(self, topic: Topic) -> None:
        for kept in (self._leaders, self._replicas):
            for key in [key for key in kept if key[0] == topic.name]:
                del kept[key]


def make_nodes(count: int, first_id: int, racks: Iterable[str | None] = ()) -> list[Node]:
    """Make nodes with consecutive ids.

    Args:
        count: Number of nodes.
        first_id: Id of the first (``node.id``).
        racks: Racks of the nodes, in order; nodes beyond the list have none.

    Raises:
        ConfigError: There are too many nodes, or none.
    """
    if not 1 <= count <= NODES_MAX:
        raise ConfigError("nodes", count, f"must be from 1 to {NODES_MAX}")
    known = [*racks][:count]
    known += [None] * (count - len(known))
    return [Node(first_id + number, rack) for number, rack in enumerate(known)]
