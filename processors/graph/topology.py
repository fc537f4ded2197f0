"""An application's processors as an immutable graph, divided into sub-topologies at the topics.

Nodes that are connected without a topic in between form a sub-topology: they process the same
partition numbers of the same inputs, so one task holds them. This module makes the checks that need
no broker; ``provisioning`` checks partition counts and policies of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from onceflow.processors.errors import DeclarationError
from onceflow.processors.graph import render
from onceflow.processors.graph.nodes import (
    STORING,
    BatchNode,
    FunctionNode,
    Node,
    RekeyNode,
    SinkNode,
    SourceNode,
    TableNode,
    WorkingNode,
    sink_name,
)
from onceflow.processors.graph.specs import StateKind, StateSpec, StoreKind
from onceflow.processors.hooks import Hook
from onceflow.processors.tables import AnyGlobalTable
from onceflow.transactions.sinks import Sink

N = TypeVar("N", bound=Node)


@dataclass(frozen=True, slots=True)
class Edge:
    """The values that flow from one node to another.

    Attributes:
        source: Name of the node that gives them.
        target: Name of the node that takes them.
        value: Their type, as text; empty without an annotation.
    """

    source: str
    target: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class SubTopology:
    """The nodes of one task.

    Attributes:
        name: Its first input topic in order of names; further functions do not change it.
        nodes: The nodes, parents before children.
    """

    name: str
    nodes: tuple[Node, ...]

    @property
    def input_topics(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return tuple(node.topic for node in self.nodes if isinstance(node, SourceNode))

    @property
    def functions(self) -> tuple[FunctionNode, ...]:
        """Its functions."""
        return tuple(node for node in self.nodes if isinstance(node, FunctionNode))

    @property
    def working(self) -> tuple[WorkingNode, ...]:
        """Its functions, including aggregates."""
        return tuple(node for node in self.nodes if isinstance(node, WorkingNode))

    @property
    def table_topics(self) -> tuple[str, ...]:
        """The topics that its tables read."""
        return tuple(
            source.topic
            for source in self.nodes
            if isinstance(source, SourceNode)
            and any(isinstance(node, TableNode) for node in self.children(source.name))
        )

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The states of its nodes."""
        return tuple(state for node in self.nodes for state in node.states)

    @property
    def store(self) -> StoreKind:
        """Where its committed state is kept."""
        kinds = {node.store for node in self.working if node.states}
        return StoreKind.LMDB if StoreKind.LMDB in kinds else StoreKind.MEMORY

    def children(self, parent: str) -> list[Node]:
        """Return the nodes that take the results of a node, in order of declaration.

        Args:
            parent: Name of that node.
        """
        return [node for node in self.nodes if parent in node.parents]


@dataclass(frozen=True, slots=True)
class Topology:
    """All processors of an application; ``print`` it to read it.

    Attributes:
        app: Name of the application.
        group: Its consumer group.
        nodes: All nodes, parents before children.
        hooks: Startup and shutdown functions.
        global_tables: Its global tables.
        sub_topologies: The nodes, divided by task.
    """

    app: str
    group: str
    nodes: tuple[Node, ...]
    hooks: tuple[Hook, ...] = ()
    global_tables: tuple[AnyGlobalTable, ...] = ()
    sub_topologies: tuple[SubTopology, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sub_topologies", tuple(_cut(self.nodes)))

    @property
    def functions(self) -> tuple[FunctionNode, ...]:
        """The functions, in order of declaration."""
        return tuple(node for node in self.nodes if isinstance(node, FunctionNode))

    @property
    def working(self) -> tuple[WorkingNode, ...]:
        """The functions, including aggregates, in order of declaration."""
        return tuple(node for node in self.nodes if isinstance(node, WorkingNode))

    @property
    def input_topics(self) -> list[str]:
        """Topics that are read, in order of declaration."""
        return [node.topic for node in self.nodes if isinstance(node, SourceNode)]

    @property
    def table_topics(self) -> list[str]:
        """Topics that tables read."""
        return [topic for part in self.sub_topologies for topic in part.table_topics]

    @property
    def repartition_topics(self) -> list[str]:
        """Topics of ``key=``, which hold records until they are processed."""
        found = [node.output_topic for node in self.nodes if isinstance(node, RekeyNode)]
        return [topic for topic in found if topic is not None]

    @property
    def output_topics(self) -> list[str]:
        """Declared output topics, including those of dead letters, each once."""
        return list(dict.fromkeys(topic for node in self.nodes for topic in node.writes))

    @property
    def dead_letter_topics(self) -> list[str]:
        """Topics of dead letters, each once."""
        found = [node.policy.dead_letter_topic for node in self.working]
        return list(dict.fromkeys(topic for topic in found if topic is not None))

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """All states."""
        return tuple(state for node in self.nodes for state in node.states)

    @property
    def sink(self) -> Sink | None:
        """The sink that stores rows and offsets, in place of Kafka transactions; or None."""
        return next((node.sink for node in self.nodes if isinstance(node, STORING)), None)

    @property
    def is_async(self) -> bool:
        """Whether any function needs an event loop."""
        return any(node.needs_loop for node in self.nodes) or any(
            hook.is_async for hook in self.hooks
        )

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, including those of topics."""
        by_name = {node.name: node for node in self.nodes}
        return tuple(
            Edge(parent, node.name, by_name[parent].gives or node.takes)
            for node in self.nodes
            for parent in (*node.parents, *node.lookups)
        )

    def describe(self) -> str:
        """Return the topology as text, one node after the other."""
        return render.as_text(self)

    def to_json(self) -> str:
        """Return the topology as JSON: nodes, edges and sub-topologies."""
        return render.as_json(self)

    def to_mermaid(self) -> str:
        """Return the topology as a Mermaid flow chart."""
        return render.as_mermaid(self)

    def __str__(self) -> str:
        return self.describe()


def _cut(nodes: Sequence[Node]) -> Iterable[SubTopology]:
    """Yield the sub-topologies: nodes that are connected without a topic in between."""
    group: dict[str, str] = {node.name: node.name for node in nodes}

    def find(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for node in nodes:
        for parent in (*node.parents, *node.lookups):
            group[find(node.name)] = find(parent)
    members: dict[str, list[Node]] = {}
    for node in nodes:
        members.setdefault(find(node.name), []).append(node)
    for found in members.values():
        topics = sorted(node.topic for node in found if isinstance(node, SourceNode))
        yield SubTopology(topics[0], tuple(found))


def build(
    app: str,
    group: str,
    nodes: Sequence[Node],
    hooks: Sequence[Hook] = (),
    global_tables: Sequence[AnyGlobalTable] = (),
) -> Topology:
    """Make a topology of nodes, and check that they fit together.

    Args:
        app: Name of the application.
        group: Its consumer group.
        nodes: Sources and functions, parents before children; sinks are added here.
        hooks: Startup and shutdown functions.
        global_tables: Tables that every worker holds all of.

    Raises:
        DeclarationError: Two nodes have the same name, a parent is unknown, or nodes do not fit.
    """
    seen: dict[str, Node] = {}
    for node in nodes:
        if node.name in seen:
            raise DeclarationError(
                f"two processors of {app} have the name {node.name!r}; give one of them name="
            )
        for parent in (*node.parents, *node.lookups):
            if parent not in seen:
                raise DeclarationError(f"{node.name} takes from {parent!r}, which is not declared")
        seen[node.name] = node
    sinks = _sinks(nodes)
    topology = Topology(app, group, (*nodes, *sinks), tuple(hooks), tuple(global_tables))
    _check_rings(topology)
    _check_batches(topology)
    _check_overlap(topology)
    _check_sink(topology)
    return topology


def _check_sink(topology: Topology) -> None:
    """Refuse what cannot be in the transaction of a sink.

    A sink commits rows and offsets in a transaction of its own, so topics and states, which are
    committed by Kafka's, would be stored without them or twice.
    """
    sink = topology.sink
    if sink is None:
        return
    for node in topology.working:
        if isinstance(node, STORING) and node.sink is not sink:
            what = "has another sink: one transaction holds all that an application commits"
        elif not isinstance(node, FunctionNode | BatchNode) or node.states:
            what = "keeps state, whose changes are committed by Kafka"
        elif node.targets:
            what = f"writes the topic {node.targets[0]}, which is committed by Kafka"
        elif isinstance(node, RekeyNode):
            what = "writes a repartition topic, which is committed by Kafka"
        else:
            continue
        raise DeclarationError(
            f"{node.name} {what}, and {topology.app} commits rows and offsets in a sink; declare "
            "it in an application of its own"
        )


def _check_overlap(topology: Topology) -> None:
    """Refuse overlapping calls in tasks whose nodes need the records of all keys in order."""
    for part in topology.sub_topologies:
        overlapping = [node.name for node in part.functions if node.concurrency > 1]
        ordered = [
            node.name
            for node in part.working
            if any(state.declaration.kind is StateKind.TIMED for state in node.states)
        ]
        if overlapping and ordered:
            raise DeclarationError(
                f"{', '.join(overlapping)}: concurrency= cannot be used with "
                f"{', '.join(ordered)} on the same records: windows, joins and timers need "
                "the records of all keys in order; let one write to a topic (to=) and the "
                "other read it"
            )


def _check_batches(topology: Topology) -> None:
    """Refuse a batch function with other functions in its task, which would get single records."""
    for part in topology.sub_topologies:
        for node in part.nodes:
            if isinstance(node, BatchNode):
                others = [
                    other.name
                    for other in part.working
                    if other is not node and not isinstance(other, TableNode)
                ]
                streams = [t for t in part.input_topics if t not in part.table_topics]
                if others or len(streams) != 1:
                    what = ", ".join(others or part.input_topics)
                    raise DeclarationError(
                        f"{node.name}: batch= needs one topic for itself, without other functions "
                        f"on it or on its tables: {what}; let it write to a topic and read that, "
                        "or leave out batch="
                    )


def _sinks(nodes: Sequence[Node]) -> list[SinkNode]:
    """Return a node for each output topic; dead letters need none."""
    parents: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, WorkingNode):
            for topic in node.targets:
                parents.setdefault(topic, []).append(node.name)
    # Each function that writes a topic gets its own sink node. With a shared one, two
    # sub-topologies that only have an output in common would become one.
    return [
        SinkNode(
            name=sink_name(topic) if len(names) == 1 else f"{sink_name(topic)} of {name}",
            topic=topic,
            parents=(name,),
        )
        for topic, names in parents.items()
        for name in names
    ]


def _check_rings(topology: Topology) -> None:
    """Refuse a topology whose declared outputs lead back to an input."""
    after: dict[str, set[str]] = {}
    for part in topology.sub_topologies:
        targets = {topic for node in part.working for topic in node.targets}
        for topic in part.input_topics:
            after.setdefault(topic, set()).update(targets)
    for start in after:
        seen, ahead = set(), list(after[start])
        while ahead:
            topic = ahead.pop()
            if topic == start:
                raise DeclarationError(
                    f"{topology.app}: to= leads from input topic {start!r} back to it, so its "
                    "records would be processed for ever; if your functions stop by themselves, "
                    f"leave out to= and return Output(value, topic={start!r})"
                )
            if topic not in seen:
                seen.add(topic)
                ahead.extend(after.get(topic, ()))
