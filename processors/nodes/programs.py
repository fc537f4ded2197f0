"""Makes the work nodes of a topology, one program for each sub-topology."""

from __future__ import annotations

from onceflow.processors.graph.nodes import (
    AggregateNode,
    BatchNode,
    BatchStoringNode,
    FunctionNode,
    JoinNode,
    Node,
    RekeyNode,
    SinkNode,
    SourceNode,
    StoringNode,
    TableJoinNode,
    TableNode,
    TimerNode,
)
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.nodes.base import Program, Surroundings, WorkNode
from onceflow.processors.nodes.batch import BatchWork
from onceflow.processors.nodes.function import FunctionWork
from onceflow.processors.nodes.join import JoinWork, TableJoinWork
from onceflow.processors.nodes.parking import ParkingWork
from onceflow.processors.nodes.rekey import RekeyWork
from onceflow.processors.nodes.storing import BatchStoringWork, StoringWork
from onceflow.processors.nodes.table import TableWork
from onceflow.processors.nodes.timer import TimerWork
from onceflow.processors.nodes.window import WindowWork


def make_programs(topology: Topology, around: Surroundings) -> dict[str, Program]:
    """Make the programs of a worker.

    Args:
        topology: The application.
        around: Objects of the worker that it uses.

    Returns:
        Programs by name of the sub-topology.
    """
    return {part.name: _program(part, around) for part in topology.sub_topologies}


def _program(part: SubTopology, around: Surroundings) -> Program:
    def behind(name: str) -> list[str]:
        return [node.name for node in part.children(name) if not isinstance(node, SinkNode)]

    work = {
        node.name: _make(node, around, feeds=bool(behind(node.name)))
        for node in part.nodes
        if not isinstance(node, SourceNode | SinkNode)
    }

    def takers(parent: str) -> tuple[WorkNode, ...]:
        found = (work[name] for name in behind(parent))
        return tuple(made.side(parent) if isinstance(made, JoinWork) else made for made in found)

    roots = {node.topic: takers(node.name) for node in part.nodes if isinstance(node, SourceNode)}
    children = {name: takers(name) for name in work}
    timed = tuple(
        node
        for node in work.values()
        if isinstance(node, WindowWork | JoinWork | TimerWork | ParkingWork)
    )
    times = {
        topic: node.time_of
        for node in work.values()
        if isinstance(node, JoinWork)
        for topic in node.ordered
    }
    bounds = {
        name: node.node.concurrency
        for name, node in work.items()
        if isinstance(node, FunctionWork) and node.is_async
    }
    children = {name: nodes for name, nodes in children.items() if nodes}
    return Program(roots, children, timed, times, bounds)


def _make(node: Node, around: Surroundings, *, feeds: bool) -> WorkNode:
    """Make the work node of a node; a further kind of node gets a line here."""
    if isinstance(node, StoringNode):
        return StoringWork(node, around)
    if isinstance(node, TimerNode):
        return TimerWork(node, around, feeds=feeds)
    if isinstance(node, FunctionNode) and node.parking is not None:
        return ParkingWork(node, around, feeds=feeds, parking=node.parking)
    if isinstance(node, FunctionNode):
        return FunctionWork(node, around, feeds=feeds)
    if isinstance(node, BatchStoringNode):
        return BatchStoringWork(node, around)
    if isinstance(node, BatchNode):
        return BatchWork(node, around)
    if isinstance(node, AggregateNode):
        return WindowWork(node, around, feeds=feeds)
    if isinstance(node, TableNode):
        return TableWork(node, around, feeds=feeds)
    if isinstance(node, JoinNode):
        return JoinWork(node, around, feeds=feeds)
    if isinstance(node, TableJoinNode):
        return TableJoinWork(node, around, feeds=feeds)
    if isinstance(node, RekeyNode):
        return RekeyWork(node, around)
    raise NotImplementedError(f"no work for {node.kind} {node.name}")
