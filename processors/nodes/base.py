"""``WorkNode``, the interface of nodes that process records, and what they are made with.

A work node belongs to a worker and serves all tasks of its sub-topology; the frame and the task's
stores hold what differs between tasks. ``call`` processes one item; ``run_slice`` processes a run
of records, if the node supports that. Functions, windows, joins, batches, tables and re-keying
implement it.
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
    """A node that processes records."""

    @property
    def name(self) -> str:
        """Its name in the topology."""

    @property
    def is_async(self) -> bool:
        """Whether to await ``call_async`` in place of ``call``."""

    @property
    def failures(self) -> Failures:
        """Its failure policy at run time."""

    @property
    def takes_slices(self) -> bool:
        """Whether ``run_slice`` may be used where it is the only node of its topic."""

    def call(self, frame: Frame, stores: Stores) -> None:
        """Process the frame's item and fill the frame; the caller keeps or drops it."""

    async def call_async(self, frame: Frame, stores: Stores) -> None:
        """Do as ``call``, for a node that awaits."""

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
            Index after the last successful record, and the error of the next one, or None.
        """


class TimedNode(WorkNode, Protocol):
    """A node with rows that fall due: windows, join buffers, timers."""

    def waits_ms(self, stores: Stores) -> int | None:
        """Return the milliseconds until a row is due: 0 for now, None if none will be."""

    def next_due(self, stores: Stores, partition: int) -> Due | None:
        """Return a due row, which ``call`` gets as its item; None if no row is due."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects of a worker that its nodes use.

    Attributes:
        lanes: Collect the outputs of the unit.
        clock: Monotonic seconds.
        wall_ms: Wall clock in milliseconds.
        record_bytes_max: Largest key and value of an output together.
        max_future_ms: How far an event time may be ahead of the wall clock; None for no limit.
        resources: The results of startup functions.
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
    """The work nodes of a sub-topology, for all of its tasks.

    Attributes:
        roots: By input topic: the nodes that take its records, in order of declaration.
        children: By name of a node: the nodes that take its results.
        timed: The nodes with rows that fall due.
        times: By topic: returns the event time of a record, if it is not the timestamp.
        bounds: By name of an async node: how many of its calls may overlap in a task.
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
        """How many records of a task may be processed at once."""
        return max(self.bounds.values(), default=1)

    @property
    def nodes(self) -> Iterator[WorkNode]:
        """Its nodes; one that takes records of several topics may come several times."""
        for taking in (*self.roots.values(), *self.children.values(), self.timed):
            yield from taking

    def slices(self, topic: str) -> WorkNode | None:
        """Return the only node of a topic, if it takes slices; else None."""
        roots = self.roots[topic]
        return roots[0] if len(roots) == 1 and roots[0].takes_slices else None
