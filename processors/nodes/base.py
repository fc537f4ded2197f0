"""What a task asks of a node at work, and what a node is given.

A node at work belongs to a worker and serves all tasks of its sub-topology; what differs by task is
in the frame and in the task's stores. Windows, joins, batches, tables and re-keying are further
implementations: ``call`` for what takes one item, ``run_slice`` where whole runs can be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from onceflow.processors.frame import Due, Frame
from onceflow.processors.global_rows import GlobalRows
from onceflow.processors.hooks import Resources
from onceflow.processors.lanes import Lanes
from onceflow.processors.nodes.failures import Failures
from onceflow.processors.policies import DeadLetterMeter
from onceflow.processors.state.store import Store
from onceflow.processors.unit import Unit
from onceflow.sdk.model.consumer_record import ConsumerRecord

Stores = Mapping[str, Store]
"""The open stores of a task by ``function.state``."""


class WorkNode(Protocol):
    """A node at work."""

    @property
    def name(self) -> str:
        """Its name in the topology."""

    @property
    def is_async(self) -> bool:
        """Whether ``call_async`` has to be awaited in place of ``call``."""

    @property
    def failures(self) -> Failures:
        """What is done about an item that it fails on."""

    @property
    def takes_slices(self) -> bool:
        """Whether ``run_slice`` may be used where it is the only node of its topic."""

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process the frame's item: fill the frame, or raise. The caller keeps or drops it."""

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """As ``call``, for a node that awaits."""

    def run_slice(
        self,
        records: Sequence[ConsumerRecord],
        start: int,
        stop: int,
        stores: Stores,
        unit: Unit,
    ) -> tuple[int, Exception | None]:
        """Process records from ``start`` on, straight into the unit, until ``stop`` or until the
        unit is due.

        Returns:
            Index behind the last record that succeeded, and what the next one raised.
        """


class TimedNode(WorkNode, Protocol):
    """A node with rows that fall due: windows, join buffers, timers."""

    def waits_ms(self, stores: Stores) -> int | None:
        """Milliseconds until a row is due: 0 for now, None for none in sight."""

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """The row that is due; ``call`` gets it as its item."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the nodes of a worker work with.

    Attributes:
        lanes: Take the outputs of the unit.
        clock: Monotonic seconds.
        wall_ms: Wall clock in milliseconds.
        record_bytes_max: Largest key and value of an output together.
        max_future_ms: How far an event time may be ahead of the wall clock; None for any.
        resources: What startup functions gave.
        global_rows: The rows of global tables.
    """

    lanes: Lanes
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    record_bytes_max: int = 1_000_000
    max_future_ms: int | None = None
    resources: Resources = field(default_factory=Resources)
    global_rows: GlobalRows = field(default_factory=GlobalRows)


@dataclass(frozen=True, slots=True)
class Program:
    """The nodes of a sub-topology at work, for all of its tasks.

    Attributes:
        roots: By input topic: the nodes that take its records, in order of declaration.
        children: By name of a node: the nodes that take its results.
        timed: Those with rows that fall due.
        times: By topic: event time of its records, where that is not their timestamp.
        bounds: By name of each node that awaits: how many of its calls may overlap in a task.
    """

    roots: Mapping[str, tuple[WorkNode, ...]]
    children: Mapping[str, tuple[WorkNode, ...]] = field(default_factory=dict)
    timed: tuple[TimedNode, ...] = ()
    times: Mapping[str, Callable[[ConsumerRecord], int]] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)

    @property
    def meters(self) -> list[DeadLetterMeter]:
        """What counts the dead letters of each node."""
        nodes = chain.from_iterable((*self.roots.values(), *self.children.values()))
        policies = {id(node.failures): node.failures for node in (*nodes, *self.timed)}
        return [failures.meter for failures in policies.values() if failures.counts]

    @property
    def calls_max(self) -> int:
        """How many records of a task may be worked on at once."""
        return max(self.bounds.values(), default=1)

    @property
    def nodes(self) -> Iterator[WorkNode]:
        """Its nodes; one that takes records of several topics may come several times."""
        for taking in (*self.roots.values(), *self.children.values(), self.timed):
            yield from taking

    def slices(self, topic: str) -> WorkNode | None:
        """The node that takes whole slices of a topic, if it is alone there and can."""
        roots = self.roots[topic]
        return roots[0] if len(roots) == 1 and roots[0].takes_slices else None
