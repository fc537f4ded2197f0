"""The nodes of a topology, as immutable values.

A node names the nodes whose results it takes (``parents``) and the topics that it writes. Further
kinds of nodes are subclasses of ``Node``, such as windows, joins, tables and re-keying; the
topology only uses what ``Node`` declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onceflow.processors.aggregates import Fold
from onceflow.processors.batches import Part
from onceflow.processors.clock import Timing
from onceflow.processors.declare.signatures import Argument, Signature
from onceflow.processors.graph.specs import FailurePolicy, StateSpec, StoreKind
from onceflow.processors.policies import Parking
from onceflow.processors.values import Format
from onceflow.processors.windows import Frames
from onceflow.transactions.sinks import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the topology: a topic, or a function between topics.

    Attributes:
        name: Unique in the topology.
        parents: Names of the nodes whose results it takes.
        lookups: Names of the tables that it looks up, and of the function whose timers call it.
        global_lookups: Names of the global tables that it looks up.
        takes: Type of its values, as text for drawings; empty without an annotation.
        gives: Type of its results, likewise.
    """

    name: str
    parents: tuple[str, ...] = ()
    lookups: tuple[str, ...] = ()
    global_lookups: tuple[str, ...] = ()
    takes: str = ""
    gives: str = ""

    @property
    def reads(self) -> str | None:
        """The topic that it reads; None if it is not a source."""
        return None

    @property
    def writes(self) -> tuple[str, ...]:
        """The declared topics that it writes."""
        return ()

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """Its states."""
        return ()

    @property
    def needs_loop(self) -> bool:
        """Whether it needs an event loop."""
        return False

    @property
    def kind(self) -> str:
        """Its name for drawings."""
        return type(self).__name__.removesuffix("Node").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode(Node):
    """A topic that is read.

    Attributes:
        topic: Its name.
    """

    topic: str

    @property
    def reads(self) -> str | None:
        """The topic."""
        return self.topic


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNode(Node):
    """A topic that is written.

    Attributes:
        topic: Its name.
    """

    topic: str

    @property
    def writes(self) -> tuple[str, ...]:
        """The topic."""
        return (self.topic,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingNode(Node):
    """A node with a user's function.

    Attributes:
        format: Format of structured values.
        output_topic: Topic of its results, or None.
        policy: Its failure policy.
        own_states: Its states.
        store: Where committed state is kept.
    """

    format: Format
    output_topic: str | None
    policy: FailurePolicy
    own_states: tuple[StateSpec, ...]
    store: StoreKind

    @property
    def targets(self) -> tuple[str, ...]:
        """The topics of its results."""
        return () if self.output_topic is None else (self.output_topic,)

    @property
    def writes(self) -> tuple[str, ...]:
        """The topics of its results, and dead letters."""
        dead = self.policy.dead_letter_topic
        return self.targets if dead is None else (*self.targets, dead)

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """Its states."""
        return self.own_states


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionNode(WorkingNode):
    """A function that is called for each record, or for each result of another function.

    Attributes:
        signature: The function and its parameters.
        branches: Further output topics by name.
        concurrency: How many of its calls may overlap in a task.
        parking: Limits of parked records; None if a failed record holds up its partition.
    """

    signature: Signature
    branches: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 1
    parking: Parking | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The topics of its results."""
        first = () if self.output_topic is None else (self.output_topic,)
        return (*first, *self.branches.values())

    @property
    def bound_states(self) -> tuple[StateSpec, ...]:
        """The states of its parameters."""
        return self.own_states

    @property
    def needs_loop(self) -> bool:
        """Whether it is an async function."""
        return self.signature.is_async


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerNode(FunctionNode):
    """A function that is called when timers of another one are due.

    Attributes:
        timers: State that holds the timers.
        borrowed: States of that function, which it shares.
    """

    timers: str
    borrowed: tuple[StateSpec, ...]

    @property
    def bound_states(self) -> tuple[StateSpec, ...]:
        """The states of its parameters."""
        return self.borrowed


@dataclass(frozen=True, slots=True, kw_only=True)
class StoringNode(FunctionNode):
    """A function whose results are rows of a sink.

    Attributes:
        sink: Stores the rows and the offsets; each worker opens a copy.
    """

    sink: Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNode(WorkingNode):
    """A function that is called for many records at once.

    Attributes:
        function: The function.
        size: Most records in one call.
        parts: What each parameter gets.
    """

    function: Callable[..., object]
    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStoringNode(BatchNode):
    """A function that is called for many records at once and whose results are rows of a sink.

    Attributes:
        sink: As of ``StoringNode``.
    """

    sink: Sink


STORING: Final = (StoringNode, BatchStoringNode)
"""Nodes whose results are rows of a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateNode(WorkingNode):
    """A fold of records by key and window.

    Attributes:
        fold: How values become accumulators.
        timing: How it takes the time of records.
        frames: The arithmetic of its windows.
        late_topic: Where late records go, or None.
        on_update: Whether each record gives a result, and not the closing of the window.
    """

    fold: Fold
    timing: Timing
    frames: Frames
    late_topic: str | None
    on_update: bool

    @property
    def writes(self) -> tuple[str, ...]:
        """Its output, late records and dead letters."""
        topics = (self.output_topic, self.late_topic, self.policy.dead_letter_topic)
        return tuple(topic for topic in topics if topic is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNode(WorkingNode):
    """The latest value of each key of a topic.

    Attributes:
        value_type: Type of the values.
    """

    value_type: object


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyNode(WorkingNode):
    """Writes records with another key to a repartition topic.

    Attributes:
        key_of: Returns the key for a value.
        value_type: Type of the values.
    """

    key_of: Callable[..., object]
    value_type: object


@dataclass(frozen=True, slots=True)
class JoinKind:
    """Which sides of a join give results without a partner.

    Attributes:
        left: Whether the left side does.
        right: Whether the right side does.
    """

    left: bool
    right: bool

    def holds(self, has_left: bool, has_right: bool) -> bool:
        """Whether there is a result."""
        if has_left and has_right:
            return True
        return (has_left and self.left) or (has_right and self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinNode(WorkingNode):
    """Joins the records of two streams: topics, or results of functions.

    Attributes:
        function: Makes a result of two values.
        arguments: Its parameters.
        kind_of: Which records give a result without a partner.
        sides: Names of the nodes that give the left and the right records.
        topics: Topics of the left and the right records; None for results of a function.
        within_ms: Longest time between partners.
        grace_ms: How long partners may come late.
        timing: How it takes the time of records.
        late_topic: Where late records go, or None.
    """

    function: Callable[..., object]
    arguments: tuple[Argument, ...]
    kind_of: JoinKind
    sides: tuple[str, str]
    topics: tuple[str | None, str | None]
    within_ms: int
    grace_ms: int
    timing: Timing
    late_topic: str | None

    @property
    def writes(self) -> tuple[str, ...]:
        """Its output, late records and dead letters."""
        topics = (self.output_topic, self.late_topic, self.policy.dead_letter_topic)
        return tuple(topic for topic in topics if topic is not None)

    def closes_ms(self, time_ms: int) -> int:
        """Return the stream time at which a record finds no partner any more."""
        return time_ms + self.within_ms + self.grace_ms + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinNode(WorkingNode):
    """Joins the rows of two tables.

    Attributes:
        function: Makes a result of two rows.
        arguments: Its parameters.
        kind_of: Which rows give a result without a partner.
        sides: States of the left and the right table.
    """

    function: Callable[..., object]
    arguments: tuple[Argument, ...]
    kind_of: JoinKind
    sides: tuple[str, str]


def source_name(topic: str) -> str:
    """Return the name of an input topic's node."""
    return f"topic {topic}"


def sink_name(topic: str) -> str:
    """Return the name of an output topic's node."""
    return f"to {topic}"
