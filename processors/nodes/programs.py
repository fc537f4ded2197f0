"""Makes the nodes of a topology ready to work, one program for each sub-topology."""

from __future__ import annotations

from collections.abc import Callable

from onceflow.processors.graph.nodes import FunctionNode, Node, SinkNode, SourceNode
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.nodes.base import Program, WorkNode
from onceflow.processors.nodes.function import RECORD_BYTES_MAX, FunctionWork
from onceflow.processors.unit import Unit


def make_programs(
    topology: Topology,
    unit: Unit,
    clock: Callable[[], float],
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> dict[str, Program]:
    """The programs of a worker.

    Args:
        topology: The application.
        unit: Takes the outputs.
        clock: Monotonic seconds, for the pace of warnings.
        record_bytes_max: Largest key and value of an output together.

    Returns:
        Programs by name of the sub-topology.
    """
    return {
        part.name: _program(part, unit, clock, record_bytes_max) for part in topology.sub_topologies
    }


def _program(
    part: SubTopology, unit: Unit, clock: Callable[[], float], record_bytes_max: int
) -> Program:
    def behind(name: str) -> list[str]:
        return [node.name for node in part.children(name) if not isinstance(node, SinkNode)]

    def make(node: Node) -> WorkNode:
        """Further kinds of nodes are made here."""
        if isinstance(node, FunctionNode):
            return FunctionWork(
                node,
                unit.lanes,
                feeds=bool(behind(node.name)),
                record_bytes_max=record_bytes_max,
                clock=clock,
            )
        raise NotImplementedError(f"no work for {node.kind} {node.name}")

    work = {
        node.name: make(node) for node in part.nodes if not isinstance(node, SourceNode | SinkNode)
    }
    roots = {
        node.topic: tuple(work[name] for name in behind(node.name))
        for node in part.nodes
        if isinstance(node, SourceNode)
    }
    children = {name: tuple(work[child] for child in behind(name)) for name in work}
    return Program(roots, {name: nodes for name, nodes in children.items() if nodes})
