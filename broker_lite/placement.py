"""Which node leads which partition: the interface for handlers, and a broker with one node.

A replica is a node that may lead the partition; a running one is in sync. The bundled broker is one
node and leads everything. ``testing`` has several nodes over one shared log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from onceflow.broker_lite.topics import Topic

NODES_MAX = 100
"""Most nodes of one broker; each has separate listeners."""

NO_LEADER = -1


class PlacementError(ValueError):
    """A placement that is not possible; the text says why."""


@dataclass(slots=True)
class Node:
    """One node.

    Attributes:
        node_id: Its id.
        rack: Its ``broker.rack``, or None.
        running: Whether it answers.
        registered: Whether answers contain it while it does not run.
    """

    node_id: int
    rack: str | None = None
    running: bool = True
    registered: bool = True


class Placement(Protocol):
    """Leaders and replicas of every partition."""

    @property
    def nodes(self) -> Mapping[int, Node]:
        """The nodes by id."""
        ...

    @property
    def running(self) -> list[Node]:
        """Nodes that answer, by id."""
        ...

    @property
    def controller_id(self) -> int:
        """The controller in answers, -1 if no node runs."""
        ...

    def replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """Nodes that may lead a partition, the preferred one first."""
        ...

    def in_sync(self, topic: str, partition: int) -> list[int]:
        """Running replicas; only the last leader if none runs."""
        ...

    def offline(self, topic: str, partition: int) -> list[int]:
        """Replicas that do not run."""
        ...

    def leader(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, -1 if none of its replicas runs."""
        ...

    def leads(self, node_id: int, topic: str, partition: int) -> bool:
        """Whether a node leads a partition."""
        ...

    def place(self, topic: str, partition: int, replicas: Iterable[int]) -> None:
        """Set the replicas of a partition before it is made.

        Raises:
            PlacementError: A node is named twice, or does not exist.
        """
        ...

    def place_some(self, topic: str, partition: int, factor: int) -> None:
        """Choose replicas by the usual rule, before a partition is made.

        Raises:
            PlacementError: There are fewer nodes.
        """
        ...

    def reassign(self, topic: Topic, partition: int, replicas: Iterable[int], now_ms: int) -> None:
        """Set other replicas of a partition; a leader that is not one of them is replaced.

        Raises:
            PlacementError: A node is named twice, or does not exist.
        """
        ...

    def move_leader(self, topic: Topic, partition: int, node_id: int, now_ms: int) -> None:
        """Let another node lead a partition, under a new leader epoch.

        Raises:
            PlacementError: The node has no replica of it, or does not run.
        """
        ...

    def move_to_preferred(self, now_ms: int) -> int:
        """Let the first running replica of every partition lead it; return how many moved."""
        ...


class SingleNode:
    """The placement of a broker with one node, which leads everything.

    Args:
        node: The node.

    Attributes:
        nodes: The node by its id.
    """

    __slots__ = ("_id", "nodes")

    def __init__(self, node: Node) -> None:
        self._id = node.node_id
        self.nodes: dict[int, Node] = {node.node_id: node}

    @property
    def running(self) -> list[Node]:
        """See `Placement`."""
        return list(self.nodes.values())

    @property
    def controller_id(self) -> int:
        """See `Placement`."""
        return self._id

    def replicas(self, topic: str, partition: int) -> tuple[int, ...]:
        """See `Placement`."""
        return (self._id,)

    def in_sync(self, topic: str, partition: int) -> list[int]:
        """See `Placement`."""
        return [self._id]

    def offline(self, topic: str, partition: int) -> list[int]:
        """See `Placement`."""
        return []

    def leader(self, topic: str, partition: int) -> int:
        """See `Placement`."""
        return self._id

    def leads(self, node_id: int, topic: str, partition: int) -> bool:
        """See `Placement`."""
        return True

    def place(self, topic: str, partition: int, replicas: Iterable[int]) -> None:
        """See `Placement`."""
        check_replicas(replicas, self.nodes)

    def place_some(self, topic: str, partition: int, factor: int) -> None:
        """See `Placement`."""
        check_factor(factor, self.nodes)

    def reassign(self, topic: Topic, partition: int, replicas: Iterable[int], now_ms: int) -> None:
        """See `Placement`."""
        check_replicas(replicas, self.nodes)

    def move_leader(self, topic: Topic, partition: int, node_id: int, now_ms: int) -> None:
        """See `Placement`."""
        check_replicas([node_id], self.nodes)

    def move_to_preferred(self, now_ms: int) -> int:
        """See `Placement`."""
        return 0


def check_replicas(replicas: Iterable[int], nodes: Mapping[int, Node]) -> tuple[int, ...]:
    """Return the replicas if each is a node and is named once.

    Raises:
        PlacementError: One is unknown or named twice.
    """
    chosen = tuple(replicas)
    unknown = [node_id for node_id in chosen if node_id not in nodes]
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        raise PlacementError(
            f"replicas {list(chosen)}: each must be one of the nodes {list(nodes)}, and only once"
        )
    return chosen


def check_factor(factor: int, nodes: Mapping[int, Node]) -> None:
    """Refuse a replication factor that the nodes cannot have.

    Raises:
        PlacementError: It is less than 1 or more than there are nodes.
    """
    if not 1 <= factor <= len(nodes):
        raise PlacementError(f"replication factor {factor}: there are {len(nodes)} nodes")
